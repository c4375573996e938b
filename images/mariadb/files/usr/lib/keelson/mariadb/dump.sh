# Writes a dump of the database at MARIADB_HOST to /dumps, and keeps the newest MARIADB_DUMP_KEEP of that database.

directory=/dumps
host=${MARIADB_HOST:?is not set}
keep=${MARIADB_DUMP_KEEP:-7}
log=/tmp/dump.log

# Of dumps that were killed. One that is being written has been changed a moment ago.
find "$directory" -maxdepth 1 -name ".$host-*.partial" -mmin +1440 -delete
partial=$(mktemp --tmpdir="$directory" --suffix=.partial ".$host-XXXXXXXXXX") ||
    fail "cannot write to the volume of dump.claim: it is full or not writable"
trap 'rm -f "$partial"' EXIT

# In a file: with a password from the environment, the client does not check that it talks to the server that knows it.
password=${password//\\/\\\\}
options=/tmp/client.cnf
(
    umask 077
    printf '[client]\npassword="%s"\n' "${password//\"/\\\"}" >"$options"
)

# One transaction sees all tables as they were at its start, and locks none of them. Two programs append to the log.
: >"$log"
mariadb-dump --defaults-extra-file="$options" --host="$host" --port="${MARIADB_PORT:-3306}" --user="$user" \
    --single-transaction --routines --triggers --hex-blob --no-tablespaces --max-allowed-packet=1G "$database" 2>>"$log" |
    gzip 2>>"$log" >"$partial" || fail "the database was not dumped: $(errors "$log")"
is_complete "$partial" || fail "the dump was written, but is not complete when it is read again"

dump=$directory/$host-$(date --utc +%Y%m%dT%H%M%SZ).sql.gz
chmod 640 "$partial"
sync "$partial"
mv "$partial" "$dump"
sync "$directory"
echo "wrote ${dump##*/}, $(stat --format=%s "$dump") bytes"

kept=1
dumps=("$directory/$host"-$stamp.sql.gz)
for ((i = ${#dumps[@]} - 1; i >= 0; i--)); do
    # Wherever the clock has gone since, the dump that was just written stays.
    [ "${dumps[i]}" != "$dump" ] || continue
    if [ "$kept" -lt "$keep" ]; then
        kept=$((kept + 1))
    else
        rm "${dumps[i]}"
        echo "removed ${dumps[i]##*/}"
    fi
done
