//! What must not change in a cluster while its operator is replaced: worker and login pods, keys, volumes and custom
//! resources.
#![allow(
    clippy::indexing_slicing,
    reason = "an index into JSON that is not there gives null"
)]

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::slurm::{Slurm, condition};
use crate::{eventually, get};

/// The kinds of a cluster's custom resources.
const KINDS: &str = "controllers.slinky.slurm.net,restapis.slinky.slurm.net,nodesets.slinky.slurm.net,loginsets.slinky.slurm.net";

/// The identity of each object, by kind and name.
pub type Standing = BTreeMap<String, Value>;

impl Slurm {
    /// Records everything that must not change.
    pub fn standing(&self) -> Result<Standing> {
        let mut standing = Standing::new();
        for object in self.items(&[KINDS])? {
            standing.insert(named(&object), object["metadata"]["uid"].clone());
        }
        for pod in self.items(&["pods", "--selector=app.kubernetes.io/name in (slurmd,login)"])? {
            let containers = pod["status"]["containerStatuses"].as_array();
            let containers = containers.with_context(|| format!("{} has no containers", named(&pod)))?;
            let ids: Vec<&Value> = containers
                .iter()
                .map(|container| &container["containerID"])
                .collect();
            standing.insert(named(&pod), json!([pod["metadata"]["uid"], ids]));
        }
        // Secrets of other types are Helm's release records.
        for secret in self.items(&["secrets", "--field-selector=type=Opaque"])? {
            standing.insert(named(&secret), json!([secret["metadata"]["uid"], secret["data"]]));
        }
        for claim in self.items(&["persistentvolumeclaims"])? {
            standing.insert(
                named(&claim),
                json!([
                    claim["metadata"]["uid"],
                    claim["spec"],
                    claim["metadata"]["deletionTimestamp"]
                ]),
            );
        }
        Ok(standing)
    }

    /// Fails if anything differs from the recorded state.
    pub fn stands(&self, before: &Standing) -> Result<()> {
        let now = self.standing()?;
        for (what, state) in before {
            let found = now.get(what);
            ensure!(found == Some(state), "{what} was {state} and is {found:?}");
        }
        Ok(())
    }

    /// Counts the starts of slurmctld: revisions of its StatefulSet, plus container restarts of the current pod.
    pub fn beginnings(&self) -> Result<u64> {
        let forms = self.items(&[
            "controllerrevisions",
            "--selector=app.kubernetes.io/name=slurmctld",
        ])?;
        let newest = forms.iter().filter_map(|form| form["revision"].as_u64()).max();
        let newest = newest.context("no revision of slurmctld")?;
        let pod = self.get(&["pod", "slurm-controller-0"])?;
        let containers = pod["status"]["containerStatuses"].as_array();
        let restarts = containers
            .into_iter()
            .flatten()
            .find(|container| container["name"] == "slurmctld")
            .and_then(|container| container["restartCount"].as_u64());
        Ok(newest + restarts.context("slurmctld's container is not there")?)
    }

    /// Calls [`all_settled`] for the namespace of this cluster.
    pub fn all_settled(&self) -> Result<()> {
        all_settled(&self.space.name)
    }

    fn items(&self, words: &[&str]) -> Result<Vec<Value>> {
        items(&self.space.name, words)
    }
}

/// Waits until the latest generation of every custom resource is ready, not degraded and not progressing, so that
/// nothing will restart any more.
pub fn all_settled(namespace: &str) -> Result<()> {
    eventually("everything ready as it is now", || {
        let objects = items(namespace, &[KINDS])?;
        ensure!(!objects.is_empty(), "there is nothing");
        for object in objects {
            let name = named(&object);
            let generation = &object["metadata"]["generation"];
            for (kind, wanted) in [("Ready", "True"), ("Degraded", "False"), ("Progressing", "False")] {
                let found = condition(&object, kind).with_context(|| name.clone())?;
                ensure!(
                    found["status"] == wanted && found["observedGeneration"] == *generation,
                    "{name} of generation {generation}: {found}"
                );
            }
        }
        Ok(())
    })
}

fn items(namespace: &str, words: &[&str]) -> Result<Vec<Value>> {
    let list = get(&[&["--namespace", namespace], words].concat())?;
    list["items"].as_array().cloned().context("a list without items")
}

fn named(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"]))
}
