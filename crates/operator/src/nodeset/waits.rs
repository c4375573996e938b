//! Describes what a NodeSet is waiting for: jobs with their users and end times, and anything else that keeps a worker.
//! Pure.
//!
//! Every change of a message causes a status write, so messages change only when the situation does: end times are
//! absolute, and of many jobs the last to end are named, which stay the same while the others end.

use std::{cmp::Reverse, collections::BTreeMap};

use jiff::Timestamp;
use keelson_api::well_known::annotation;

use super::facts::{Leaving, Observed, SetFacts, Wait, Why};
use crate::{
    slurm::{
        facts::{NodeName, Slurm},
        jobs::HeldBy,
    },
    wording::{counted, listed},
};

/// The maximum number of jobs or workers that a message names.
const SHOWN: usize = 3;

/// Describes why workers that are to be removed are still there.
pub fn describe(waits: &[Wait], set: &SetFacts, slurm: &Slurm) -> String {
    let of = |kind: fn(&Why) -> bool| waits.iter().filter(move |wait| kind(&wait.why));
    let mut parts = Vec::new();
    let busy: Vec<&NodeName> = of(|why| matches!(why, Why::Jobs { .. }))
        .map(|wait| &wait.node)
        .collect();
    if !busy.is_empty() {
        parts.push(jobs_on(&busy, slurm));
    }
    let endless = of(|why| matches!(why, Why::Jobs { until: None }))
        .next()
        .is_some();
    if endless && set.drain_timeout.is_none() {
        parts.push("set spec.drain.timeout to limit the wait".to_owned());
    }
    parts.extend(wanted(waits));
    parts.extend(waits.iter().find_map(held));
    if let Some(Why::JobsUnread { why }) = waits
        .iter()
        .map(|wait| &wait.why)
        .find(|why| matches!(why, Why::JobsUnread { .. }))
    {
        parts.push(format!("waiting for the job list: {why}"));
    }
    let silent = of(|why| matches!(why, Why::SlurmUnknown)).count();
    if silent > 0 {
        let workers = counted(silent, "worker");
        parts.push(format!("waiting for Slurm to report the state of {workers}"));
    }
    let draining = of(|why| matches!(why, Why::Reading)).count();
    if draining > 0 {
        let are = if draining == 1 { "is" } else { "are" };
        let workers = counted(draining, "worker");
        parts.push(format!("{workers} {are} being drained"));
    }
    let starting = of(|why| matches!(why, Why::Starting)).count();
    if starting > 0 {
        let workers = counted(starting, "worker");
        parts.push(format!(
            "{workers} still starting, to be removed once registered and drained"
        ));
    }
    let mut suspect = of(|why| matches!(why, Why::SuspectLoss));
    if let Some(first) = suspect.next() {
        let workers = counted(1 + suspect.count(), "worker");
        parts.push(format!(
            "Slurm does not know {workers} to be removed, such as {}, nor most other workers: either they never registered (see the \
             slurmd log), or slurmctld lost its state while they run jobs; if they run no jobs, delete their pods manually",
            first.pod
        ));
    }
    if set.leaving == Leaving::Drain {
        let force = annotation::FORCE_DELETE;
        parts.push(format!(
            "to delete the workers without waiting, set the annotation {force}: \"true\""
        ));
    }
    parts.join("; ")
}

/// Describes workers that take no new jobs but are not being removed: cordoned, or drained by a user in Slurm.
pub fn cordoned(observed: &Observed) -> Option<String> {
    let mut nodes: Vec<(&NodeName, &str)> = observed
        .pods
        .iter()
        .filter(|pod| pod.intent.is_none() && !pod.terminating)
        .filter_map(|pod| {
            let node = observed.slurm.node(&pod.node).filter(|node| node.draining())?;
            let kube_node = pod
                .kube_node
                .as_ref()
                .and_then(|name| observed.kube_nodes.get(name));
            // Without a cordon, a drain of ours was set to replace the previous pod and ends once this one is ready.
            let lasts = pod.cordoned || kube_node.is_some_and(|kube_node| kube_node.cordoned);
            (lasts || !node.reason_is_ours()).then_some((&pod.node, node.reason.as_str()))
        })
        .collect();
    nodes.sort_unstable();
    let takes = match nodes.len() {
        0 => return None,
        1 => "1 worker takes".to_owned(),
        more => format!("{more} workers take"),
    };
    let named = nodes.iter().map(|(node, reason)| match *reason {
        "" => node.to_string(),
        reason => format!("{node} ({reason})"),
    });
    let mut text = format!("{takes} no new jobs: {}", listed(named, SHOWN));
    let nodes: Vec<&NodeName> = nodes.into_iter().map(|(node, _)| node).collect();
    let jobs = running(&nodes, &observed.slurm);
    if !jobs.is_empty() {
        let count = counted(jobs.len(), "job");
        text = format!("{text}; {count} remaining: {}", named_jobs(&jobs));
    }
    Some(text)
}

