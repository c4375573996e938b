//! Maps each change to the objects to reconcile. Pure apart from reading the caches.
//!
//! Each function is called for both sides of a change, old and new, so that objects that are no longer referred to are
//! reconciled as well.

use std::sync::Arc;

use keelson_api::{Controller, well_known::app};
use keelson_runtime::{Key, Queue};
use kube::ResourceExt;

use crate::{
    caches::{CONTROLLER, Caches, NODE, REFERENCE, reference_value},
    controller::contend,
};

/// One queue per controller.
#[derive(Debug, Default)]
pub struct Queues {
    pub slurm_cluster: Arc<Queue<Key>>,
    pub controller: Arc<Queue<Key>>,
    pub accounting: Arc<Queue<Key>>,
    pub restapi: Arc<Queue<Key>>,
    pub loginset: Arc<Queue<Key>>,
    pub nodeset: Arc<Queue<Key>>,
    pub token: Arc<Queue<Key>>,
    /// The Slurm connection of each Controller.
    pub mirror: Arc<Queue<Key>>,
}

/// Routes changes to queues.
#[derive(Debug, Clone)]
pub struct Triggers {
    pub caches: Arc<Caches>,
    pub queues: Arc<Queues>,
}

impl Triggers {
    fn add_all<K: ResourceExt>(queue: &Queue<Key>, objects: &[Arc<K>]) {
        for object in objects {
            queue.add(Key::of(object.as_ref()));
        }
    }

    /// Queues a changed Controller, its Slurm connection, all that register with it, and its Accounting.
    pub fn controller(&self, key: &Key) {
        self.queues.controller.add(key.clone());
        self.queues.mirror.add(key.clone());
        let id = key.to_string();
        Self::add_all(&self.queues.restapi, &self.caches.restapis.find(CONTROLLER, &id));
        Self::add_all(
            &self.queues.loginset,
            &self.caches.loginsets.find(CONTROLLER, &id),
        );
        Self::add_all(&self.queues.nodeset, &self.caches.nodesets.find(CONTROLLER, &id));
        let controller = self.caches.controllers.get(key);
        if let Some(accounting) = controller.and_then(|controller| controller.spec.accounting_ref.clone()) {
            self.queues
                .accounting
                .add(Key::new(&key.namespace, accounting.name));
        }
    }

    /// Queues the SlurmCluster that a changed object belongs to, whoever created it: its name is that of its Controller.
    pub fn part_of<K: ResourceExt>(&self, object: &K, controller: &str) {
        let cluster = Key::new(object.namespace().unwrap_or_default(), controller);
        if self.caches.slurm_clusters.get(&cluster).is_some() {
            self.queues.slurm_cluster.add(cluster);
        }
        self.child(object);
    }

    /// Queues the Controllers that want what a changed Controller has.
    pub fn rivals(&self, controller: &Controller) {
        let (namespace, name) = (controller.namespace(), controller.name_any());
        for other in self.caches.controllers.all() {
            let is_another = other.namespace() == namespace && other.name_any() != name;
            if is_another && contend(controller, &other) {
                self.queues.controller.add(Key::of(other.as_ref()));
            }
        }
    }

    /// Queues a changed Accounting, and the Controllers that use it, for their configuration.
    pub fn accounting(&self, key: &Key) {
        self.queues.accounting.add(key.clone());
        let id = reference_value("Accounting", &key.namespace, &key.name);
        for controller in self.caches.controllers.find(REFERENCE, &id) {
            self.queues.controller.add(Key::of(controller.as_ref()));
        }
    }

    /// Queues a changed RestApi, and the Slurm connection of its cluster.
    pub fn restapi(&self, key: &Key, controller: &str) {
        self.queues.restapi.add(key.clone());
        self.queues.mirror.add(Key::new(&key.namespace, controller));
    }

