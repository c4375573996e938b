//! Partitions.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::client::{Client, Reply, Request};
use crate::endpoint;
use crate::error::Error;
use crate::response::{Item, Listing, Missing};
use crate::since::{Fetched, since};
use crate::value::{NoVal, RawWords, Strings, Text, Words};

/// Slurm's numbers for a partition that it does not know. 24.11 calls a read of one a bad query; 26.05 answers
/// with a warning and no partition.
const UNKNOWN_PARTITION: [i64; 2] = [2000, 9000];

/// The facts of a partition that are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Its name.
    pub name: Arc<str>,
    /// Its state in Slurm's words: `UP`, `DOWN`, `DRAIN`, `INACTIVE`.
    pub state: Words,
    /// Its nodes, as a host list.
    pub nodes: Arc<str>,
    /// The node sets that it was configured with.
    pub node_sets: Words,
    /// How many nodes it has.
    pub total_nodes: u64,
    /// The longest that a job may run, in minutes.
    pub max_time: NoVal,
}

impl Partition {
    /// Whether it takes jobs and runs them.
    pub fn is_up(&self) -> bool {
        self.state.contains("UP")
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawPartition<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    partition: RawPartitionState<'a>,
    #[serde(borrow)]
    nodes: RawPartitionNodes<'a>,
    #[serde(borrow)]
    node_sets: RawWords<'a>,
    maximums: RawMaximums,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawPartitionState<'a> {
    #[serde(borrow)]
    state: RawWords<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawPartitionNodes<'a> {
    #[serde(borrow)]
    configured: Text<'a>,
    total: NoVal,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawMaximums {
    time: NoVal,
}

impl Item for Partition {
    const KEY: &'static str = "partitions";
    type Raw<'a> = RawPartition<'a>;

    fn keep(raw: RawPartition<'_>, strings: &mut Strings) -> Self {
        Self {
            name: strings.keep_text(&raw.name),
            state: strings.keep_words(&raw.partition.state),
            nodes: strings.keep_text(&raw.nodes.configured),
            node_sets: strings.keep_words(&raw.node_sets),
            total_nodes: raw.nodes.total.number().unwrap_or(0),
            max_time: raw.maximums.time,
        }
    }
}

/// What a partition may be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
pub enum PartitionState {
    /// Takes jobs and runs them.
    Up,
    /// Takes jobs and runs none.
    Down,
    /// Takes no jobs; those that run go on.
    Drain,
    /// Neither.
    Inactive,
}

/// A new partition, or a change of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionUpdate {
    /// Its name.
    pub name: String,
    /// Its nodes, as a host list.
    pub nodes: Option<String>,
    /// Its state.
    pub state: Option<PartitionState>,
}

#[derive(Serialize)]
pub(crate) struct PartitionsRequest<'a> {
    partitions: [PartitionRequest<'a>; 1],
}

#[derive(Serialize)]
struct PartitionRequest<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<Configured<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partition: Option<State>,
}

#[derive(Serialize)]
struct Configured<'a> {
    configured: &'a str,
}

#[derive(Serialize)]
struct State {
    state: [&'static str; 1],
}

impl<'a> From<&'a PartitionUpdate> for PartitionsRequest<'a> {
    fn from(update: &'a PartitionUpdate) -> Self {
        let PartitionUpdate { name, nodes, state } = update;
        let nodes = nodes.as_deref().map(|configured| Configured { configured });
        let partition = state.map(|state| State {
            state: [state.into()],
        });
        Self {
            partitions: [PartitionRequest {
                name,
                nodes,
                partition,
            }],
        }
    }
}

impl Client {
    /// All partitions, or `Unchanged`.
    pub async fn partitions(
        &self,
        changed_since: Option<Timestamp>,
    ) -> Result<Fetched<Listing<Partition>>, Error> {
        self.execute(since(Request::new(&endpoint::PARTITIONS), changed_since))
            .await
            .map(Fetched::from_reply)
    }

    /// One partition.
    pub async fn partition(&self, name: &str) -> Result<Partition, Error> {
        let what = format!("partition {name}");
        let missing = Missing {
            what: &what,
            numbers: &UNKNOWN_PARTITION,
        };
        let ask = Request::new(&endpoint::PARTITION).about(name).missing(missing);
        let Reply::Body { body, .. } = self.execute::<Listing<Partition>>(ask).await? else {
            return Err(missing.error());
        };
        body.items
            .into_iter()
            .find(|partition| &*partition.name == name)
            .ok_or_else(|| missing.error())
    }

    /// Makes a partition, or changes it if it is there. From v0.0.45 on.
    ///
    /// One that is not in slurm.conf is gone at the next reconfiguration, **and its jobs are killed**.
    pub async fn update_partition(&self, update: &PartitionUpdate) -> Result<(), Error> {
        let ask = Request::new(&endpoint::PARTITIONS_UPDATE).body(&PartitionsRequest::from(update))?;
        self.execute::<()>(ask).await.map(drop)
    }

    /// Deletes a partition unless a job names it ([`Error::is_in_use`]). From v0.0.45 on.
    pub async fn delete_partition(&self, name: &str) -> Result<(), Error> {
        let what = format!("partition {name}");
        let missing = Missing {
            what: &what,
            numbers: &UNKNOWN_PARTITION,
        };
        self.execute::<()>(
            Request::new(&endpoint::PARTITION_DELETE)
                .about(name)
                .missing(missing),
        )
        .await
        .map(drop)
    }
}