fn jobs_on(nodes: &[&NodeName], slurm: &Slurm) -> String {
    let workers = counted(nodes.len(), "draining worker");
    let jobs = running(nodes, slurm);
    // Slurm reports the nodes as busy but lists no jobs, for example because the job list is older than the node state.
    if jobs.is_empty() {
        let names = nodes.iter();
        return format!("waiting for jobs on {workers}: {}", listed(names, SHOWN));
    }
    let count = counted(jobs.len(), "job");
    format!("waiting for {count} on {workers}: {}", named_jobs(&jobs))
}

/// A job, with the given nodes that it runs on.
struct Running<'a> {
    job: &'a HeldBy,
    nodes: Vec<&'a str>,
}

/// Returns the jobs on these nodes, the last to end first; completing jobs come last.
fn running<'a>(nodes: &[&'a NodeName], slurm: &'a Slurm) -> Vec<Running<'a>> {
    let mut jobs: BTreeMap<&str, Running<'a>> = BTreeMap::new();
    for name in nodes {
        let work = slurm.node(name).and_then(|node| node.work.as_ref());
        for job in work.into_iter().flat_map(|work| &work.jobs) {
            let known = jobs.entry(&job.address).or_insert_with(|| Running {
                job,
                nodes: Vec::new(),
            });
            known.nodes.push(&name.0);
        }
    }
    let mut jobs: Vec<Running<'a>> = jobs.into_values().collect();
    let end = |job: &HeldBy| job.until.unwrap_or(Timestamp::MAX);
    jobs.sort_by_key(|running| (running.job.completing, Reverse(end(running.job))));
    jobs
}

