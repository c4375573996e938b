#!/bin/sh
# Takes back what the prolog wrote: the job has ended.
dir='@JOB_MAPPING_DIR@'
[ -n "${SLURM_JOB_GPUS:-}" ] || exit 0
IFS=,
for gpu in $SLURM_JOB_GPUS; do
  rm -f "$dir/$gpu"
done
exit 0
