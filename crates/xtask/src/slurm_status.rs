//! The Slurm part of `cargo xtask status`: nodes by state, the queue, and whether accounting records jobs.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use testbed::cluster::Cluster;
use testbed::command;

/// The script that runs in the slurmctld pod. Each part has its own timeout, so that the other parts are shown if one does not respond.
const QUESTIONS: &str = r"
echo '== nodes'; timeout 10 sinfo --noheader --Node --format='%N %T' 2>&1
echo '== queue'; timeout 10 squeue --noheader --array --format=%T 2>&1
echo '== config'; timeout 10 scontrol show config 2>/dev/null | grep -E '^(ClusterName|AccountingStorageType) '
echo '== agent'; timeout 10 sdiag 2>/dev/null | grep '^DBD Agent queue size'
echo '== clusters'; timeout 10 sacctmgr --noheader --parsable2 show cluster format=cluster,controlhost 2>&1
true
";

/// The status lines for every Slurm cluster in Kubernetes; empty if there is none.
pub fn lines(cluster: &Cluster) -> Vec<String> {
    match slurmctlds(cluster) {
        Ok(pods) => pods
            .iter()
            .flat_map(|(namespace, pod)| of_one(cluster, namespace, pod))
            .collect(),
        Err(error) => vec![format!("Slurm: failed to list the pods: {error:#}")],
    }
}

/// One running slurmctld pod for each namespace and Controller.
fn slurmctlds(cluster: &Cluster) -> Result<Vec<(String, String)>> {
    let list = command::output(cluster.kubectl().args([
        "get",
        "pods",
        "--all-namespaces",
        "--selector=app.kubernetes.io/name=slurmctld",
        "--field-selector=status.phase=Running",
        "--output=json",
    ]))?;
    let list: serde_json::Value = serde_json::from_str(&list).context("kubectl get pods")?;
    let mut found = BTreeMap::new();
    for pod in list
        .pointer("/items")
        .and_then(|items| items.as_array())
        .into_iter()
        .flatten()
    {
        let text = |path: &str| {
            pod.pointer(path)
                .and_then(|value| value.as_str())
                .unwrap_or_default()
                .to_owned()
        };
        let key = (
            text("/metadata/namespace"),
            text("/metadata/labels/app.kubernetes.io~1instance"),
        );
        found.entry(key).or_insert_with(|| text("/metadata/name"));
    }
    Ok(found
        .into_iter()
        .map(|((namespace, _), pod)| (namespace, pod))
        .collect())
}

fn of_one(cluster: &Cluster, namespace: &str, pod: &str) -> Vec<String> {
    let answer = command::output(
        cluster
            .kubectl()
            .args([
                "--namespace",
                namespace,
                "exec",
                pod,
                "--container=slurmctld",
                "--",
            ])
            .args(["sh", "-c", QUESTIONS]),
    );
    match answer {
        Ok(answer) => describe(namespace, &answer),
        Err(error) => vec![format!("Slurm in namespace {namespace}: no response: {error:#}")],
    }
}

/// The status lines for the user.
fn describe(namespace: &str, answer: &str) -> Vec<String> {
    let parts = sections(answer);
    let part = |name: &str| parts.get(name).cloned().unwrap_or_default();
    let setting = |name: &str| {
        part("config")
            .iter()
            .filter_map(|line| line.split_once('='))
            .find(|(key, _)| key.trim() == name)
            .map(|(_, value)| value.trim().to_owned())
    };
    let cluster = setting("ClusterName").unwrap_or_else(|| "Slurm".to_owned());
    vec![
        format!("{cluster} in namespace {namespace}"),
        format!("  nodes       {}", nodes(&part("nodes"))),
        format!("  queue       {}", queue(&part("queue"))),
        format!(
            "  accounting  {}",
            accounting(
                &cluster,
                setting("AccountingStorageType").as_deref(),
                &part("clusters"),
                &part("agent")
            )
        ),
    ]
}

fn sections(answer: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut parts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut current = "";
    for line in answer.lines() {
        match line.strip_prefix("== ") {
            Some(name) => {
                current = name;
                parts.entry(name).or_default();
            }
            None => parts.entry(current).or_default().push(line),
        }
    }
    parts
}

