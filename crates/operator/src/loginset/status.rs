//! Computes the status of a LoginSet. Pure.

use jiff::Timestamp;
use keelson_api::{
    LoginSetStatus,
    status::Endpoint,
    well_known::{app, label, port},
};

use kube::ResourceExt;

use super::observe::Observed;
use crate::{
    conditions::{self, Finding},
    pod_diagnosis,
    problem::Problem,
    teardown::Teardown,
    workload::Workload,
};

pub fn compute(
    observed: &Observed,
    problem: Option<&Problem>,
    unused: &[String],
    teardown: &Teardown,
    now: Timestamp,
) -> LoginSetStatus {
    let Observed { loginset, live, .. } = observed;
    let before = loginset.status.clone().unwrap_or_default();
    let workload = Workload::from(live.deployment.as_deref());
    let mut findings = if let Some(problem) = problem {
        Finding::blocked(problem)
    } else {
        vec![
            workload.readiness("login pods", loginset.spec.replicas, &live.pods, now),
            workload.progress("login pods", loginset.spec.replicas),
            Finding::degraded(pod_diagnosis::among(&live.pods, now).or_else(|| unused_lines(unused))),
        ]
    };
    findings.extend(teardown.finding());
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

fn unused_lines(unused: &[String]) -> Option<Problem> {
    (!unused.is_empty()).then(|| Problem::invalid(unused.join("; ")))
}
