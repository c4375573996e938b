#!/bin/sh
set -eu
install -d run/sshd
# sshd runs only where a configuration is mounted.
rm -f etc/ssh/sshd_config
# Users may also come from files that are mounted at /var/lib/extrausers.
sed -i -E 's/^(passwd|group|shadow):(.*)$/\1:\2 extrausers/' etc/nsswitch.conf
# SSSD's tools are written in Python; compiled copies of its library are a third of it.
find usr/lib/python3 usr/lib/python3.* -name __pycache__ -prune -exec rm -rf {} +
install -d -m 0700 var/log/sssd
