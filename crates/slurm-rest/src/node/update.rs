//! Updates and deletions of nodes.

use serde::Serialize;
use slurm_conf::hostlist::Hostlist;

use super::UNKNOWN_NODE;
use crate::client::{Client, Request, unsupported};
use crate::endpoint;
use crate::error::Error;
use crate::response::Missing;
use crate::value::NoVal;
use crate::version::Version;

/// The length limit of a host list in a path.
const MAX_PATH_LIST: usize = 4_000;
/// How many names are put into one path if the list exceeds the limit.
const PATH_CHUNK: usize = 200;

/// A state change to request for a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
pub enum NodeAction {
    /// Accept no new jobs; running jobs continue. Requires a reason.
    Drain,
    /// Accept new jobs again.
    Undrain,
    /// Return to service after being down or failed.
    Resume,
    /// Take out of service immediately: **its jobs are killed**. Requires a reason.
    Down,
    /// Power down when its jobs are done.
    PowerDown,
    /// Power up.
    PowerUp,
}

impl Serialize for NodeAction {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        [<&str>::from(self)].serialize(serializer)
    }
}

/// A change of one or many nodes: fields that are `None` stay unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct NodeUpdate {
    /// The state change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<NodeAction>,
    /// The reason for the state change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// A free-form comment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// The text that jobs can select nodes by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extra: Option<String>,
    /// All features.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub features: Option<Vec<String>>,
    /// The active features.
    #[serde(rename = "features_act", skip_serializing_if = "Option::is_none")]
    pub active_features: Option<Vec<String>>,
    /// The place in the topologies, from v0.0.43 on.
    #[serde(rename = "topology_str", skip_serializing_if = "Option::is_none")]
    pub topology: Option<String>,
    /// The weight: nodes with a lower weight are allocated first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<NoVal>,
    /// Resume after this many seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume_after: Option<NoVal>,
}

impl NodeUpdate {
    /// Returns an update that drains nodes.
    pub fn drain(reason: impl Into<String>) -> Self {
        Self {
            state: Some(NodeAction::Drain),
            reason: Some(reason.into()),
            ..Self::default()
        }
    }

    /// Returns an update that makes drained nodes accept new jobs again.
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

    /// Applies the same change to many nodes in one call. Slurm changes none of them if one is unknown.
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

    /// Deletes dynamic nodes. Slurm rejects those that have jobs ([`Error::is_in_use`]) and continues with the rest of
    /// the list: after an error some may be deleted.
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

    async fn check(&self, update: &NodeUpdate) -> Result<(), Error> {
        let served = self.served().await?;
        if update.topology.is_some() && served.version < Version::V43 {
            return Err(unsupported("the topology of a node", &served));
        }
        Ok(())
    }
}

/// Splits a list into pieces that each fit into a path.
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
