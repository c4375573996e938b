//! Computes the status of a RestApi. Pure.

use jiff::Timestamp;
use keelson_api::{RestApiStatus, status::Endpoint, well_known::app};

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
    teardown: &Teardown,
    now: Timestamp,
) -> RestApiStatus {
    let Observed { restapi, live, .. } = observed;
    let before = restapi.status.clone().unwrap_or_default();
    let workload = Workload::from(live.deployment.as_deref());
    let mut findings = if let Some(problem) = problem {
        Finding::blocked(problem)
    } else {
        vec![
            workload.readiness(app::SLURMRESTD, restapi.spec.replicas, &live.pods, now),
            workload.progress(app::SLURMRESTD, restapi.spec.replicas),
            Finding::degraded(pod_diagnosis::among(&live.pods, now)),
        ]
    };
    findings.extend(teardown.finding());
    RestApiStatus {
        observed_generation: restapi.metadata.generation,
        conditions: conditions::compute(&before.conditions, findings, restapi.metadata.generation, now),
        endpoints: vec![Endpoint {
            name: app::SLURMRESTD.to_owned(),
            address: restapi.url(),
        }],
        replicas: Some(workload.replicas),
        ready_replicas: Some(workload.ready),
    }
}
