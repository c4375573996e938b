//! A copy of Slurm's node list, refreshed every second with the changes since the last response.
//!
//! A response without changes costs Slurm almost nothing; a list costs it in proportion to its length, so the pause
//! after one is a multiple of the time it took. Every fact carries the time at which it was *requested*: a response
//! proves nothing about what happened while it was on its way.

use std::{
    collections::{BTreeMap, HashMap},
    future::Future,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, stream};
use jiff::Timestamp;
use keelson_runtime::{Clock, Key, run::chain};
use parking_lot::{Mutex, RwLock};
use slurm_rest::{Client, Fetched, Listing, node::Node};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    awaited::{self, Awaited},
    facts::{JobReading, NodeName, Slurm, SlurmNode},
};

const PERIOD: Duration = Duration::from_secs(1);
/// The pause after a list is this many times as long as the list took, to limit the load on slurmrestd.
const COST_FACTOR: u32 = 5;
/// Reads of single nodes at the same time.
const READ_AT_ONCE: usize = 8;
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A time after every change.
const FAR_FUTURE: Timestamp = Timestamp::constant(4_102_444_800, 0);
/// Limit of the pause if there is a reason for the next list.
const LONGEST_SHORT_PAUSE: Duration = Duration::from_secs(2);
/// Limit of that pause per node: a short list that took long means that the machine is busy with something else.
const PAUSE_PER_NODE: Duration = Duration::from_millis(10);
/// How long a copy is trusted after its next confirmation was due.
const STALE: Duration = Duration::from_secs(20);

#[derive(Debug, Clone)]
struct View {
    nodes: Arc<BTreeMap<NodeName, SlurmNode>>,
    /// Time of the last update; the next request asks for changes since then.
    since: Option<Timestamp>,
    /// When the request was sent that last confirmed the whole list.
    confirmed: Option<Timestamp>,
    /// How long after that the list is trusted.
    trusted_for: Duration,
    /// Why the last request failed.
    failure: Option<String>,
    /// When we last changed a node, until a newer response is there.
    written: HashMap<NodeName, Write>,
}

/// Our last change of a node.
#[derive(Debug, Clone, Copy)]
struct Write {
    at: Timestamp,
    deleted: bool,
}

impl View {
    /// Forgets our writes that this response is newer than; returns whether there were any.
    fn settle(&mut self, asked: Timestamp) -> bool {
        let before = self.written.len();
        self.written.retain(|_, written| written.at >= asked);
        self.written.len() != before
    }

    /// Takes the reading of one node; returns whether anything is different now.
    fn take_one(&mut self, name: NodeName, asked: Timestamp, node: &Node) -> bool {
        let settled = self.written.get(&name).is_some_and(|written| written.at < asked);
        if settled {
            self.written.remove(&name);
        }
        let node = SlurmNode::from_rest(node, asked);
        let nodes = Arc::make_mut(&mut self.nodes);
        let same = nodes.get(&name).is_some_and(|known| same_facts(known, &node));
        nodes.insert(name, node);
        settled || !same
    }

    /// Reports whether Slurm had this node in its last list, and we did not delete it.
    fn expects(&self, name: &NodeName) -> bool {
        let deleted = self.written.get(name).is_some_and(|written| written.deleted);
        self.nodes.contains_key(name) && !deleted
    }
}

/// The outcome of reading nodes one by one.
#[derive(Debug, Clone, Copy, Default)]
struct Read {
    /// Whether anything is different now.
    differs: bool,
    /// Whether the list has to be read: Slurm does not know a node of its last list any more, or it did not answer.
    asks_for_list: bool,
}

/// The pause after a list.
#[derive(Debug, Clone, Copy)]
struct Rest {
    /// When the next list is due.
    due: Instant,
    /// When it may start if there is a reason for it: lists take slurmrestd at most half of its time, up to 5,000 nodes.
    soonest: Instant,
    /// What the last list took.
    cost: Duration,
}

