#!/bin/sh
set -eu
echo 'mysql:x:999:999::/var/lib/mysql:/usr/sbin/nologin' >>etc/passwd
echo 'mysql:x:999:' >>etc/group
install -d -o 999 -g 999 var/lib/mysql run/mysqld
# Of mariadb-client's tools, each of which is linked statically, only mariadb-admin and mariadb-dump are used.
for tool in binlog conv import plugin show slap tzinfo-to-sql waitpid; do rm "usr/bin/mariadb-$tool"; done
rm usr/bin/perror usr/bin/replace usr/bin/resolve_stack_dump
