//! Implements `Workers` and `Control` on the model: the same calls as to Kubernetes and Slurm. The operator may be
//! killed before each of them.

use std::{collections::BTreeMap, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use keelson_api::{
    nodeset::{DrainTimeoutAction, ScalingMode},
    well_known::slurm::REASON_PREFIX,
};
use parking_lot::Mutex;

use super::{Event, World, record::ARRAY};
use crate::{
    nodeset::{
        act::{Mark, PodPatch, Spot, StepError, Workers},
        facts::{ClaimOwner, Phase, PodFacts, PodId},
        plan::tests::pod,
    },
    slurm::{
        control::{Change, Control, Error},
        facts::{NodeName, SlurmNode},
    },
};

pub struct Hands<'a> {
    pub world: Mutex<&'a mut World>,
    /// The number of calls until the operator is killed, if it is.
    pub left: Mutex<Option<usize>>,
    /// How long Slurm takes to answer the first deletion of records, and what happens before the answer.
    pub slow: Mutex<Option<(Duration, Vec<Event>)>>,
}

impl Hands<'_> {
    /// Makes a call. If the operator has been killed, the call never returns.
    fn write<'a, T: Send + 'a>(
        &'a self,
        change: impl FnOnce(&mut World) -> T + Send + 'a,
    ) -> BoxFuture<'a, T> {
        async move {
            let killed = {
                let mut left = self.left.lock();
                let killed = *left == Some(0);
                *left = left.map(|left| left.saturating_sub(1));
                killed
            };
            if killed {
                return std::future::pending().await;
            }
            change(&mut self.world.lock())
        }
        .boxed()
    }

    fn ask<'a, T: Send + 'a>(
        &'a self,
        answer: impl FnOnce(&mut World) -> Result<T, Error> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, Error>> {
        self.write(move |world| {
            if world.silent {
                return Err(Error::Unreachable("silent".into()));
            }
            answer(world)
        })
    }
}

fn mark<T>(on: &mut Option<T>, mark: Mark<T>) {
    match mark {
        Mark::Unchanged => {}
        Mark::Set(value) => *on = Some(value),
        Mark::Cleared => *on = None,
    }
}

