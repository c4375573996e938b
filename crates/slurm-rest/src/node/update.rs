//! Changes of nodes.

use serde::Serialize;
use slurm_conf::hostlist::Hostlist;

use super::UNKNOWN_NODE;
use crate::client::{Client, Request, unsupported};
use crate::endpoint;
use crate::error::Error;
use crate::response::Missing;
use crate::value::NoVal;
use crate::version::Version;

/// The longest host list that is put into a path.
const MAX_PATH_LIST: usize = 4_000;
/// How many names go into one path where the list is longer than that.
const PATH_CHUNK: usize = 200;

/// Where a node is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
pub enum NodeAction {
    /// No new jobs; those that run go on. Needs a reason.
    Drain,
    /// New jobs again.
    Undrain,
    /// Back to work after being down or failed.
    Resume,
    /// Out of use at once: **its jobs are killed**. Needs a reason.
    Down,
    /// Off, when its jobs are done.
    PowerDown,
    /// On.
    PowerUp,
}

impl Serialize for NodeAction {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        [<&str>::from(self)].serialize(serializer)
    }
}

/// A change of one or many nodes: what is `None` stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct NodeUpdate {
    /// Where they go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<NodeAction>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// A comment for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// The text that jobs can be filtered by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extra: Option<String>,
    /// All features.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub features: Option<Vec<String>>,
    /// The features in force.
    #[serde(rename = "features_act", skip_serializing_if = "Option::is_none")]
    pub active_features: Option<Vec<String>>,
    /// The place in the topologies, from v0.0.43 on.
    #[serde(rename = "topology_str", skip_serializing_if = "Option::is_none")]
    pub topology: Option<String>,
    /// How late they are taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<NoVal>,
    /// Back to work after this many seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume_after: Option<NoVal>,
}

impl NodeUpdate {
    /// No new jobs.
    pub fn drain(reason: impl Into<String>) -> Self {
        Self {
            state: Some(NodeAction::Drain),
            reason: Some(reason.into()),
            ..Self::default()
        }
    }

    /// New jobs again.
    pub fn undrain() -> Self {
        Self {
            state: Some(NodeAction::Undrain),
            ..Self::default()
        }
    }
}

#[derive(Serialize)]
pub(crate) struct NodesUpdate<'a> {
    pub(crate) name: [String; 1],
    #[serde(flatten)]
    pub(crate) update: &'a NodeUpdate,
}

#[derive(Serialize)]
pub(crate) struct NodeCreate<'a> {
    pub(crate) node_conf: &'a str,
}

impl Client {
    /// Changes one node.
    pub async fn update_node(&self, name: &str, update: &NodeUpdate) -> Result<(), Error> {
        self.check(update).await?;
        let what = format!("node {name}");
        let missing = Missing {
            what: &what,
            numbers: &UNKNOWN_NODE,
        };
        let ask = Request::new(&endpoint::NODE_UPDATE)
            .about(name)
            .missing(missing)
            .body(update)?;
        self.execute::<()>(ask).await.map(drop)
    }

    /// Changes many nodes alike, in one call. Slurm does it for none if it does not know one of them.
    pub async fn update_nodes(&self, nodes: &Hostlist, update: &NodeUpdate) -> Result<(), Error> {
        if nodes.is_empty() {
            return Ok(());
        }
        self.check(update).await?;
        let what = format!("one of the nodes {nodes}");
        let missing = Missing {
            what: &what,
            numbers: &UNKNOWN_NODE,
        };
        let body = NodesUpdate {
            name: [nodes.to_string()],
            update,
        };
        self.execute::<()>(
            Request::new(&endpoint::NODES_UPDATE)
                .missing(missing)
                .body(&body)?,
        )
        .await
        .map(drop)
    }

    /// Deletes dynamic nodes. Slurm refuses those that have jobs ([`Error::is_in_use`]), and goes on with the
    /// others of the list: after an error some may be gone.
    pub async fn delete_nodes(&self, nodes: &Hostlist) -> Result<(), Error> {
        for list in path_lists(nodes)? {
            let what = format!("one of the nodes {list}");
            let missing = Missing {
                what: &what,
                numbers: &UNKNOWN_NODE,
            };
            self.execute::<()>(Request::new(&endpoint::NODE_DELETE).about(&list).missing(missing))
                .await?;
        }
        Ok(())
    }

    /// Creates nodes from a line of slurm.conf: `NodeName=w-[0-9] CPUs=1 State=EXTERNAL`.
    pub async fn create_nodes(&self, node_conf: &str) -> Result<(), Error> {
        self.execute::<()>(Request::new(&endpoint::NODE_CREATE).body(&NodeCreate { node_conf })?)
            .await
            .map(drop)
    }

    async fn check(&self, update: &NodeUpdate) -> Result<(), Error> {
        let served = self.served().await?;
        if update.topology.is_some() && served.version < Version::V43 {
            return Err(unsupported("the topology of a node", &served));
        }
        Ok(())
    }
}

/// A list in pieces that fit into a path each.
fn path_lists(nodes: &Hostlist) -> Result<Vec<String>, Error> {
    let whole = nodes.to_string();
    if whole.is_empty() {
        return Ok(Vec::new());
    }
    if whole.len() <= MAX_PATH_LIST {
        return Ok(vec![whole]);
    }
    let names: Vec<String> = nodes.names().collect();
    let piece = |names: &[String]| Hostlist::from_names(names).map(|list| list.to_string());
    names
        .chunks(PATH_CHUNK)
        .map(piece)
        .collect::<Result<_, _>>()
        .map_err(|error| Error::Request {
            what: "nodes".into(),
            message: error.to_string(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pretty_assertions::assert_eq;
    use serde_json::json;

    #[test]
    fn an_update_says_only_what_changes() {
        let update = NodeUpdate {
            weight: Some(NoVal::Number(5)),
            ..NodeUpdate::drain("rollout")
        };
        let body = NodesUpdate {
            name: ["w-[0-9]".into()],
            update: &update,
        };
        assert_eq!(
            serde_json::to_value(&body).unwrap(),
            json!({"name": ["w-[0-9]"], "state": ["DRAIN"], "reason": "rollout",
                   "weight": {"set": true, "infinite": false, "number": 5}})
        );
    }

    #[test]
    fn a_long_list_is_cut_for_the_path_and_a_short_one_is_not() {
        let even = Hostlist::from_names((0..4_000).map(|n| format!("w-{}", n * 2))).unwrap();
        let lists = path_lists(&even).unwrap();
        assert!(lists.len() > 1 && lists.iter().all(|list| list.len() <= MAX_PATH_LIST));
        let names: u64 = lists
            .iter()
            .map(|list| list.parse::<Hostlist>().unwrap().len())
            .sum();
        assert_eq!(names, 4_000);
        let short = Hostlist::from_names((0..4_000).map(|n| format!("w-{n}"))).unwrap();
        assert_eq!(path_lists(&short).unwrap(), ["w-[0-3999]"]);
        assert!(path_lists(&Hostlist::default()).unwrap().is_empty());
    }
}
