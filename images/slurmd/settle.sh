#!/bin/sh
set -eu
install -d var/spool/slurmd run/sshd
# sshd runs only where a configuration is mounted.
rm -f etc/ssh/sshd_config
# Users may also come from files that are mounted at /var/lib/extrausers.
sed -i -E 's/^(passwd|group|shadow):(.*)$/\1:\2 extrausers/' etc/nsswitch.conf
# Only users with a job on this node may log in, into the job. Before common-account, which lets local users pass.
sed -i 's/^@include common-account/account required pam_slurm_adopt.so action_adopt_failure=deny action_generic_failure=deny\n&/' etc/pam.d/sshd