impl Rest {
    /// `took` is the time that Slurm took for its answer, and `cost` that for its last list.
    fn after(took: Duration, pause: Duration, cost: Duration) -> Self {
        let now = Instant::now();
        Self {
            due: now + pause,
            soonest: now + took.min(pause).min(LONGEST_SHORT_PAUSE),
            cost,
        }
    }

    /// Reports whether lists show the state of this many nodes sooner than reading them one by one, in turns.
    fn lists_are_sooner_for(self, awaited: usize) -> bool {
        let turns = u32::try_from(awaited / awaited::MOST).unwrap_or(u32::MAX);
        PERIOD.saturating_mul(turns) > self.cost + self.cost.clamp(PERIOD, LONGEST_SHORT_PAUSE)
    }
}

/// The calls that the mirror makes.
pub trait Reads: Sync {
    fn nodes(
        &self,
        since: Option<Timestamp>,
    ) -> impl Future<Output = Result<Fetched<Listing<Node>>, slurm_rest::Error>> + Send;
    fn node(&self, name: &str) -> impl Future<Output = Result<Node, slurm_rest::Error>> + Send;
}

impl Reads for Client {
    async fn nodes(&self, since: Option<Timestamp>) -> Result<Fetched<Listing<Node>>, slurm_rest::Error> {
        Self::nodes(self, since).await
    }

    async fn node(&self, name: &str) -> Result<Node, slurm_rest::Error> {
        Self::node(self, name).await
    }
}

