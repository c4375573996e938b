//! Whether this replica should be asked: it has a certificate that the API server trusts, knows the objects that rules
//! compare with, and is not on its way out.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use keelson_runtime::health::Health;
use parking_lot::Mutex;

/// How long the first lists are waited for. Slinky's chart gives no right to watch our kinds; then rules that compare
/// objects are off, which is better than no answer.
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
    /// Every watch has listed. One that breaks later leaves us with older neighbours, which is better than no answer.
    synced: bool,
    leaving: bool,
}

#[derive(Debug, Default)]
enum Certificate {
    #[default]
    Awaited,
    Troubled(String),
    /// From here on a trouble is only a trouble with the next certificate: the one in use goes on working.
    InUse {
        trouble: Option<String>,
    },
}

impl Readiness {
    /// Where watches report how they are.
    pub fn watches(&self) -> &Health {
        &self.watches
    }

    /// Takes how the last look at the certificate ended.
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
            tracing::warn!(error = complaint, "certificate not settled, trying again");
        }
        state.certificate = match (&state.certificate, complaint) {
            (Certificate::InUse { .. }, trouble) | (_, trouble @ None) => Certificate::InUse { trouble },
            (_, Some(trouble)) => Certificate::Troubled(trouble),
        };
    }

    /// Sends new connections elsewhere.
    pub fn leave(&self) {
        self.state.lock().leaving = true;
    }

    pub fn is_leaving(&self) -> bool {
        self.state.lock().leaving
    }

    /// Why this replica should not be asked; empty when it should.
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
                "objects are not compared with each other"
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
        // Stands for a watch in trouble: the runtime reports one that never listed in the same way.
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
