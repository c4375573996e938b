//! Computes the conditions of a NodeSet. Pure.

use std::collections::HashSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use keelson_api::{
    nodeset::ScalingMode,
    well_known::{annotation, condition, reason},
};
use keelson_runtime::run::chain;

use super::{
    act::Acted,
    facts::{Fit, KeptRecord, Observed, Paused, Phase, Plan, PodFacts},
    plan::name_conflicts,
    rollout::{self, Rollout},
    waits,
};
use crate::{
    conditions::Finding,
    pod_diagnosis,
    problem::Problem,
    slurm::facts::{JobReading, NodeName, Slurm},
    wording::counted,
};

/// Computes the conditions. `before` contains the conditions of the last status.
pub fn findings(
    observed: &Observed,
    before: &[Condition],
    plan: &Plan,
    acted: &Acted,
    problem: Option<&Problem>,
) -> Vec<Finding> {
    let degraded = match (problem, &observed.slurm) {
        (Some(problem), _) => Some(problem.clone()),
        (None, Slurm::Unknown { why }) => {
            let message =
                format!("{why}; workers that may have jobs will not be removed until Slurm answers");
            Some(Problem {
                reason: reason::SLURM_UNREACHABLE,
                message,
            })
        }
        (None, Slurm::Known { .. }) => unread(observed)
            .or_else(|| failed(acted))
            .or_else(|| troubled(observed))
            .or_else(|| out_of_service(observed))
            .or_else(|| conflict(observed)),
    };
    let rollout = rollout::under_way(observed, before, available(observed));
    let rollout = rollout.as_ref();
    vec![
        ready(observed, rollout, problem),
        progressing(observed, rollout, plan, acted),
        Finding::degraded(degraded),
    ]
}

/// Returns the number of workers that have been ready for at least `minReadySeconds`.
pub fn available(observed: &Observed) -> usize {
    let min_ready = SignedDuration::try_from(observed.set.min_ready).unwrap_or(SignedDuration::MAX);
    let is_available = |pod: &&PodFacts| {
        let long = |since: Timestamp| observed.now.duration_since(since) >= min_ready;
        pod.phase == Phase::Running && pod.ready_since.is_some_and(long)
    };
    observed.pods.iter().filter(is_available).count()
}

fn ready(observed: &Observed, rollout: Option<&Rollout>, problem: Option<&Problem>) -> Finding {
    let not = |reason, message| Finding::new(condition::READY, false, reason, message);
    if let Some(Problem { reason, message }) = problem {
        return not(reason, message.clone());
    }
    let (desired, available) = (observed.desired(), available(observed));
    let mut workers = format!("{} of {desired} workers available", available.min(desired));
    let missing = desired.saturating_sub(available);
    if missing > 0
        && let Some(Problem { message, .. }) = troubled(observed).or_else(|| conflict(observed))
    {
        workers = format!("{workers}; {message}");
    }
    let out = missing + down(observed).len();
    if out > 0 && rollout.is_some_and(|rollout| rollout.tolerates(out)) {
        return Finding::new(condition::READY, true, reason::ROLLING_OUT, workers);
    }
    if missing > 0 {
        return not(reason::STARTING, workers);
    }
    match out_of_service(observed) {
        Some(Problem { reason, message }) => not(reason, message),
        None => Finding::new(condition::READY, true, reason::AS_SPECIFIED, workers),
    }
}

