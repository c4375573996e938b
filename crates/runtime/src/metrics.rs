//! Counters and durations of the runtime itself, in `OpenMetrics` form.

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReconcileLabels {
    pub controller: &'static str,
    pub outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ControllerLabels {
    pub controller: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct WatchLabels {
    pub kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct WriteLabels {
    pub kind: String,
    pub verb: &'static str,
    pub outcome: &'static str,
}

/// The runtime's own metrics, and the registry in which the controllers put theirs.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    pub reconciles: Family<ReconcileLabels, Counter>,
    pub reconcile_seconds: Family<ControllerLabels, Histogram>,
    pub queue_depth: Family<ControllerLabels, Gauge>,
    pub watch_errors: Family<WatchLabels, Counter>,
    pub writes: Family<WriteLabels, Counter>,
    pub events_dropped: Counter,
    pub leading: Gauge,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let seconds = || Histogram::new([0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0]);
        let metrics = Self {
            registry: Arc::new(Mutex::new(Registry::with_prefix("keelson"))),
            reconciles: Family::default(),
            reconcile_seconds: Family::new_with_constructor(seconds),
            queue_depth: Family::default(),
            watch_errors: Family::default(),
            writes: Family::default(),
            events_dropped: Counter::default(),
            leading: Gauge::default(),
        };
        metrics.register(|registry| {
            registry.register(
                "reconciles",
                "Reconciles by controller and outcome",
                metrics.reconciles.clone(),
            );
            registry.register(
                "reconcile_seconds",
                "Duration of reconciles",
                metrics.reconcile_seconds.clone(),
            );
            registry.register(
                "queue_depth",
                "Objects queued for reconciliation",
                metrics.queue_depth.clone(),
            );
            registry.register("watch_errors", "Failed watches", metrics.watch_errors.clone());
            registry.register(
                "kubernetes_writes",
                "Write calls to the API server",
                metrics.writes.clone(),
            );
            registry.register(
                "events_dropped",
                "Events dropped because the buffer was full",
                metrics.events_dropped.clone(),
            );
            registry.register(
                "leading",
                "1 if this replica is the leader",
                metrics.leading.clone(),
            );
        });
        metrics
    }
}

impl Metrics {
    /// Adds metrics of a controller to `/metrics`.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.lock());
    }

    pub fn render(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry.lock())?;
        Ok(text)
    }

    pub(crate) fn reconciled(&self, controller: &'static str, outcome: &'static str, took: Duration) {
        self.reconciles
            .get_or_create(&ReconcileLabels { controller, outcome })
            .inc();
        self.reconcile_seconds
            .get_or_create(&ControllerLabels { controller })
            .observe(took.as_secs_f64());
    }

    /// Counts a write call to the API server.
    pub fn wrote(&self, kind: &str, verb: &'static str, ok: bool) {
        let outcome = if ok { "ok" } else { "error" };
        self.writes
            .get_or_create(&WriteLabels {
                kind: kind.to_owned(),
                verb,
                outcome,
            })
            .inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_rendered() {
        let metrics = Metrics::default();
        metrics.reconciled("nodeset", "ok", Duration::from_millis(3));
        metrics.wrote("Pod", "create", true);
        let text = metrics.render().unwrap();
        assert!(
            text.contains(r#"keelson_reconciles_total{controller="nodeset",outcome="ok"} 1"#),
            "{text}"
        );
        assert!(text.contains(r#"verb="create""#), "{text}");
    }
}
