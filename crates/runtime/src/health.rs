//! Whether this process is worth sending traffic and trust to.
//!
//! A watch is healthy when it has listed once and is not in a run of errors. An operator whose watch has silently died
//! decides on old facts while its probes stay green; that must show.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// A watch that has been failing for this long makes the process not ready: short breaks are ordinary.
const TOLERATED: Duration = Duration::from_secs(20);
/// A quiet watch emits nothing after it recovered; retries come at least this often, so silence beyond it is recovery.
const RETRY_HORIZON: Duration = Duration::from_mins(1);

#[derive(Debug, Clone, Default)]
struct WatchState {
    listed: bool,
    /// Whether the process does without it until it has listed once.
    dispensable: bool,
    failing: Option<Failing>,
}

#[derive(Debug, Clone)]
struct Failing {
    since: Instant,
    last: Instant,
    message: String,
}

/// What every watch last reported.
#[derive(Debug, Clone, Default)]
pub struct Health {
    watches: Arc<Mutex<BTreeMap<String, WatchState>>>,
}

impl Health {
    /// Registers a watch; the process is not ready before it has listed once.
    pub fn watch(&self, name: impl Into<String>) -> WatchHealth {
        self.register(name.into(), WatchState::default())
    }

    /// Registers a watch that may start at any time: the process is ready before it has listed.
    pub(crate) fn dispensable(&self, name: impl Into<String>) -> WatchHealth {
        let state = WatchState {
            dispensable: true,
            ..WatchState::default()
        };
        self.register(name.into(), state)
    }

    fn register(&self, name: String, state: WatchState) -> WatchHealth {
        self.watches.lock().insert(name.clone(), state);
        WatchHealth {
            health: self.clone(),
            name,
        }
    }

    /// Forgets the watches of a kind that is not watched any more, in whatever namespaces.
    pub(crate) fn forget(&self, kind: &str) {
        let in_namespace = format!("{kind} in ");
        let of_kind = |name: &str| name == kind || name.starts_with(&in_namespace);
        self.watches.lock().retain(|name, _| !of_kind(name));
    }

    /// Why the process is not ready, one sentence each; empty when it is.
    pub fn complaints(&self) -> Vec<String> {
        self.complaints_at(Instant::now())
    }

    fn complaints_at(&self, now: Instant) -> Vec<String> {
        let watches = self.watches.lock();
        watches
            .iter()
            .filter_map(|(name, state)| {
                let awaited = !state.listed && !state.dispensable;
                if let Some(failing) = &state.failing {
                    let ongoing = now.duration_since(failing.last) < RETRY_HORIZON;
                    let long = now.duration_since(failing.since) >= TOLERATED;
                    if ongoing && (long || awaited) {
                        return Some(format!("watch of {name} is failing: {}", failing.message));
                    }
                }
                awaited.then(|| format!("watch of {name} has not listed yet"))
            })
            .collect()
    }
}

/// The reporting end of one watch.
#[derive(Debug, Clone)]
pub struct WatchHealth {
    health: Health,
    name: String,
}

impl WatchHealth {
    pub(crate) fn alive(&self) {
        self.update(|state| state.failing = None);
    }

    pub(crate) fn listed(&self) {
        self.update(|state| {
            state.listed = true;
            state.failing = None;
        });
    }

    pub(crate) fn failed(&self, message: String) {
        let now = Instant::now();
        self.update(|state| {
            // An error after a long silence starts a new run: the watch was fine in between.
            let since = state
                .failing
                .as_ref()
                .filter(|failing| now.duration_since(failing.last) < RETRY_HORIZON)
                .map_or(now, |failing| failing.since);
            state.failing = Some(Failing {
                since,
                last: now,
                message,
            });
        });
    }

    fn update(&self, change: impl FnOnce(&mut WatchState)) {
        if let Some(state) = self.health.watches.lock().get_mut(&self.name) {
            change(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn not_ready_before_the_first_list() {
        let health = Health::default();
        let pods = health.watch("Pod");
        assert_eq!(health.complaints(), ["watch of Pod has not listed yet"]);
        pods.listed();
        assert!(health.complaints().is_empty());
    }

    #[test]
    fn a_short_break_is_tolerated_and_a_long_one_is_not() {
        let health = Health::default();
        let pods = health.watch("Pod");
        pods.listed();
        pods.failed("connection refused".into());
        assert!(health.complaints().is_empty());
        let later = Instant::now() + TOLERATED + Duration::from_secs(1);
        assert_eq!(
            health.complaints_at(later),
            ["watch of Pod is failing: connection refused"]
        );
        pods.alive();
        assert!(health.complaints_at(later).is_empty());
    }

    #[test]
    fn a_kind_that_need_not_be_there_holds_nothing_up_and_is_forgotten_with_its_watch() {
        let health = Health::default();
        let monitors = health.dispensable("ServiceMonitor in slurm");
        assert!(health.complaints().is_empty());
        monitors.failed("forbidden".into());
        let later = Instant::now() + TOLERATED + Duration::from_secs(1);
        assert_eq!(
            health.complaints_at(later),
            ["watch of ServiceMonitor in slurm is failing: forbidden"]
        );
        health.forget("Service");
        assert_eq!(health.complaints_at(later).len(), 1, "another kind");
        health.forget("ServiceMonitor");
        assert!(health.complaints_at(later).is_empty());
    }

    #[test]
    fn silence_after_an_error_means_that_the_watch_recovered() {
        let health = Health::default();
        let pods = health.watch("Pod");
        pods.listed();
        pods.failed("connection refused".into());
        assert!(health.complaints_at(Instant::now() + RETRY_HORIZON).is_empty());
    }
}
