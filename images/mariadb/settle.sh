#!/bin/sh
set -eu
install -d -o 401 -g 401 var/lib/mysql run/mysqld
