//! Slurm's configuration files and host lists: writers, parsers, and what a change needs.
