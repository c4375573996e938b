//! Readiness of this replica: it has a certificate that the API server trusts, its watches have synced, and it is not
//! shutting down.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use keelson_runtime::health::Health;
use parking_lot::Mutex;

/// How long to wait for the initial lists. Slinky's chart grants no permission to watch our kinds; the rules that compare
/// objects are then disabled, which is better than not serving at all.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub struct Readiness {
    begun: Instant,
    state: Arc<Mutex<State>>,
    watches: Health,
}

impl Default for Readiness {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            state: Arc::default(),
            watches: Health::default(),
        }
    }
}

#[derive(Debug, Default)]
struct State {
    certificate: Certificate,
    /// Every watch has listed. If one fails later, the rules use stale objects, which is better than not serving at all.
    synced: bool,
    leaving: bool,
}

#[derive(Debug, Default)]
enum Certificate {
    #[default]
    Awaited,
    Troubled(String),
    /// Later errors concern only the next certificate: the current one keeps working.
    InUse {
        trouble: Option<String>,
    },
}

impl Readiness {
    /// Health of the watches.
    pub fn watches(&self) -> &Health {
        &self.watches
    }

    /// Records the result of the last check of the certificate.
    pub fn certificate(&self, complaint: Option<String>) {
        let mut state = self.state.lock();
        let known = match &state.certificate {
            Certificate::Awaited => None,
            Certificate::Troubled(trouble) => Some(trouble),
            Certificate::InUse { trouble } => trouble.as_ref(),
        };
        if let Some(complaint) = &complaint
            && known != Some(complaint)
        {
            tracing::warn!(error = complaint, "failed to set up the certificate, retrying");
        }
        state.certificate = match (&state.certificate, complaint) {
            (Certificate::InUse { .. }, trouble) | (_, trouble @ None) => Certificate::InUse { trouble },
            (_, Some(trouble)) => Certificate::Troubled(trouble),
        };
    }

    /// Marks the replica as shutting down, so that new connections go to other replicas.
    pub fn leave(&self) {
        self.state.lock().leaving = true;
    }

    pub fn is_leaving(&self) -> bool {
        self.state.lock().leaving
    }

    /// Why this replica is not ready. Empty if it is.
    pub fn complaints(&self) -> Vec<String> {
        self.complaints_at(Instant::now())
    }

    fn complaints_at(&self, now: Instant) -> Vec<String> {
        let mut state = self.state.lock();
        let mut complaints = if state.synced {
            Vec::new()
        } else {
            self.watches.complaints()
        };
        if !complaints.is_empty() && now.duration_since(self.begun) >= PATIENCE {
            tracing::warn!(
                reasons = complaints.join("; "),
                "watches have not synced, rules that compare objects are disabled"
            );
            complaints.clear();
        }
        state.synced = complaints.is_empty();
        match &state.certificate {
            Certificate::Awaited => complaints.push("no certificate yet".to_owned()),
            Certificate::Troubled(trouble) => complaints.push(trouble.clone()),
            Certificate::InUse { .. } => {}
        }
        if state.leaving {
            complaints.push("stopping".to_owned());
        }
        complaints
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_from_the_first_good_certificate_on() {
        let readiness = Readiness::default();
        assert_eq!(readiness.complaints(), ["no certificate yet"]);
        readiness.certificate(Some("forbidden".into()));
        assert_eq!(readiness.complaints(), ["forbidden"]);
        readiness.certificate(None);
        assert!(readiness.complaints().is_empty());
    }

    #[test]
    fn trouble_with_the_next_certificate_does_not_stop_the_one_in_use() {
        let readiness = Readiness::default();
        readiness.certificate(None);
        readiness.certificate(Some("no answer".into()));
        assert!(readiness.complaints().is_empty());
    }

    #[test]
    fn not_ready_before_every_watch_has_listed() {
        let readiness = Readiness::default();
        readiness.certificate(None);
        let _pods = readiness.watches().watch("Pod");
        assert_eq!(readiness.complaints(), ["watch of Pod has not listed yet"]);
    }

    #[test]
    fn lists_are_not_waited_for_for_ever() {
        let readiness = Readiness::default();
        readiness.certificate(None);
        let _pods = readiness.watches().watch("Pod");
        assert_eq!(readiness.complaints().len(), 1);
        assert!(readiness.complaints_at(Instant::now() + PATIENCE).is_empty());
    }

    #[test]
    fn a_watch_that_breaks_later_does_not_take_the_replica_away() {
        let readiness = Readiness::default();
        readiness.certificate(None);
        assert!(readiness.complaints().is_empty());
        // Stands for a failing watch: the runtime reports one that never listed in the same way.
        let _pods = readiness.watches().watch("Pod");
        assert!(readiness.complaints().is_empty());
    }

    #[test]
    fn a_replica_that_stops_is_not_ready() {
        let readiness = Readiness::default();
        readiness.certificate(None);
        readiness.leave();
        assert_eq!(readiness.complaints(), ["stopping"]);
    }
}
