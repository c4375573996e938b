//! Whom a change concerns. Pure apart from looking into the caches.
//!
//! Each function gets one side of a change, old and new alike, so that whoever an object stopped referring to hears of
//! it as well.

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

    /// A Controller changed: itself, its Slurm connection, and all that register with it.
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

    /// A Controller changed: those that want what it has.
    pub fn rivals(&self, controller: &Controller) {
        let (namespace, name) = (controller.namespace(), controller.name_any());
        for other in self.caches.controllers.all() {
            let is_another = other.namespace() == namespace && other.name_any() != name;
            if is_another && contend(controller, &other) {
                self.queues.controller.add(Key::of(other.as_ref()));
            }
        }
    }

    /// An Accounting changed: itself, and the configuration of the clusters that use it.
    pub fn accounting(&self, key: &Key) {
        self.queues.accounting.add(key.clone());
        let id = reference_value("Accounting", &key.namespace, &key.name);
        for controller in self.caches.controllers.find(REFERENCE, &id) {
            self.queues.controller.add(Key::of(controller.as_ref()));
        }
    }

    /// A RestApi changed: itself, and the Slurm connection of its cluster.
    pub fn restapi(&self, key: &Key, controller: &str) {
        self.queues.restapi.add(key.clone());
        self.queues.mirror.add(Key::new(&key.namespace, controller));
    }

    /// A NodeSet changed: itself; slurm.conf names its partition; siblings share the workers' Service with it.
    pub fn nodeset(&self, key: &Key, controller: &str) {
        self.queues.nodeset.add(key.clone());
        let controller = Key::new(&key.namespace, controller);
        for restapi in self.caches.restapis.find(CONTROLLER, &controller.to_string()) {
            if restapi.metadata.deletion_timestamp.is_some() {
                self.queues.restapi.add(Key::of(restapi.as_ref()));
            }
        }
        self.queues.controller.add(controller);
    }

    /// A LoginSet changed: itself, and a Controller that waits for it to go.
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

    /// A Secret or ConfigMap changed: whoever refers to it, directly or through its Controller.
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
    }

    /// A child changed: its owners, by the kind that the reference names. Objects with several owners concern all.
    pub fn child<K: ResourceExt>(&self, child: &K) {
        let namespace = child.namespace().unwrap_or_default();
        for owner in child.owner_references() {
            let key = Key::new(&namespace, &owner.name);
            match owner.kind.as_str() {
                // slurmrestd runs with the configuration that a Controller makes, and everybody with slurmctld's key.
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
                _ => {}
            }
        }
    }

    /// A pod of Slurm changed: the object that its labels name shows it in its status, and need not be its owner.
    pub fn pod<K: ResourceExt>(&self, pod: &K, app: &str, instance: &str) {
        let queue = match app {
            app::SLURMCTLD => &self.queues.controller,
            app::SLURMDBD => &self.queues.accounting,
            app::SLURMRESTD => &self.queues.restapi,
            app::LOGIN => &self.queues.loginset,
            app::SLURMD => &self.queues.nodeset,
            _ => return,
        };
        queue.add(Key::new(pod.namespace().unwrap_or_default(), instance));
    }

    /// A Kubernetes node changed: the NodeSets with workers on it, and those that want one on every node.
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

    /// Something changed in Slurm that concerns the workers of this Controller.
    pub fn slurm(&self, controller: &Key) {
        self.queues.controller.add(controller.clone());
        Self::add_all(
            &self.queues.nodeset,
            &self.caches.nodesets.find(CONTROLLER, &controller.to_string()),
        );
    }

    /// The Prometheus operator's kinds were installed or removed: the Controllers that ask for a `ServiceMonitor`.
    pub fn monitoring(&self) {
        for controller in self.caches.controllers.all() {
            let metrics = controller.spec.metrics.as_ref();
            if metrics.is_some_and(|metrics| metrics.service_monitor.is_some()) {
                self.queues.controller.add(Key::of(controller.as_ref()));
            }
        }
    }

    /// Every custom resource.
    pub fn everything(&self) {
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
        assert!(token.is_empty());
    }
}