    /// Queues a changed NodeSet, its Controller, for the partition in slurm.conf, and RestApis and LoginSets that wait to be
    /// deleted.
    pub fn nodeset(&self, key: &Key, controller: &str) {
        self.queues.nodeset.add(key.clone());
        let controller = Key::new(&key.namespace, controller);
        for restapi in self.caches.restapis.find(CONTROLLER, &controller.to_string()) {
            if restapi.metadata.deletion_timestamp.is_some() {
                self.queues.restapi.add(Key::of(restapi.as_ref()));
            }
        }
        for loginset in self.caches.loginsets.find(CONTROLLER, &controller.to_string()) {
            if loginset.metadata.deletion_timestamp.is_some() {
                self.queues.loginset.add(Key::of(loginset.as_ref()));
            }
        }
        self.queues.controller.add(controller);
    }

    /// Queues a changed LoginSet, and its Controller if that waits for it to be deleted.
    pub fn loginset(&self, key: &Key, controller: &str) {
        self.queues.loginset.add(key.clone());
        let controller = Key::new(&key.namespace, controller);
        if self
            .caches
            .controllers
            .get(&controller)
            .is_some_and(|c| c.metadata.deletion_timestamp.is_some())
        {
            self.queues.controller.add(controller);
        }
    }

    /// Queues the objects that refer to a changed Secret or ConfigMap, directly or through their Controller.
    pub fn content(&self, kind: &str, key: &Key) {
        let id = reference_value(kind, &key.namespace, &key.name);
        for controller in self.caches.controllers.find(REFERENCE, &id) {
            self.controller(&Key::of(controller.as_ref()));
        }
        Self::add_all(
            &self.queues.accounting,
            &self.caches.accountings.find(REFERENCE, &id),
        );
        Self::add_all(&self.queues.loginset, &self.caches.loginsets.find(REFERENCE, &id));
        Self::add_all(&self.queues.nodeset, &self.caches.nodesets.find(REFERENCE, &id));
        Self::add_all(&self.queues.token, &self.caches.tokens.find(REFERENCE, &id));
        Self::add_all(
            &self.queues.slurm_cluster,
            &self.caches.slurm_clusters.find(REFERENCE, &id),
        );
    }

    /// Queues all owners of a changed child, by the kind that each reference names.
    pub fn child<K: ResourceExt>(&self, child: &K) {
        let namespace = child.namespace().unwrap_or_default();
        for owner in child.owner_references() {
            let key = Key::new(&namespace, &owner.name);
            match owner.kind.as_str() {
                // slurmrestd runs with the Controller's configuration, and all daemons run with slurmctld's key.
                "Controller" => self.controller(&key),
                "Accounting" => self.queues.accounting.add(key),
                "RestApi" => match self.caches.restapis.get(&key) {
                    // The connection to Slurm goes through its Service.
                    Some(restapi) => self.restapi(&key, &restapi.spec.controller_ref.name),
                    None => self.queues.restapi.add(key),
                },
                "LoginSet" => self.queues.loginset.add(key),
                "NodeSet" => self.queues.nodeset.add(key),
                "Token" => self.queues.token.add(key),
                "SlurmCluster" => self.queues.slurm_cluster.add(key),
                _ => {}
            }
        }
    }

    /// Queues the object that the labels of a changed Slurm pod name: its status reports pods that it may not own.
    pub fn pod<K: ResourceExt>(&self, pod: &K, app: &str, instance: &str) {
        let queue = match app {
            app::SLURMCTLD => &self.queues.controller,
            app::SLURMDBD => &self.queues.accounting,
            app::SLURMRESTD => &self.queues.restapi,
            app::LOGIN => &self.queues.loginset,
            app::SLURMD => &self.queues.nodeset,
            app::DATABASE | app::DATABASE_DUMP => &self.queues.slurm_cluster,
            _ => return,
        };
        queue.add(Key::new(pod.namespace().unwrap_or_default(), instance));
    }

