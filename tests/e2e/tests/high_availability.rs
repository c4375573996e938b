//! Tests failover: two slurmctlds share a volume, and the node of the active one is lost and comes back.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use e2e::exec::exec;
use e2e::slurm::{EXAMPLES, Slurm};
use e2e::{cluster, eventually, get, operator, run};
use serde_json::Value;
use testbed::Cluster;
use testbed::layout::Node;

const PRIMARY: &str = "slurm-controller-0";
const BACKUP: &str = "slurm-controller-1";

/// kubectl of a cluster that was opened before the node was lost. A cluster with a lost node cannot be opened.
struct Witness {
    cluster: Cluster,
    namespace: String,
}

impl Witness {
    fn kubectl(&self, words: &[&str]) -> Result<String> {
        run(self
            .cluster
            .kubectl()
            .args(["--namespace", &self.namespace])
            .args(words))
    }

    /// Runs a command in the backup's slurmctld container.
    fn backup(&self, words: &[&str]) -> Result<String> {
        exec(&self.namespace, BACKUP, Some("slurmctld"), words)
    }

    /// Returns the slurmctlds that report themselves as active.
    fn in_charge(&self) -> Vec<&'static str> {
        let yes = |pod: &&str| {
            let readyz = format!(
                "/api/v1/namespaces/{}/pods/{pod}:6817/proxy/readyz",
                self.namespace
            );
            self.kubectl(&["get", "--request-timeout=5s", "--raw", &readyz])
                .is_ok()
        };
        [PRIMARY, BACKUP].into_iter().filter(yes).collect()
    }

    /// Fails unless a job still runs and was not restarted.
    fn goes_on(&self, job: &str, started: &str) -> Result<()> {
        // Slurm's commands try the lost slurmctld first, until the network reports it as unreachable.
        let ask = ["timeout", "20", "scontrol", "--oneliner", "show", "job", job];
        let shown = eventually("slurmctld tells of a job", || self.backup(&ask))?;
        let field = |name: &str| {
            let start = format!("{name}=");
            let found = shown
                .split_whitespace()
                .find_map(|word| word.strip_prefix(&start));
            found.unwrap_or_default().to_owned()
        };
        ensure!(
            field("JobState") == "RUNNING" && field("StartTime") == started,
            "a job that ran since {started} did not go on: {shown}"
        );
        Ok(())
    }

    /// Waits until a new job runs on a node, next to the jobs that already run there.
    fn runs_a_job(&self, place: &str) -> Result<()> {
        let srun = ["srun", "--partition=shared", "--mem=10M", place, "hostname"];
        eventually("a new job runs", || {
            self.backup(&[&["timeout", "20"], &srun[..]].concat())
        })
        .map(drop)
    }

    fn machine_of(&self, pod: &str) -> Result<String> {
        let pod = get(&["--namespace", &self.namespace, "pod", pod])?;
        let machine = pod.pointer("/spec/nodeName").and_then(Value::as_str);
        machine.map(str::to_owned).context("the pod has no machine")
    }
}

/// A stopped node, which is started again when the test ends.
struct Lost {
    cluster: Cluster,
    node: Option<Node>,
}

impl Lost {
    fn bring_back(&mut self) -> Result<()> {
        self.node
            .take()
            .map_or(Ok(()), |node| self.cluster.start_node(node))
    }
}

impl Drop for Lost {
    fn drop(&mut self) {
        if let Err(error) = self.bring_back() {
            eprintln!("the machine could not be brought back: {error:#}");
        }
    }
}

