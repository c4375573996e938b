//! The control groups under which a cluster's pods live: `/keelson/<cluster>/<node>` in every hierarchy.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::host::Cgroups;
use crate::layout::Layout;

const ROOT: &str = "/sys/fs/cgroup";
const PARENT: &str = "keelson";

/// A control group gets no more of a busy processor than one single thread outside of it, and ours holds the pods of all clusters:
/// beside a control plane, compilers and tests they would starve. These are the weights of four threads, in the words of v1 and v2;
/// what the kubelet does below is its own affair.
const WEIGHTS: [(&str, &str); 2] = [("cpu.shares", "4096"), ("cpu.weight", "400")];

/// The kubelet's `cgroupRoot` for a node.
pub fn path(layout: &Layout, node: &str) -> String {
    format!("/{PARENT}/{}/{node}", layout.name())
}

/// Makes a node's groups. What a lost machine left behind is taken away first, as nothing of it outlives a start: the kubelet
/// would look for its containers, for seconds each, before it starts any.
pub fn create(layout: &Layout, node: &str, cgroups: Cgroups) -> Result<()> {
    remove_below(&format!("{PARENT}/{}/{node}", layout.name()), cgroups)?;
    for hierarchy in hierarchies(cgroups)? {
        let mut group = hierarchy.clone();
        for part in [PARENT, layout.name(), node] {
            if cgroups == Cgroups::V2 {
                // A controller is usable in a group only if every group above hands it down.
                let offered = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
                for controller in offered.split_whitespace() {
                    let _ = fs::write(group.join("cgroup.subtree_control"), format!("+{controller}"));
                }
            }
            let parent = group.clone();
            group.push(part);
            fs::create_dir_all(&group)
                .with_context(|| format!("cannot make the control group {}", group.display()))?;
            for (file, weight) in WEIGHTS {
                if part == PARENT && group.join(file).exists() {
                    fs::write(group.join(file), weight)?;
                }
            }
            // A v1 cpuset starts empty and then takes no process.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                if cgroups == Cgroups::V1 && parent.join(file).exists() {
                    fs::write(group.join(file), fs::read(parent.join(file))?)?;
                }
            }
        }
    }
    Ok(())
}

/// Removes the cluster's groups, which must be empty of processes.
pub fn remove(layout: &Layout, cgroups: Cgroups) -> Result<()> {
    remove_below(&format!("{PARENT}/{}", layout.name()), cgroups)?;
    for hierarchy in hierarchies(cgroups)? {
        // Another cluster may still use it.
        let _ = fs::remove_dir(hierarchy.join(PARENT));
    }
    Ok(())
}

fn remove_below(path: &str, cgroups: Cgroups) -> Result<()> {
    let begun = Instant::now();
    for hierarchy in hierarchies(cgroups)? {
        let group = hierarchy.join(path);
        // A group stays busy for a moment after its last process was killed.
        while let Err(error) = remove_group(&group) {
            if begun.elapsed() > Duration::from_secs(20) {
                bail!("the control group {} cannot be removed: {error}", group.display());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

fn remove_group(group: &Path) -> std::io::Result<()> {
    let children = match fs::read_dir(group) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        children => children?,
    };
    for child in children {
        let child = child?;
        if child.file_type()?.is_dir() {
            remove_group(&child.path())?;
        }
    }
    fs::remove_dir(group)
}

fn hierarchies(cgroups: Cgroups) -> Result<Vec<PathBuf>> {
    if cgroups == Cgroups::V2 {
        return Ok(vec![PathBuf::from(ROOT)]);
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(ROOT).with_context(|| format!("cannot read {ROOT}"))? {
        let path = entry?.path();
        // Links such as cpu,cpuacct lead to a hierarchy that is listed under its own name too.
        if path.is_dir() && !path.is_symlink() && path.join("cgroup.procs").exists() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
