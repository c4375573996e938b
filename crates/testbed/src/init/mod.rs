//! The processes in the namespaces of a cluster: `testbed-init <cluster directory> <role>`.

mod control_plane;
mod forward;
mod node;
mod provisioner;
mod supervisor;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::command;
use crate::layout::{Layout, Node};
use crate::namespaces::CONTROL_PLANE;

/// The role of the process that creates volumes for claims.
const PROVISIONER: &str = "volume-provisioner";

/// Runs a role until it is killed.
pub fn run(directory: &Path, role: &str) -> Result<()> {
    let layout = Layout::at(directory)?;
    let spec = layout
        .spec()?
        .context("the directory does not contain a cluster")?;
    match role {
        CONTROL_PLANE => control_plane::run(&layout, &spec),
        PROVISIONER => provisioner::run(&layout),
        node => node::run(
            &layout,
            &spec,
            Node::from_name(node).with_context(|| format!("unknown role {node:?}"))?,
        ),
    }
}

/// Runs `ip` with the given arguments.
fn ip(words: &str) -> Result<()> {
    command::output(Command::new("ip").args(words.split_whitespace())).map(drop)
}

/// Sets a value under `/proc/sys`.
fn sysctl(name: &str, value: &str) -> Result<()> {
    let path = format!("/proc/sys/{}", name.replace('.', "/"));
    std::fs::write(&path, value).with_context(|| format!("failed to set {name}"))
}