    /// Queues the NodeSets with workers on a changed Kubernetes node, and those that want a worker on every node.
    pub fn node(&self, name: &str) {
        for pod in self.caches.pods.find(NODE, name) {
            self.child(pod.as_ref());
        }
        for nodeset in self.caches.nodesets.all() {
            if nodeset.spec.scaling_mode == keelson_api::nodeset::ScalingMode::DaemonSet {
                self.queues.nodeset.add(Key::of(nodeset.as_ref()));
            }
        }
    }

    /// Queues a Controller and its NodeSets after a change in Slurm.
    pub fn slurm(&self, controller: &Key) {
        self.queues.controller.add(controller.clone());
        Self::add_all(
            &self.queues.nodeset,
            &self.caches.nodesets.find(CONTROLLER, &controller.to_string()),
        );
    }

    /// Queues the Controllers that ask for a `ServiceMonitor`, after its CRD was installed or removed.
    pub fn monitoring(&self) {
        for controller in self.caches.controllers.all() {
            let metrics = controller.spec.metrics.as_ref();
            if metrics.is_some_and(|metrics| metrics.service_monitor.is_some()) {
                self.queues.controller.add(Key::of(controller.as_ref()));
            }
        }
    }

    /// Queues the SlurmClusters whose database mariadb-operator runs, after its CRDs were installed or removed.
    pub fn databases(&self) {
        for cluster in self.caches.slurm_clusters.all() {
            if cluster.operated_database().is_some() {
                self.queues.slurm_cluster.add(Key::of(cluster.as_ref()));
            }
        }
    }

    /// Queues every custom resource.
    pub fn everything(&self) {
        Self::add_all(&self.queues.slurm_cluster, &self.caches.slurm_clusters.all());
        Self::add_all(&self.queues.controller, &self.caches.controllers.all());
        Self::add_all(&self.queues.mirror, &self.caches.controllers.all());
        Self::add_all(&self.queues.accounting, &self.caches.accountings.all());
        Self::add_all(&self.queues.restapi, &self.caches.restapis.all());
        Self::add_all(&self.queues.loginset, &self.caches.loginsets.all());
        Self::add_all(&self.queues.nodeset, &self.caches.nodesets.all());
        Self::add_all(&self.queues.token, &self.caches.tokens.all());
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{api::apps::v1::StatefulSet, apimachinery::pkg::apis::meta::v1::OwnerReference};
    use keelson_api::{LoginSet, NodeSet, RestApi};

    use super::*;

    fn named<K: ResourceExt + Default>(name: &str) -> K {
        let mut object = K::default();
        object.meta_mut().namespace = Some("ns".into());
        object.meta_mut().name = Some(name.into());
        object
    }

    #[test]
    fn slurmctlds_statefulset_concerns_everybody_who_runs_with_its_key() {
        let caches = Arc::new(Caches::default());
        let mut controller: Controller = named("slurm");
        controller.spec.accounting_ref.get_or_insert_default().name = "db".into();
        caches.controllers.upsert(controller);
        let mut nodeset: NodeSet = named("cpu");
        nodeset.spec.controller_ref.name = "slurm".into();
        caches.nodesets.upsert(nodeset);
        let mut loginset: LoginSet = named("login");
        loginset.spec.controller_ref.name = "slurm".into();
        caches.loginsets.upsert(loginset);
        let mut restapi: RestApi = named("rest");
        restapi.spec.controller_ref.name = "slurm".into();
        caches.restapis.upsert(restapi);
        let triggers = Triggers {
            caches,
            queues: Arc::default(),
        };

        let mut slurmctld: StatefulSet = named("slurm-controller");
        slurmctld.metadata.owner_references = Some(vec![OwnerReference {
            kind: "Controller".into(),
            name: "slurm".into(),
            ..OwnerReference::default()
        }]);
        triggers.child(&slurmctld);
        let Queues {
            slurm_cluster,
            controller,
            accounting,
            restapi,
            loginset,
            nodeset,
            token,
            mirror,
        } = triggers.queues.as_ref();
        for queue in [controller, accounting, restapi, loginset, nodeset, mirror] {
            assert_eq!(queue.len(), 1);
        }
        assert!(token.is_empty() && slurm_cluster.is_empty());
    }
}
