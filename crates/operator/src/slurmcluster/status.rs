//! Computes the status of a SlurmCluster from those of its children. Pure.

use jiff::Timestamp;
use keelson_api::{
    NodeSet, SlurmCluster, SlurmClusterStatus,
    slurmcluster::{ComponentStatus, NodeCounts, PartitionStatus, Phase, children},
    status::{Condition, Endpoint},
    well_known::{condition, reason},
};
use kube::{Resource, ResourceExt};

use super::{
    apply::Applied,
    build::Built,
    database,
    observe::{Live, Observed, is_child},
};
use crate::{
    conditions::{self, Finding},
    pod_diagnosis,
    problem::Problem,
    teardown::Teardown,
    workload::Workload,
};

/// What a condition of a child says, if it is about the child's present spec.
fn finding(
    conditions: &[Condition],
    kind: &'static str,
    generation: Option<i64>,
) -> Option<(String, String, String)> {
    let found = conditions.iter().find(|condition| condition.type_ == kind)?;
    let is_current = found.observed_generation.is_none() || found.observed_generation == generation;
    is_current.then(|| (found.status.clone(), found.reason.clone(), found.message.clone()))
}

/// One component in one row: whether it is ready, changing or degraded, and in which words.
struct Row {
    kind: String,
    name: String,
    ready: bool,
    reason: String,
    message: String,
    progressing: Option<(String, String)>,
    degraded: Option<(String, String)>,
}

impl Row {
    fn of<K: Resource<DynamicType = ()>>(object: &K, conditions: &[Condition]) -> Self {
        let generation = object.meta().generation;
        let holds = |kind| finding(conditions, kind, generation).filter(|(status, ..)| status == "True");
        let detail = |kind| holds(kind).map(|(_, reason, message)| (reason, message));
        let (ready, reason, message) = match finding(conditions, condition::READY, generation) {
            Some((status, reason, message)) => (status == "True", reason, message),
            None => (
                false,
                reason::STARTING.to_owned(),
                "its controller has not looked at it yet".to_owned(),
            ),
        };
        Self {
            kind: K::kind(&()).into_owned(),
            name: object.name_any(),
            ready,
            reason,
            message,
            progressing: detail(condition::PROGRESSING),
            degraded: detail(condition::DEGRADED),
        }
    }

    /// The row of a child, which is `wanted` unless the spec no longer has it.
    fn of_child<K: Resource<DynamicType = ()>>(
        object: &K,
        conditions: &[Condition],
        cluster: &SlurmCluster,
        wanted: bool,
    ) -> Self {
        let row = Self::of(object, conditions);
        let deleted = object.meta().deletion_timestamp.is_some() && wanted && is_child(object, cluster);
        if !deleted || cluster.metadata.deletion_timestamp.is_some() {
            return row;
        }
        let waiting = finding(conditions, condition::TERMINATING, object.meta().generation);
        let waiting = waiting.filter(|(status, ..)| status == "True");
        let waiting = waiting.map_or_else(String::new, |(_, _, message)| format!(" ({message})"));
        let message = format!(
            "it is being deleted and will be created again once it is gone; until then, changes are not applied to \
             it{waiting}"
        );
        Self {
            reason: reason::BEING_DELETED.to_owned(),
            message: message.clone(),
            degraded: Some((reason::BEING_DELETED.to_owned(), message)),
            ..row
        }
    }

    fn missing(kind: &str, name: String) -> Self {
        Self {
            kind: kind.to_owned(),
            name,
            ready: false,
            reason: reason::STARTING.to_owned(),
            message: "it does not exist yet".to_owned(),
            progressing: None,
            degraded: None,
        }
    }

    fn says(&self, message: &str) -> String {
        format!(
            "{} {}: {message}; for details: kubectl describe {} {}",
            self.kind,
            self.name,
            self.kind.to_lowercase(),
            self.name
        )
    }
}

pub fn compute(
    observed: &Observed,
    live: &Live,
    built: Result<&Built, &Problem>,
    applied: &Applied,
    teardown: &Teardown,
    now: Timestamp,
) -> SlurmClusterStatus {
    let cluster = observed.cluster.as_ref();
    let before = cluster.status.clone().unwrap_or_default();
    let rows = rows(observed, live, now);
    let problem = match built {
        Err(problem) if !teardown.excuses(problem) => Some(problem.clone()),
        _ => applied.problem(),
    };
    let mut findings = findings(&rows, problem.as_ref());
    let is_deleting = cluster.metadata.deletion_timestamp.is_some();
    findings.extend(teardown.finding());
    let conditions = conditions::compute(&before.conditions, findings, cluster.metadata.generation, now);
    SlurmClusterStatus {
        observed_generation: cluster.metadata.generation,
        phase: Some(phase(&rows, problem.is_some(), before.phase, is_deleting)),
        version: live
            .controller
            .as_ref()
            .and_then(|controller| controller.status.as_ref()?.slurm_version.clone()),
        endpoints: endpoints(live),
        nodes: Some(sum(live.nodesets.iter().map(AsRef::as_ref))),
        partitions: partitions(observed, live),
        components: rows.iter().map(component).collect(),
        conditions,
    }
}

