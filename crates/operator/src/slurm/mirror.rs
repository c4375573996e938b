//! A copy of what Slurm knows of its nodes, kept by asking every second what has changed.
//!
//! "Nothing" costs Slurm next to nothing; a list costs it in proportion to its length, so after one the pause is a
//! multiple of what it took. Every fact carries the instant at which it was *asked for*: an answer proves nothing about
//! what happened while it was on its way.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use keelson_runtime::{Clock, run::chain};
use parking_lot::RwLock;
use slurm_rest::{Client, Fetched, Listing, node::Node};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    facts::{JobReading, NodeName, Slurm, SlurmNode},
    registrations::Registrations,
};

const PERIOD: Duration = Duration::from_secs(1);
/// slurmrestd is kept busy by our lists for at most one part in this many.
const COST_FACTOR: u32 = 5;
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// What a node can add to that: a short list that took long tells of a machine that is busy with something else.
const PAUSE_PER_NODE: Duration = Duration::from_millis(10);
/// A copy that could not be confirmed for this long after its next confirmation was due is no basis for anything.
const STALE: Duration = Duration::from_secs(20);

#[derive(Debug, Clone)]
struct View {
    nodes: Arc<BTreeMap<NodeName, SlurmNode>>,
    /// What to ask for changes of them since.
    since: Option<Timestamp>,
    /// When the request was sent that last confirmed the whole list.
    confirmed: Option<Timestamp>,
    /// For how long after that it stands for the present.
    trusted_for: Duration,
    /// Why the last request got no answer.
    failure: Option<String>,
    /// When we last changed a node ourselves, until a newer answer is there.
    written: HashMap<NodeName, Timestamp>,
}

impl View {
    /// Forgets our writes that this answer is newer than; true when there were any.
    fn settle(&mut self, asked: Timestamp) -> bool {
        let before = self.written.len();
        self.written.retain(|_, written| *written >= asked);
        self.written.len() != before
    }
}

/// What is known of one cluster's nodes.
#[derive(Debug)]
pub struct Mirror {
    view: RwLock<View>,
    clock: Clock,
    /// Somebody wants to know at once.
    poke: Notify,
}

impl Mirror {
    pub fn new(clock: Clock) -> Self {
        let view = View {
            nodes: Arc::default(),
            since: None,
            confirmed: None,
            trusted_for: STALE,
            failure: None,
            written: HashMap::new(),
        };
        Self {
            view: RwLock::new(view),
            clock,
            poke: Notify::new(),
        }
    }

    /// The facts as of now; unknown when they are too old to stand for the present.
    pub fn slurm(&self) -> Slurm {
        let View {
            nodes,
            since: _,
            confirmed,
            trusted_for,
            failure,
            written,
        } = self.view.read().clone();
        let why = || {
            failure
                .clone()
                .unwrap_or_else(|| "slurmrestd has not answered yet".to_owned())
        };
        let Some(confirmed) = confirmed else {
            return Slurm::Unknown { why: why() };
        };
        // A clock that was set back makes the age negative, which is no reason for doubt.
        let age = Duration::try_from(self.clock.now().duration_since(confirmed)).unwrap_or_default();
        if age > trusted_for {
            return Slurm::Unknown { why: why() };
        }
        let nodes = nodes
            .iter()
            .map(|(name, node)| {
                let read_at = node.read_at.max(confirmed);
                let outdated = written.get(name).is_some_and(|written| read_at <= *written);
                (
                    name.clone(),
                    SlurmNode {
                        read_at,
                        outdated,
                        ..node.clone()
                    },
                )
            })
            .collect();
        Slurm::Known {
            nodes,
            jobs: JobReading::NotAsked,
        }
    }

    /// The last list, and what to ask for changes of it since.
    pub fn last_list(&self) -> (Arc<BTreeMap<NodeName, SlurmNode>>, Option<Timestamp>) {
        let view = self.view.read();
        (Arc::clone(&view.nodes), view.since)
    }

    /// Notes that these nodes were just changed by us: what is known of them is over, and the next look is now.
    pub fn wrote(&self, nodes: &[NodeName]) {
        let now = self.clock.now();
        self.view
            .write()
            .written
            .extend(nodes.iter().map(|node| (node.clone(), now)));
        self.poke.notify_one();
    }

    /// Keeps the copy until stopped; `changed` is called after every difference.
    pub async fn keep(&self, client: &Client, changed: impl Fn(), stop: CancellationToken) {
        let mut registrations = Registrations::default();
        loop {
            let started = Instant::now();
            let asked = self.clock.now();
            let (_, since) = self.last_list();
            let answer = tokio::select! {
                () = stop.cancelled() => return,
                answer = client.nodes(since) => answer,
            };
            let answered = answer.is_ok();
            let pause = match answer {
                Ok(Fetched::Unchanged) => {
                    if self.confirm(asked, trusted_for(started.elapsed(), PERIOD)) {
                        changed();
                    }
                    PERIOD
                }
                Ok(Fetched::Changed(list)) => {
                    let took = started.elapsed();
                    let pause = pause(took, list.items.len());
                    if self.take(&list, asked, trusted_for(took, pause)) {
                        changed();
                    }
                    pause
                }
                Err(error) => {
                    let why = chain(&error);
                    tracing::debug!(error = why, "no answer from slurmrestd");
                    if self.fail(why) {
                        changed();
                    }
                    PERIOD
                }
            };
            if answered {
                let nodes = Arc::clone(&self.view.read().nodes);
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = registrations.write_down(client, &nodes) => {}
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
                () = self.poke.notified() => {}
            }
        }
    }

