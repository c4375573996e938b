use pretty_assertions::assert_eq;

use super::super::needs_jobs;
use super::{at, edit, id, observed, plan, pod, set, slurm};
use crate::nodeset::facts::{KubeNodeFacts, PodFacts, Step};

#[test]
fn a_cordoned_machine_drains_its_worker_and_uncordoning_undoes_it() {
    let mut observed = observed(set(1), vec![pod(0)], slurm(&["IDLE"]));
    let cordoned = KubeNodeFacts {
        cordoned: true,
        cordon_reason: Some("fan".into()),
        ..KubeNodeFacts::default()
    };
    observed.kube_nodes.insert("machine-0".into(), cordoned);
    let drain = Step::Drain {
        node: "w-0".into(),
        reason: "slurm-operator: fan".into(),
    };
    assert_eq!(plan(&observed).steps, [drain]);

    observed.slurm = slurm(&["IDLE+DRAIN"]);
    edit(&mut observed.slurm, "w-0", |node| {
        node.reason = "slurm-operator: fan".into();
    });
    assert_eq!(
        plan(&observed).steps,
        [Step::Protect {
            pod: id(0),
            protected: false
        }]
    );

    observed
        .kube_nodes
        .insert("machine-0".into(), KubeNodeFacts::default());
    observed.pods[0].protected = false;
    let steps = plan(&observed).steps;
    assert_eq!(
        steps,
        [
            Step::Undrain { node: "w-0".into() },
            Step::Protect {
                pod: id(0),
                protected: true
            }
        ]
    );
}

#[test]
fn a_persons_cordon_of_a_pod_stays() {
    let mut cordoned = pod(0);
    cordoned.cordoned = true;
    cordoned.protected = false;
    let mut slurm = slurm(&["IDLE+DRAIN"]);
    edit(&mut slurm, "w-0", |node| {
        node.reason = "slurm-operator: Pod was cordoned".into();
    });
    assert_eq!(plan(&observed(set(1), vec![cordoned], slurm)).steps, []);
}

#[test]
fn clocks_that_differ_keep_no_updated_worker_drained() {
    let mut slurm = slurm(&["IDLE+DRAIN"]);
    let updated = PodFacts {
        created: at(-60),
        registered_before: Some(at(-650)),
        ..pod(0)
    };
    edit(&mut slurm, "w-0", |node| {
        node.reason = "slurm-operator: Pod is terminating".into();
        node.registered = Some(at(-650));
    });
    let facts = observed(set(1), vec![updated], slurm);
    assert_eq!(
        plan(&facts).steps,
        [Step::Protect {
            pod: id(0),
            protected: false
        }]
    );
    // Its clock is minutes behind, but its slurmd has started since the pod was created.
    let mut behind = facts;
    edit(&mut behind.slurm, "w-0", |node| node.registered = Some(at(-300)));
    assert_eq!(plan(&behind).steps, [Step::Undrain { node: "w-0".into() }]);
}

#[test]
fn a_worker_that_slurmctld_gave_up_is_resumed_when_it_is_back() {
    let mut slurm = slurm(&["DOWN", "DOWN"]);
    edit(&mut slurm, "w-0", |node| node.reason = "Not responding".into());
    edit(&mut slurm, "w-1", |node| node.reason = "bad disk".into());
    let plan = plan(&observed(set(2), vec![pod(0), pod(1)], slurm));
    assert_eq!(plan.steps, [Step::Resume { node: "w-0".into() }]);
}

#[test]
fn a_cordoned_worker_keeps_its_protection_while_the_jobs_are_unknown() {
    let mut slurm = slurm(&["IDLE+DRAIN"]);
    edit(&mut slurm, "w-0", |node| node.work = None);
    let mut cordoned = pod(0);
    cordoned.cordoned = true;
    let facts = observed(set(1), vec![cordoned], slurm);
    assert!(needs_jobs(&facts));
    assert_eq!(plan(&facts).steps, []);
}

#[test]
fn no_node_is_opened_while_slurmctld_is_about_to_get_another_key() {
    let mut slurm = slurm(&["IDLE+DRAIN", "DOWN"]);
    edit(&mut slurm, "w-0", |node| {
        node.reason = "slurm-operator: Pod was cordoned".into();
    });
    edit(&mut slurm, "w-1", |node| node.reason = "Not responding".into());
    let mut set = set(3);
    set.quiesced = true;
    let unprotected = PodFacts {
        protected: false,
        ..pod(0)
    };
    assert_eq!(plan(&observed(set, vec![unprotected, pod(1)], slurm)).steps, []);
}

#[test]
fn a_drain_for_another_key_frees_nobody() {
    let mut slurm = slurm(&["IDLE+DRAIN"]);
    edit(&mut slurm, "w-0", |node| {
        node.reason = keelson_api::well_known::slurm::QUIESCE_REASON.into();
    });
    assert_eq!(plan(&observed(set(1), vec![pod(0)], slurm)).steps, []);
}
