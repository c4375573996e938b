//! Metrics of the admission webhook.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use jiff::Timestamp;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReviewLabels {
    kind: &'static str,
    operation: &'static str,
    verdict: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

/// The runtime's metrics and ours, in one registry.
#[derive(Clone, Default)]
pub struct Metrics {
    runtime: keelson_runtime::metrics::Metrics,
    own: Arc<Own>,
}

struct Own {
    reviews: Family<ReviewLabels, Counter>,
    seconds: Family<KindLabels, Histogram>,
    in_flight: Gauge,
    certificate_expiry: Gauge<f64, AtomicU64>,
}

impl Default for Own {
    fn default() -> Self {
        let seconds = || Histogram::new([0.0001, 0.0003, 0.001, 0.003, 0.01, 0.1, 1.0, 10.0]);
        Self {
            reviews: Family::default(),
            seconds: Family::new_with_constructor(seconds),
            in_flight: Gauge::default(),
            certificate_expiry: Gauge::default(),
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    pub fn new() -> Self {
        let metrics = Self::default();
        metrics.runtime.register(|registry| {
            registry.register(
                "admission_reviews",
                "Reviews by kind, operation and verdict",
                metrics.own.reviews.clone(),
            );
            registry.register(
                "admission_seconds",
                "Duration of reviews, including look-ups",
                metrics.own.seconds.clone(),
            );
            registry.register(
                "admission_in_flight",
                "Reviews in progress or waiting",
                metrics.own.in_flight.clone(),
            );
            registry.register(
                "certificate_expiry_timestamp_seconds",
                "Expiry of the serving certificate in use",
                metrics.own.certificate_expiry.clone(),
            );
        });
        metrics
    }

    /// The registry that watches use and `/metrics` exposes.
    pub fn runtime(&self) -> &keelson_runtime::metrics::Metrics {
        &self.runtime
    }

    pub fn reviewed(&self, kind: &'static str, operation: &'static str, verdict: &'static str) {
        self.own
            .reviews
            .get_or_create(&ReviewLabels {
                kind,
                operation,
                verdict,
            })
            .inc();
    }

    pub fn took(&self, kind: &'static str, time: Duration) {
        self.own
            .seconds
            .get_or_create(&KindLabels { kind })
            .observe(time.as_secs_f64());
    }

    pub fn certificate_expires(&self, at: Timestamp) {
        self.own.certificate_expiry.set(at.as_duration().as_secs_f64());
    }

    /// Counts a review as in flight until the guard is dropped.
    pub fn in_flight(&self) -> InFlight {
        self.own.in_flight.inc();
        InFlight(self.own.in_flight.clone())
    }
}

/// See [`Metrics::in_flight`].
#[derive(Debug)]
pub struct InFlight(Gauge);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}
