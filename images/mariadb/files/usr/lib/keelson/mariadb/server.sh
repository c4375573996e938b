# Runs the server. At the first start, creates the database, or loads it from a dump in MARIADB_RESTORE_DIR:
# MARIADB_RESTORE_FILE, or else the newest one.

volume=/var/lib/mysql run=/run/mysqld
# Exists only once it is complete. A volume of the image's first version has its data at the top.
data=$volume/data
[ ! -d "$volume/mysql" ] || data=$volume

# The dump to load.
dump_to_load() {
    if [ -n "${MARIADB_RESTORE_FILE:-}" ]; then
        echo "$MARIADB_RESTORE_DIR/$MARIADB_RESTORE_FILE"
        return
    fi
    local dump hosts=() dumps=("$MARIADB_RESTORE_DIR"/*-$stamp.sql.gz)
    [ ${#dumps[@]} -gt 0 ] || fail "there is no dump in the volume of restoreFrom.claim: set restoreFrom.file if it has \
another name than those of scheduled dumps, or remove restoreFrom to start with an empty database"
    for dump in "${dumps[@]}"; do
        dump=${dump##*/}
        hosts+=("${dump%-*}")
    done
    readarray -t hosts < <(printf '%s\n' "${hosts[@]}" | sort --unique)
    [ ${#hosts[@]} -eq 1 ] ||
        fail "the volume of restoreFrom.claim has dumps of several databases (${hosts[*]}): set restoreFrom.file"
    echo "${dumps[-1]}"
}

# Loads a dump into the data directory $1. Only this script can connect to the server while it does.
restore() {
    local dump server socket=$run/restore.sock log=$run/restore.log
    dump=$(dump_to_load)
    local inside=${dump#"$MARIADB_RESTORE_DIR/"}
    local remedy="set restoreFrom.file to another dump, or remove restoreFrom to start with an empty database"
    [ -f "$dump" ] || fail "there is no file $inside in the volume of restoreFrom.claim: correct restoreFrom.file"
    [ -r "$dump" ] || fail "$inside in the volume of restoreFrom.claim is not readable by user $(id --user): change its mode"
    echo "checking $inside"
    is_complete "$dump" || fail "$inside in the volume of restoreFrom.claim is not a complete dump, because its last line \
is not '-- Dump completed': $remedy"

    echo "loading $inside"
    # What is written is not durable before the server has shut down: a crash starts again from nothing.
    mariadbd --datadir="$1" --socket="$socket" --pid-file="$run/restore.pid" --tmpdir=/tmp --skip-networking \
        --skip-grant-tables --max-allowed-packet=1G --innodb-buffer-pool-size="$(buffer_pool_size)" \
        --innodb-flush-log-at-trx-commit=0 --innodb-doublewrite=OFF &
    server=$!
    # shellcheck disable=SC2064 # This server.
    trap "kill -KILL $server 2>/dev/null || :" EXIT
    until mariadb-admin --socket="$socket" ping >/dev/null 2>&1; do
        kill -0 $server 2>/dev/null || fail "the server that loads the dump did not start: see the log of the pod"
        sleep 0.1
    done
    sql() { mariadb --socket="$socket" --batch --skip-column-names --max-allowed-packet=1G "$@" 2>"$log"; }
    sql --execute="CREATE DATABASE $(name "$database")" &&
        read_dump "$dump" | sql "$database" || fail "$inside could not be loaded: $(errors "$log"): $remedy"
    local tables
    tables=$(sql --execute="SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = $(text "$database")")
    [ "$tables" -gt 0 ] || fail "$inside has no tables of the database $database: dump that database alone, without \
--databases, then $remedy"
    mariadb-admin --socket="$socket" shutdown
    wait $server || fail "the server that loaded the dump did not shut down cleanly: see the log of the pod"
    trap - EXIT
    echo "loaded $inside; tables: $tables"
}

create() {
    local new
    # Of starts that were interrupted.
    rm -rf "$volume"/new.*
    new=$(mktemp --directory "$volume/new.XXXXXX") || fail "the volume of the database is full or not writable"
    mariadb-install-db --datadir="$new" --tmpdir=/tmp --skip-test-db --skip-name-resolve \
        --auth-root-authentication-method=socket --auth-root-socket-user=mysql >"$run/install.log" 2>&1 || {
        cat "$run/install.log" >&2
        fail "mariadb-install-db could not create the database: $(errors "$run/install.log")"
    }
    [ -z "${MARIADB_RESTORE_DIR:-}" ] || restore "$new"
    sync --file-system "$new"
    mv --no-target-directory "$new" "$data"
    sync --file-system "$volume"
}

# Half of the container's memory limit. Without a limit, the least of which slurmdbd does not warn; it is used only as the
# records grow.
buffer_pool_size() {
    local file limit
    if [ -n "${MARIADB_BUFFER_POOL_SIZE:-}" ]; then
        echo "$MARIADB_BUFFER_POOL_SIZE"
        return
    fi
    for file in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do
        limit=$(cat "$file" 2>/dev/null) || continue
        # Where there is no limit, the file says `max` or a number near 2^63.
        if [[ $limit =~ ^[0-9]{1,15}$ ]]; then
            echo "$((limit / 2097152))M"
            return
        fi
    done
    echo 512M
}

if [ ! -d "$data" ]; then
    create
elif [ -n "${MARIADB_RESTORE_DIR:-}" ]; then
    echo "the database exists already, so no dump is loaded"
fi

# At every start, for a new password. Grants of the user's own stay.
account="$(text "$user")@'%'"
(
    umask 077
    cat >"$run/init.sql" <<SQL
CREATE DATABASE IF NOT EXISTS $(name "$database");
CREATE USER IF NOT EXISTS $account;
ALTER USER $account IDENTIFIED BY $(text "$password");
GRANT ALL ON $(name "$database").* TO $account;
SQL
)

# Slurm asks for the last three: its roll-ups hold locks for long, it sends whole scripts, and a write conflict under snapshot
# isolation ends slurmdbd.
exec mariadbd --datadir="$data" --socket="$run/mysqld.sock" --pid-file="$run/mysqld.pid" --tmpdir=/tmp \
    --init-file="$run/init.sql" --skip-name-resolve --innodb-buffer-pool-size="$(buffer_pool_size)" \
    --innodb-lock-wait-timeout=900 --max-allowed-packet=16M --innodb-snapshot-isolation=OFF "$@"
