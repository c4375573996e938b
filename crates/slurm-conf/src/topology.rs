//! `TopologyPlugin` and the file that slurmctld requires for it.

use crate::syntax::{Document, Statement};

/// Returns the `TopologyPlugin` if its topology file is missing, together with the files that it accepts. slurmctld waits a
/// minute for such a file and then exits. `has` returns whether a file exists next to slurm.conf.
pub fn plugin_without_file(
    document: &Document,
    has: impl Fn(&str) -> bool,
) -> Option<(&Statement, &'static [&'static str])> {
    let plugin = document
        .statements
        .iter()
        .rfind(|s| s.head.is("TopologyPlugin"))?;
    let files: &[&str] = match plugin.head.value.as_str() {
        "topology/tree" | "topology/block" | "topology/ring" => &["topology.yaml", "topology.conf"],
        "topology/torus3d" => &["topology.yaml"],
        // Other plugins require no file. slurmctld reports an unknown plugin immediately.
        _ => return None,
    };
    (!files.iter().any(|file| has(file))).then_some((plugin, files))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::catalogue::File;
    use crate::syntax::parse;
    use rstest::rstest;

    #[rstest]
    #[case("TopologyPlugin=topology/tree", &[], Some("topology.yaml or topology.conf"))]
    #[case("topologyplugin=\"topology/block\"", &["topology.yml"], Some("topology.yaml or topology.conf"))]
    #[case("TopologyPlugin=topology/ring", &["topology.conf"], None)]
    #[case("TopologyPlugin=topology/tree", &["topology.yaml"], None)]
    #[case("TopologyPlugin=topology/torus3d", &["topology.conf"], Some("topology.yaml"))]
    #[case("TopologyPlugin=topology/tree\nTopologyPlugin=topology/flat", &[], None)]
    #[case("TopologyPlugin=topology/default", &[], None)]
    #[case("", &[], None)]
    fn a_plugin_needs_its_file(#[case] text: &str, #[case] there: &[&str], #[case] needed: Option<&str>) {
        let document = parse(File::Slurm, text, &BTreeMap::new()).unwrap();
        let missing = plugin_without_file(&document, |file| there.contains(&file));
        assert_eq!(missing.map(|(_, files)| files.join(" or ")).as_deref(), needed);
    }
}
