//! Tests upgrades from the project's previous release (`tests/e2e/previous-release`) to this one and back, with a
//! running job. The cluster starts with the charts, operator and Slurm images of the previous release, and is upgraded
//! with the commands in docs/src/how-to/upgrade.md. Jobs, workers, login pods, keys, volumes and objects must not
//! change.
//!
//! The test replaces the operator that other tests depend on, so it runs alone (`.config/nextest.toml`).

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::slurm::{LEAN, SMALL, Slurm};
use e2e::standing::{Standing, all_settled};
use e2e::{Namespace, audit, cluster, eventually, get, run, variable};
use serde_json::{Value, json};
use testbed::image;
use testbed::progress::Progress;

const HOME: &str = "--namespace=slurm-operator";
const OPERATOR: &str = "slurm-operator";

/// A release of the project: its charts and its operator image.
struct Release {
    charts: PathBuf,
    image: String,
}

impl Release {
    fn this() -> Self {
        Self {
            charts: PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts")),
            image: image::name(OPERATOR),
        }
    }

    fn previous() -> Result<Self> {
        Ok(Self {
            charts: previous_files()?.join("charts"),
            image: image::previous_name(OPERATOR),
        })
    }

    /// Upgrades the installed CRDs and operator to this release. `values` is the Helm flag that selects which values
    /// are kept.
    fn install(&self, values: &str) -> Result<()> {
        run(cluster()?
            .helm()
            .args(["upgrade", "slurm-operator-crds", HOME])
            .arg(self.charts.join("slurm-operator-crds")))?;
        run(cluster()?
            .helm()
            .args(["upgrade", OPERATOR, HOME, values])
            .args([
                "--set",
                &format!("operator.image={0},webhook.image={0}", self.image),
            ])
            // Other tests scale the Deployment with kubectl.
            .args(["--force-conflicts", "--wait", "--timeout=5m"])
            .arg(self.charts.join(OPERATOR)))?;
        self.leads()
    }

    /// Upgrades like a user would, keeping the values.
    fn upgrade(&self) -> Result<()> {
        self.install("--reset-then-reuse-values")
    }

    /// Waits until the operator of this release is the leader.
    fn leads(&self) -> Result<()> {
        eventually(&format!("{} leads", self.image), || {
            let lease = get(&[HOME, "lease", OPERATOR])?;
            let holder = lease.pointer("/spec/holderIdentity").and_then(Value::as_str);
            let pod = get(&[HOME, "pod", holder.context("nobody leads")?])?;
            let image = pod.pointer("/spec/containers/0/image").and_then(Value::as_str);
            ensure!(image == Some(&self.image), "{image:?} leads");
            Ok(())
        })
    }
}

/// Installs this checkout's operator again when it is dropped, for the tests that follow.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        if let Err(error) = Release::this().upgrade() {
            eprintln!("this checkout's operator did not come back: {error:#}");
        }
    }
}

fn previous_files() -> Result<PathBuf> {
    variable("KEELSON_TEST_PREVIOUS").map(PathBuf::from)
}

/// Installs the previous release's quick start with its images, and a second LoginSet with the capabilities that its
/// documentation recommended. Both LoginSets must keep their pods, regardless of new defaults in the chart.
fn previous_cluster() -> Result<Slurm> {
    let space = Namespace::create("upgrade")?;
    let image = image::previous_name;
    let logfile = json!({ "image": image("login") });
    let images = json!({ "login": { "image": image("login") }, "initconf": { "image": image("login") } });
    let limited = json!({
        "login": {
            "image": image("login"),
            "resources": { "requests": { "cpu": "20m", "memory": "32Mi" } },
            "securityContext": { "capabilities": { "drop": ["ALL"], "add": [
                "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID", "SYS_CHROOT",
            ] } },
        },
        "initconf": { "image": image("login") },
        "service": { "spec": { "type": "ClusterIP" } },
    });
    let values = json!({
        "controller": {
            "slurmctld": { "image": image("slurmctld") },
            "reconfigure": { "image": image("slurmctld") },
            "logfile": logfile,
        },
        "restapi": { "slurmrestd": { "image": image("slurmrestd") } },
        "nodesets": { "cpu": { "slurmd": { "image": image("slurmd") }, "logfile": logfile } },
        "loginsets": { "users": images, "limited": limited },
    });
    let directory = tempfile::tempdir()?;
    let (lean, small, ours) = (
        directory.path().join("lean.yaml"),
        directory.path().join("small.yaml"),
        directory.path().join("values.yaml"),
    );
    std::fs::write(&lean, LEAN)?;
    std::fs::write(&small, SMALL)?;
    std::fs::write(&ours, values.to_string())?;
    let mut install = cluster()?.helm();
    install.args(["install", "slurm", "--namespace", &space.name]);
    install.arg(Release::previous()?.charts.join("slurm"));
    for values in [
        previous_files()?.join("examples/quickstart.yaml"),
        lean,
        small,
        ours,
    ] {
        install.arg("--values").arg(values);
    }
    run(&mut install)?;
    Ok(Slurm::installed(space))
}

