//! Tests the examples of docs/src/how-to/autoscaling.md with the real `HorizontalPodAutoscaler`. The test cluster has
//! no Prometheus and no adapter, so a fake reads slurmctld's metrics, computes the example's query and scales
//! accordingly.

use anyhow::{Context, Result, ensure};
use e2e::slurm::{EXAMPLES, NODESET, Slurm, condition};
use e2e::{Namespace, api, eventually};
use serde_json::{Value, json};

fn example(name: &str) -> Result<(String, Value)> {
    let text = std::fs::read_to_string(format!("{EXAMPLES}/{name}"))?;
    let value = serde_saphyr::from_str(&text).with_context(|| format!("{name} is not YAML"))?;
    Ok((text, value))
}

/// A fake for Prometheus, its adapter and the calculation of the autoscaler.
struct StandIn {
    query: String,
    smallest: u64,
    largest: u64,
}

impl StandIn {
    fn of_examples() -> Result<Self> {
        let (_, hpa) = example("autoscaling-hpa.yaml")?;
        let (_, keda) = example("autoscaling-keda.yaml")?;
        let target = hpa.pointer("/spec/metrics/0/external/target");
        ensure!(
            target == Some(&json!({ "type": "AverageValue", "averageValue": "1" })),
            "the arithmetic below is for one worker for each wanted node: {target:?}"
        );
        let bound = |field: &str| hpa.pointer(field).and_then(Value::as_u64).context("no bound");
        let query = keda
            .pointer("/spec/triggers/0/metadata/query")
            .and_then(Value::as_str);
        Ok(Self {
            query: query.context("the example has no query")?.to_owned(),
            smallest: bound("/spec/minReplicas")?,
            largest: bound("/spec/maxReplicas")?,
        })
    }

    /// Computes the query from slurmctld's metrics. The query must be a sum of `sum(name{partition="…"})`.
    fn value(&self, slurm: &Slurm) -> Result<u64> {
        let path = format!(
            "/api/v1/namespaces/{}/pods/slurm-controller-0:6817/proxy/metrics/partitions",
            slurm.space.name
        );
        let metrics = api::raw(&path)?;
        let term = |term: &str| -> Result<u64> {
            let series = term
                .trim()
                .strip_prefix("sum(")
                .and_then(|term| term.strip_suffix(')'));
            let series = series.with_context(|| format!("{term} is not a sum"))?;
            let found = metrics.lines().find_map(|line| line.strip_prefix(series));
            let found = found.with_context(|| format!("slurmctld serves no {series}: {metrics}"))?;
            Ok(found.trim().parse()?)
        };
        self.query.split('+').map(term).sum()
    }

    fn scale(&self, slurm: &Slurm) -> Result<u64> {
        let wanted = self.value(slurm)?.clamp(self.smallest, self.largest);
        slurm.scale(u32::try_from(wanted)?)?;
        Ok(wanted)
    }
}

fn replicas(slurm: &Slurm) -> Result<Option<u64>> {
    Ok(slurm
        .get(&[NODESET])?
        .pointer("/spec/replicas")
        .and_then(Value::as_u64))
}

#[test]
fn workers_come_with_jobs_and_go_without() -> Result<()> {
    let stand_in = StandIn::of_examples()?;
    let slurm = Slurm::install_examples(Namespace::create("autoscaling")?, &["autoscaling"], "{}")?;
    slurm.wait_idle(1)?;

    slurm.space.apply(&example("autoscaling-hpa.yaml")?.0)?;
    eventually(
        "the autoscaler of Kubernetes raises the set to its minimum",
        || {
            ensure!(replicas(&slurm)? == Some(2), "{:?}", replicas(&slurm)?);
            Ok(())
        },
    )?;
    let hpa = slurm.get(&["hpa", "slurm-worker-cpu"])?;
    let able = condition(&hpa, "AbleToScale")?;
    ensure!(able["status"] == "True", "{able}");
    slurm.wait_idle(2)?;

    let jobs = [slurm.hold("cpu-0", 60)?, slurm.hold("cpu-1", 60)?];
    let waiting = slurm.sbatch(&["--exclusive"], "true")?;
    eventually(
        "slurmctld's metrics show two nodes at work and a job that waits",
        || {
            let value = stand_in.value(&slurm)?;
            ensure!(value == 3, "{value}");
            Ok(())
        },
    )?;
    ensure!(stand_in.scale(&slurm)? == 3);
    slurm.wait_job(&waiting, "COMPLETED")?;

    // An upgrade of the release does not change the number of replicas.
    slurm.upgrade("{}")?;
    ensure!(replicas(&slurm)? == Some(3), "{:?}", replicas(&slurm)?);

    for (node, job) in ["cpu-0", "cpu-1"].into_iter().zip(&jobs) {
        slurm.open(node)?;
        slurm.wait_job(job, "COMPLETED")?;
    }
    eventually("idle workers go, down to the minimum", || {
        ensure!(stand_in.scale(&slurm)? == 2, "there is work");
        let workers = slurm.workers()?;
        ensure!(workers.len() == 2, "{workers:?}");
        Ok(())
    })
}
