//! Tests the takeover of a running Slinky cluster: pods, keys, volumes and jobs are kept. Slinky itself does not run;
//! the objects that it would leave (`slinky/`, `children.yaml`, `worker.yaml`) are written from its documentation and
//! run real daemons.
//!
//! The test cluster's operator is stopped until the takeover, so this test runs alone (`.config/nextest.toml`).
#![allow(
    clippy::indexing_slicing,
    reason = "an index into JSON that is not there gives null"
)]

use anyhow::{Context, Result, ensure};
use e2e::operator::Stopped;
use e2e::slurm::{CHART, Slurm};
use e2e::standing::Standing;
use e2e::{Namespace, cluster, eventually, kubectl_with, run};
use serde_json::{Value, json};

const FORMER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/takeover");
/// The revision hash of Slinky's workers. How Slinky computes it does not matter.
const HASH: &str = "5c8f9d6b7f";

fn images() -> [(&'static str, String); 4] {
    ["slurmctld", "slurmd", "slurmrestd", "tools"].map(|name| {
        let image = if name == "tools" { "login" } else { name };
        (name, testbed::image::name(image))
    })
}

/// Creates objects like Slinky does: not by server-side apply, and under the field manager name of its program.
fn create(space: &Namespace, manifest: &str) -> Result<()> {
    let words = ["--namespace", &space.name, "create", "--field-manager=manager"];
    kubectl_with(&words, manifest).map(drop)
}

/// Creates the objects that Slinky and its chart would have created.
fn former_cluster() -> Result<Slurm> {
    let space = Namespace::create("takeover")?;
    let mut install = cluster()?.helm();
    install.args([
        "install",
        "slurm",
        &format!("{FORMER}/slinky"),
        "--namespace",
        &space.name,
    ]);
    for (name, image) in images() {
        install.args(["--set", &format!("{name}={image}")]);
    }
    run(&mut install)?;
    let slurm = Slurm::installed(space);
    let set = slurm.get(&["nodesets.slinky.slurm.net", "slurm-worker-slinky"])?;
    let uid = |kind: &str| -> Result<String> {
        let object = slurm.get(&[kind, "slurm"])?;
        Ok(object["metadata"]["uid"].as_str().unwrap_or_default().to_owned())
    };
    let nodeset = set["metadata"]["uid"].as_str().context("no uid")?;
    let (controller, restapi) = (
        uid("controllers.slinky.slurm.net")?,
        uid("restapis.slinky.slurm.net")?,
    );
    let (slurm_key, jwt_key) = (checksum("slurm.key"), checksum("jwt.key"));
    let fill = |file: &str, ordinal: &str| -> Result<String> {
        let mut text = std::fs::read_to_string(format!("{FORMER}/{file}"))?;
        for (mark, value) in [
            ("@NAMESPACE@", slurm.space.name.as_str()),
            ("@CONTROLLER@", &controller),
            ("@RESTAPI@", &restapi),
            ("@NODESET@", nodeset),
            ("@HASH@", HASH),
            ("@SLURM_KEY@", &slurm_key),
            ("@JWT_KEY@", &jwt_key),
            ("@ORDINAL@", ordinal),
        ] {
            text = text.replace(mark, value);
        }
        for (name, image) in images() {
            text = text.replace(&format!("@{}@", name.to_uppercase()), &image);
        }
        Ok(text)
    };
    create(&slurm.space, &fill("children.yaml", "")?)?;
    create(&slurm.space, &revision(&slurm.space, &set, nodeset).to_string())?;
    for ordinal in ["0", "1"] {
        create(&slurm.space, &fill("worker.yaml", ordinal)?)?;
    }
    // slurmctld's Service selects the pod that Slinky labelled as active.
    eventually("the mark of the active slurmctld", || {
        slurm.space.kubectl(&[
            "label",
            "--overwrite",
            "pod/slurm-controller-0",
            "controller.slinky.slurm.net/active=true",
        ])
    })?;
    Ok(slurm)
}

/// Returns the hash of a key that Slinky's chart generated, as Slinky sets it on the pods that use the key.
fn checksum(key: &str) -> String {
    use sha2::Digest as _;
    let text = format!("{key} of the former operator ").repeat(32);
    let digest = sha2::Sha256::digest(text);
    digest
        .iter()
        .fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// Returns Slinky's revision of its workers.
fn revision(space: &Namespace, set: &Value, uid: &str) -> Value {
    let mut spec = serde_json::Map::new();
    for field in [
        "template",
        "ordinalPadding",
        "oversubscribeNode",
        "slurmd",
        "extraConf",
        "logfile",
        "ssh",
    ] {
        let mut value = set["spec"][field].clone();
        if let Value::Object(fields) = &mut value {
            fields.insert("$patch".into(), json!("replace"));
        }
        if !value.is_null() {
            spec.insert(field.into(), value);
        }
    }
    json!({
        "apiVersion": "apps/v1", "kind": "ControllerRevision",
        "metadata": {
            "name": format!("slurm-worker-slinky-{HASH}"), "namespace": space.name,
            "labels": { "controller.kubernetes.io/hash": HASH, "helm.sh/chart": "slurm-1.3.0" },
            "ownerReferences": [{
                "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "name": "slurm-worker-slinky",
                "uid": uid, "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "data": { "spec": spec },
        "revision": 1,
    })
}

#[test]
fn a_cluster_of_the_former_operator_goes_over_as_it_runs() -> Result<()> {
    let stopped = Stopped::stop()?;
    let slurm = former_cluster()?;
    slurm.wait_idle(2)?;
    let job = slurm.sbatch(&["--job-name=lasting", "--nodelist=slinky-0"], "sleep 3600")?;
    slurm.wait_job(&job, "RUNNING")?;
    let (before, first) = (slurm.standing()?, slurm.beginnings()?);

    drop(stopped);
    slurm.all_settled()?;
    check(&slurm, &before, first, &job)?;

    // Step 4 of docs/src/how-to/migrate-from-slinky.md: upgrade the release to our chart, keeping its images.
    let values = format!(
        "{{ configFiles: {{ cgroup.conf: 'CgroupPlugin=disabled' }}, partitions: {{ all: {{ enabled: true }} }},
            controller: {{ slurmctld: {{ image: '{slurmctld}' }}, reconfigure: {{ image: '{slurmctld}' }}, logfile: {{ image: '{tools}' }},
              persistence: {{ resources: {{ requests: {{ storage: 1Gi }} }} }},
              extraConf: \"ProctrackType=proctrack/linuxproc\\nTaskPlugin=task/affinity\\nJobAcctGatherType=jobacct_gather/linux\\nReturnToService=2\" }},
            restapi: {{ slurmrestd: {{ image: '{slurmrestd}' }} }},
            nodesets: {{ slinky: {{ replicas: 2, oversubscribeNode: true, logfile: {{ image: '{tools}' }},
              slurmd: {{ image: '{slurmd}', resources: {{ requests: {{ cpu: 10m, memory: 64Mi }}, limits: {{ cpu: '1', memory: 512Mi }} }} }} }} }} }}",
        slurmctld = testbed::image::name("slurmctld"),
        slurmd = testbed::image::name("slurmd"),
        slurmrestd = testbed::image::name("slurmrestd"),
        tools = testbed::image::name("login"),
    );
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), values)?;
    let mut upgrade = cluster()?.helm();
    upgrade
        .args([
            "upgrade",
            "slurm",
            CHART,
            "--namespace",
            &slurm.space.name,
            "--values",
        ])
        .arg(file.path());
    let refused = run(&mut upgrade)
        .err()
        .context("the keys would have gone")?
        .to_string();
    ensure!(refused.contains("helm.sh/resource-policy=keep"), "{refused}");
    slurm.space.kubectl(&[
        "annotate",
        "secret",
        "slurm-auth-slurm",
        "slurm-auth-jwt",
        "helm.sh/resource-policy=keep",
    ])?;
    run(&mut upgrade)?;
    slurm.all_settled()?;
    check(&slurm, &before, first, &job)
}

fn check(slurm: &Slurm, before: &Standing, first: u64, job: &str) -> Result<()> {
    // The status that looked settled may still be Slinky's, and the only restart may just be starting.
    let next = eventually("the next job", || {
        slurm.sbatch(&["--wait", "--nodelist=slinky-1"], "true")
    })?;
    slurm.all_settled()?;
    ensure!(
        next.parse::<u32>()? > job.parse::<u32>()?,
        "job {next} after {job}"
    );
    slurm.stands(before)?;
    let restarts = slurm.beginnings()? - first;
    ensure!(restarts <= 1, "slurmctld was restarted {restarts} times");
    ensure!(slurm.job_state(job)? == "RUNNING", "the job did not last");
    // Fields that only Slinky kept up to date were removed from the adopted objects.
    let service = slurm.get(&["service", "slurm-controller"])?;
    let selector = &service["spec"]["selector"];
    ensure!(
        selector["controller.slinky.slurm.net/active"].is_null(),
        "{selector}"
    );
    let budget = slurm.get(&["poddisruptionbudget", "slurm-workers-pdb-slurm"])?;
    ensure!(budget["spec"]["maxUnavailable"].is_null(), "{}", budget["spec"]);
    Ok(())
}