/// A node is listed once for each of its partitions.
fn nodes(lines: &[&str]) -> String {
    let pairs: BTreeSet<(&str, &str)> = lines
        .iter()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            match (words.next(), words.next(), words.next()) {
                (Some(name), Some(state), None) => Some((name, state)),
                _ => None,
            }
        })
        .collect();
    if pairs.is_empty() {
        return lines
            .first()
            .map_or_else(|| "none".to_owned(), |said| format!("no response: {said}"));
    }
    counted(pairs.into_iter().map(|(_, state)| state.to_owned()))
}

fn queue(lines: &[&str]) -> String {
    if lines.is_empty() {
        return "empty".to_owned();
    }
    if let Some(said) = lines.iter().find(|line| line.split_whitespace().count() != 1) {
        return format!("no response: {said}");
    }
    counted(lines.iter().map(|state| state.trim().to_lowercase()))
}

fn counted(states: impl Iterator<Item = String>) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for state in states {
        *counts.entry(state).or_default() += 1;
    }
    let counts: Vec<String> = counts
        .iter()
        .map(|(state, count)| format!("{count} {state}"))
        .collect();
    counts.join(", ")
}

/// slurmdbd records jobs only for a cluster that is registered with the address of its slurmctld.
fn accounting(cluster: &str, storage: Option<&str>, clusters: &[&str], agent: &[&str]) -> String {
    match storage {
        Some("accounting_storage/slurmdbd") => {}
        Some(_) => return "disabled".to_owned(),
        None => return "no response from slurmctld".to_owned(),
    }
    let waiting = agent
        .iter()
        .find_map(|line| line.split_once(':'))
        .and_then(|(_, count)| count.trim().parse::<u64>().ok());
    let waiting = match waiting {
        Some(0) | None => String::new(),
        Some(count) => format!("; slurmctld queues {count} records that slurmdbd has not accepted yet"),
    };
    let rows: Vec<(&str, &str)> = clusters.iter().filter_map(|line| line.split_once('|')).collect();
    match rows.iter().find(|(name, _)| *name == cluster) {
        Some((_, host)) if !host.is_empty() => format!("recording{waiting}"),
        Some(_) => format!("not recording: slurmctld is not connected to slurmdbd{waiting}"),
        None => match clusters
            .iter()
            .find(|line| !line.contains('|') && !line.trim().is_empty())
        {
            Some(said) => format!(
                "not recording: slurmdbd does not respond ({}){waiting}",
                said.trim()
            ),
            None => format!("not recording: cluster {cluster} is not registered in slurmdbd{waiting}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = "\
== nodes
cpu-0 idle
cpu-0 idle
cpu-1 drained
cpu-2 idle
== queue
RUNNING
PENDING
PENDING
== config
AccountingStorageType   = accounting_storage/slurmdbd
ClusterName             = slurm_slurm
== agent
DBD Agent queue size: 0
== clusters
slurm_slurm|10.244.1.5
";

    fn last(answer: &str) -> String {
        describe("slurm", answer).pop().unwrap_or_default()
    }

    #[test]
    fn nodes_are_counted_once_and_jobs_by_state() {
        assert_eq!(
            describe("slurm", ANSWER),
            [
                "slurm_slurm in namespace slurm",
                "  nodes       1 drained, 2 idle",
                "  queue       2 pending, 1 running",
                "  accounting  recording",
            ]
        );
    }

    #[test]
    fn accounting_that_does_not_record_is_told_from_one_that_is_off() {
        let off = ANSWER.replace("accounting_storage/slurmdbd", "(null)");
        assert_eq!(last(&off), "  accounting  disabled");
        let unknown = ANSWER.replace("slurm_slurm|10.244.1.5\n", "");
        assert!(last(&unknown).contains("cluster slurm_slurm is not registered"));
        let apart = ANSWER.replace("|10.244.1.5", "|");
        assert!(last(&apart).contains("is not connected to slurmdbd"));
        let away = ANSWER
            .replace("slurm_slurm|10.244.1.5", "sacctmgr: error: Connection refused")
            .replace("size: 0", "size: 12");
        let told = last(&away);
        assert!(
            told.contains("Connection refused") && told.contains("12 records"),
            "{told}"
        );
    }

    #[test]
    fn a_slurmctld_that_does_not_answer_is_quoted() {
        let silent = "== nodes\nslurm_load_node: Unable to contact slurm controller\n== queue\n== config\n== agent\n== clusters\n";
        let told = describe("slurm", silent).join("\n");
        assert!(told.contains("no response: slurm_load_node"), "{told}");
        assert!(told.contains("no response from slurmctld"), "{told}");
    }
}
