#!/bin/sh
set -eu
# Users and groups may also come from files that are mounted at /var/lib/extrausers. The image's own come first, so nothing
# there takes the place of `slurm` or root.
sed -i -E 's/^(passwd|group|shadow):(.*)$/\1:\2 extrausers/' etc/nsswitch.conf