impl Workers for Hands<'_> {
    fn look(&self, id: &PodId) -> Option<PodFacts> {
        let world = self.world.lock();
        world.pods.get(&id.name).filter(|pod| pod.uid == id.uid).cloned()
    }

    fn patch<'a>(&'a self, id: &'a PodId, patch: &'a PodPatch) -> BoxFuture<'a, Result<bool, StepError>> {
        self.write(move |world| {
            let Some(pod) = world.pods.get_mut(&id.name).filter(|pod| pod.uid == id.uid) else {
                return Ok(false);
            };
            let PodPatch {
                intent,
                deadline,
                topology: _,
                protected,
                adopt,
            } = patch.clone();
            mark(&mut pod.intent, intent);
            mark(&mut pod.deadline, deadline);
            pod.protected = protected.unwrap_or(pod.protected);
            if adopt {
                pod.orphan = false;
                pod.anchored = true;
            }
            Ok(true)
        })
    }

    fn own_claim<'a>(
        &'a self,
        _: &'a PodId,
        _: &'a str,
        _: &'a ClaimOwner,
    ) -> BoxFuture<'a, Result<(), StepError>> {
        self.write(|_| Ok(()))
    }

    fn show<'a>(
        &'a self,
        id: &'a PodId,
        set: &'a BTreeMap<String, String>,
        drop: &'a [String],
    ) -> BoxFuture<'a, Result<(), StepError>> {
        self.write(move |world| {
            let now = world.now;
            if let Some(pod) = world.pods.get_mut(&id.name).filter(|pod| pod.uid == id.uid) {
                pod.conditions.retain(|kind, _| !drop.contains(kind));
                let shown = set.iter().map(|(k, m)| (k.clone(), (m.clone(), Some(now))));
                pod.conditions.extend(shown);
            }
            Ok(())
        })
    }

    fn delete<'a>(&'a self, id: &'a PodId, _: Duration) -> BoxFuture<'a, Result<bool, StepError>> {
        self.write(move |world| {
            // The deletion requires the resource version that was read, but the pod was bound since.
            if world.unseen.get(&id.uid) == Some(&super::Unseen::Bound) {
                return Ok(false);
            }
            let known = world.pods.get(&id.name);
            let there = known.is_some_and(|pod| pod.uid == id.uid && !pod.terminating);
            if there {
                world.remove(&id.name);
            }
            Ok(there)
        })
    }

    fn create<'a>(&'a self, spot: &'a Spot) -> BoxFuture<'a, Result<Option<String>, StepError>> {
        self.write(move |world| {
            world.births += 1;
            let mut born = match spot {
                Spot::Ordinal { ordinal, .. } => PodFacts {
                    target: None,
                    ..pod(*ordinal)
                },
                Spot::KubeNode { kube_node, hostname } => PodFacts {
                    name: format!("d-{}", world.births),
                    ordinal: None,
                    mode: ScalingMode::DaemonSet,
                    node: NodeName(hostname.clone()),
                    target: Some(kube_node.clone()),
                    ..pod(0)
                },
            };
            born.kube_node = None;
            let seen = world.seen.as_ref().and_then(|seen| seen.get(&born.node));
            born.registered_before = seen.and_then(|node| node.registered);
            Ok(world.bear(born))
        })
    }

    fn note(&self, _: &'static str, _: String) {}

    fn warn(&self, _: &'static str, _: String) {}
}

impl Control for Hands<'_> {
    fn change<'a>(&'a self, nodes: &'a [NodeName], change: &'a Change) -> BoxFuture<'a, Result<(), Error>> {
        self.ask(move |world| {
            for node in nodes {
                let Some(record) = world.records.get_mut(&node.0) else {
                    continue;
                };
                match change {
                    Change::Drain { reason } => {
                        record.drain = true;
                        record.reason.clone_from(reason);
                    }
                    Change::Undrain => {
                        assert!(
                            record.reason.starts_with(REASON_PREFIX),
                            "the drain of {node} is not ours"
                        );
                        record.drain = false;
                    }
                    Change::Resume => record.down = false,
                    Change::Topology { .. } | Change::Features { .. } => {}
                }
                world.wrote(node);
            }
            Ok(())
        })
    }

    fn nodes<'a>(
        &'a self,
        names: &'a [NodeName],
    ) -> BoxFuture<'a, Result<BTreeMap<NodeName, SlurmNode>, Error>> {
        self.ask(move |world| {
            let read = |name: &NodeName| Some((name.clone(), world.records.get(&name.0)?.read(world.now)));
            Ok(names.iter().filter_map(read).collect())
        })
    }

    fn node<'a>(&'a self, name: &'a NodeName) -> BoxFuture<'a, Result<Option<SlurmNode>, Error>> {
        self.ask(move |world| Ok(world.records.get(&name.0).map(|record| record.read(world.now))))
    }

    fn requeue<'a>(&'a self, addresses: &'a [String]) -> BoxFuture<'a, Result<(), Error>> {
        self.ask(move |world| {
            assert_eq!(world.set.on_drain_timeout, DrainTimeoutAction::Requeue);
            let mut asked = addresses.to_vec();
            asked.dedup();
            assert_eq!(asked, addresses, "a job was asked twice");
            assert!(
                !asked.contains(&ARRAY.to_string()),
                "the whole array was requeued"
            );
            for job in world.records.values_mut().flat_map(|record| &mut record.jobs) {
                if asked.contains(&job.address()) {
                    assert!(!job.completing, "requeuing a job that completes ends it");
                    if job.requeue {
                        job.completing = true;
                    } else {
                        world.refused.insert(job.address());
                    }
                }
            }
            Ok(())
        })
    }

    fn cancel<'a>(&'a self, addresses: &'a [String]) -> BoxFuture<'a, Result<(), Error>> {
        self.ask(move |world| {
            assert_eq!(
                world.set.on_drain_timeout,
                DrainTimeoutAction::Cancel,
                "nobody wrote that jobs may be ended"
            );
            assert!(
                !addresses.contains(&ARRAY.to_string()),
                "the whole array was cancelled"
            );
            for record in world.records.values_mut() {
                record.jobs.retain(|job| !addresses.contains(&job.address()));
            }
            Ok(())
        })
    }

    fn delete<'a>(&'a self, names: &'a [NodeName]) -> BoxFuture<'a, Result<(), Error>> {
        let deleted = self.ask(move |world| {
            let mut refused = false;
            for name in names {
                let visible = |record: &super::Record| record.jobs.iter().any(|job| !job.suspended);
                if world.records.get(&name.0).is_some_and(visible) {
                    refused = true;
                    continue;
                }
                // When Slurm deletes a record, it forgets suspended jobs on the node.
                if let Some(record) = world.records.remove(&name.0) {
                    *world.forgotten.entry(name.0.clone()).or_default() += record.jobs.len();
                }
                world.wrote(name);
            }
            if refused {
                return Err(Error::Refused("in use".into()));
            }
            Ok(())
        });
        async move {
            let answer = deleted.await;
            let slow = self.slow.lock().take();
            if let Some((takes, events)) = slow {
                tokio::time::sleep(takes).await;
                for event in &events {
                    self.world.lock().happens(event);
                }
            }
            answer
        }
        .boxed()
    }
}

impl World {
    fn bear(&mut self, mut born: PodFacts) -> Option<String> {
        // The API server answers "already exists" while the predecessor is terminating.
        if self.pods.contains_key(&born.name) {
            return None;
        }
        born.uid = format!("uid-{}", self.births);
        born.revision.clone_from(&self.set.revision);
        born.phase = Phase::Pending;
        born.start = crate::nodeset::facts::Start::Never;
        born.running = false;
        born.ready_since = None;
        born.created = self.now;
        let name = born.name.clone();
        self.pods.insert(name.clone(), born);
        Some(name)
    }

    /// Marks the last read of the node as outdated.
    fn wrote(&mut self, node: &NodeName) {
        if let Some(seen) = self.seen.as_mut().and_then(|seen| seen.get_mut(node)) {
            seen.outdated = true;
        }
    }
}
