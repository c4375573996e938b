#!/bin/sh
set -eu
echo 'mysql:x:999:999::/var/lib/mysql:/usr/sbin/nologin' >>etc/passwd
echo 'mysql:x:999:' >>etc/group
install -d -o 999 -g 999 var/lib/mysql run/mysqld
