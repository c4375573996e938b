//! Tests the charts: the life cycle of a release, and the rendered objects.
#![allow(
    clippy::indexing_slicing,
    reason = "an index into JSON that is not there gives null"
)]

mod release;
mod rendered;

use anyhow::Result;
use e2e::{Namespace, cluster, run};

const CHARTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts");

/// Values without workers and login pods: only the keys, slurmctld and slurmrestd.
const NO_PODS_FOR_USERS: &str =
    "{ nodesets: { cpu: { enabled: false } }, loginsets: { users: { enabled: false } } }";

fn helm(space: &Namespace, words: &[&str]) -> Result<String> {
    run(cluster()?.helm().args(words).args(["--namespace", &space.name]))
}
