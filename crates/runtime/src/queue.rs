//! The work queue: which objects to reconcile, and when.
//!
//! An object is in the queue at most once, at the earliest requested time, and is never processed concurrently: triggers
//! that arrive during a reconcile queue it again when the reconcile ends. Expensive objects get a cooldown after each
//! reconcile: triggers during the cooldown are combined into one reconcile at its end.

use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    fmt::Debug,
    hash::Hash,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

const FIRST_BACKOFF: Duration = Duration::from_millis(500);
const LONGEST_BACKOFF: Duration = Duration::from_mins(5);

#[derive(Debug)]
struct State<T> {
    /// Ordered by due time; the number keeps first-come order among equals.
    due: BTreeSet<(Instant, u64, T)>,
    slots: HashMap<T, Slot>,
    failures: HashMap<T, u32>,
    /// When the cooldown of each object ends.
    rests: HashMap<T, Instant>,
    sequence: u64,
}

#[derive(Debug, Clone, Copy)]
enum Slot {
    Queued(Instant, u64),
    Running { again: Option<Instant> },
}

/// A set of due objects with deadlines and per-object failure counts.
#[derive(Debug)]
pub struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Notify,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                due: BTreeSet::new(),
                slots: HashMap::new(),
                failures: HashMap::new(),
                rests: HashMap::new(),
                sequence: 0,
            }),
            changed: Notify::new(),
        }
    }
}

impl<T: Clone + Debug + Eq + Hash + Ord> Queue<T> {
    /// Makes the object due now, or at the end of its cooldown.
    pub fn add(&self, item: T) {
        self.add_at(item, Instant::now());
    }

    /// Makes the object due at this time, but not before the end of its cooldown. An earlier due time stays.
    fn add_at(&self, item: T, at: Instant) {
        let mut state = self.state.lock();
        let at = state.rested(&item, at);
        state.schedule(item, at);
        drop(state);
        self.changed.notify_one();
    }

    /// Waits for the next due object and marks it as being worked on; [`Queue::finish`] must follow.
    pub async fn next(&self) -> T {
        loop {
            let wake = match self.state.lock().take_due(Instant::now()) {
                Take::Now(item, more) => {
                    // A notification wakes one waiter only: wake the next while the queue is not empty.
                    if more {
                        self.changed.notify_one();
                    }
                    return item;
                }
                Take::At(at) => Some(at),
                Take::Empty => None,
            };
            let changed = self.changed.notified();
            match wake {
                Some(at) => tokio::select! {
                    () = changed => {}
                    () = tokio::time::sleep_until(at) => {}
                },
                None => changed.await,
            }
        }
    }

    /// Ends a successful reconcile and optionally requests another one. Triggers, including those that arrived during
    /// the reconcile, wait for the cooldown `rest`; the requested reconcile does not.
    pub fn finish(&self, item: &T, again_after: Option<Duration>, rest: Duration) {
        let now = Instant::now();
        let mut state = self.state.lock();
        state.failures.remove(item);
        state.rests.retain(|_, until| *until > now);
        state.rests.insert(item.clone(), now + rest);
        state.release(item, again_after.map(|delay| now + delay));
        drop(state);
        self.changed.notify_one();
    }

    /// Ends a failed reconcile and queues the object again after a delay that doubles with each failure in a row.
    /// `jitter` in 0..1 spreads objects that failed together.
    pub fn fail(&self, item: &T, jitter: f64) -> Duration {
        let mut state = self.state.lock();
        let failures = state.failures.entry(item.clone()).or_insert(0);
        *failures = failures.saturating_add(1);
        let delay = backoff(*failures, jitter);
        state.release(item, Some(Instant::now() + delay));
        drop(state);
        self.changed.notify_one();
        delay
    }

