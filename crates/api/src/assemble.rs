//! Assembles slurm.conf from a Controller and its NodeSets, and parts of slurmdbd.conf from an Accounting. The operator and
//! the webhook both use this, so that they always work with the same file.

use slurm_conf::slurm_conf::{AccountingHost, ControllerHost, NodeSet as Line, Partition, SlurmConf};
use slurm_conf::slurmdbd_conf::StorageTls;

use crate::Controller;
use crate::accounting::StorageConfig;
use crate::nodeset::NodeSet;
use crate::well_known::port;

/// The parts of slurm.conf that the objects define. The caller adds scripts, included files and the number of nodes.
pub fn slurm_conf<'a>(
    controller: &Controller,
    accounting: Option<AccountingHost>,
    nodesets: impl IntoIterator<Item = &'a NodeSet>,
) -> SlurmConf {
    let spec = &controller.spec;
    let replicas = controller.replicas();
    // Clients connect to the address on SlurmctldPort, so a Service on another port cannot be used.
    let through_service = replicas == 1 && controller.address().port == i32::from(port::SLURMCTLD);
    let mut nodesets: Vec<Line> = nodesets.into_iter().map(line).collect();
    nodesets.sort_by(|a, b| a.name.cmp(&b.name));
    SlurmConf {
        cluster_name: controller.cluster_name(),
        hosts: (0..replicas)
            .map(|ordinal| ControllerHost {
                name: controller.pod_name(ordinal),
                address: Some(controller.pod_fqdn(ordinal)),
            })
            .collect(),
        slurmctld_port: port::SLURMCTLD,
        slurmd_port: port::SLURMD,
        service_address: through_service.then(|| controller.service_fqdn()),
        auth: spec.auth_type(),
        jwks: spec.jwks_key_ref.is_some(),
        accounting,
        metrics: spec.metrics_enabled(),
        nodesets,
        extra_conf: extra_conf(controller),
        ..SlurmConf::default()
    }
}

/// TLS of slurmdbd's connection to its database.
pub fn storage_tls(storage: &StorageConfig) -> Option<StorageTls> {
    let tls = storage.tls.as_ref()?;
    Some(StorageTls {
        client_cert: tls.client_cert_ref.is_some(),
    })
}

/// The user's lines, and those that fields of the spec define.
fn extra_conf(controller: &Controller) -> String {
    let text = controller.spec.extra_conf.clone().unwrap_or_default();
    match controller.spec.max_node_count {
        Some(count) => format!("{}\nMaxNodeCount={count}\n", text.trim_end()),
        None => text,
    }
}

fn line(nodeset: &NodeSet) -> Line {
    let name = nodeset.slurm_name();
    let partition = nodeset
        .spec
        .partition
        .as_ref()
        .filter(|partition| partition.enabled);
    Line {
        feature: name.clone(),
        name,
        partition: partition.map(|partition| Partition {
            config: partition.config.clone().unwrap_or_default(),
            leaving: nodeset.metadata.deletion_timestamp.is_some(),
        }),
    }
}
