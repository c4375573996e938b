//! The events that tell what is about to happen to workers and what could not be done, under Slinky's reasons. Pure.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use keelson_api::{nodeset::ScalingMode, well_known::event};
use keelson_runtime::run::chain;
use kube::ResourceExt;

use super::{
    act::StepError,
    facts::{Cause, Observed, Phase, Plan, PodFacts, PodId, Step, Strategy},
};

/// How many names an event lists.
const SHOWN: usize = 5;

/// An event about a NodeSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub warning: bool,
    pub reason: &'static str,
    pub note: String,
}

/// What is told of a plan. `pods` are those that it was made for.
pub fn of_plan(observed: &Observed, plan: &Plan, pods: &[Arc<Pod>]) -> Vec<Event> {
    let mut about: BTreeMap<(&'static str, &'static str), Vec<&str>> = BTreeMap::new();
    let mut created = 0_usize;
    for step in &plan.steps {
        let found = match step {
            Step::Create { .. } => {
                created += 1;
                None
            }
            Step::Intend { pod, intent } => {
                intended(intent.cause, observed).map(|told| (told, pod.name.as_str()))
            }
            Step::Drain { node, .. } => {
                let cordoned = observed
                    .pods
                    .iter()
                    .find(|pod| pod.node == *node && on_cordoned(pod, observed));
                cordoned.map(|pod| {
                    (
                        (event::NODE_CORDON, "draining workers on cordoned nodes"),
                        pod.name.as_str(),
                    )
                })
            }
            Step::Discard { pod } => ended(pod, observed, pods).map(|told| (told, pod.name.as_str())),
            // Slinky has no reason for the others.
            _ => None,
        };
        if let Some((told, pod)) = found {
            about.entry(told).or_default().push(pod);
        }
    }
    let mut events = Vec::new();
    if created > 0 {
        events.push(Event {
            warning: false,
            reason: event::SCALING_UP,
            note: format!("creating {created} of {} workers", observed.desired()),
        });
    }
    events.extend(about.into_iter().map(|((reason, what), pods)| Event {
        warning: matches!(
            reason,
            event::SLURM_NODE_NOT_REGISTERED | event::FAILED_DAEMON_POD
        ),
        reason,
        note: format!("{what}: {}", listed(&pods)),
    }));
    events
}

/// What is told of steps that failed. Failed creations are told where they happen.
pub fn of_failures(failures: &[StepError]) -> Vec<Event> {
    failures
        .iter()
        .filter_map(|failure| {
            let reason = match failure {
                StepError::Patch { .. } => event::FAILED_UPDATE,
                StepError::Delete { .. } => event::FAILED_DELETE,
                _ => return None,
            };
            Some(Event {
                warning: true,
                reason,
                note: chain(failure),
            })
        })
        .collect()
}

fn intended(cause: Cause, observed: &Observed) -> Option<(&'static str, &'static str)> {
    match cause {
        Cause::ScaleIn => Some((event::SCALING_DOWN, "removing workers")),
        Cause::Rollout => Some(match observed.set.strategy {
            Strategy::Scheduled { .. } => (
                event::SCHEDULED_UPDATE,
                "replacing workers in their maintenance window",
            ),
            Strategy::Rolling { .. } | Strategy::OnDelete => (
                event::ROLLING_UPDATE,
                "rolling out the latest pod template to workers",
            ),
        }),
        Cause::Unregistered => Some((
            event::SLURM_NODE_NOT_REGISTERED,
            "replacing workers that are ready and not registered with slurmctld",
        )),
        Cause::Renamed => Some((
            event::HOSTNAME_MISMATCH,
            "replacing workers whose Kubernetes node asks for another host name",
        )),
        Cause::ModeSwitch | Cause::Deletion | Cause::Unplaced | Cause::Duplicate => None,
    }
}

/// Whether the node is drained for its machine's sake alone.
fn on_cordoned(pod: &PodFacts, observed: &Observed) -> bool {
    let machine = pod.machine.as_ref().and_then(|name| observed.machines.get(name));
    pod.intent.is_none() && machine.is_some_and(|machine| machine.cordoned)
}

fn ended(id: &PodId, observed: &Observed, pods: &[Arc<Pod>]) -> Option<(&'static str, &'static str)> {
    let known = observed.pods.iter().find(|pod| pod.id() == *id)?;
    if known.mode != ScalingMode::DaemonSet || known.phase != Phase::Ended {
        return None;
    }
    let pod = pods.iter().find(|pod| pod.uid().as_deref() == Some(&id.uid))?;
    match pod.status.as_ref()?.phase.as_deref() {
        Some("Succeeded") => Some((event::SUCCEEDED_DAEMON_POD, "replacing workers that ended")),
        _ => Some((event::FAILED_DAEMON_POD, "replacing workers that failed")),
    }
}

