#!/bin/sh
set -eu
install -d var/spool/slurmd
# Only users with a job on this node may log in, into the job. Before common-account, which lets local users pass.
sed -i 's/^@include common-account/account required pam_slurm_adopt.so action_adopt_failure=deny action_generic_failure=deny\n&/' etc/pam.d/sshd