fn named_jobs(jobs: &[Running<'_>]) -> String {
    let named = jobs.iter().map(|Running { job, nodes }| {
        let user = if job.user.is_empty() {
            String::new()
        } else {
            format!(" of {}", job.user)
        };
        let nodes = slurm_rest::Hostlist::from_names(nodes.iter().copied())
            .map_or_else(|_| nodes.join(","), |list| list.to_string());
        let end = match job.until {
            _ if job.completing => "completing".to_owned(),
            Some(until) => format!("until {until}"),
            None => "without a time limit".to_owned(),
        };
        format!("job {}{user} on {nodes} {end}", job.address)
    });
    listed(named, SHOWN)
}

fn wanted(waits: &[Wait]) -> Option<String> {
    let jobs = || {
        waits.iter().filter_map(|wait| match &wait.why {
            Why::Wanted { jobs } => Some((&wait.node, jobs)),
            _ => None,
        })
    };
    let (node, job) = jobs().find_map(|(node, jobs)| Some((node, jobs.first()?)))?;
    let count = jobs().map(|(_, jobs)| jobs.len()).sum();
    let (request, them, their) = match count {
        1 => (
            format!("pending job {job} requests node {node}, which is to be removed"),
            "it",
            "its",
        ),
        more => (
            format!(
                "{more} pending jobs, such as {job}, request nodes that are to be removed, such as {node}"
            ),
            "them",
            "their",
        ),
    };
    Some(format!(
        "{request}: cancel {them}, clear {their} node list (`scontrol update job={job} reqnodelist=`), or keep the worker"
    ))
}

/// Describes a wait that requires action by the user.
fn held(wait: &Wait) -> Option<String> {
    let node = &wait.node;
    match &wait.why {
        Why::CannotRequeue { jobs, why } => Some(format!(
            "drain.timeout has expired, but job {} on {node} cannot be requeued ({why}): waiting for it to end; cancel it to continue",
            jobs.join(", ")
        )),
        Why::Reserved { reservation } => Some(format!(
            "node {node} is in reservation {reservation}: remove it from the reservation, or wait until the reservation ends"
        )),
        Why::SlurmUnknown
        | Why::Jobs { .. }
        | Why::JobsUnread { .. }
        | Why::Wanted { .. }
        | Why::Reading
        | Why::Starting
        | Why::SuspectLoss => None,
    }
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;

    use super::{
        super::{
            facts::{Cause, Intent, PodFacts},
            plan::tests::{at, held_by, observed, pod, set, slurm},
        },
        *,
    };
    use crate::slurm::{facts::SlurmNode, jobs::Work};

    fn edit(slurm: &mut Slurm, name: &str, change: impl FnOnce(&mut SlurmNode)) {
        let Slurm::Known { nodes, .. } = slurm else {
            panic!("unknown")
        };
        change(nodes.get_mut(&NodeName::from(name)).unwrap());
    }

    fn job(address: &str, user: &str, until: Option<i64>) -> HeldBy {
        HeldBy {
            user: user.into(),
            until: until.map(at),
            ..held_by(address)
        }
    }

    fn busy(slurm: &mut Slurm, node: &str, jobs: Vec<HeldBy>) -> Wait {
        let until = jobs.iter().map(|job| job.until).collect::<Option<Vec<_>>>();
        let until = until.and_then(|ends| ends.into_iter().max());
        let work = Work {
            jobs,
            until,
            wanted_by: vec![],
        };
        edit(slurm, node, |node| node.work = Some(work));
        Wait {
            pod: node.into(),
            node: node.into(),
            why: Why::Jobs { until },
        }
    }

    #[test]
    fn who_is_waited_for_is_named_with_user_worker_and_end() {
        let mut slurm = slurm(&["ALLOCATED+DRAIN", "MIXED+DRAIN"]);
        let waits = [
            busy(
                &mut slurm,
                "w-0",
                vec![job("7", "alice", Some(60)), job("8_3", "bob", Some(30))],
            ),
            busy(&mut slurm, "w-1", vec![job("7", "alice", Some(60))]),
        ];
        assert_eq!(
            describe(&waits, &set(2), &slurm),
            "waiting for 2 jobs on 2 draining workers: job 7 of alice on w-[0-1] until 1970-01-12T13:47:40Z, \
             job 8_3 of bob on w-0 until 1970-01-12T13:47:10Z"
        );
    }

    #[test]
    fn of_many_jobs_those_that_last_longest_are_named_in_any_order() {
        let mut slurm = slurm(&["ALLOCATED+DRAIN"]);
        let completing = HeldBy {
            completing: true,
            ..job("5", "eve", None)
        };
        let mut jobs = vec![
            job("1", "a", Some(10)),
            completing,
            job("2", "", None),
            job("3", "c", Some(30)),
            job("4", "d", Some(20)),
        ];
        let wait = busy(&mut slurm, "w-0", jobs.clone());
        let told = describe(&[wait], &set(1), &slurm);
        assert_eq!(
            told,
            "waiting for 5 jobs on 1 draining worker: job 2 on w-0 without a time limit, job 3 of c on w-0 until \
             1970-01-12T13:47:10Z, job 4 of d on w-0 until 1970-01-12T13:47:00Z and 2 more; set spec.drain.timeout to limit the wait"
        );
        jobs.reverse();
        let wait = busy(&mut slurm, "w-0", jobs);
        assert_eq!(describe(&[wait], &set(1), &slurm), told);
    }

    #[test]
    fn a_worker_that_is_busy_with_nothing_that_is_listed_is_named() {
        let mut slurm = slurm(&["ALLOCATED+DRAIN"]);
        edit(&mut slurm, "w-0", |node| node.work = None);
        let wait = Wait {
            pod: "w-0".into(),
            node: "w-0".into(),
            why: Why::Jobs { until: None },
        };
        let told = describe(&[wait], &set(1), &slurm);
        assert!(
            told.starts_with("waiting for jobs on 1 draining worker: w-0; "),
            "{told}"
        );
    }

    #[test]
    fn a_deleted_set_that_waits_names_the_way_to_force_it() {
        let mut slurm = slurm(&["ALLOCATED+DRAIN"]);
        let wait = busy(&mut slurm, "w-0", vec![job("1", "a", None)]);
        let mut set = set(1);
        set.leaving = Leaving::Drain;
        let told = describe(&[wait], &set, &slurm);
        assert!(told.contains("keelson.dev/force-delete"), "{told}");
    }

    #[test]
    fn cordoned_workers_are_named_with_the_reason_and_their_jobs_but_not_those_that_leave() {
        let mut slurm = slurm(&["IDLE", "IDLE+DRAIN", "ALLOCATED+DRAIN", "IDLE+DRAIN"]);
        edit(&mut slurm, "w-1", |node| node.reason = "bad disk".to_owned());
        busy(&mut slurm, "w-2", vec![job("9", "carol", Some(0))]);
        let leaves = PodFacts {
            intent: Some(Intent {
                cause: Cause::ScaleIn,
                since: at(-10),
            }),
            ..pod(3)
        };
        let mut facts = observed(set(3), vec![pod(2), leaves, pod(1), pod(0)], slurm);
        assert_eq!(
            cordoned(&facts).unwrap(),
            "2 workers take no new jobs: w-1 (bad disk), w-2; 1 job remaining: job 9 of carol on w-2 until 1970-01-12T13:46:40Z"
        );

        // A drain that was set to replace the previous pod ends by itself; a drain for a cordon stays.
        let ours = "slurm-operator: Pod is pending termination for an update";
        edit(&mut facts.slurm, "w-1", |node| node.reason = ours.to_owned());
        assert!(
            cordoned(&facts)
                .unwrap()
                .starts_with("1 worker takes no new jobs: w-2;")
        );
        facts.pods[2].cordoned = true;
        assert!(cordoned(&facts).unwrap().starts_with("2 workers take"));
    }
}