fn component(row: &Row) -> ComponentStatus {
    ComponentStatus {
        kind: row.kind.clone(),
        name: row.name.clone(),
        ready: row.ready,
        reason: Some(row.reason.clone()),
    }
}

/// Returns a row for each component; those that others need come first, so that the first trouble is the cause of the rest.
fn rows(observed: &Observed, live: &Live, now: Timestamp) -> Vec<Row> {
    let cluster = observed.cluster.as_ref();
    let name = cluster.name_any();
    let mut rows = Vec::new();
    if cluster.embedded_database().is_some() || live.database.stateful_set.is_some() {
        rows.push(database(observed, live, now));
    }
    if cluster.operated_database().is_some() {
        rows.push(match &live.database.operated {
            Some(object) => Row::of_child(object.as_ref(), &object.status.conditions, cluster, true),
            None => Row::missing("MariaDB", children::operated_database_name(cluster)),
        });
    }
    if cluster.spec.accounting.as_ref().is_some_and(|part| part.enabled) {
        rows.push(match &live.accounting {
            Some(object) => Row::of_child(
                object.as_ref(),
                &object.status.clone().unwrap_or_default().conditions,
                cluster,
                true,
            ),
            None => Row::missing("Accounting", name.clone()),
        });
    }
    rows.push(match &live.controller {
        Some(object) => Row::of_child(
            object.as_ref(),
            &object.status.clone().unwrap_or_default().conditions,
            cluster,
            true,
        ),
        None => Row::missing("Controller", name.clone()),
    });
    rows.push(match &live.restapi {
        Some(object) => Row::of_child(
            object.as_ref(),
            &object.status.clone().unwrap_or_default().conditions,
            cluster,
            true,
        ),
        None => Row::missing("RestApi", name.clone()),
    });
    let mut nodesets = live.nodesets.clone();
    nodesets.sort_by_key(|nodeset| nodeset.name_any());
    let names = cluster.spec.node_sets.keys();
    let wanted: Vec<String> = names.map(|key| format!("{name}-worker-{key}")).collect();
    rows.extend(nodesets.iter().map(|nodeset| {
        Row::of_child(
            nodeset.as_ref(),
            &nodeset.status.clone().unwrap_or_default().conditions,
            cluster,
            wanted.contains(&nodeset.name_any()),
        )
    }));
    for name in wanted {
        if !nodesets.iter().any(|nodeset| nodeset.name_any() == name) {
            rows.push(Row::missing("NodeSet", name));
        }
    }
    let mut loginsets = live.loginsets.clone();
    loginsets.sort_by_key(|loginset| loginset.name_any());
    let names = cluster.spec.login.keys();
    let wanted: Vec<String> = names.map(|key| format!("{name}-login-{key}")).collect();
    rows.extend(loginsets.iter().map(|loginset| {
        Row::of_child(
            loginset.as_ref(),
            &loginset.status.clone().unwrap_or_default().conditions,
            cluster,
            wanted.contains(&loginset.name_any()),
        )
    }));
    for name in wanted {
        if !loginsets.iter().any(|loginset| loginset.name_any() == name) {
            rows.push(Row::missing("LoginSet", name));
        }
    }
    rows.extend(failed_dump(live, now));
    rows
}

/// Returns a row if dumps of the database fail. Nothing else depends on them.
fn failed_dump(live: &Live, now: Timestamp) -> Option<Row> {
    let cron_job = live.database.dump.as_deref()?;
    let Problem { reason, message } = database::problem_of_dumps(cron_job, &live.database.dump_pods, now)?;
    Some(Row {
        kind: "CronJob".to_owned(),
        name: cron_job.name_any(),
        ready: true,
        reason: reason.to_owned(),
        message: message.clone(),
        progressing: None,
        degraded: Some((reason.to_owned(), message)),
    })
}

fn database(observed: &Observed, live: &Live, now: Timestamp) -> Row {
    let workload = Workload::from(live.database.stateful_set.as_deref());
    let ready = workload.readiness("mariadb", 1, &live.database.pods, now);
    let progress = workload.progress("mariadb", 1);
    Row {
        kind: "StatefulSet".to_owned(),
        name: children::database_name(&observed.cluster),
        ready: workload.ready > 0,
        reason: ready.reason.to_owned(),
        message: ready.message,
        progressing: (progress.holds == conditions::ConditionStatus::Yes)
            .then(|| (progress.reason.to_owned(), progress.message)),
        degraded: pod_diagnosis::among(&live.database.pods, now)
            .map(|problem| (problem.reason.to_owned(), problem.message)),
    }
}