fn listed(names: &[&str]) -> String {
    let shown: Vec<&str> = names.iter().take(SHOWN).copied().collect();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodeset::{
        facts::{Intent, KubeNodeFacts},
        plan::tests::{at, observed, pod, set, slurm},
    };
    use keelson_runtime::{Key, apply};
    use rstest::rstest;
    use serde_json::json;

    fn intend(cause: Cause, ordinals: std::ops::Range<u32>) -> Plan {
        let steps = ordinals.map(|ordinal| Step::Intend {
            pod: pod(ordinal).id(),
            intent: Intent { cause, since: at(0) },
        });
        Plan {
            steps: steps.collect(),
            ..Plan::default()
        }
    }

    fn reasons(events: &[Event]) -> Vec<(&'static str, bool)> {
        events.iter().map(|event| (event.reason, event.warning)).collect()
    }

    #[rstest]
    #[case::scale_in(Cause::ScaleIn, &[("ScalingDown", false)])]
    #[case::rollout(Cause::Rollout, &[("RollingUpdate", false)])]
    #[case::unregistered(Cause::Unregistered, &[("SlurmNodeNotRegistered", true)])]
    #[case::renamed(Cause::Renamed, &[("HostnameMismatch", false)])]
    #[case::deletion(Cause::Deletion, &[])]
    fn a_decision_about_workers_has_slinkys_reason(
        #[case] cause: Cause,
        #[case] expected: &[(&'static str, bool)],
    ) {
        let seen = observed(set(1), vec![pod(0)], slurm(&["IDLE"]));
        let events = of_plan(&seen, &intend(cause, 0..1), &[]);
        assert_eq!(reasons(&events), expected);
    }

    #[test]
    fn a_window_and_a_rollout_are_told_apart() {
        let mut seen = observed(set(1), vec![pod(0)], slurm(&["IDLE"]));
        seen.set.strategy = Strategy::Scheduled {
            reservation: "maintenance".into(),
        };
        let events = of_plan(&seen, &intend(Cause::Rollout, 0..1), &[]);
        assert_eq!(reasons(&events), [("ScheduledUpdate", false)]);
    }

    #[test]
    fn one_event_tells_of_all_workers() {
        let seen = observed(set(0), (0..7).map(pod).collect(), slurm(&["IDLE"; 7]));
        let events = of_plan(&seen, &intend(Cause::ScaleIn, 0..7), &[]);
        let notes: Vec<&str> = events.iter().map(|event| event.note.as_str()).collect();
        let names: Vec<String> = (0..5).map(|ordinal| pod(ordinal).name).collect();
        assert_eq!(
            notes,
            [format!("removing workers: {} and 2 more", names.join(", "))]
        );
    }

    #[test]
    fn new_workers_and_those_on_a_cordoned_node_are_told_of() {
        let mut worker = pod(0);
        worker.machine = Some("machine".into());
        let node = worker.node.clone();
        let mut seen = observed(set(2), vec![worker], slurm(&["IDLE"]));
        let machine = KubeNodeFacts {
            cordoned: true,
            ..KubeNodeFacts::default()
        };
        seen.machines.insert("machine".into(), machine);
        let plan = Plan {
            steps: vec![
                Step::Create {
                    ordinal: 1,
                    machine: None,
                },
                Step::Drain {
                    node,
                    reason: "cordoned".into(),
                },
            ],
            ..Plan::default()
        };
        let events = of_plan(&seen, &plan, &[]);
        assert_eq!(reasons(&events), [("ScalingUp", false), ("NodeCordon", false)]);
        // A drain that we want ourselves is no cordon's, wherever the worker runs.
        seen.pods[0].intent = Some(Intent {
            cause: Cause::ScaleIn,
            since: at(0),
        });
        assert_eq!(reasons(&of_plan(&seen, &plan, &[])), [("ScalingUp", false)]);
    }

    #[rstest]
    #[case("Failed", ("FailedDaemonPod", true))]
    #[case("Succeeded", ("SucceededDaemonPod", false))]
    fn a_daemon_pod_that_ended_is_told_of(#[case] phase: &str, #[case] expected: (&'static str, bool)) {
        let mut worker = pod(0);
        (worker.mode, worker.phase) = (ScalingMode::DaemonSet, Phase::Ended);
        let plan = Plan {
            steps: vec![Step::Discard { pod: worker.id() }],
            ..Plan::default()
        };
        let live: Pod = serde_json::from_value(json!({
            "metadata": { "name": worker.name, "uid": worker.uid }, "status": { "phase": phase },
        }))
        .unwrap();
        let seen = observed(set(1), vec![worker], slurm(&[]));
        assert_eq!(reasons(&of_plan(&seen, &plan, &[Arc::new(live)])), [expected]);
    }

    #[test]
    fn what_could_not_be_changed_or_deleted_is_told_of() {
        let refused = || apply::Error::Timeout {
            verb: "patch",
            kind: "Pod".into(),
            object: Key::new("slurm", "a"),
        };
        let failures = [
            StepError::Delete {
                pod: "a".into(),
                source: refused(),
            },
            StepError::Patch {
                pod: "b".into(),
                source: refused(),
            },
            StepError::NotRenewed { node: "c".into() },
        ];
        let events = of_failures(&failures);
        assert_eq!(reasons(&events), [("FailedDelete", true), ("FailedUpdate", true)]);
        assert!(
            events[0].note.starts_with("cannot delete pod a"),
            "{}",
            events[0].note
        );
    }
}
