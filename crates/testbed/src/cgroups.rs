//! The control groups of a cluster's pods: `/keelson/<cluster>/<node>` in every hierarchy.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::host::Cgroups;
use crate::layout::Layout;

const ROOT: &str = "/sys/fs/cgroup";
const PARENT: &str = "keelson";

/// On a busy processor, a control group gets no more CPU time than a single thread outside of it. Our group contains the pods of all
/// clusters, which would starve next to a control plane, compilers and tests. These are the weights of four threads, for v1 and v2.
/// The kubelet manages the groups below.
const WEIGHTS: [(&str, &str); 2] = [("cpu.shares", "4096"), ("cpu.weight", "400")];

/// The `cgroupRoot` of the kubelet on a node.
pub fn path(layout: &Layout, node: &str) -> String {
    format!("/{PARENT}/{}/{node}", layout.name())
}

/// Creates the groups of a node. Groups left over from a lost node are removed first, because the kubelet would spend several
/// seconds looking for each of their containers before it starts new ones.
pub fn create(layout: &Layout, node: &str, cgroups: Cgroups) -> Result<()> {
    remove_below(&format!("{PARENT}/{}/{node}", layout.name()), cgroups)?;
    for hierarchy in hierarchies(cgroups)? {
        let mut group = hierarchy.clone();
        for part in [PARENT, layout.name(), node] {
            if cgroups == Cgroups::V2 {
                // A controller can be used in a group only if all parent groups enable it.
                let offered = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
                for controller in offered.split_whitespace() {
                    let _ = fs::write(group.join("cgroup.subtree_control"), format!("+{controller}"));
                }
            }
            let parent = group.clone();
            group.push(part);
            fs::create_dir_all(&group)
                .with_context(|| format!("failed to create the control group {}", group.display()))?;
            for (file, weight) in WEIGHTS {
                if part == PARENT && group.join(file).exists() {
                    fs::write(group.join(file), weight)?;
                }
            }
            // A new v1 cpuset is empty and accepts no processes.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                if cgroups == Cgroups::V1 && parent.join(file).exists() {
                    fs::write(group.join(file), fs::read(parent.join(file))?)?;
                }
            }
        }
    }
    Ok(())
}

/// Removes the groups of the cluster, which must not contain processes.
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
        // A group remains busy for a moment after its last process was killed.
        while let Err(error) = remove_group(&group) {
            if begun.elapsed() > Duration::from_secs(20) {
                bail!("failed to remove the control group {}: {error}", group.display());
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
    for entry in fs::read_dir(ROOT).with_context(|| format!("failed to read {ROOT}"))? {
        let path = entry?.path();
        // Links such as cpu,cpuacct refer to a hierarchy that is also listed under its own name.
        if path.is_dir() && !path.is_symlink() && path.join("cgroup.procs").exists() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
