//! The first process of the Slurm images.
// Being written right now by the author of the testbed: the image builder's author need not write it, only package the
// static binary (see crates/xtask/src/workspace.rs for how it is built).
fn main() {}
