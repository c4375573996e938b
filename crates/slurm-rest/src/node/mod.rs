//! Nodes: reads and updates.

mod state;
mod update;

use std::sync::Arc;

use jiff::Timestamp;
use serde::Deserialize;

use crate::client::{Client, Reply, Request};
use crate::endpoint;
use crate::error::Error;
use crate::response::{Item, Listing, Missing, decode};
use crate::since::{Fetched, since};
use crate::value::{NoVal, RawWords, Strings, Text, Words};

pub use state::{NodeBase, NodeFlag, NodeState};
pub(crate) use update::NodesUpdate;
pub use update::{NodeAction, NodeUpdate};

/// Slurm's error numbers for an unknown node; a read of one fails with "No error".
const UNKNOWN_NODE: [i64; 2] = [0, 2018];

/// A node, with the fields that callers use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: Arc<str>,
    /// Its state.
    pub state: NodeState,
    /// Why it is drained or down.
    pub reason: Arc<str>,
    /// Who set the reason.
    pub reason_user: Arc<str>,
    /// When the reason was set.
    pub reason_changed_at: Option<Timestamp>,
    /// A free-form comment.
    pub comment: Arc<str>,
    /// The text that it registered with (`slurmd --extra`).
    pub extra: Arc<str>,
    /// Its features.
    pub features: Words,
    /// Its active features.
    pub active_features: Words,
    /// Its partitions.
    pub partitions: Words,
    /// Its address.
    pub address: Arc<str>,
    /// Its host name.
    pub hostname: Arc<str>,
    /// When its machine started.
    pub boot_time: Option<Timestamp>,
    /// When its slurmd started.
    pub slurmd_start_time: Option<Timestamp>,
    /// When it last ran a job.
    pub last_busy: Option<Timestamp>,
    /// When it resumes by itself.
    pub resume_after: Option<Timestamp>,
    /// Its CPUs.
    pub cpus: u32,
    /// The CPUs allocated to jobs.
    pub alloc_cpus: u32,
    /// Its memory, in MiB.
    pub real_memory: u64,
    /// The memory allocated to jobs, in MiB.
    pub alloc_memory: u64,
    /// Its generic resources (GRES).
    pub gres: Arc<str>,
    /// The GRES allocated to jobs.
    pub gres_used: Arc<str>,
    /// Its place in the topologies; empty if the API version does not report it.
    pub topology: Arc<str>,
    /// The reservation that contains it.
    pub reservation: Arc<str>,
    /// Its cloud instance.
    pub instance_id: Arc<str>,
    /// The release of its slurmd.
    pub version: Arc<str>,
    /// Its weight: nodes with a lower weight are allocated first.
    pub weight: u32,
}

impl Node {
    /// Reports whether slurmd has registered with the running slurmctld. After a restart or a reconfiguration slurmctld
    /// reports the saved state, such as `IDLE`, until the node responds.
    pub fn has_registered(&self) -> bool {
        self.slurmd_start_time.is_some()
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawNode<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    state: RawWords<'a>,
    #[serde(borrow)]
    reason: Text<'a>,
    #[serde(borrow)]
    reason_set_by_user: Text<'a>,
    reason_changed_at: NoVal,
    #[serde(borrow)]
    comment: Text<'a>,
    #[serde(borrow)]
    extra: Text<'a>,
    #[serde(borrow)]
    features: RawWords<'a>,
    #[serde(borrow)]
    active_features: RawWords<'a>,
    #[serde(borrow)]
    partitions: RawWords<'a>,
    #[serde(borrow)]
    address: Text<'a>,
    #[serde(borrow)]
    hostname: Text<'a>,
    boot_time: NoVal,
    slurmd_start_time: NoVal,
    last_busy: NoVal,
    resume_after: NoVal,
    cpus: NoVal,
    alloc_cpus: NoVal,
    real_memory: NoVal,
    alloc_memory: NoVal,
    #[serde(borrow)]
    gres: Text<'a>,
    #[serde(borrow)]
    gres_used: Text<'a>,
    #[serde(borrow)]
    topology: Text<'a>,
    #[serde(borrow)]
    reservation: Text<'a>,
    #[serde(borrow)]
    instance_id: Text<'a>,
    #[serde(borrow)]
    version: Text<'a>,
    weight: NoVal,
}

impl Item for Node {
    const KEY: &'static str = "nodes";
    type Raw<'a> = RawNode<'a>;

