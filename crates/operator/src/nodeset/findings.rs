//! What there is to say of a NodeSet: its conditions. Pure.

use keelson_api::well_known::{condition, reason};

use super::facts::{Observed, Plan, Wait, Why};
use crate::{conditions::Finding, pod_trouble, problem::Problem, slurm::facts::Slurm};

pub fn findings(
    observed: &Observed,
    plan: &Plan,
    problem: Option<&Problem>,
    desired: usize,
    available: usize,
) -> Vec<Finding> {
    let mut workers = format!("{} of {desired} workers available", available.min(desired));
    let ready = match problem {
        Some(problem) => Finding::new(condition::READY, false, problem.reason, problem.message.clone()),
        None if available >= desired => Finding::new(condition::READY, true, reason::AS_SPECIFIED, workers),
        None => {
            if let Some(Problem { message, .. }) = troubled(observed) {
                workers = format!("{workers}; {message}");
            }
            Finding::new(condition::READY, false, reason::STARTING, workers)
        }
    };
    let old = observed
        .pods
        .iter()
        .filter(|pod| pod.revision != observed.set.revision)
        .count();
    let progressing = if observed.set.paused {
        Finding::new(
            condition::PROGRESSING,
            false,
            reason::PAUSED,
            "paused by a person: spec.paused=false goes on",
        )
    } else if !plan.waits.is_empty() {
        Finding::new(
            condition::PROGRESSING,
            true,
            reason::DRAINING,
            describe(&plan.waits),
        )
    } else if old > 0 {
        let message = format!("{old} workers are of an older revision");
        Finding::new(condition::PROGRESSING, true, reason::ROLLING_OUT, message)
    } else if let Some(message) = misknown(observed) {
        Finding::new(condition::PROGRESSING, true, reason::ROLLING_OUT, message)
    } else if observed.pods.len() != desired {
        let message = format!("{} workers exist, {desired} are wanted", observed.pods.len());
        Finding::new(condition::PROGRESSING, true, reason::SCALING, message)
    } else if let Some(message) = drained(observed) {
        Finding::new(condition::PROGRESSING, false, reason::DRAINED, message)
    } else {
        Finding::new(condition::PROGRESSING, false, reason::AS_SPECIFIED, "")
    };
    let degraded = match (problem, &observed.slurm) {
        (Some(problem), _) => Finding::degraded(Some(problem.clone())),
        (None, Slurm::Unknown { why }) => {
            let message = format!("{why}; nothing that could end a job is done until Slurm answers");
            Finding::new(condition::DEGRADED, true, reason::SLURM_UNREACHABLE, message)
        }
        (None, Slurm::Known { .. }) => Finding::degraded(troubled(observed)),
    };
    vec![ready, progressing, degraded]
}

/// One of the workers that do not come up, with the reason.
pub fn troubled(observed: &Observed) -> Option<Problem> {
    let troubled = observed
        .pods
        .iter()
        .filter_map(|pod| Some((pod.name.clone(), pod.trouble.clone()?)));
    pod_trouble::one_of(troubled.collect())
}

/// Workers that take no new jobs although they are to stay.
fn drained(observed: &Observed) -> Option<String> {
    let nodes = observed.pods.iter().filter_map(|pod| {
        let node = observed.slurm.node(&pod.node).filter(|node| node.draining())?;
        Some((&pod.node, &node.reason))
    });
    let (first, reason) = nodes.clone().min()?;
    Some(format!(
        "{} workers take no new jobs, such as {first}: {reason}",
        nodes.count()
    ))
}

/// Nodes that Slurm still knows by what a former worker told.
fn misknown(observed: &Observed) -> Option<String> {
    let nodes = observed.pods.iter().filter(|pod| pod.is_misknown(&observed.set));
    let mut nodes: Vec<&str> = nodes.map(|pod| pod.node.0.as_str()).collect();
    nodes.sort_unstable();
    let first = nodes.first()?;
    Some(format!(
        "Slurm has the former resources and features of {} nodes, such as {first}: they are renewed with RollingUpdate as soon \
         as no drain of somebody else, no reservation and no pending job that names the node stands against it; else drain it \
         and run `scontrol delete nodename={first}`",
        nodes.len()
    ))
}