/// Cached state of one cluster's nodes.
#[derive(Debug)]
pub struct Mirror {
    view: RwLock<View>,
    clock: Clock,
    awaited: Mutex<Awaited>,
    /// Wakes the poller early.
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
            awaited: Mutex::default(),
            poke: Notify::new(),
        }
    }

    /// Returns the state of the cluster; unknown if the copy is too old.
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
        // A clock that was set back makes the age negative, which is no reason for distrust.
        let age = Duration::try_from(self.clock.now().duration_since(confirmed)).unwrap_or_default();
        if age > trusted_for {
            return Slurm::Unknown { why: why() };
        }
        let nodes = nodes
            .iter()
            .map(|(name, node)| {
                let read_at = node.read_at.max(confirmed);
                let outdated = written.get(name).is_some_and(|written| read_at <= written.at);
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

    /// Returns the last list, and the time to ask for changes since.
    pub fn last_list(&self) -> (Arc<BTreeMap<NodeName, SlurmNode>>, Option<Timestamp>) {
        let view = self.view.read();
        (Arc::clone(&view.nodes), view.since)
    }

    /// Reads these nodes one by one every second, because decisions about a NodeSet wait for them. They replace those
    /// that it named before.
    pub fn wait_for(&self, nodeset: &Key, nodes: impl IntoIterator<Item = NodeName>) {
        self.awaited.lock().replace(nodeset, nodes, Instant::now());
    }

    /// Notes that we just changed these nodes: their cached state is outdated, and they are read at once.
    pub fn wrote(&self, nodes: &[NodeName]) {
        self.note(nodes, false);
        self.poke.notify_one();
    }

    /// Notes that we are about to delete these nodes: that they are gone says nothing about Slurm's state.
    pub fn deleting(&self, nodes: &[NodeName]) {
        self.note(nodes, true);
    }

    /// Notes that we just deleted these nodes. Only a list shows that they are gone, and it is read at once only if it is
    /// short.
    pub fn deleted(&self, nodes: &[NodeName]) {
        self.note(nodes, true);
        self.awaited.lock().remove(nodes);
        if self.view.read().nodes.len() <= awaited::MOST {
            self.poke.notify_one();
        }
    }

    fn note(&self, nodes: &[NodeName], deleted: bool) {
        let at = self.clock.now();
        let written = nodes.iter().map(|node| (node.clone(), Write { at, deleted }));
        self.view.write().written.extend(written);
    }

    /// Refreshes the copy until stopped, and calls `changed` after every difference.
    pub async fn keep(&self, client: &impl Reads, changed: impl Fn(), stop: CancellationToken) {
        let mut cost = Duration::ZERO;
        loop {
            let started = Instant::now();
            let asked = self.clock.now();
            let (_, since) = self.last_list();
            let answer = tokio::select! {
                () = stop.cancelled() => return,
                answer = client.nodes(since) => answer,
            };
            let took = started.elapsed();
            let rest = match answer {
                Ok(Fetched::Unchanged) => {
                    if self.confirm(asked, trusted_for(took, PERIOD)) {
                        changed();
                    }
                    Rest::after(took, PERIOD, cost)
                }
                Ok(Fetched::Changed(list)) => {
                    cost = took;
                    let pause = pause(took, list.items.len());
                    if self.take(&list, asked, trusted_for(took, pause)) {
                        changed();
                    }
                    Rest::after(took, pause, cost)
                }
                Err(error) => {
                    let why = chain(&error);
                    tracing::debug!(error = why, "no answer from slurmrestd");
                    if self.fail(why) {
                        changed();
                    }
                    Rest::after(PERIOD, PERIOD, cost)
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.rest(rest, client, &changed) => {}
            }
        }
    }

    /// Waits until the list is due, and meanwhile reads the nodes that a decision waits for and those that we changed.
    async fn rest(&self, rest: Rest, client: &impl Reads, changed: &impl Fn()) {
        let Rest { mut due, soonest, .. } = rest;
        let second = Instant::now() + PERIOD;
        loop {
            let next = due.min(Instant::now() + PERIOD);
            let poked = tokio::select! {
                () = tokio::time::sleep_until(next) => false,
                () = self.poke.notified() => true,
            };
            let (written, length) = {
                let view = self.view.read();
                let changed = view.written.iter().filter(|(_, write)| !write.deleted);
                let written: Vec<NodeName> = changed.map(|(name, _)| name.clone()).collect();
                (written, view.nodes.len())
            };
            // A short list costs no more than the nodes themselves.
            let lists = written.len() > awaited::MOST || length <= awaited::MOST;
            let by_list = rest.lists_are_sooner_for(self.awaited.lock().count(Instant::now()));
            if poked && lists {
                due = due.min(soonest);
            } else if by_list {
                due = due.min(soonest.max(second));
            }
            if Instant::now() >= due {
                return;
            }
            let names = if by_list {
                written.into_iter().take(awaited::MOST).collect()
            } else {
                self.awaited.lock().due(written, Instant::now())
            };
            let Read {
                differs,
                asks_for_list,
            } = self.read(names, due, client).await;
            if differs {
                changed();
            }
            if asks_for_list {
                due = due.min(soonest);
            }
        }
    }

    /// Reads nodes one by one, until the list is due. Ends early if Slurm does not answer: the list then records why.
    async fn read(&self, names: Vec<NodeName>, due: Instant, client: &impl Reads) -> Read {
        let mut read = Read::default();
        if self.knows_busy(&names) && self.have_cpus_counted(due, client).await.is_err() {
            read.asks_for_list = true;
            return read;
        }
        let answers = stream::iter(names)
            .map(|name| async move {
                let asked = self.clock.now();
                let answer = client.node(&name.0).await;
                (name, asked, answer)
            })
            .buffer_unordered(READ_AT_ONCE);
        let mut answers = pin!(answers);
        while let Ok(Some((name, asked, answer))) = tokio::time::timeout_at(due, answers.next()).await {
            match answer {
                Ok(node) => read.differs |= self.view.write().take_one(name, asked, &node),
                // Only a list shows whether Slurm lost one node or its state.
                Err(error) if error.is_not_found() => read.asks_for_list |= self.view.read().expects(&name),
                Err(error) => {
                    tracing::debug!(%name, error = chain(&error), "no answer about a node");
                    read.asks_for_list = true;
                    break;
                }
            }
        }
        read
    }

    fn knows_busy(&self, names: &[NodeName]) -> bool {
        let view = self.view.read();
        names
            .iter()
            .filter_map(|name| view.nodes.get(name))
            .any(SlurmNode::busy)
    }

    /// Makes slurmctld count the allocated CPUs of its nodes. It does this only when it is asked for all nodes: a node
    /// that is read by itself would look busy after its last job until then. It also does it if its answer is that
    /// nothing has changed, which costs almost nothing.
    async fn have_cpus_counted(&self, due: Instant, client: &impl Reads) -> Result<(), slurm_rest::Error> {
        let asked = tokio::time::timeout_at(due, client.nodes(Some(FAR_FUTURE)));
        asked.await.map_or(Ok(()), |answer| answer.map(drop))
    }

    /// Returns whether this ended a failure, or a doubt about a node that we changed.
    fn confirm(&self, asked: Timestamp, trusted_for: Duration) -> bool {
        let mut view = self.view.write();
        view.confirmed = Some(asked);
        view.trusted_for = trusted_for;
        let settled = view.settle(asked);
        view.failure.take().is_some() || settled
    }

    /// Returns whether anything is different now.
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

    /// Returns whether the failure is new.
    fn fail(&self, why: String) -> bool {
        let mut view = self.view.write();
        // The longer trust was for a pause without requests. Now a request was sent, and it failed.
        view.trusted_for = STALE;
        view.failure.replace(why).is_none()
    }
}

/// Returns how long a response that took this long is trusted if the next request is sent after this pause. Both are
/// bounded, by the client's timeout and by `LONGEST_PAUSE`, and so is the sum.
fn trusted_for(took: Duration, pause: Duration) -> Duration {
    took + pause + STALE
}

/// Returns the pause after a list of this many nodes that took this long.
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
    use slurm_rest::{Peer, node::decode_nodes};

    use super::*;

    const EPOCH: Timestamp = Timestamp::UNIX_EPOCH;

    fn listing(nodes: &[(&str, &str)]) -> Listing<Node> {
        let nodes: Vec<_> = nodes
            .iter()
            .map(|(name, state)| serde_json::json!({ "name": name, "state": state.split('+').collect::<Vec<_>>() }))
            .collect();
        decode_nodes(serde_json::json!({ "nodes": nodes }).to_string().as_bytes()).unwrap()
    }

    fn node(name: &str, state: &str) -> Node {
        listing(&[(name, state)]).items.remove(0)
    }

    /// A Slurm that answers about single nodes: with a state, not found, or never (`hangs`).
    #[derive(Default)]
    struct Fake {
        states: BTreeMap<&'static str, &'static str>,
        /// Fails instead.
        unreachable: bool,
        calls: Mutex<Vec<String>>,
    }

    impl Fake {
        fn of(states: &[(&'static str, &'static str)]) -> Self {
            Self {
                states: states.iter().copied().collect(),
                ..Self::default()
            }
        }
    }

    impl Fake {
        fn calls(&self) -> Vec<String> {
            std::mem::take(&mut self.calls.lock())
        }
    }

    impl Reads for Fake {
        async fn nodes(&self, since: Option<Timestamp>) -> Result<Fetched<Listing<Node>>, slurm_rest::Error> {
            self.calls.lock().push(format!("changes since {since:?}"));
            Ok(Fetched::Unchanged)
        }

        async fn node(&self, name: &str) -> Result<Node, slurm_rest::Error> {
            self.calls.lock().push(name.to_owned());
            match self.states.get(name) {
                Some(&"hangs") => std::future::pending().await,
                Some(state) => Ok(node(name, state)),
                None if self.unreachable => Err(slurm_rest::Error::Unreachable {
                    daemon: Peer::Slurmctld,
                    message: "gone".to_owned(),
                }),
                None => Err(slurm_rest::Error::NotFound {
                    what: format!("node {name}"),
                }),
            }
        }
    }

    fn nodeset() -> Key {
        Key::new("slurm", "cpu")
    }

    fn names(names: &[&str]) -> Vec<NodeName> {
        names.iter().map(|name| NodeName::from(*name)).collect()
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn cpus_are_counted_again_before_a_busy_node_is_read() {
        let mirror = large();
        let slurm = Fake::of(&[("a", "MIXED+DRAIN")]);
        let due = Instant::now() + SECOND;
        mirror.read(names(&["a"]), due, &slurm).await;
        assert_eq!(slurm.calls(), ["a"]);
        mirror.read(names(&["w-1", "a"]), due, &slurm).await;
        let counted = format!("changes since {:?}", Some(FAR_FUTURE));
        assert_eq!(slurm.calls(), [counted.as_str(), "w-1", "a"]);
        mirror.read(names(&["w-1"]), due, &slurm).await;
        assert_eq!(slurm.calls(), ["w-1"]);
    }

    /// A mirror of more nodes than are read one by one, among them `a`.
    fn large() -> Mirror {
        let others: Vec<String> = (0..2 * awaited::MOST).map(|index| format!("w-{index}")).collect();
        let others = others.iter().map(|name| (name.as_str(), "IDLE"));
        let all: Vec<(&str, &str)> = others.chain([("a", "IDLE")]).collect();
        let mirror = mirror(STALE);
        assert!(mirror.take(&listing(&all), EPOCH, STALE));
        mirror
    }

    /// A pause of ten seconds after a list that took three.
    fn long_rest() -> Rest {
        Rest::after(SECOND * 3, SECOND * 10, SECOND * 3)
    }

    fn state(mirror: &Mirror, name: &str) -> String {
        mirror.view.read().nodes[&NodeName::from(name)].state.to_string()
    }

    #[test]
    fn a_reading_of_one_node_settles_our_write_if_it_was_asked_for_later() {
        let mirror = mirror(STALE);
        let a = NodeName::from("a");
        let take = |asked, state| mirror.view.write().take_one(a.clone(), asked, &node("a", state));
        assert!(!take(EPOCH, "IDLE"), "nothing is different");
        mirror.wrote(std::slice::from_ref(&a));
        assert!(!take(EPOCH, "IDLE"), "it may be older than the write");
        let outdated = |mirror: &Mirror| mirror.slurm().node(&a).unwrap().outdated;
        assert!(outdated(&mirror));
        assert!(take(EPOCH + SECOND, "IDLE"), "the doubt is over");
        assert!(!outdated(&mirror));
        assert!(take(EPOCH + SECOND, "IDLE+DRAIN"));
        assert_eq!(state(&mirror, "a"), "IDLE+DRAIN");
        assert!(
            mirror
                .view
                .write()
                .take_one("new".into(), EPOCH, &node("new", "IDLE"))
        );
    }

    #[test]
    fn slurm_is_expected_to_know_a_node_of_its_list_until_we_delete_it() {
        let mirror = mirror(STALE);
        let expects = |name: &str| mirror.view.read().expects(&name.into());
        assert!(expects("a") && !expects("b"));
        mirror.wrote(&names(&["a"]));
        assert!(expects("a"));
        mirror.deleting(&names(&["a"]));
        assert!(!expects("a"));
        assert!(mirror.slurm().node(&"a".into()).unwrap().outdated);
        // Slurm refused.
        mirror.wrote(&names(&["a"]));
        assert!(expects("a"));
        assert!(mirror.slurm().node(&"a".into()).unwrap().outdated);
        mirror.wait_for(&nodeset(), names(&["a", "b"]));
        mirror.deleted(&names(&["a"]));
        assert!(!expects("a"));
        assert_eq!(mirror.awaited.lock().due([], Instant::now()), names(&["b"]));
        mirror.take(&listing(&[]), EPOCH + SECOND, STALE);
        assert!(mirror.view.read().written.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn answers_are_taken_one_by_one_until_the_list_is_due() {
        let mirror = large();
        let slurm = Fake::of(&[("a", "IDLE+DRAIN"), ("b", "hangs")]);
        mirror.wait_for(&nodeset(), names(&["a", "b"]));
        let (started, changes) = (Instant::now(), std::cell::Cell::new(0));
        mirror
            .rest(long_rest(), &slurm, &|| changes.set(changes.get() + 1))
            .await;
        assert_eq!(started.elapsed(), SECOND * 10);
        assert_eq!(state(&mirror, "a"), "IDLE+DRAIN");
        assert_eq!(changes.get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_slurm_lost_brings_the_list_forward_but_not_at_any_cost() {
        let mirror = large();
        let slurm = Fake::of(&[]);
        mirror.wait_for(&nodeset(), names(&["a"]));
        let started = Instant::now();
        mirror.rest(long_rest(), &slurm, &|| ()).await;
        assert_eq!(started.elapsed(), LONGEST_SHORT_PAUSE);

        // Nobody expects a new worker before it registers.
        mirror.wait_for(&nodeset(), names(&["new"]));
        mirror.deleted(&names(&["a"]));
        let started = Instant::now();
        let rest = Rest::after(SECOND, SECOND * 5, SECOND);
        mirror.rest(rest, &slurm, &|| ()).await;
        assert_eq!(started.elapsed(), SECOND * 5);
    }

    #[tokio::test(start_paused = true)]
    async fn the_list_records_why_a_node_could_not_be_read() {
        let mirror = large();
        let slurm = Fake {
            unreachable: true,
            ..Fake::of(&[("a", "IDLE+DRAIN")])
        };
        let read = mirror
            .read(names(&["a", "b", "c"]), Instant::now() + SECOND, &slurm)
            .await;
        assert!(read.differs && read.asks_for_list, "{read:?}");
        assert_eq!(state(&mirror, "a"), "IDLE+DRAIN");
        mirror.wait_for(&nodeset(), names(&["b"]));
        let started = Instant::now();
        let rest = Rest::after(SECOND / 10, SECOND * 5, SECOND / 10);
        mirror.rest(rest, &slurm, &|| ()).await;
        assert_eq!(started.elapsed(), PERIOD);
    }

    #[tokio::test(start_paused = true)]
    async fn lists_serve_more_nodes_than_can_be_read_one_by_one_in_their_time() {
        let awaited = |count: usize| (0..count).map(|index| NodeName(format!("w-{index}")));
        let slurm = Fake::of(&[]);
        // At 2,000 nodes a list takes 0.8 s, and at 5,000 it takes 2 s.
        for (cost, few, many) in [(800, 255, 256), (2_000, 639, 640)] {
            let cost = Duration::from_millis(cost);
            let rest = || Rest::after(cost, cost * COST_FACTOR, cost);
            assert!(!rest().lists_are_sooner_for(few));
            let mirror = large();
            mirror.wait_for(&nodeset(), awaited(many));
            let started = Instant::now();
            mirror.rest(rest(), &slurm, &|| ()).await;
            assert_eq!(started.elapsed(), cost.max(PERIOD));
            assert!(slurm.calls().is_empty());
        }
    }

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

    /// The mirror at this time after the epoch.
    fn at(mirror: Mirror, since: Duration) -> Mirror {
        Mirror {
            clock: Clock::fixed(Timestamp::UNIX_EPOCH + since),
            ..mirror
        }
    }

    /// A mirror that got a list at the epoch.
    fn mirror(trusted_for: Duration) -> Mirror {
        let json = br#"{ "nodes": [{ "name": "a", "state": ["IDLE"] }] }"#;
        let list = decode_nodes(json).unwrap();
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
