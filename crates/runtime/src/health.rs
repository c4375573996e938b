//! Readiness of the process.
//!
//! A watch is healthy once it has listed and while it is not failing repeatedly. An operator with a dead watch acts on
//! stale data, so a failing watch must make the readiness probe fail.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// The process is not ready once a watch has been failing for this long; short failures are normal.
const TOLERATED: Duration = Duration::from_secs(20);
/// A failing watch retries at least this often. Without an error for this long it has recovered, even if it emitted no
/// event since.
const RETRY_HORIZON: Duration = Duration::from_mins(1);

#[derive(Debug, Clone, Default)]
struct WatchState {
    listed: bool,
    /// Whether the process may be ready before this watch has listed once.
    dispensable: bool,
    failing: Option<Failing>,
}

#[derive(Debug, Clone)]
struct Failing {
    since: Instant,
    last: Instant,
    message: String,
}

/// The last reported state of every watch.
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

    /// Removes the watches of a kind that is no longer watched, in all namespaces.
    pub(crate) fn forget(&self, kind: &str) {
        let in_namespace = format!("{kind} in ");
        let of_kind = |name: &str| name == kind || name.starts_with(&in_namespace);
        self.watches.lock().retain(|name, _| !of_kind(name));
    }

    /// Returns the reasons why the process is not ready; empty when it is ready.
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

/// Reports the state of one watch to [`Health`].
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
            // An error after a long silence starts a new failure: the watch had recovered in between.
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
