//! Computes the status of a Controller. Pure.

use jiff::Timestamp;
use keelson_api::{
    Controller, ControllerStatus,
    status::Endpoint,
    well_known::{app, condition, reason},
};

use super::{
    configuration::{
        choose::Chosen,
        delivery::{self, Delivery},
    },
    groups,
    observe::{Live, Observed},
    registration::Registration,
};
use crate::{
    conditions::{self, Finding},
    pod_diagnosis,
    problem::Problem,
    teardown::Teardown,
    workload::Workload,
};

/// Result of a reconcile.
#[derive(Debug)]
pub enum Outcome<'a> {
    /// Nothing could be built or applied; what runs stays as it was.
    Blocked(Problem),
    /// The Controller is being deleted and its inputs are already gone; what runs stays as it was.
    Leaving,
    Published {
        chosen: &'a Chosen,
        delivery: Delivery,
        /// `None` if no job records are wanted.
        registration: Option<Registration>,
        /// Why a requested `ServiceMonitor` does not exist.
        monitor: Option<Problem>,
    },
}

impl Outcome<'_> {
    /// Reports whether the problem is only that a change has to wait for jobs.
    pub fn waits(&self) -> bool {
        self.problem()
            .is_some_and(|problem| [reason::CONFIG_PENDING, reason::KEY_PENDING].contains(&problem.reason))
    }

    /// Returns the problem to report.
    pub fn problem(&self) -> Option<Problem> {
        match self {
            Self::Blocked(problem) => Some(problem.clone()),
            Self::Leaving => None,
            Self::Published {
                chosen,
                delivery,
                monitor,
                ..
            } => refusal(delivery)
                .or_else(|| chosen.held.clone())
                .or_else(|| monitor.clone()),
        }
    }
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
        endpoints: vec![Endpoint {
            name: app::SLURMCTLD.to_owned(),
            address: controller.address().to_string(),
        }],
        cluster_name: Some(controller.cluster_name()),
        slurm_version: delivery::slurm_version(&live.answers).or_else(|| before.slurm_version.clone()),
        config_hash: before.config_hash.clone(),
        active_config_hash: before.active_config_hash.clone(),
        ..ControllerStatus::default()
    };
    if !controller.spec.external {
        status.replicas = Some(controller.replicas());
        status.ready_replicas = Some(Workload::from(live.stateful_set.as_deref()).ready);
        if let Outcome::Published { chosen, delivery, .. } = outcome {
            status.config_hash = Some(chosen.expected.config.clone());
            if *delivery == Delivery::Applied {
                status.active_config_hash = Some(chosen.expected.config.clone());
            }
        }
    }
    let mut findings = findings(controller, live, outcome, now);
    findings.extend(teardown.finding());
    status.conditions =
        conditions::compute(&before.conditions, findings, controller.metadata.generation, now);
    status
}

fn findings(controller: &Controller, live: &Live, outcome: &Outcome<'_>, now: Timestamp) -> Vec<Finding> {
    let (chosen, delivery, registration, monitor) = match outcome {
        Outcome::Blocked(problem) => {
            let mut findings = Finding::blocked(problem);
            if !controller.spec.external {
                // Anyone who waits for this condition must not mistake the previous configuration for the newest.
                let Problem { reason, message } = problem;
                findings.push(Finding::new(
                    condition::CONFIG_APPLIED,
                    false,
                    reason,
                    message.clone(),
                ));
            }
            return findings;
        }
        Outcome::Leaving => {
            return vec![
                ready(controller, live, now),
                Finding::settled(),
                Finding::degraded(None),
            ];
        }
        Outcome::Published {
            chosen,
            delivery,
            registration,
            monitor,
        } => (chosen, delivery, registration, monitor),
    };
    let mut findings = vec![
        ready(controller, live, now),
        progressing(controller, live, chosen),
        Finding::degraded(trouble(live, chosen, delivery, now).or_else(|| monitor.clone())),
    ];
    findings.extend(registration.as_ref().map(Registration::finding));
    if !controller.spec.external {
        // slurmctld does not have the newest configuration while that waits.
        findings.push(match &chosen.held {
            Some(Problem { reason, message }) => {
                Finding::new(condition::CONFIG_APPLIED, false, reason, message.clone())
            }
            None => with_notes(delivery.finding(), &chosen.notes),
        });
    }
    findings
}

fn with_notes(mut finding: Finding, notes: &[String]) -> Finding {
    if !notes.is_empty() {
        finding.message = format!("{}. Note: {}", finding.message, notes.join("; "));
    }
    finding
}

fn ready(controller: &Controller, live: &Live, now: Timestamp) -> Finding {
    if controller.spec.external {
        let message = format!("using the external slurmctld at {}", controller.address());
        return Finding::new(condition::READY, true, reason::EXTERNAL, message);
    }
    // With backups, one slurmctld is enough for Slurm to work.
    Workload::from(live.stateful_set.as_deref()).readiness(
        app::SLURMCTLD,
        controller.replicas(),
        &live.pods,
        now,
    )
}

fn progressing(controller: &Controller, live: &Live, chosen: &Chosen) -> Finding {
    if let Some(Problem { reason, message }) = &chosen.held
        && *reason != reason::CONFIG_REFUSED
    {
        return Finding::new(condition::PROGRESSING, true, reason, message.clone());
    }
    if !chosen.waiting.is_empty() {
        let message = chosen.waiting.join("; ");
        return Finding::new(condition::PROGRESSING, true, reason::DRAINING, message);
    }
    if chosen.accounting_waits {
        let message = "jobs are recorded once slurmdbd answers; jobs that end before that are not recorded";
        return Finding::new(condition::PROGRESSING, true, reason::STARTING, message);
    }
    if controller.spec.external {
        return Finding::settled();
    }
    Workload::from(live.stateful_set.as_deref()).progress(app::SLURMCTLD, controller.replicas())
}

/// Returns the problem to report, the worst first.
fn trouble(live: &Live, chosen: &Chosen, delivery: &Delivery, now: Timestamp) -> Option<Problem> {
    let invalid = || {
        let held = chosen.held.clone();
        held.filter(|held| [reason::INVALID_SPEC, reason::CONFIG_REFUSED].contains(&held.reason))
    };
    let unused = || (!chosen.findings.is_empty()).then(|| Problem::invalid(chosen.findings.join("; ")));
    // A slurmctld that terminates may have refused its configuration before, but runs too briefly to report that.
    pod_diagnosis::among(&live.pods, now)
        .or_else(|| refusal(delivery))
        .or_else(invalid)
        .or_else(|| groups::unknown(&live.answers))
        .or_else(unused)
}

fn refusal(delivery: &Delivery) -> Option<Problem> {
    let Delivery::Refused(words) = delivery else {
        return None;
    };
    Some(Problem {
        reason: reason::CONFIG_REFUSED,
        message: format!("slurmctld refused the configuration: {words}"),
    })
}
