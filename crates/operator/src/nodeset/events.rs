//! Builds events about planned changes to workers and about failed steps, with the reasons that Slinky uses. Pure.

use std::{
    cell::LazyCell,
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;
use keelson_api::{nodeset::ScalingMode, well_known::event};
use keelson_runtime::run::chain;

use super::{
    act::{SHOWN, StepError},
    facts::{Cause, Observed, Phase, Plan, PodFacts, Step, Strategy},
};
use crate::wording::listed;

/// An event about a NodeSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub warning: bool,
    pub reason: &'static str,
    pub note: String,
}

/// Returns the events for a plan. `pods` are the pods that it was made for.
pub fn of_plan(observed: &Observed, plan: &Plan, pods: &[Arc<Pod>]) -> Vec<Event> {
    let mut about: BTreeMap<(&'static str, &'static str), Vec<&str>> = BTreeMap::new();
    let mut created = 0_usize;
    let cordoned = LazyCell::new(|| {
        let pods = observed.pods.iter().filter(|pod| on_cordoned(pod, observed));
        pods.map(|pod| (&pod.node, pod.name.as_str()))
            .collect::<HashMap<_, _>>()
    });
    let ended = LazyCell::new(|| ended(observed, pods));
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
                let told = (event::NODE_CORDON, "draining workers on cordoned nodes");
                cordoned.get(node).map(|pod| (told, *pod))
            }
            Step::Discard { pod } => ended.get(pod.uid.as_str()).map(|told| (*told, pod.name.as_str())),
            // Slinky has no reason for the other steps.
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
        note: format!("{what}: {}", listed(&pods, SHOWN)),
    }));
    events
}

/// Returns the events for failed steps. Failed creations are reported where they occur.
pub fn of_failures(failures: &[StepError]) -> Vec<Event> {
    failures
        .iter()
        .filter_map(|failure| {
            let reason = match failure {
                StepError::Patch { .. } => event::FAILED_UPDATE,
                StepError::Delete { .. } | StepError::DeleteLate { .. } => event::FAILED_DELETE,
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
            "replacing workers that are ready but not registered with slurmctld",
        )),
        Cause::Renamed => Some((
            event::HOSTNAME_MISMATCH,
            "replacing workers whose Kubernetes node requests another host name",
        )),
        Cause::ModeSwitch | Cause::Deletion | Cause::Unplaced | Cause::Duplicate => None,
    }
}

/// Returns true if the node is drained only because its Kubernetes node is cordoned.
fn on_cordoned(pod: &PodFacts, observed: &Observed) -> bool {
    let kube_node = pod
        .kube_node
        .as_ref()
        .and_then(|name| observed.kube_nodes.get(name));
    pod.intent.is_none() && kube_node.is_some_and(|kube_node| kube_node.cordoned)
}

/// Returns what to tell of the workers that ended, by their UID (`DaemonSet` mode).
fn ended<'a>(observed: &'a Observed, pods: &[Arc<Pod>]) -> HashMap<&'a str, (&'static str, &'static str)> {
    let phases: HashMap<&str, Option<&str>> = pods
        .iter()
        .filter_map(|pod| {
            Some((
                pod.metadata.uid.as_deref()?,
                pod.status.as_ref()?.phase.as_deref(),
            ))
        })
        .collect();
    let ended = |pod: &&PodFacts| pod.mode == ScalingMode::DaemonSet && pod.phase == Phase::Ended;
    let told = |pod: &'a PodFacts| match phases.get(pod.uid.as_str())? {
        Some("Succeeded") => Some((event::SUCCEEDED_DAEMON_POD, "replacing completed workers")),
        _ => Some((event::FAILED_DAEMON_POD, "replacing failed workers")),
    };
    let ended = observed.pods.iter().filter(ended);
    ended
        .filter_map(|pod| Some((pod.uid.as_str(), told(pod)?)))
        .collect()
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
        worker.kube_node = Some("machine".into());
        let node = worker.node.clone();
        let mut seen = observed(set(2), vec![worker], slurm(&["IDLE"]));
        let kube_node = KubeNodeFacts {
            cordoned: true,
            ..KubeNodeFacts::default()
        };
        seen.kube_nodes.insert("machine".into(), kube_node);
        let plan = Plan {
            steps: vec![
                Step::Create {
                    ordinal: 1,
                    kube_node: None,
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
        // Our own drain is not reported as a cordon, even if the Kubernetes node is cordoned.
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
            events[0].note.starts_with("failed to delete pod a"),
            "{}",
            events[0].note
        );
    }
}