fn progressing(observed: &Observed, rollout: Option<&Rollout>, plan: &Plan, acted: &Acted) -> Finding {
    let yes = |reason, message| Finding::new(condition::PROGRESSING, true, reason, message);
    let no = |reason, message| Finding::new(condition::PROGRESSING, false, reason, message);
    if let Some(paused) = observed.set.paused {
        let remedy = match paused {
            Paused::Spec => "set spec.paused to false".to_owned(),
            Paused::Annotation => format!("remove the annotation {}", annotation::PAUSED),
        };
        return no(reason::PAUSED, format!("paused: {remedy} to resume"));
    }
    let mut parts: Vec<String> = rollout.map(Rollout::describe).into_iter().collect();
    let reason = if let Some((node, why)) = acted.refused.first() {
        let is_there = observed.pods.iter().any(|pod| pod.node == *node);
        let so = if is_there { ", so its pod is kept" } else { "" };
        let stays = format!("Slurm refused to delete the record of node {node}{so}: {why}");
        parts.push(stays);
        Some(reason::DRAINING)
    } else if !plan.waits.is_empty() {
        parts.push(waits::describe(&plan.waits, &observed.set, &observed.slurm));
        Some(reason::DRAINING)
    } else if rollout.is_some() {
        Some(reason::ROLLING_OUT)
    } else if let Some(message) = misknown(observed) {
        parts.push(message);
        Some(reason::ROLLING_OUT)
    } else if observed.pods.len() != observed.desired() {
        let (now, desired) = (observed.pods.len(), observed.desired());
        let held = if observed.set.quiesced {
            "; no worker will be created until slurmctld has applied a change that requires a cluster without jobs"
        } else {
            ""
        };
        parts.push(format!(
            "scaling from {now} to {}{held}",
            counted(desired, "worker")
        ));
        Some(reason::SCALING)
    } else {
        None
    };
    // Always reported, so that users find here why a worker gets no jobs.
    let cordoned = waits::cordoned(observed);
    if let Some(reason) = reason {
        parts.extend(cordoned);
        yes(reason, parts.join("; "))
    } else if let Some(message) = cordoned {
        no(reason::DRAINED, message)
    } else if let Some(KeptRecord { node, why }) = plan.kept.first() {
        let message = format!(
            "Slurm keeps the records of {}, such as {node}: {why}",
            counted(plan.kept.len(), "removed worker")
        );
        no(reason::RECORDS_KEPT, message)
    } else {
        no(reason::AS_SPECIFIED, String::new())
    }
}

/// Reports that the job list cannot be read. Without it, no worker loses its eviction protection or its pod.
fn unread(observed: &Observed) -> Option<Problem> {
    let Slurm::Known {
        jobs: JobReading::Failed { why },
        ..
    } = &observed.slurm
    else {
        return None;
    };
    Some(Problem {
        reason: reason::JOBS_UNREADABLE,
        message: format!("{why}; no worker will be removed until Slurm lists its jobs"),
    })
}

fn failed(acted: &Acted) -> Option<Problem> {
    let first = acted.failures.first()?;
    Some(Problem {
        reason: reason::STEP_FAILED,
        message: format!("{}; will retry", chain(first)),
    })
}