/// The state that every step must preserve.
struct Work {
    standing: Standing,
    job: String,
    begun: String,
}

impl Work {
    fn begin(slurm: &Slurm) -> Result<Self> {
        slurm.wait_idle(2)?;
        slurm.all_settled()?;
        let job = slurm.hold("cpu-0", 60)?;
        Ok(Self {
            standing: slurm.standing()?,
            begun: slurm.job_field(&job, "StartTime")?,
            job,
        })
    }

    /// Runs an upgrade step, waits until the operator is idle, and checks that the state is preserved.
    fn outlasts(&self, slurm: &Slurm, what: &str, step: impl FnOnce() -> Result<()>) -> Result<()> {
        let first = slurm.beginnings()?;
        step().with_context(|| what.to_owned())?;
        quiet(slurm)?;
        slurm.all_settled()?;
        slurm.stands(&self.standing).with_context(|| what.to_owned())?;
        let restarts = slurm.beginnings()? - first;
        ensure!(restarts <= 1, "{what}: slurmctld was restarted {restarts} times");
        for (field, wanted) in [
            ("JobState", "RUNNING"),
            ("Restarts", "0"),
            ("StartTime", &self.begun),
        ] {
            let found = slurm.job_field(&self.job, field)?;
            ensure!(found == wanted, "{what}: job {} has {field}={found}", self.job);
        }
        let next = eventually("the next job", || {
            slurm.sbatch(&["--wait", "--nodelist=cpu-1"], "true")
        })?;
        ensure!(
            next.parse::<u32>()? > self.job.parse::<u32>()?,
            "{what}: job {next} after {}",
            self.job
        );
        println!("{what}: slurmctld was restarted {restarts} times");
        Ok(())
    }
}

/// Waits until the operator has written nothing in this namespace for five seconds, so that it has finished all
/// changes.
fn quiet(slurm: &Slurm) -> Result<()> {
    eventually("the operator has nothing to do", || {
        let mark = audit::mark()?;
        std::thread::sleep(Duration::from_secs(5));
        let busy: Vec<_> = audit::since(mark)?
            .into_iter()
            .filter(|call| call.user == audit::OPERATOR && call.is_write())
            .filter(|call| call.namespace == slurm.space.name)
            .collect();
        ensure!(busy.is_empty(), "{busy:?}");
        Ok(())
    })
}

/// Runs a helm command on the cluster's release.
fn helm(slurm: &Slurm, words: &[&str]) -> Result<()> {
    run(cluster()?
        .helm()
        .args(words)
        .args(["--namespace", &slurm.space.name]))
    .map(drop)
}

#[test]
fn a_cluster_of_the_previous_release_goes_over_and_back_as_it_runs() -> Result<()> {
    let (this, previous) = (Release::this(), Release::previous()?);
    let restored = Restored;
    let images = PathBuf::from(variable("KEELSON_TEST_PREVIOUS_IMAGES")?);
    cluster()?.import(&Progress::lines(), &[images])?;
    // Resets the values, because the previous chart may not know the current ones.
    previous.install("--reset-values")?;
    let slurm = previous_cluster()?;
    let work = Work::begin(&slurm)?;
    let chart = this.charts.join("slurm");
    let chart = chart.to_str().context("the checkout's path is not UTF-8")?;
    let upgrade = ["upgrade", "slurm", chart, "--reset-then-reuse-values"];

    work.outlasts(&slurm, "kinds and operator upgraded", || this.upgrade())?;
    work.outlasts(&slurm, "cluster upgraded", || helm(&slurm, &upgrade))?;
    work.outlasts(&slurm, "cluster rolled back", || {
        helm(&slurm, &["rollback", "slurm"])
    })?;
    work.outlasts(&slurm, "operator rolled back", || {
        run(cluster()?
            .helm()
            .args(["rollback", OPERATOR, HOME, "--wait", "--timeout=5m"]))?;
        previous.leads()
    })?;
    work.outlasts(&slurm, "all upgraded once more", || {
        this.upgrade()?;
        helm(&slurm, &upgrade)
    })?;

    slurm.open("cpu-0")?;
    slurm.wait_job(&work.job, "COMPLETED")?;
    drop(restored);
    // Other tests need this cluster to be settled again.
    all_settled("slurm")
}
