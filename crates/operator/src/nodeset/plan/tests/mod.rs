//! Tests the decisions of `plan` case by case, with one file for each part. `promises` checks the invariants for every
//! case.
#![allow(
    clippy::needless_pass_by_value,
    reason = "json! literals read better unborrowed"
)]

mod awaited;
mod drain;
mod large;
mod membership;
mod node_attributes;
mod remove;
mod replace;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use keelson_api::nodeset::{ClaimRetentionPolicy, DrainTimeoutAction, ScalingMode};
use slurm_rest::node::NodeState;

use crate::nodeset::facts::{
    Cause, Intent, Leaving, Observed, Phase, Plan, PodFacts, PodId, SetFacts, Start, Step, Strategy,
};
use crate::slurm::facts::{JobReading, NodeName, Slurm, SlurmNode};
use crate::slurm::jobs::{HeldBy, JobList, Work};

/// Returns the plan without the steps that only show conditions on pods.
fn plan(observed: &Observed) -> Plan {
    let mut plan = super::plan(observed);
    plan.steps.retain(|step| !matches!(step, Step::Conditions { .. }));
    plan
}

pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

pub fn set(replicas: u32) -> SetFacts {
    SetFacts {
        namespace: "ns".into(),
        name: "w".into(),
        uid: "set".into(),
        replicas,
        mode: ScalingMode::StatefulSet,
        revision: "new".into(),
        strategy: Strategy::Rolling {
            max_unavailable: 1,
            partition: 0,
        },
        drain_timeout: None,
        on_drain_timeout: DrainTimeoutAction::Wait,
        paused: None,
        leaving: Leaving::No,
        min_ready: Duration::ZERO,
        startup_limit: None,
        protect: true,
        claim_retention: ClaimRetentionPolicy::default(),
        pins: BTreeMap::new(),
        records: BTreeMap::new(),
        prune: false,
        places_nodes: true,
        quiesced: false,
    }
}

/// Returns a healthy worker of the latest revision.
pub fn pod(ordinal: u32) -> PodFacts {
    PodFacts {
        name: format!("w-{ordinal}"),
        uid: format!("uid-{ordinal}"),
        mode: ScalingMode::StatefulSet,
        ordinal: Some(ordinal),
        node: NodeName(format!("w-{ordinal}")),
        revision: "new".into(),
        reshaped: false,
        phase: Phase::Running,
        start: Start::Yes,
        unsandboxed: false,
        running: true,
        ready_since: Some(at(-600)),
        created: at(-660),
        terminating: false,
        kube_node: Some(format!("machine-{ordinal}")),
        target: Some(format!("machine-{ordinal}")),
        cordoned: false,
        intent: None,
        deletion_cost: 0,
        deadline: None,
        topology: None,
        conditions: BTreeMap::new(),
        protected: true,
        claims: vec![],
        orphan: false,
        anchored: true,
        registered_before: None,
        trouble: None,
    }
}

pub fn node(words: &str) -> SlurmNode {
    SlurmNode {
        state: NodeState::read(words.split('+')),
        allocated: 0,
        registered: Some(at(-650)),
        reason: String::new(),
        address: String::new(),
        topology: String::new(),
        reservation: String::new(),
        features: vec![],
        active_features: vec![],
        read_at: at(0),
        outdated: false,
        work: Some(Work::default()),
        extra: "pod=ns/w,node=m,nodeset=w/set".into(),
    }
}

pub fn slurm(states: &[&str]) -> Slurm {
    let nodes = states.iter().enumerate().filter(|(_, words)| !words.is_empty());
    Slurm::Known {
        nodes: nodes
            .map(|(i, words)| (NodeName(format!("w-{i}")), node(words)))
            .collect(),
        jobs: jobs_read(),
    }
}

/// Returns an empty job list, read now.
pub fn jobs_read() -> JobReading {
    JobReading::Read(JobList {
        read_at: at(0),
        by_node: Arc::default(),
    })
}

/// Returns a job that can be requeued.
pub fn held_by(address: &str) -> HeldBy {
    HeldBy {
        address: address.to_owned(),
        requeue: Some(address.to_owned()),
        completing: false,
        refused: None,
        user: "alice".into(),
        until: None,
    }
}

pub fn observed(set: SetFacts, pods: Vec<PodFacts>, slurm: Slurm) -> Observed {
    Observed {
        set,
        pods,
        slurm,
        kube_nodes: BTreeMap::new(),
        taken: BTreeMap::new(),
        now: at(0),
    }
}

fn id(ordinal: u32) -> PodId {
    pod(ordinal).id()
}

fn with_intent(mut pod: PodFacts, cause: Cause, since: Timestamp) -> PodFacts {
    pod.intent = Some(Intent { cause, since });
    pod
}

fn edit(slurm: &mut Slurm, name: &str, change: impl FnOnce(&mut SlurmNode)) {
    let Slurm::Known { nodes, .. } = slurm else {
        panic!("unknown")
    };
    change(nodes.get_mut(&NodeName::from(name)).unwrap());
}

fn ends_at(node: &mut SlurmNode, second: i64) {
    node.work = Some(Work {
        jobs: vec![held_by("1")],
        until: Some(at(second)),
        wanted_by: vec![],
    });
}

fn create(ordinal: u32) -> Step {
    Step::Create {
        ordinal,
        kube_node: None,
    }
}

fn deletes(plan: &Plan) -> Vec<&Step> {
    plan.steps
        .iter()
        .filter(|step| {
            matches!(
                step,
                Step::Discard { .. } | Step::Force { .. } | Step::Replace { .. } | Step::Retire { .. }
            )
        })
        .collect()
}
