//! NodeSet: name conflicts with other NodeSets of its cluster, and its additions to configuration files. The operator checks
//! it against the Controller's `extraConf`: a response must not reveal the content of another object.

use keelson_api::{
    NodeSet,
    controller::ClaimPolicy,
    nodeset::{NodeSetDeletionPolicy, ScalingMode},
    validate::{Path, Report, conflicts, is_over},
    well_known::annotation,
};
use kube::ResourceExt as _;
use slurm_conf::{
    sshd_config::Role,
    value::{ValueError, encode_nodeset_name, encode_partition_name},
};

use super::controller_exists;
use crate::{
    conf,
    namespace_snapshot::NamespaceSnapshot,
    validate::{Rules, refuse},
};

impl Rules for NodeSet {
    const KIND: &'static str = "nodeset";
    /// The name becomes the value of a pod label.
    const NAME_MAX: Option<usize> = Some(63);

    fn services(&self) -> Vec<String> {
        // All NodeSets of a Controller share the workers' Service.
        Vec::new()
    }

    fn beside(&self, snapshot: &NamespaceSnapshot, report: &mut Report) {
        controller_exists(&self.spec.controller_ref.name, snapshot, report);
        report.extend(conflicts(self, snapshot.nodesets.iter().map(AsRef::as_ref)));
        if let Some(now) = snapshot.now {
            report.extend(is_over(self, now));
        }
        host_name(self, report);
        reserved_name(self, report);
        let spec = Path::spec();
        if let Some(parameters) = &self.spec.extra_conf {
            conf::node_parameters(&spec.field("extraConf"), parameters, snapshot, report);
        }
        if let Some(config) = self.spec.partition.as_ref().and_then(|p| p.config.as_deref()) {
            conf::partition_config(&spec.field("partition").field("config"), config, snapshot, report);
        }
        if let Some(ssh) = &self.spec.ssh {
            let path = spec.field("ssh").field("extraSshdConfig");
            conf::sshd(&path, Role::Worker, ssh.extra_sshd_config.as_deref(), report);
        }
    }

    fn on_delete(&self, _: &NamespaceSnapshot) -> Vec<String> {
        let name = self.name_any();
        let mut notes = vec![match self.spec.deletion_policy() {
            NodeSetDeletionPolicy::Immediate => {
                format!("jobs on the workers of NodeSet {name} will fail: deletionPolicy is Immediate")
            }
            NodeSetDeletionPolicy::Drain => format!(
                "NodeSet {name} drains its workers first and will not be deleted until their jobs have ended; set the annotation {}=true to skip draining",
                annotation::FORCE_DELETE
            ),
        }];
        let claims = self
            .spec
            .volume_claim_templates
            .as_ref()
            .is_some_and(|claims| !claims.is_empty());
        if claims && self.spec.claim_retention().when_deleted == ClaimPolicy::Delete {
            notes.push(format!(
                "the volumes of the workers of NodeSet {name} will be deleted"
            ));
        }
        notes
    }
}

/// Without `template.spec.hostname`, host names start with the object's name, which must then have no dots.
fn host_name(nodeset: &NodeSet, report: &mut Report) {
    let by_ordinal = nodeset.spec.scaling_mode == ScalingMode::StatefulSet;
    if by_ordinal && nodeset.hostname_prefix().is_none() && nodeset.name_any().contains('.') {
        refuse(
            report,
            &Path::default().field("metadata").field("name"),
            "contains a dot, which worker host names cannot contain",
            "use a name without dots, or set template.spec.hostname",
        );
    }
}

/// Names that have a special meaning in slurm.conf. For example, Slurm uses the options of a partition named `default` for
/// all partitions.
fn reserved_name(nodeset: &NodeSet, report: &mut Report) {
    let name = nodeset.slurm_name();
    let partition = nodeset.spec.partition.as_ref().is_some_and(|p| p.enabled);
    let reserved = encode_nodeset_name(&name)
        .and_then(|name| {
            if partition {
                encode_partition_name(name)
            } else {
                Ok(name)
            }
        })
        .err();
    if let Some(reserved @ ValueError::Reserved(..)) = reserved {
        refuse(
            report,
            &Path::spec().field("template").field("spec").field("hostname"),
            format!("the Slurm name of this NodeSet {reserved}"),
            "rename this NodeSet, or set another template.spec.hostname",
        );
    }
}