fn findings(rows: &[Row], problem: Option<&Problem>) -> Vec<Finding> {
    if let Some(problem) = problem {
        return Finding::blocked(problem);
    }
    let unready = rows.iter().find(|row| !row.ready);
    let ready = match unready {
        None => Finding::new(
            condition::READY,
            true,
            reason::AS_SPECIFIED,
            "every component is ready",
        ),
        Some(row) => {
            let others = rows.iter().filter(|row| !row.ready).count() - 1;
            let more = match others {
                0 => String::new(),
                others => format!(" ({others} more not ready)"),
            };
            Finding::new(
                condition::READY,
                false,
                reason::COMPONENT_NOT_READY,
                format!("{}{more}", row.says(&row.message)),
            )
        }
    };
    let progressing = rows.iter().find_map(|row| {
        let (_, message) = row.progressing.as_ref()?;
        Some(row.says(message))
    });
    let progressing = match (progressing, unready) {
        (Some(message), _) => Finding::new(condition::PROGRESSING, true, reason::COMPONENT_CHANGING, message),
        (None, Some(row)) if row.degraded.is_none() => Finding::new(
            condition::PROGRESSING,
            true,
            reason::STARTING,
            row.says(&row.message),
        ),
        (None, _) => Finding::settled(),
    };
    let degraded = rows.iter().find_map(|row| {
        let (_, message) = row.degraded.as_ref()?;
        Some(Problem {
            reason: reason::COMPONENT_DEGRADED,
            message: row.says(message),
        })
    });
    vec![ready, progressing, Finding::degraded(degraded)]
}

fn phase(rows: &[Row], is_blocked: bool, before: Option<Phase>, is_deleting: bool) -> Phase {
    let was_ready = !matches!(before, None | Some(Phase::Creating));
    let is_ready = rows.iter().all(|row| row.ready);
    let changes = is_blocked || rows.iter().any(|row| row.progressing.is_some());
    match (is_deleting, is_ready) {
        (true, _) => Phase::Deleting,
        (false, true) if changes => Phase::Updating,
        (false, true) => Phase::Ready,
        (false, false) if was_ready => Phase::NotReady,
        (false, false) => Phase::Creating,
    }
}

fn endpoints(live: &Live) -> Vec<Endpoint> {
    let rest = live.restapi.iter().map(|restapi| Endpoint {
        name: "rest".to_owned(),
        address: restapi.url(),
    });
    let mut logins: Vec<Endpoint> = live
        .loginsets
        .iter()
        .map(|loginset| Endpoint {
            name: format!("ssh-{}", loginset.name_any()),
            address: loginset.address().to_string(),
        })
        .collect();
    logins.sort_by(|a, b| a.name.cmp(&b.name));
    rest.chain(logins).collect()
}

fn sum<'a>(nodesets: impl Iterator<Item = &'a NodeSet>) -> NodeCounts {
    let mut counts = NodeCounts::default();
    for nodeset in nodesets {
        let Some(status) = &nodeset.status else { continue };
        counts.desired += status.desired.unwrap_or(0);
        counts.ready += status.ready_replicas.unwrap_or(0);
        counts.idle += status.slurm_idle.unwrap_or(0);
        counts.allocated += status.slurm_allocated.unwrap_or(0);
        counts.drained += status.slurm_drain.unwrap_or(0);
        counts.down += status.slurm_down.unwrap_or(0);
    }
    counts
}

/// Returns the partitions of the SlurmCluster, and those that NodeSets create for themselves.
fn partitions(observed: &Observed, live: &Live) -> Vec<PartitionStatus> {
    let shared = children::partitions(&observed.cluster)
        .into_iter()
        .map(|(name, part)| {
            let members = live
                .nodesets
                .iter()
                .filter(|nodeset| children::contains(&observed.cluster, &part, &nodeset.slurm_name()));
            PartitionStatus {
                name,
                nodes: sum(members.map(AsRef::as_ref)),
            }
        });
    let own = live.nodesets.iter().filter(|nodeset| {
        let partition = nodeset.spec.partition.as_ref();
        partition.is_some_and(|partition| partition.enabled)
    });
    let own = own.map(|nodeset| PartitionStatus {
        name: nodeset.slurm_name(),
        nodes: sum(std::iter::once(nodeset.as_ref())),
    });
    let mut partitions: Vec<PartitionStatus> = shared.chain(own).collect();
    partitions.sort_by(|a, b| a.name.cmp(&b.name));
    partitions.dedup_by(|a, b| a.name == b.name);
    partitions
}
