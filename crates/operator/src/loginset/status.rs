//! What a person sees of a LoginSet. Pure.

use jiff::Timestamp;
use keelson_api::{
    LoginSetStatus,
    status::Endpoint,
    well_known::{app, condition, label, port, reason},
};

use kube::ResourceExt;

use super::observe::Observed;
use crate::{
    conditions::{self, Finding},
    problem::Problem,
    workload::Workload,
};

pub fn compute(
    observed: &Observed,
    problem: Option<&Problem>,
    unused: &[String],
    now: Timestamp,
) -> LoginSetStatus {
    let Observed { loginset, live, .. } = observed;
    let before = loginset.status.clone().unwrap_or_default();
    let workload = Workload::from(live.deployment.as_deref());
    let findings = if let Some(problem) = problem {
        Finding::blocked(problem)
    } else {
        vec![
            workload.readiness("login pods", loginset.spec.replicas, &live.pods),
            workload.progress("login pods", loginset.spec.replicas),
            degraded(unused),
        ]
    };
    LoginSetStatus {
        observed_generation: loginset.metadata.generation,
        conditions: conditions::compute(&before.conditions, findings, loginset.metadata.generation, now),
        endpoints: vec![Endpoint {
            name: port::SSH_NAME.to_owned(),
            address: loginset.address().to_string(),
        }],
        replicas: Some(workload.replicas),
        ready_replicas: Some(workload.ready),
        selector: format!(
            "{}={},{}={}",
            label::INSTANCE,
            loginset.name_any(),
            label::APP,
            app::LOGIN
        ),
    }
}

fn degraded(unused: &[String]) -> Finding {
    if unused.is_empty() {
        Finding::new(condition::DEGRADED, false, reason::AS_SPECIFIED, "")
    } else {
        Finding::new(condition::DEGRADED, true, reason::INVALID_SPEC, unused.join("; "))
    }
}