    /// True when this ended a failure or a doubt.
    fn confirm(&self, asked: Timestamp, trusted_for: Duration) -> bool {
        let mut view = self.view.write();
        view.confirmed = Some(asked);
        view.trusted_for = trusted_for;
        let settled = view.settle(asked);
        view.failure.take().is_some() || settled
    }

    /// True when something is different now.
    fn take(&self, list: &Listing<Node>, asked: Timestamp, trusted_for: Duration) -> bool {
        let mut view = self.view.write();
        let nodes: BTreeMap<NodeName, SlurmNode> = list
            .items
            .iter()
            .filter(|node| !node.name.is_empty())
            .map(|node| (NodeName(node.name.to_string()), SlurmNode::from_rest(node, asked)))
            .collect();
        let same = view.nodes.len() == nodes.len()
            && view
                .nodes
                .iter()
                .zip(&nodes)
                .all(|((known, a), (name, b))| known == name && same_facts(a, b));
        let first = view.confirmed.is_none();
        view.nodes = Arc::new(nodes);
        view.since = list.last_update;
        view.confirmed = Some(asked);
        view.trusted_for = trusted_for;
        let recovered = view.failure.take().is_some();
        let settled = view.settle(asked);
        !same || recovered || first || settled
    }

    /// True when the failure is new.
    fn fail(&self, why: String) -> bool {
        let mut view = self.view.write();
        // The longer trust was for a pause in which nobody asks. Somebody did ask, and got no answer.
        view.trusted_for = STALE;
        view.failure.replace(why).is_none()
    }
}

/// How long an answer that took so long stands for the present, when the next request is sent after this pause. Both are
/// bounded, by the client's time limit and by `LONGEST_PAUSE`, and so is the sum.
fn trusted_for(took: Duration, pause: Duration) -> Duration {
    took + pause + STALE
}

/// How long slurmrestd is left alone after a list of so many nodes that took so long.
fn pause(took: Duration, nodes: usize) -> Duration {
    let of_length = PAUSE_PER_NODE.saturating_mul(u32::try_from(nodes).unwrap_or(u32::MAX));
    let longest = of_length.clamp(PERIOD, LONGEST_PAUSE);
    (took * COST_FACTOR).clamp(PERIOD, longest)
}

fn same_facts(a: &SlurmNode, b: &SlurmNode) -> bool {
    let SlurmNode {
        state,
        allocated,
        reason,
        address,
        topology,
        reservation,
        features,
        active_features,
        registered,
        read_at: _,
        outdated: _,
        work: _,
        extra,
    } = a;
    *state == b.state
        && *allocated == b.allocated
        && *reason == b.reason
        && *address == b.address
        && *topology == b.topology
        && *reservation == b.reservation
        && *features == b.features
        && *active_features == b.active_features
        && *registered == b.registered
        && *extra == b.extra
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_pays_for_a_long_list_and_not_for_a_slow_machine() {
        let seconds = Duration::from_secs;
        assert_eq!(pause(Duration::from_millis(5), 10_000), PERIOD);
        assert_eq!(pause(seconds(2), 10_000), seconds(10));
        assert_eq!(pause(seconds(20), 10_000), LONGEST_PAUSE);
        assert_eq!(pause(seconds(20), 300), seconds(3));
        assert_eq!(pause(seconds(20), 4), PERIOD);
        assert_eq!(pause(seconds(20), 0), PERIOD);
    }

    /// A mirror, so long after the beginning of time.
    fn at(mirror: Mirror, since: Duration) -> Mirror {
        Mirror {
            clock: Clock::fixed(Timestamp::UNIX_EPOCH + since),
            ..mirror
        }
    }

    /// One that got this list at the beginning of time.
    fn mirror(trusted_for: Duration) -> Mirror {
        let json = br#"{ "nodes": [{ "name": "a", "state": ["IDLE"] }] }"#;
        let list = slurm_rest::node::decode_nodes(json).unwrap();
        let mirror = Mirror::new(Clock::fixed(Timestamp::UNIX_EPOCH));
        assert!(mirror.take(&list, Timestamp::UNIX_EPOCH, trusted_for));
        mirror
    }

    #[test]
    fn the_pause_after_a_long_list_does_not_make_it_stale() {
        for nodes in [4, 300, 7_000, 10_000, 100_000] {
            for took in [1, 6, 10, 19].map(Duration::from_secs) {
                let pause = pause(took, nodes);
                let mirror = mirror(trusted_for(took, pause));
                // The next answer takes as long as this one.
                let next = took + pause + took;
                let mirror = at(mirror, next);
                assert!(mirror.slurm().is_known(), "{nodes} nodes, {took:?} and {pause:?}");
                let mirror = at(mirror, next + STALE);
                assert!(!mirror.slurm().is_known(), "the next answer never came");
            }
        }
    }

    #[test]
    fn a_failed_request_ends_the_trust_that_was_for_the_pause() {
        let mirror = mirror(trusted_for(Duration::from_secs(6), LONGEST_PAUSE));
        let mirror = at(mirror, STALE + PERIOD);
        assert!(mirror.slurm().is_known());
        assert!(mirror.fail("connection refused".to_owned()));
        let why = "connection refused".to_owned();
        assert_eq!(mirror.slurm(), Slurm::Unknown { why });
        assert!(mirror.confirm(mirror.clock.now(), trusted_for(PERIOD, PERIOD)));
        assert!(mirror.slurm().is_known());
    }
}
