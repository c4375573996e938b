//! The pod template of a NodeSet's workers. An upgrade of the operator alone must not replace workers. Pure.

use super::{
    build::{Template, build_template},
    observe::Read,
    revision,
    validate::validate,
};
use crate::problem::Problem;

/// Builds the template. Workers created by earlier releases carry plain hashes of Secrets. They keep them while nothing
/// else changes, in which case their inputs match a recorded revision. With any other change they are replaced anyway
/// and get keyed hashes.
pub fn template(read: &Read) -> Result<Template, Problem> {
    let names = revision::secret_names(&read.revisions);
    let unchanged = build_template(&validate(read, names)?);
    if revision::is_known(&unchanged.inputs, &read.revisions) {
        return Ok(unchanged);
    }
    Ok(build_template(&validate(read, vec![])?))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use k8s_openapi::{
        ByteString,
        api::{apps::v1::ControllerRevision, core::v1::Secret},
    };
    use serde_json::{Value, json};

    use super::*;
    use crate::{children::checksum, fingerprints::HashKey, nodeset::observe::Live};

    fn read(slurmd: &str, revisions: Vec<Arc<ControllerRevision>>) -> Read {
        let object = |kind: &str, spec: Value| {
            json!({ "apiVersion": "slinky.slurm.net/v1beta1", "kind": kind,
            "metadata": { "name": "c", "namespace": "ns", "uid": "u" }, "spec": spec })
        };
        let nodeset = object(
            "NodeSet",
            json!({ "controllerRef": { "name": "c" }, "slurmd": { "image": slurmd } }),
        );
        let controller = object(
            "Controller",
            json!({ "slurmKeyRef": { "name": "k", "key": "slurm.key" } }),
        );
        let content = ByteString(b"secret".to_vec());
        Read {
            nodeset: Arc::new(serde_json::from_value(nodeset).unwrap()),
            controller: Some(Arc::new(serde_json::from_value(controller).unwrap())),
            config_in_use: None,
            pods_of_siblings: vec![],
            siblings: vec![],
            slurm_key: Some(Arc::new(Secret {
                data: Some(BTreeMap::from([("slurm.key".to_owned(), content)])),
                ..Secret::default()
            })),
            hash_key: Some(HashKey::for_tests()),
            slurm_key_in_use: None,
            sssd: None,
            cluster_domain: "cluster.local".into(),
            pods: vec![],
            nodes: BTreeMap::new(),
            claims: BTreeMap::new(),
            revisions,
            live: Live::default(),
        }
    }

    fn on_record(inputs: &Value) -> Arc<ControllerRevision> {
        let revision = json!({ "metadata": { "name": "r" }, "revision": 1, "data": { "worker": inputs } });
        Arc::new(serde_json::from_value(revision).unwrap())
    }

    #[test]
    fn a_plain_hash_stays_until_workers_are_replaced_for_something_else() {
        let inputs = |slurmd: &str, revisions| template(&read(slurmd, revisions)).unwrap().inputs;
        let mut before = inputs("slurmd:1", vec![]);
        let keyed = before["slurmKey"].clone();
        let plain = checksum::of_bytes(b"secret");
        assert_ne!(keyed, json!(plain));
        before["slurmKey"] = json!(plain);
        let first = on_record(&before);
        assert_eq!(
            inputs("slurmd:1", vec![first.clone()]),
            before,
            "an upgrade replaces no worker"
        );

        let rolled = inputs("slurmd:2", vec![first.clone()]);
        assert_eq!(rolled["slurmKey"], keyed, "they are replaced anyway");
        let second = on_record(&rolled);
        assert_eq!(
            inputs("slurmd:2", vec![first, second]),
            rolled,
            "and not a second time"
        );
    }
}
