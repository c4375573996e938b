use pretty_assertions::assert_eq;

use super::{edit, id, observed, plan, pod, set, slurm};
use crate::nodeset::facts::{MachineFacts, Step};

#[test]
fn a_cordoned_machine_drains_its_worker_and_uncordoning_undoes_it() {
    let mut observed = observed(set(1), vec![pod(0)], slurm(&["IDLE"]));
    let cordoned = MachineFacts {
        cordoned: true,
        cordon_reason: Some("fan".into()),
        ..MachineFacts::default()
    };
    observed.machines.insert("machine-0".into(), cordoned);
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
        .machines
        .insert("machine-0".into(), MachineFacts::default());
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