    /// Returns the number of queued objects, due or not.
    pub fn len(&self) -> usize {
        self.state.lock().due.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

enum Take<T> {
    Now(T, bool),
    At(Instant),
    Empty,
}

impl<T: Clone + Eq + Hash + Ord> State<T> {
    fn schedule(&mut self, item: T, at: Instant) {
        self.sequence += 1;
        let sequence = self.sequence;
        match self.slots.entry(item.clone()) {
            Entry::Vacant(slot) => {
                slot.insert(Slot::Queued(at, sequence));
                self.due.insert((at, sequence, item));
            }
            Entry::Occupied(mut slot) => match *slot.get() {
                Slot::Queued(queued, _) if queued <= at => {}
                Slot::Queued(queued, number) => {
                    self.due.remove(&(queued, number, item.clone()));
                    slot.insert(Slot::Queued(at, sequence));
                    self.due.insert((at, sequence, item));
                }
                Slot::Running { again } => {
                    slot.insert(Slot::Running {
                        again: Some(again.map_or(at, |earlier| earlier.min(at))),
                    });
                }
            },
        }
    }

    fn rested(&self, item: &T, at: Instant) -> Instant {
        self.rests.get(item).map_or(at, |until| at.max(*until))
    }

    fn take_due(&mut self, now: Instant) -> Take<T> {
        let Some((at, ..)) = self.due.first() else {
            return Take::Empty;
        };
        if *at > now {
            return Take::At(*at);
        }
        let Some((.., item)) = self.due.pop_first() else {
            return Take::Empty;
        };
        self.slots.insert(item.clone(), Slot::Running { again: None });
        Take::Now(item, !self.due.is_empty())
    }

    fn release(&mut self, item: &T, at: Option<Instant>) {
        let triggered = match self.slots.remove(item) {
            Some(Slot::Running { again }) => again,
            Some(Slot::Queued(queued, number)) => {
                self.due.remove(&(queued, number, item.clone()));
                Some(queued)
            }
            None => None,
        }
        .map(|at| self.rested(item, at));
        let earliest = match (triggered, at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        if let Some(at) = earliest {
            self.schedule(item.clone(), at);
        }
    }
}

fn backoff(failures: u32, jitter: f64) -> Duration {
    let doubled = FIRST_BACKOFF
        .saturating_mul(1_u32 << failures.saturating_sub(1).min(20))
        .min(LONGEST_BACKOFF);
    doubled.mul_f64(0.75 + 0.5 * jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use tokio::time::timeout;

    use super::*;

    #[rstest]
    #[case(1, 500)]
    #[case(2, 1_000)]
    #[case(5, 8_000)]
    #[case(11, 300_000)]
    #[case(u32::MAX, 300_000)]
    fn back_off_doubles_up_to_a_limit(#[case] failures: u32, #[case] millis: u64) {
        assert_eq!(backoff(failures, 0.5), Duration::from_millis(millis));
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_asked_for_twice_comes_once_at_the_earliest_time() {
        let queue = Queue::default();
        let start = Instant::now();
        queue.add_at("a", Instant::now() + Duration::from_secs(30));
        queue.add_at("a", Instant::now() + Duration::from_secs(10));
        queue.add_at("a", Instant::now() + Duration::from_secs(20));
        assert_eq!(queue.next().await, "a");
        assert_eq!(start.elapsed().as_secs(), 10);
        queue.finish(&"a", None, Duration::ZERO);
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_trigger_during_work_makes_it_due_again_and_never_twice_at_once() {
        let queue = Queue::default();
        queue.add("a");
        assert_eq!(queue.next().await, "a");
        queue.add("a");
        assert!(timeout(Duration::from_secs(5), queue.next()).await.is_err());
        queue.finish(&"a", Some(Duration::from_mins(10)), Duration::ZERO);
        assert_eq!(timeout(Duration::from_millis(1), queue.next()).await, Ok("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn triggers_wait_for_the_end_of_a_rest_and_a_look_that_was_asked_for_does_not() {
        let queue = Queue::default();
        let start = Instant::now();
        let rest = Duration::from_secs(4);
        queue.add("a");
        queue.next().await;
        queue.add("a");
        queue.finish(&"a", None, rest);
        assert_eq!(queue.next().await, "a");
        assert_eq!(start.elapsed(), rest);
        // A trigger that arrives between two reconciles waits as well.
        queue.finish(&"a", None, rest);
        queue.add("a");
        queue.next().await;
        assert_eq!(start.elapsed(), 2 * rest);
        queue.finish(&"a", Some(Duration::from_secs(1)), rest);
        queue.add("a");
        queue.next().await;
        assert_eq!(start.elapsed(), 2 * rest + Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_comes_back_later_and_success_forgets_it() {
        let queue = Queue::default();
        queue.add("a");
        for expected in [500, 1_000, 2_000] {
            queue.next().await;
            assert_eq!(queue.fail(&"a", 0.5).as_millis(), expected);
        }
        queue.next().await;
        queue.finish(&"a", None, Duration::ZERO);
        queue.add("a");
        queue.next().await;
        assert_eq!(queue.fail(&"a", 0.5).as_millis(), 500);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_cuts_a_back_off_short() {
        let queue = Queue::default();
        queue.add("a");
        queue.next().await;
        queue.fail(&"a", 1.0);
        queue.add("a");
        assert_eq!(timeout(Duration::from_millis(1), queue.next()).await, Ok("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn every_waiter_gets_work_when_much_arrives_at_once() {
        let queue = std::sync::Arc::new(Queue::default());
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let queue = std::sync::Arc::clone(&queue);
                tokio::spawn(async move { queue.next().await })
            })
            .collect();
        tokio::task::yield_now().await;
        for item in 0..4 {
            queue.add(item);
        }
        let mut seen = BTreeSet::new();
        for worker in workers {
            seen.insert(timeout(Duration::from_secs(1), worker).await.unwrap().unwrap());
        }
        assert_eq!(seen, BTreeSet::from([0, 1, 2, 3]));
    }
}
