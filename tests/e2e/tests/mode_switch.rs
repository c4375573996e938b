//! Tests switching between the scaling modes in both directions, with running jobs.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use e2e::eventually;
use e2e::slurm::{NODESET, Slurm};
use e2e::workers::{Marks, machines, sampled};
use serde_json::{Value, json};

/// Switches the mode while a job runs on a worker of the old mode, and waits until exactly the nodes in `to` remain. At
/// least `least` workers must accept jobs throughout.
fn switch(slurm: &Slurm, spec: &Value, busy: &str, to: &BTreeSet<String>, least: usize) -> Result<()> {
    let job = slurm.hold(busy, 60)?;
    let pod = slurm.pod_of(busy)?;
    let uid = slurm.workers()?.remove(&pod);
    let ((), seen) = sampled(
        || slurm.in_service(),
        || {
            slurm.patch(NODESET, &json!({ "spec": spec }))?;
            // Idle workers are replaced first, so the busy one is the last of the old mode.
            eventually("a busy worker that alone is left of its mode", || {
                let nodes = slurm.nodes()?;
                let old: Vec<&String> = nodes.difference(to).collect();
                ensure!(old == [busy], "of the old mode there are {old:?}");
                Ok(())
            })?;
            ensure!(
                slurm.workers()?.remove(&pod) == uid,
                "the busy worker was replaced"
            );
            ensure!(slurm.job_state(&job)? == "RUNNING", "job {job} did not last");
            slurm.wait_drain(busy)?;
            slurm.open(busy)?;
            slurm.wait_job(&job, "COMPLETED")?;
            eventually("the end of the switch", || {
                let (nodes, pods) = (slurm.nodes()?, slurm.workers()?);
                ensure!(
                    nodes == *to && pods.len() == to.len(),
                    "Slurm knows {nodes:?}, and there are {pods:?}"
                );
                Ok(())
            })
        },
    )?;
    let (lowest, states) = seen.into_iter().min().unwrap_or_default();
    ensure!(lowest >= least, "only {lowest} were in service:\n{states}");
    slurm.wait_idle(to.len())?;
    slurm.settled().map(drop)
}

#[test]
fn a_switch_of_the_scaling_mode_ends_in_both_directions_and_costs_no_job() -> Result<()> {
    let all = machines()?;
    ensure!(all.len() == 3, "three machines are needed, not {all:?}");
    let marks = Marks::new("switch");
    for machine in &all {
        marks.put(machine)?;
    }
    let values = json!({ "nodesets": { "cpu": {
        "replicas": 3,
        "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": 1 } },
        // Another test may taint a node.
        "podSpec": {
            "nodeSelector": { marks.key.clone(): "yes" },
            "tolerations": [{ "operator": "Exists" }],
        },
    } } });
    let slurm = Slurm::install_ready("switch", &values.to_string(), 3)?;

    let by_machine: BTreeSet<String> = all.into_iter().collect();
    let one = by_machine.first().cloned().unwrap_or_default();
    switch(
        &slurm,
        &json!({ "scalingMode": "DaemonSet" }),
        "cpu-0",
        &by_machine,
        2,
    )?;

    // Switch back with fewer replicas: surplus workers are removed by the same rules.
    let by_ordinal = BTreeSet::from(["cpu-0".to_owned(), "cpu-1".to_owned()]);
    let spec = json!({ "scalingMode": "StatefulSet", "replicas": 2 });
    switch(&slurm, &spec, &one, &by_ordinal, 1)
}
