use std::collections::BTreeMap;
use std::time::Duration;

use pretty_assertions::assert_eq;

use super::super::plan as decide;
use super::{at, edit, id, observed, plan, pod, set, slurm};
use crate::nodeset::facts::{KubeNodeFacts, Observed, Start, Step};
use crate::slurm::facts::Slurm;

fn shown(observed: &Observed) -> Option<Step> {
    decide(observed)
        .steps
        .into_iter()
        .find(|step| matches!(step, Step::Conditions { .. }))
}

#[test]
fn a_pod_shows_the_state_of_its_slurm_node() {
    let mut observed = observed(set(1), vec![pod(0)], slurm(&["IDLE+DRAIN"]));
    edit(&mut observed.slurm, "w-0", |node| node.reason = "fan".into());
    observed.pods[0]
        .conditions
        .insert("SlurmNodeStateDown".into(), ("old".into(), Some(at(-1))));
    let set = BTreeMap::from([
        ("SlurmNodeStateDrain".to_owned(), "fan".to_owned()),
        ("SlurmNodeStateIdle".to_owned(), "fan".to_owned()),
    ]);
    assert_eq!(
        shown(&observed),
        Some(Step::Conditions {
            pod: id(0),
            set,
            drop: vec!["SlurmNodeStateDown".into()]
        })
    );
}

#[test]
fn the_state_of_its_predecessor_is_not_shown() {
    let mut observed = observed(set(1), vec![pod(0)], slurm(&["IDLE"]));
    assert!(shown(&observed).is_some());
    observed.pods[0].start = Start::Never;
    assert_eq!(shown(&observed), None);
}

#[test]
fn while_workers_start_only_what_matters_is_shown() {
    let mut observed = observed(set(2), vec![pod(0), pod(1)], slurm(&["IDLE", "IDLE"]));
    observed.pods[1].ready_since = None;
    observed.pods[1].created = at(-59);
    assert_eq!(shown(&observed), None);
    assert_eq!(decide(&observed).requeue_after, Some(Duration::from_secs(5)));
    observed.slurm = slurm(&["IDLE+DRAIN", "IDLE"]);
    assert!(shown(&observed).is_some());
    observed.slurm = slurm(&["IDLE", "IDLE"]);
    observed.pods[1].created = at(-60);
    assert!(shown(&observed).is_some(), "it does not come up at all");
}

#[test]
fn a_great_many_states_are_shown_in_portions_and_what_is_urgent_is_not_put_off() {
    let states = vec!["IDLE"; 450];
    let mut observed = observed(set(450), (0..450).map(pod).collect(), slurm(&states));
    let count = |observed: &Observed| {
        let plan = decide(observed);
        let number = |is: fn(&Step) -> bool| plan.steps.iter().filter(|step| is(step)).count();
        let conditions = number(|step| matches!(step, Step::Conditions { .. }));
        let drains = number(|step| matches!(step, Step::Drain { .. }));
        (conditions, drains, plan.requeue_after)
    };
    assert_eq!(count(&observed), (200, 0, Some(Duration::ZERO)));
    for index in 0..450 {
        let cordoned = KubeNodeFacts {
            cordoned: true,
            ..KubeNodeFacts::default()
        };
        observed.kube_nodes.insert(format!("machine-{index}"), cordoned);
    }
    assert_eq!(count(&observed), (200, 450, Some(Duration::ZERO)));
    for pod in &mut observed.pods[100..] {
        pod.conditions
            .insert("SlurmNodeStateIdle".into(), (String::new(), Some(at(-10))));
    }
    assert_eq!(count(&observed), (100, 450, None));
}

#[test]
fn jobs_that_come_and_go_are_shown_only_now_and_then() {
    let mut observed = observed(set(1), vec![pod(0)], slurm(&["MIXED"]));
    observed.pods[0]
        .conditions
        .insert("SlurmNodeStateIdle".into(), (String::new(), Some(at(-10))));
    assert_eq!(shown(&observed), None);
    assert_eq!(decide(&observed).requeue_after, Some(Duration::from_secs(20)));
    observed.pods[0]
        .conditions
        .insert("SlurmNodeStateIdle".into(), (String::new(), Some(at(-30))));
    assert!(shown(&observed).is_some());
}

#[test]
fn without_an_answer_from_slurm_what_is_shown_stays() {
    let mut observed = observed(set(1), vec![pod(0)], Slurm::Unknown { why: "down".into() });
    observed.pods[0]
        .conditions
        .insert("SlurmNodeStateIdle".into(), (String::new(), None));
    assert_eq!(shown(&observed), None);
}

#[test]
fn slurm_learns_the_machines_topology_and_features() {
    let mut observed = observed(set(1), vec![pod(0)], slurm(&["IDLE"]));
    edit(&mut observed.slurm, "w-0", |node| {
        node.features = vec!["gpu".into(), "k8s/old".into()];
        node.active_features.clone_from(&node.features);
    });
    let kube_node = KubeNodeFacts {
        topology: Some("topo-switch:s1".into()),
        features: vec!["k8s/a100".into()],
        ..KubeNodeFacts::default()
    };
    observed.kube_nodes.insert("machine-0".into(), kube_node);
    let features = vec!["gpu".to_owned(), "k8s/a100".to_owned()];
    assert_eq!(
        plan(&observed).steps,
        [
            Step::Topology {
                pod: id(0),
                topology: Some("topo-switch:s1".into())
            },
            Step::PlaceNode {
                node: "w-0".into(),
                topology: "topo-switch:s1".into()
            },
            Step::SetFeatures {
                node: "w-0".into(),
                active: features.clone(),
                features
            },
        ]
    );
}

#[test]
fn a_topology_and_features_that_nobody_wrote_are_left_alone() {
    let mut observed = observed(set(1), vec![pod(0)], slurm(&["IDLE"]));
    edit(&mut observed.slurm, "w-0", |node| {
        node.topology = "default:s0".into();
        node.features = vec!["gpu".into()];
        node.active_features = vec![];
    });
    observed
        .kube_nodes
        .insert("machine-0".into(), KubeNodeFacts::default());
    assert_eq!(plan(&observed).steps, []);
}

#[test]
fn an_api_without_topology_is_tried_once_for_each_change() {
    let places = |observed: &Observed| {
        let is = |step: &&Step| matches!(step, Step::PlaceNode { .. });
        decide(observed).steps.iter().filter(is).count()
    };
    let mut observed = observed(set(1), vec![pod(0)], slurm(&["IDLE"]));
    observed.set.places_nodes = false;
    observed.kube_nodes.insert(
        "machine-0".into(),
        KubeNodeFacts {
            topology: Some("default:s1".into()),
            ..KubeNodeFacts::default()
        },
    );
    assert_eq!(places(&observed), 1, "a person changed it");
    observed.pods[0].topology = Some("default:s1".into());
    assert_eq!(places(&observed), 0, "it was tried");
    observed.set.places_nodes = true;
    assert_eq!(places(&observed), 1);
}
