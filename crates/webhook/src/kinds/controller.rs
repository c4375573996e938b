//! Controller: its references, and its additions to slurm.conf. The operator checks everything that depends on more than the
//! names of other objects (files in ConfigMaps, a claim's access modes, another Controller's claim and cluster name), because
//! any client that can reach the webhook can send a request for any namespace.

use keelson_api::{
    Controller,
    controller::ClaimPolicy,
    validate::{Path, Report},
};
use kube::ResourceExt as _;

use crate::{
    conf,
    namespace_snapshot::{NamespaceSnapshot, is_object_name, listed},
    validate::{Rules, warn},
};

impl Rules for Controller {
    const KIND: &'static str = "controller";
    /// StatefulSet `<name>-controller`, whose pods have a label with that name and a hash of ten characters.
    const NAME_MAX: Option<usize> = Some(63 - "-controller".len() - "-0123456789".len());

    fn services(&self) -> Vec<String> {
        if self.spec.external {
            return vec![self.workers_service_name()];
        }
        vec![
            self.controller_name(),
            self.internal_service_name(),
            self.workers_service_name(),
        ]
    }

    fn beside(&self, snapshot: &NamespaceSnapshot, report: &mut Report) {
        accounting(self, snapshot, report);
        conf::slurm_conf(self, snapshot, report);
    }

    fn on_delete(&self, snapshot: &NamespaceSnapshot) -> Vec<String> {
        let name = self.name_any();
        let mut notes = Vec::new();
        let nodesets: Vec<_> = snapshot
            .nodesets
            .iter()
            .filter(|n| n.spec.controller_ref.name == name)
            .collect();
        let loginsets: Vec<_> = snapshot
            .loginsets
            .iter()
            .filter(|l| l.spec.controller_ref.name == name)
            .collect();
        for (what, count, names) in [
            ("NodeSets", nodesets.len(), listed(&nodesets)),
            ("LoginSets", loginsets.len(), listed(&loginsets)),
        ] {
            if count > 0 {
                notes.push(format!(
                    "Controller {name} will not be deleted until these {what} are deleted: {names}"
                ));
            }
        }
        if self.spec.persistence_enabled()
            && self.spec.existing_claim().is_none()
            && self.spec.claim_deletion_policy() == ClaimPolicy::Delete
        {
            notes.push(format!(
                "the saved state of slurmctld will be deleted with Controller {name}: persistence.deletionPolicy is Delete"
            ));
        }
        notes
    }
}

fn accounting(controller: &Controller, snapshot: &NamespaceSnapshot, report: &mut Report) {
    let Some(reference) = controller
        .spec
        .accounting_ref
        .as_ref()
        .filter(|r| is_object_name(&r.name))
    else {
        return;
    };
    if snapshot.known && snapshot.accounting(&reference.name).is_none() {
        warn(
            report,
            &Path::spec().field("accountingRef").field("name"),
            format!(
                "Accounting {:?} not found in this namespace; the operator does not start slurmctld until it exists",
                reference.name
            ),
        );
    }
}