/// What is waited for, with counts and the longest end.
fn describe(waits: &[Wait]) -> String {
    let count = |of: fn(&Why) -> bool| waits.iter().filter(|wait| of(&wait.why)).count();
    let busy = count(|why| matches!(why, Why::Jobs { .. }));
    let silent = count(|why| matches!(why, Why::SlurmUnknown));
    let reading = count(|why| matches!(why, Why::Reading));
    let suspect = count(|why| matches!(why, Why::SuspectLoss));
    let mut parts = Vec::new();
    if busy > 0 {
        let ends = waits.iter().filter_map(|wait| match wait.why {
            Why::Jobs { until } => Some(until),
            _ => None,
        });
        let ends: Option<Vec<_>> = ends.collect();
        let until = match ends.and_then(|ends| ends.into_iter().max()) {
            Some(latest) => format!("until {latest} at the latest"),
            None => "without a known end: spec.drain.timeout would set one".to_owned(),
        };
        let first = waits.iter().find(|wait| matches!(wait.why, Why::Jobs { .. }));
        let first = first.map_or("", |wait| wait.node.0.as_str());
        parts.push(format!(
            "jobs are running on {busy} leaving workers, such as {first}, {until}"
        ));
    }
    let wanted: Vec<u64> = waits
        .iter()
        .filter_map(|wait| match &wait.why {
            Why::Wanted { jobs } => Some(jobs.clone()),
            _ => None,
        })
        .flatten()
        .collect();
    if let Some(first) = wanted.first() {
        let node = waits.iter().find(|wait| matches!(wait.why, Why::Wanted { .. }));
        let node = node.map_or("", |wait| wait.node.0.as_str());
        parts.push(format!(
            "{} pending jobs, such as {first}, insist on leaving workers, such as {node}: cancel them, have them take any node \
             (`scontrol update job={first} reqnodelist=`), or keep the worker",
            wanted.len()
        ));
    }
    if silent > 0 {
        parts.push(format!("Slurm does not answer about {silent} leaving workers"));
    }
    if reading > 0 {
        parts.push(format!("{reading} workers are being drained"));
    }
    if suspect > 0 {
        let first = waits.iter().find(|wait| matches!(wait.why, Why::SuspectLoss));
        let first = first.map_or("", |wait| wait.pod.as_str());
        parts.push(format!(
            "Slurm does not know {suspect} leaving workers, such as {first}, nor most of the others: they never registered (the log of slurmd says why), or Slurm lost its state while jobs run on them; delete their pods by hand if no job does"
        ));
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;

    use super::{
        super::{
            facts::PodFacts,
            plan::tests::{observed, pod, set, slurm},
        },
        *,
    };
    use crate::conditions::Holds;

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

    fn told(observed: &Observed) -> [(Holds, &'static str, String); 3] {
        let all = findings(observed, &Plan::default(), None, observed.desired(), 1);
        let all: Vec<_> = all
            .into_iter()
            .map(|found| (found.holds, found.reason, found.message))
            .collect();
        all.try_into().unwrap()
    }

    #[test]
    fn workers_that_do_not_come_up_are_trouble() {
        // In any order, the same one is named.
        let facts = observed(set(3), vec![ends(2), pod(0), ends(1)], slurm(&["IDLE", "", ""]));
        let [ready, _, degraded] = told(&facts);
        let why = "pod w-1 (and 1 more): container slurmd ended";
        let workers = format!("1 of 3 workers available; {why}");
        assert_eq!(ready, (Holds::No, reason::STARTING, workers));
        assert_eq!(degraded, (Holds::Yes, reason::DAEMON_ENDED, why.to_owned()));
    }

    #[test]
    fn workers_that_take_no_jobs_are_told_of_with_the_reason() {
        let mut slurm = slurm(&["IDLE", "IDLE+DRAIN", "ALLOCATED+DRAIN"]);
        if let Slurm::Known { nodes } = &mut slurm {
            nodes.get_mut(&"w-1".into()).unwrap().reason = "bad disk".to_owned();
        }
        let [_, progressing, degraded] = told(&observed(set(3), vec![pod(2), pod(1), pod(0)], slurm));
        let message = "2 workers take no new jobs, such as w-1: bad disk".to_owned();
        assert_eq!(progressing, (Holds::No, reason::DRAINED, message));
        assert_eq!(degraded.0, Holds::No);
    }

    #[test]
    fn a_slurm_that_does_not_answer_is_told_first() {
        let silent = Slurm::Unknown {
            why: "silence".into(),
        };
        let [.., degraded] = told(&observed(set(1), vec![ends(0)], silent));
        assert_eq!(degraded.1, reason::SLURM_UNREACHABLE);
    }
}