/// Returns the workers that are ready in Kubernetes but cannot run jobs in Slurm, and are not being removed, with
/// Slurm's state and reason.
fn down(observed: &Observed) -> Vec<(&NodeName, &'static str, &str)> {
    let mut out: Vec<(&NodeName, &'static str, &str)> = observed
        .pods
        .iter()
        .filter(|pod| pod.ready_since.is_some() && pod.intent.is_none() && !pod.terminating)
        .filter_map(|pod| {
            let node = observed.slurm.node(&pod.node)?;
            Some((&pod.node, node.out_of_service()?, node.reason.as_str()))
        })
        .collect();
    out.sort_unstable();
    out
}

pub fn out_of_service(observed: &Observed) -> Option<Problem> {
    let out = down(observed);
    let (node, state, why) = out.first()?;
    let why = if why.is_empty() {
        String::new()
    } else {
        format!(", reason: {why}")
    };
    Some(Problem {
        reason: reason::NODES_DOWN,
        message: format!(
            "{} out of service in Slurm, such as {node} ({state}{why}): see `scontrol show node {node}` and \
             the slurmd log",
            counted(out.len(), "worker")
        ),
    })
}

/// Reports Kubernetes nodes that request the same host name (DaemonSet mode).
fn conflict(observed: &Observed) -> Option<Problem> {
    let conflicts = name_conflicts(observed);
    let Some((name, kube_nodes)) = conflicts.first_key_value() else {
        return shared_kube_node(observed);
    };
    Some(Problem {
        reason: reason::HOSTNAME_CONFLICT,
        message: format!(
            "Kubernetes nodes {} all give their worker the host name {name}, but only one worker can use it: set the annotation {} \
             on the other nodes",
            kube_nodes.join(", "),
            annotation::HOSTNAME_OVERRIDE
        ),
    })
}

/// Reports that a worker of another NodeSet already uses the name that our worker would have (DaemonSet mode).
fn shared_kube_node(observed: &Observed) -> Option<Problem> {
    let own: HashSet<&NodeName> = observed.pods.iter().map(|pod| &pod.node).collect();
    let (kube_node, pod) = observed
        .kube_nodes
        .values()
        .filter(|kube_node| kube_node.fit == Fit::Run)
        .map(|kube_node| NodeName(kube_node.hostname.clone()))
        .filter(|name| !own.contains(name))
        .find_map(|name| Some((name.clone(), observed.taken.get(&name)?)))
        .filter(|_| observed.set.mode == ScalingMode::DaemonSet)?;
    Some(Problem {
        reason: reason::HOSTNAME_CONFLICT,
        message: format!(
            "pod {pod} of another NodeSet already serves Slurm node {kube_node}: use node selectors that do not overlap"
        ),
    })
}

/// Diagnoses one of the workers that fail to start.
pub fn troubled(observed: &Observed) -> Option<Problem> {
    let troubled = observed
        .pods
        .iter()
        .filter_map(|pod| Some((pod.name.clone(), pod.trouble.clone()?)));
    pod_diagnosis::one_of(troubled.collect())
}

/// Reports nodes whose Slurm record still describes a previous worker.
fn misknown(observed: &Observed) -> Option<String> {
    let nodes = observed.pods.iter().filter(|pod| pod.is_misknown(&observed.set));
    let mut nodes: Vec<&str> = nodes.map(|pod| pod.node.0.as_str()).collect();
    nodes.sort_unstable();
    let first = nodes.first()?;
    Some(format!(
        "Slurm still has the old resources and features of {}, such as {first}: RollingUpdate updates them once the node \
         is not drained by someone else, is in no reservation and is requested by no pending job; otherwise drain it and run \
         `scontrol delete nodename={first}`",
        counted(nodes.len(), "node")
    ))
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;

    use super::{
        super::{
            act::StepError,
            facts::{Cause, Intent, PodFacts, Wait, Why},
            plan::tests::{at, observed, pod, set, slurm},
        },
        *,
    };
    use crate::conditions::ConditionStatus;

    fn ends(ordinal: u32) -> PodFacts {
        PodFacts {
            ready_since: None,
            trouble: Some(Problem {
                reason: reason::DAEMON_ENDED,
                message: "container slurmd ended".into(),
            }),
            ..pod(ordinal)
        }
    }

    fn told(observed: &Observed) -> [(ConditionStatus, &'static str, String); 3] {
        let all = findings(observed, &[], &Plan::default(), &Acted::default(), None);
        let all: Vec<_> = all
            .into_iter()
            .map(|found| (found.holds, found.reason, found.message))
            .collect();
        all.try_into().unwrap()
    }

    #[test]
    fn workers_that_do_not_come_up_are_trouble() {
        // The message does not depend on the order of the pods.
        let facts = observed(set(3), vec![ends(2), pod(0), ends(1)], slurm(&["IDLE", "", ""]));
        let [ready, _, degraded] = told(&facts);
        let why = "pod w-1 (and 1 more): container slurmd ended";
        let workers = format!("1 of 3 workers available; {why}");
        assert_eq!(ready, (ConditionStatus::No, reason::STARTING, workers));
        assert_eq!(
            degraded,
            (ConditionStatus::Yes, reason::DAEMON_ENDED, why.to_owned())
        );
    }

    #[test]
    fn workers_that_take_no_jobs_are_told_of_with_the_reason() {
        let mut slurm = slurm(&["IDLE", "IDLE+DRAIN", "ALLOCATED+DRAIN"]);
        if let Slurm::Known { nodes, .. } = &mut slurm {
            nodes.get_mut(&"w-1".into()).unwrap().reason = "bad disk".to_owned();
        }
        let [_, progressing, degraded] = told(&observed(set(3), vec![pod(2), pod(1), pod(0)], slurm));
        let message = "2 workers take no new jobs: w-1 (bad disk), w-2".to_owned();
        assert_eq!(progressing, (ConditionStatus::No, reason::DRAINED, message));
        assert_eq!(degraded.0, ConditionStatus::No);
    }

    fn old(ordinal: u32) -> PodFacts {
        PodFacts {
            revision: "old".into(),
            ..pod(ordinal)
        }
    }

    #[test]
    fn a_roll_out_tells_how_far_it_is_whom_it_waits_for_and_who_is_cordoned() {
        let states = slurm(&["ALLOCATED+DRAIN", "IDLE+DRAIN", "IDLE"]);
        let leaves = PodFacts {
            intent: Some(Intent {
                cause: Cause::Rollout,
                since: at(-10),
            }),
            ..old(0)
        };
        let facts = observed(set(3), vec![leaves, pod(1), pod(2)], states);
        let plan = Plan {
            waits: vec![Wait {
                pod: "w-0".into(),
                node: "w-0".into(),
                why: Why::Jobs { until: Some(at(60)) },
            }],
            ..Plan::default()
        };
        let found = findings(&facts, &[], &plan, &Acted::default(), None);
        assert_eq!(found[1].reason, reason::DRAINING);
        assert_eq!(
            found[1].message,
            "2 of 3 workers updated; waiting for jobs on 1 draining worker: w-0; 1 worker takes no new jobs: w-1"
        );
    }

    #[test]
    fn a_roll_out_within_its_budget_leaves_the_set_available() {
        let starting = |ordinal| PodFacts {
            ready_since: None,
            ..pod(ordinal)
        };
        let states = || slurm(&["IDLE", "IDLE", "IDLE"]);
        let [ready, progressing, _] = told(&observed(set(3), vec![old(0), old(1), starting(2)], states()));
        let workers = |count| format!("{count} of 3 workers available");
        assert_eq!(ready, (ConditionStatus::Yes, reason::ROLLING_OUT, workers(2)));
        let updated = "1 of 3 workers updated".to_owned();
        assert_eq!(progressing, (ConditionStatus::Yes, reason::ROLLING_OUT, updated));

        let [ready, ..] = told(&observed(
            set(3),
            vec![old(0), starting(1), starting(2)],
            states(),
        ));
        assert_eq!(
            ready,
            (ConditionStatus::No, reason::STARTING, workers(1)),
            "beyond the budget"
        );
        let [ready, ..] = told(&observed(set(3), vec![pod(0), pod(1), starting(2)], states()));
        assert_eq!(
            ready,
            (ConditionStatus::No, reason::STARTING, workers(2)),
            "nothing is rolled out"
        );
        let down = slurm(&["IDLE", "DOWN+NOT_RESPONDING", "IDLE"]);
        let [ready, ..] = told(&observed(set(3), vec![old(0), old(1), starting(2)], down));
        assert_eq!(ready.0, ConditionStatus::No, "one starts and one is down");
    }

    #[test]
    fn a_slurm_that_does_not_answer_is_told_first() {
        let silent = Slurm::Unknown {
            why: "silence".into(),
        };
        let [.., degraded] = told(&observed(set(1), vec![ends(0)], silent));
        assert_eq!(degraded.1, reason::SLURM_UNREACHABLE);
    }

    #[test]
    fn workers_that_are_out_of_service_in_slurm_are_named_with_the_reason() {
        let mut slurm = slurm(&["IDLE", "DOWN+NOT_RESPONDING", "IDLE+INVALID_REG"]);
        if let Slurm::Known { nodes, .. } = &mut slurm {
            nodes.get_mut(&"w-1".into()).unwrap().reason = "Not responding".to_owned();
        }
        let [ready, _, degraded] = told(&observed(set(3), vec![pod(0), pod(1), pod(2)], slurm));
        assert_eq!((ready.0, ready.1), (ConditionStatus::No, reason::NODES_DOWN));
        assert_eq!(
            (degraded.0, degraded.1),
            (ConditionStatus::Yes, reason::NODES_DOWN)
        );
        let words = "2 workers out of service in Slurm, such as w-1 (DOWN, reason: Not responding)";
        assert!(degraded.2.starts_with(words), "{}", degraded.2);
    }

    #[test]
    fn a_list_of_jobs_that_cannot_be_read_is_trouble() {
        let unread = slurm(&["IDLE"]).with_jobs(JobReading::Failed {
            why: "no answer".into(),
        });
        let [.., degraded] = told(&observed(set(1), vec![pod(0)], unread));
        assert_eq!(degraded.1, reason::JOBS_UNREADABLE);
    }

    #[test]
    fn what_failed_and_what_slurm_refused_is_told() {
        let facts = observed(set(1), vec![pod(0)], slurm(&["IDLE"]));
        let acted = Acted {
            failures: vec![StepError::ClaimGoing { claim: "c".into() }],
            refused: vec![("w-1".into(), "Node is in use".into())],
        };
        let found = findings(&facts, &[], &Plan::default(), &acted, None);
        assert_eq!(found[2].reason, reason::STEP_FAILED);
        assert!(
            found[1].message.contains("Node is in use"),
            "{}",
            found[1].message
        );
    }
}