#[test]
fn the_machine_of_the_slurmctld_in_charge_is_lost() -> Result<()> {
    let values = std::fs::read_to_string(format!("{EXAMPLES}/ha.yaml"))?;
    let slurm = Slurm::install_ready(
        "ha",
        // A partition in which jobs share the few resources of a worker.
        &format!(
            "{}\npartitions: {{ shared: {{ enabled: true, nodesets: [ALL], configMap: {{ OverSubscribe: 'FORCE:4' }} }} }}",
            values.replace("SlurmctldTimeout: 30", "SlurmctldTimeout: 10"),
        ),
        2,
    )?;
    slurm.wait_condition(
        "controllers.slinky.slurm.net/slurm",
        "Ready",
        "True",
        "AsSpecified",
    )?;
    let witness = Witness {
        cluster: cluster()?,
        namespace: slurm.space.name.clone(),
    };
    let machine = witness.machine_of("slurm-controller-0")?;
    ensure!(
        machine != witness.machine_of("slurm-controller-1")?,
        "both slurmctlds are on {machine}"
    );
    eventually("the first is in charge", || {
        let found = witness.in_charge();
        ensure!(found == [PRIMARY], "in charge: {found:?}");
        Ok(())
    })?;
    // The two workers run on different nodes, so one of them survives.
    let workers = slurm.get(&["pods", "--selector=app.kubernetes.io/name=slurmd"])?;
    let survivor = workers
        .pointer("/items")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .find(|pod| pod.pointer("/spec/nodeName").and_then(Value::as_str) != Some(machine.as_str()))
        .and_then(|pod| pod.pointer("/spec/hostname").and_then(Value::as_str))
        .context("every worker is on the machine of the slurmctld in charge")?
        .to_owned();
    let on_survivor = format!("--nodelist={survivor}");
    let job = slurm.sbatch(
        &["--no-requeue", "--mem=10M", "--partition=shared", &on_survivor],
        "sleep 3600",
    )?;
    slurm.wait_job(&job, "RUNNING")?;
    let started = slurm.job_field(&job, "StartTime")?;
    // slurmctld saves its state every few seconds, and unsaved changes are lost with its node.
    slurm.controller(&[
        "scontrol",
        "update",
        &format!("JobId={job}"),
        "Comment=written-down",
    ])?;
    eventually("the running job is written down", || {
        let saved = "grep --quiet written-down /var/spool/slurmctld/*/job_state";
        witness.backup(&["sh", "-c", saved])
    })?;

    let node = Node::from_name(&machine).context("not a machine of the testbed")?;
    let mut lost = Lost {
        cluster: cluster()?,
        node: Some(node),
    };
    let begun = Instant::now();
    lost.cluster.kill_node(node)?;
    eventually("the backup takes jobs", || {
        witness.backup(&[
            "timeout",
            "5",
            "sbatch",
            "--parsable",
            "--hold",
            "--output=/dev/null",
            "--wrap=true",
        ])
    })?;
    println!(
        "a job was taken {:.1} s after the loss of the machine in charge (SlurmctldTimeout=10)",
        begun.elapsed().as_secs_f32()
    );
    witness.goes_on(&job, &started)?;
    witness.runs_a_job(&on_survivor)?;
    println!("a new job had run after {:.1} s", begun.elapsed().as_secs_f32());
    eventually("the backup is in charge alone", || {
        let found = witness.in_charge();
        ensure!(found == [BACKUP], "in charge: {found:?}");
        Ok(())
    })?;

    // The node comes back, and the primary slurmctld takes over again.
    let begun = Instant::now();
    lost.bring_back()?;
    eventually("the first is in charge again, and it alone", || {
        let found = witness.in_charge();
        ensure!(found == [PRIMARY], "in charge: {found:?}");
        Ok(())
    })?;
    println!(
        "the first was in charge again after {:.1} s",
        begun.elapsed().as_secs_f32()
    );
    eventually("both answer", || {
        let ping = witness.backup(&["scontrol", "ping"])?;
        let up = |pod: &str| ping.contains(&format!("{pod} is UP"));
        ensure!(up(PRIMARY) && up(BACKUP), "{ping}");
        Ok(())
    })?;
    println!("both answered after {:.1} s", begun.elapsed().as_secs_f32());
    witness.goes_on(&job, &started)?;
    witness.runs_a_job(&on_survivor)?;
    println!("a new job had run after {:.1} s", begun.elapsed().as_secs_f32());
    slurm.controller(&["scancel", &job])?;
    slurm.wait_idle(2)?;

    operator::wait_whole()
}
