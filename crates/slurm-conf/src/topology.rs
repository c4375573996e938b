//! topology.yaml: how nodes hang together, for placing jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::hostlist::Hostlist;
use crate::merge::Error;
use crate::syntax::{Document, Statement};
use crate::value::encode_name;

/// The most nodes that a ring takes.
const MAX_RING: u64 = 16;
/// The longest name of a switch.
const MAX_SWITCH_NAME: usize = 64;

/// One topology; a partition may name the one that it uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// Its name.
    pub name: String,
    /// Whether partitions that name none use it.
    pub cluster_default: bool,
    /// What it looks like.
    pub shape: Shape,
}

/// What a topology looks like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// All nodes are equally near.
    Flat,
    /// Switches above switches above nodes.
    Tree(Vec<Switch>),
    /// Blocks of nodes that are near each other, such as those that one fast link joins.
    Block {
        /// The planning sizes: each a power of two times the one before.
        sizes: Vec<u32>,
        /// The blocks.
        blocks: Vec<Group>,
    },
    /// Rings of at most sixteen nodes.
    Ring(Vec<Group>),
}

/// A switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switch {
    /// Its name.
    pub name: String,
    /// What is below it.
    pub below: Below,
}

/// What a switch connects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Below {
    /// Other switches, by name.
    Switches(Vec<String>),
    /// Nodes. Dynamic nodes add themselves to a leaf when they register, so this may be empty.
    Nodes(Hostlist),
}

/// A named set of nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Its nodes; dynamic nodes add themselves when they register.
    pub nodes: Hostlist,
}

/// The `TopologyPlugin` that a configuration sets without a file that describes the topology, and the files that would do.
/// slurmctld waits a minute for such a file, and then ends. `has` says whether a file lies beside slurm.conf.
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
        // The rest needs none, or is not known to slurmctld, which says so at once.
        _ => return None,
    };
    (!files.iter().any(|file| has(file))).then_some((plugin, files))
}

/// Writes topology.yaml.
pub fn render(topologies: &[Topology]) -> Result<String, Error> {
    let mut names = BTreeSet::new();
    let mut text = String::from("# Written by the operator: edits of this file are lost.\n---\n");
    for topology in topologies {
        let Topology {
            name,
            cluster_default,
            shape,
        } = topology;
        let refuse = |reason: String| Error::Topology {
            topology: name.clone(),
            reason,
        };
        if !names.insert(name) {
            return Err(refuse("its name stands twice".into()));
        }
        line(&mut text, &format!("- topology: {}", word(name)?));
        line(&mut text, &format!("  cluster_default: {cluster_default}"));
        match shape {
            Shape::Flat => line(&mut text, "  flat: true"),
            Shape::Tree(switches) => render_tree(&mut text, switches, &refuse)?,
            Shape::Block { sizes, blocks } => render_blocks(&mut text, sizes, blocks, &refuse)?,
            Shape::Ring(rings) => render_rings(&mut text, rings, &refuse)?,
        }
    }
    if topologies.iter().filter(|t| t.cluster_default).count() > 1 {
        let topology = topologies
            .iter()
            .rev()
            .find(|t| t.cluster_default)
            .map(|t| t.name.clone());
        let reason = "another topology is the default already".to_owned();
        return Err(Error::Topology {
            topology: topology.unwrap_or_default(),
            reason,
        });
    }
    Ok(text)
}

fn render_tree(
    text: &mut String,
    switches: &[Switch],
    refuse: &impl Fn(String) -> Error,
) -> Result<(), Error> {
    unique(switches.iter().map(|s| &s.name), refuse)?;
    let known: BTreeSet<&String> = switches.iter().map(|s| &s.name).collect();
    if let Some(name) = in_a_ring(switches) {
        return Err(refuse(format!("switch {name} is above itself")));
    }
    line(text, "  tree:");
    line(text, "    switches:");
    for Switch { name, below } in switches {
        if name.len() > MAX_SWITCH_NAME {
            return Err(refuse(format!(
                "the name of switch {name} is longer than {MAX_SWITCH_NAME} characters"
            )));
        }
        line(text, &format!("      - switch: {}", word(name)?));
        match below {
            Below::Switches(children) => {
                if let Some(unknown) = children.iter().find(|child| !known.contains(child)) {
                    return Err(refuse(format!(
                        "switch {name} is above {unknown}, which does not exist"
                    )));
                }
                let list = Hostlist::from_names(children).map_err(|e| refuse(e.to_string()))?;
                line(text, &format!("        children: {}", quoted(&list.to_string())));
            }
            Below::Nodes(nodes) => nodes_line(text, nodes),
        }
    }
    Ok(())
}

/// A switch that can be reached from itself, or from one that can. slurmctld ends on those.
fn in_a_ring(switches: &[Switch]) -> Option<&String> {
    let mut open: BTreeMap<&String, Vec<&String>> = BTreeMap::new();
    for Switch { name, below } in switches {
        if let Below::Switches(children) = below {
            open.insert(name, children.iter().collect());
        }
    }
    loop {
        let done = |children: &Vec<&String>| children.iter().all(|child| !open.contains_key(child));
        let finished: Vec<&String> = open
            .iter()
            .filter(|(_, children)| done(children))
            .map(|(name, _)| *name)
            .collect();
        if finished.is_empty() {
            return open.keys().next().copied();
        }
        open.retain(|name, _| !finished.contains(name));
    }
}

