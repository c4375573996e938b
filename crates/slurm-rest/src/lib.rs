//! A typed, version-neutral client for Slurm's REST API.
