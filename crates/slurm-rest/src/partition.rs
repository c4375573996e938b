//! Partitions.

use std::sync::Arc;

use jiff::Timestamp;
use serde::Deserialize;

use crate::client::{Client, Reply, Request};
use crate::endpoint;
use crate::error::Error;
use crate::response::{Item, Listing, Missing};
use crate::since::{Fetched, since};
use crate::value::{NoVal, RawWords, Strings, Text, Words};

/// Slurm's error numbers for an unknown partition. 24.11 reports a read of one as a bad query; 26.05 responds with a
/// warning and no partition.
const UNKNOWN_PARTITION: [i64; 2] = [2000, 9000];

/// A partition, with the fields that callers use.
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
    /// The maximum time limit of a job, in minutes.
    pub max_time: NoVal,
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

impl Client {
    /// Lists all partitions, or returns `Unchanged`.
    pub async fn partitions(
        &self,
        changed_since: Option<Timestamp>,
    ) -> Result<Fetched<Listing<Partition>>, Error> {
        self.execute(since(Request::new(&endpoint::PARTITIONS), changed_since))
            .await
            .map(Fetched::from_reply)
    }

    /// Reads one partition.
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
}
