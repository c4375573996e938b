//! What a person sees of a RestApi. Pure.

use jiff::Timestamp;
use keelson_api::{
    RestApiStatus,
    status::Endpoint,
    well_known::{app, condition, reason},
};

use super::observe::Observed;
use crate::{
    conditions::{self, Finding},
    problem::Problem,
    teardown::Teardown,
};

pub fn compute(
    observed: &Observed,
    problem: Option<&Problem>,
    teardown: &Teardown,
    now: Timestamp,
) -> RestApiStatus {
    let Observed { restapi, live, .. } = observed;
    let before = restapi.status.clone().unwrap_or_default();
    let deployed = live
        .deployment
        .as_ref()
        .and_then(|deployment| deployment.status.clone())
        .unwrap_or_default();
    let ready = deployed.ready_replicas.unwrap_or(0);
    let wanted = restapi.spec.replicas;
    let mut findings = if let Some(Problem { reason, message }) = problem {
        vec![
            Finding::new(condition::READY, false, reason, message.clone()),
            Finding::new(condition::DEGRADED, true, reason, message.clone()),
        ]
    } else {
        let reason = if ready >= wanted {
            reason::AS_SPECIFIED
        } else {
            reason::STARTING
        };
        let message = format!("{ready} of {wanted} slurmrestd ready");
        vec![
            Finding::new(condition::READY, ready > 0 || wanted == 0, reason, message),
            Finding::new(condition::DEGRADED, false, reason::AS_SPECIFIED, ""),
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
        replicas: Some(deployed.replicas.unwrap_or(0)),
        ready_replicas: Some(ready),
    }
}
