//! Metrics of the requests to Slurm.

use keelson_runtime::metrics::Metrics;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};
use slurm_rest::{OnCall, endpoint::Kind};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    kind: &'static str,
}

/// Exports the number of calls as `keelson_slurm_calls_total`, over all Slurm clusters.
pub fn calls(metrics: &Metrics) -> OnCall {
    let calls = Family::<Labels, Counter>::default();
    metrics.register(|registry| registry.register("slurm_calls", "Requests to slurmrestd", calls.clone()));
    OnCall::new(move |kind| {
        let kind = match kind {
            Kind::Read | Kind::List => "read",
            Kind::Write => "write",
        };
        calls.get_or_create(&Labels { kind }).inc();
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_shown_by_kind() {
        let metrics = Metrics::default();
        let on_call = calls(&metrics);
        for kind in [Kind::Read, Kind::List, Kind::Write] {
            on_call.tell(kind);
        }
        let text = metrics.render().unwrap();
        assert!(
            text.contains(r#"keelson_slurm_calls_total{kind="read"} 2"#),
            "{text}"
        );
        assert!(
            text.contains(r#"keelson_slurm_calls_total{kind="write"} 1"#),
            "{text}"
        );
    }
}