fn render_blocks(
    text: &mut String,
    sizes: &[u32],
    blocks: &[Group],
    refuse: &impl Fn(String) -> Error,
) -> Result<(), Error> {
    let grows = |(a, b): (&u32, &u32)| *a > 0 && b > a && b % a == 0 && (b / a).is_power_of_two();
    if sizes.is_empty() || sizes.contains(&0) || !sizes.iter().zip(sizes.iter().skip(1)).all(grows) {
        return Err(refuse(
            "each block size must be a power of two times the one before".into(),
        ));
    }
    unique(blocks.iter().map(|b| &b.name), refuse)?;
    line(text, "  block:");
    line(text, "    block_sizes:");
    for size in sizes {
        line(text, &format!("      - {size}"));
    }
    line(text, "    blocks:");
    for Group { name, nodes } in blocks {
        line(text, &format!("      - block: {}", word(name)?));
        nodes_line(text, nodes);
    }
    Ok(())
}

fn render_rings(text: &mut String, rings: &[Group], refuse: &impl Fn(String) -> Error) -> Result<(), Error> {
    unique(rings.iter().map(|r| &r.name), refuse)?;
    line(text, "  ring:");
    line(text, "    rings:");
    for Group { name, nodes } in rings {
        if nodes.len() > MAX_RING {
            return Err(refuse(format!("ring {name} has more than {MAX_RING} nodes")));
        }
        line(text, &format!("      - ring: {}", word(name)?));
        nodes_line(text, nodes);
    }
    Ok(())
}

fn unique<'a>(
    names: impl Iterator<Item = &'a String>,
    refuse: &impl Fn(String) -> Error,
) -> Result<(), Error> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(refuse(format!("{name} stands twice")));
        }
    }
    Ok(())
}

fn line(text: &mut String, content: &str) {
    text.push_str(content);
    text.push('\n');
}

fn nodes_line(text: &mut String, nodes: &Hostlist) {
    if !nodes.is_empty() {
        line(text, &format!("        nodes: {}", quoted(&nodes.to_string())));
    }
}

fn word(name: &str) -> Result<String, Error> {
    let name = encode_name(name).map_err(|source| Error::Value {
        field: "a topology's name".into(),
        source,
    })?;
    Ok(quoted(name))
}

/// A YAML string in double quotes: `no` and `1-2` stay strings, and nothing in it means anything.
fn quoted(value: &str) -> String {
    let mut quoted = String::from("\"");
    for c in value.chars() {
        match c {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(c);
            }
            c if c.is_control() => {
                let _ = write!(quoted, "\\U{:08X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::File;
    use crate::syntax::parse;
    use rstest::rstest;

    fn group(name: &str, nodes: &str) -> Group {
        Group {
            name: name.into(),
            nodes: nodes.parse().unwrap(),
        }
    }

    fn leaf(name: &str, nodes: &str) -> Switch {
        Switch {
            name: name.into(),
            below: Below::Nodes(nodes.parse().unwrap()),
        }
    }

    fn spine(name: &str, children: &[&str]) -> Switch {
        let children = children.iter().map(ToString::to_string).collect();
        Switch {
            name: name.into(),
            below: Below::Switches(children),
        }
    }

    fn topology(shape: Shape) -> Topology {
        Topology {
            name: "t".into(),
            cluster_default: true,
            shape,
        }
    }

    #[test]
    fn every_shape() {
        let topologies = [
            topology(Shape::Tree(vec![
                spine("root", &["s1", "s2"]),
                leaf("s1", "n[1-2]"),
                leaf("s2", ""),
            ])),
            Topology {
                name: "no".into(),
                cluster_default: false,
                shape: Shape::Block {
                    sizes: vec![4, 16],
                    blocks: vec![group("b1", "n[1-4]")],
                },
            },
            Topology {
                name: "f".into(),
                cluster_default: false,
                shape: Shape::Flat,
            },
            Topology {
                name: "r".into(),
                cluster_default: false,
                shape: Shape::Ring(vec![group("r0", "n[1-8]")]),
            },
        ];
        insta::assert_snapshot!(render(&topologies).unwrap());
    }

    #[rstest]
    #[case::unknown_child(Shape::Tree(vec![spine("root", &["gone"])]))]
    #[case::ring_of_one(Shape::Tree(vec![spine("a", &["a"]), leaf("l", "n1")]))]
    #[case::ring_of_two(Shape::Tree(vec![spine("root", &["a", "l"]), spine("a", &["b"]), spine("b", &["a"]), leaf("l", "n1")]))]
    #[case::twice(Shape::Tree(vec![leaf("a", "n1"), leaf("a", "n2")]))]
    #[case::sizes(Shape::Block { sizes: vec![4, 12], blocks: vec![] })]
    #[case::no_size(Shape::Block { sizes: vec![], blocks: vec![] })]
    #[case::ring(Shape::Ring(vec![group("r", "n[1-17]")]))]
    #[case::name(Shape::Ring(vec![group("r\nx: y", "n1")]))]
    fn what_slurm_would_not_load_is_refused(#[case] shape: Shape) {
        render(&[topology(shape)]).unwrap_err();
    }

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

    #[test]
    fn two_defaults_are_refused() {
        let second = Topology {
            name: "u".into(),
            ..topology(Shape::Flat)
        };
        render(&[topology(Shape::Flat), second]).unwrap_err();
    }
}
