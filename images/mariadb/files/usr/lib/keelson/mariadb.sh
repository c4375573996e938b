#!/bin/bash
# The accounting database: a MariaDB with one database and one user.
#
#   mariadb.sh [ARGS…]   runs the server, with these arguments of mariadbd besides ours
#   mariadb.sh dump      writes a dump of the database to /dumps, and removes the oldest ones
#
# The last line of a failure says what is wrong and what to do: the status of the SlurmCluster quotes it.
set -euo pipefail
shopt -s nullglob
# The order of file names is that of their bytes.
export LC_ALL=C

database=${MARIADB_DATABASE:-slurm_acct_db}
user=${MARIADB_USER:-slurm}
# In the names of dumps: UTC, so that their order is that of time.
stamp='[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]T[0-9][0-9][0-9][0-9][0-9][0-9]Z'

fail() {
    echo "error: $1" >&2
    exit 1
}

# The error that a program of MariaDB logged to a file, or else what it logged first, as one line.
errors() { grep --max-count=1 'ERROR' "$1" || head --lines=3 "$1" | paste --serial --delimiters=' '; }

# A name and a text in SQL.
name() { printf '`%s`' "${1//\`/\`\`}"; }
text() {
    local text=${1//\\/\\\\}
    printf "'%s'" "${text//\'/\'\'}"
}

# The SQL of a dump, compressed or not. Its last line says that it is complete.
read_dump() {
    local magic
    magic=$(head --bytes=2 "$1" | od --address-radix=n --format=x1)
    if [ "$magic" = ' 1f 8b' ]; then gzip --decompress --stdout <"$1"; else cat "$1"; fi
}
is_complete() { read_dump "$1" 2>/dev/null | tail --lines=1 | grep --quiet '^-- Dump completed'; }

# As in slurmdbd.conf, without the line break that the tool that created the Secret may have appended.
password=${MARIADB_PASSWORD:-}
while [[ $password == *[$'\r\n'] ]]; do password=${password%?}; done
[ -n "$password" ] || fail "the password of the database is empty: set it in its Secret"
[[ $password != *[$'\r\n']* ]] || fail "the password of the database contains a line break: set another one in its Secret"

case ${1-} in
    dump) . /usr/lib/keelson/mariadb/dump.sh ;;
    *) . /usr/lib/keelson/mariadb/server.sh ;;
esac
