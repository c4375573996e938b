#!/bin/sh
# A database server with one database and one user, named by MARIADB_DATABASE, MARIADB_USER and MARIADB_PASSWORD.
set -eu

data=/var/lib/mysql run=/run/mysqld
[ -d "$data/mysql" ] ||
    mariadb-install-db --datadir="$data" --auth-root-authentication-method=normal --skip-test-db >"$run/install.log" ||
    { cat "$run/install.log" >&2; exit 1; }

# In an SQL string a quotation mark is written twice, and a backslash too.
quote() { printf %s "$1" | sed "s/\\\\/\\\\\\\\/g; s/'/''/g"; }
user="'$(quote "${MARIADB_USER:-slurm}")'@'%'"
{
    echo "CREATE DATABASE IF NOT EXISTS \`${MARIADB_DATABASE:-slurm_acct_db}\`;"
    echo "CREATE OR REPLACE USER $user IDENTIFIED BY '$(quote "${MARIADB_PASSWORD:?is not set}")';"
    echo "GRANT ALL ON \`${MARIADB_DATABASE:-slurm_acct_db}\`.* TO $user;"
} >"$run/init.sql"

# Slurm asks for the last two: its roll-ups hold locks for long, and a write conflict under snapshot isolation ends it.
exec mariadbd --datadir="$data" --socket="$run/mysqld.sock" --pid-file="$run/mysqld.pid" --tmpdir="$run" \
    --init-file="$run/init.sql" --innodb-buffer-pool-size=128M \
    --innodb-lock-wait-timeout=900 --innodb-snapshot-isolation=OFF "$@"
