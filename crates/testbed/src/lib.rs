//! A real Kubernetes and a real Slurm on one machine.
