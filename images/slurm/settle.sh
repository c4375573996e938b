#!/bin/sh
# Where Slurm's daemons write when nothing is mounted there.
set -eu
install -d -o 401 -g 401 var/log/slurm var/spool/slurmctld run/slurm run/slurmctld
