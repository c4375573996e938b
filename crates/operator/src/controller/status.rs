//! What a person sees of a Controller. Pure.

use jiff::Timestamp;
use keelson_api::{
    Controller, ControllerStatus,
    status::Endpoint,
    well_known::{app, condition, reason},
};

use super::{
    build::Children,
    observe::{Live, Observed},
};
use crate::{
    conditions::{self, Finding},
    problem::Problem,
    teardown::Teardown,
};

/// How far a reconcile came.
#[derive(Debug)]
pub enum Outcome<'a> {
    /// Nothing could be built; what runs goes on as it was.
    Blocked(&'a Problem),
    Applied(&'a Children),
}

pub fn compute(
    observed: &Observed,
    outcome: &Outcome<'_>,
    teardown: &Teardown,
    now: Timestamp,
) -> ControllerStatus {
    let Observed { controller, live, .. } = observed;
    let before = controller.status.clone().unwrap_or_default();
    let mut status = ControllerStatus {
        observed_generation: controller.metadata.generation,
        conditions: vec![],
        endpoints: vec![Endpoint {
            name: app::SLURMCTLD.to_owned(),
            address: controller.address().to_string(),
        }],
        cluster_name: Some(controller.cluster_name()),
        replicas: None,
        ready_replicas: None,
        config_hash: before.config_hash.clone(),
        ..ControllerStatus::default()
    };
    if !controller.spec.external {
        status.replicas = Some(controller.replicas());
        status.ready_replicas = Some(ready_replicas(live));
    }
    if let Outcome::Applied(children) = outcome {
        status.config_hash = Some(children.config_hash.clone());
    }
    let mut findings = findings(controller, live, outcome);
    findings.extend(teardown.finding());
    status.conditions =
        conditions::compute(&before.conditions, findings, controller.metadata.generation, now);
    status
}

fn ready_replicas(live: &Live) -> i32 {
    live.stateful_set
        .as_ref()
        .and_then(|set| set.status.as_ref()?.ready_replicas)
        .unwrap_or(0)
}

fn findings(controller: &Controller, live: &Live, outcome: &Outcome<'_>) -> Vec<Finding> {
    let children = match outcome {
        Outcome::Blocked(Problem { reason, message }) => {
            return vec![
                Finding::new(condition::READY, false, reason, message.clone()),
                Finding::new(condition::DEGRADED, true, reason, message.clone()),
            ];
        }
        Outcome::Applied(children) => children,
    };
    let ready = if controller.spec.external {
        let message = format!("slurmctld runs elsewhere, at {}", controller.address());
        Finding::new(condition::READY, true, reason::EXTERNAL, message)
    } else {
        let (ready, wanted) = (ready_replicas(live), controller.replicas());
        if ready >= wanted {
            Finding::new(
                condition::READY,
                true,
                reason::AS_SPECIFIED,
                format!("{ready} of {wanted} slurmctld ready"),
            )
        } else {
            // With backups one slurmctld is enough for Slurm to work.
            let works = ready > 0;
            Finding::new(
                condition::READY,
                works,
                reason::STARTING,
                format!("{ready} of {wanted} slurmctld ready"),
            )
        }
    };
    let degraded = if children.findings.is_empty() {
        Finding::new(condition::DEGRADED, false, reason::AS_SPECIFIED, "")
    } else {
        Finding::new(
            condition::DEGRADED,
            true,
            reason::INVALID_SPEC,
            children.findings.join("; "),
        )
    };
    vec![ready, degraded]
}
