//! The `slinky.slurm.net/v1beta1` API: types, CRDs, defaults, rules and well-known names.