    fn keep(raw: RawNode<'_>, strings: &mut Strings) -> Self {
        let small = |value: NoVal| {
            value
                .number()
                .map_or(0, |number| u32::try_from(number).unwrap_or(u32::MAX))
        };
        Self {
            name: raw.name.as_str().into(),
            state: NodeState::read(raw.state.iter()),
            reason: strings.keep_text(&raw.reason),
            reason_user: strings.keep_text(&raw.reason_set_by_user),
            reason_changed_at: raw.reason_changed_at.timestamp(),
            comment: strings.keep_text(&raw.comment),
            extra: strings.keep_text(&raw.extra),
            features: strings.keep_words(&raw.features),
            active_features: strings.keep_words(&raw.active_features),
            partitions: strings.keep_words(&raw.partitions),
            address: raw.address.as_str().into(),
            hostname: raw.hostname.as_str().into(),
            boot_time: raw.boot_time.timestamp(),
            slurmd_start_time: raw.slurmd_start_time.timestamp(),
            last_busy: raw.last_busy.timestamp(),
            resume_after: raw.resume_after.timestamp(),
            cpus: small(raw.cpus),
            alloc_cpus: small(raw.alloc_cpus),
            real_memory: raw.real_memory.number().unwrap_or(0),
            alloc_memory: raw.alloc_memory.number().unwrap_or(0),
            gres: strings.keep_text(&raw.gres),
            gres_used: strings.keep_text(&raw.gres_used),
            topology: strings.keep_text(&raw.topology),
            reservation: strings.keep_text(&raw.reservation),
            instance_id: strings.keep_text(&raw.instance_id),
            version: strings.keep_text(&raw.version),
            weight: small(raw.weight),
        }
    }
}

/// Decodes a saved response to `GET /nodes/`.
pub fn decode_nodes(answer: &[u8]) -> Result<Listing<Node>, Error> {
    decode(&endpoint::NODES, answer).map(|answer| answer.body)
}

impl Client {
    /// Lists all nodes, or returns `Unchanged` if no node has changed since the given time.
    pub async fn nodes(&self, changed_since: Option<Timestamp>) -> Result<Fetched<Listing<Node>>, Error> {
        self.execute(since(Request::new(&endpoint::NODES), changed_since))
            .await
            .map(Fetched::from_reply)
    }

    /// Reads one node.
    pub async fn node(&self, name: &str) -> Result<Node, Error> {
        let what = format!("node {name}");
        let missing = Missing {
            what: &what,
            numbers: &UNKNOWN_NODE,
        };
        let reply = self
            .execute::<Listing<Node>>(Request::new(&endpoint::NODE).about(name).missing(missing))
            .await?;
        let Reply::Body { body, .. } = reply else {
            return Err(missing.error());
        };
        body.items
            .into_iter()
            .find(|node| &*node.name == name)
            .ok_or_else(|| missing.error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pretty_assertions::assert_eq;
    use serde_json::json;

    #[test]
    fn a_node_is_read_whatever_the_version_adds_or_leaves_out() {
        let json = json!({"nodes": [
            {"name": "n0", "state": ["IDLE", "DRAIN", "BRAND_NEW"], "reason": "a\"b", "features": "x,y",
             "boot_time": {"set": true, "infinite": false, "number": 12}, "cpus": 4, "new": {"deep": [1]}},
            {},
            {"name": "n1", "state": null, "cpus": {"set": true, "number": 8}, "partitions": ["a", "b"]}
        ]});
        let answer = decode::<Listing<Node>>(&endpoint::NODES, json.to_string().as_bytes()).unwrap();
        let [first, empty, last] = answer.body.items.as_slice() else {
            panic!("not three")
        };
        assert_eq!(first.state.base, NodeBase::Idle);
        assert!(first.state.has(NodeFlag::Drain) && first.state.is_drained());
        assert_eq!(first.state.others(), ["BRAND_NEW"]);
        assert_eq!(
            (&*first.reason, first.features.as_str(), first.cpus),
            ("a\"b", "x,y", 4)
        );
        assert_eq!(first.boot_time, Some(Timestamp::from_second(12).unwrap()));
        assert_eq!((&*empty.name, empty.state.base), ("", NodeBase::Unknown));
        assert_eq!((last.cpus, last.partitions.as_str()), (8, "a,b"));
    }
}
