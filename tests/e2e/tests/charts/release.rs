//! Tests the life cycle of a release: it is installed with Helm 3, Helm 4 or by applying rendered manifests, tested,
//! upgraded, rolled back, uninstalled and installed again. Keys and state are never lost, and nothing restarts
//! unnecessarily.
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use e2e::slurm::{CHART, Slurm, lean_quick_start};
use e2e::{Namespace, cluster, eventually, get, kubectl_with, run};
use serde_json::Value;

use crate::{CHARTS, NO_PODS_FOR_USERS, helm};

/// Returns the container IDs of each pod, which change when the pod is replaced or a container restarts. A pod that was
/// just created has none.
fn starts(slurm: &Slurm) -> Result<BTreeMap<String, String>> {
    let pods = slurm.get(&["pods"])?;
    let pods = pods["items"].as_array().context("a list without items")?;
    pods.iter()
        .map(|pod| {
            let name = pod["metadata"]["name"].as_str().context("a pod without name")?;
            let statuses = pod["status"]["containerStatuses"].as_array();
            let ids: Vec<String> = statuses
                .into_iter()
                .flatten()
                .map(|status| status["containerID"].to_string())
                .collect();
            Ok((name.to_owned(), ids.join(" ")))
        })
        .collect()
}

/// Returns the entries whose pod name has this prefix.
fn of<'a>(starts: &'a BTreeMap<String, String>, prefix: &str) -> BTreeMap<&'a str, &'a str> {
    starts
        .iter()
        .filter(|(name, _)| name.starts_with(prefix))
        .map(|(name, start)| (name.as_str(), start.as_str()))
        .collect()
}

fn keys(space: &Namespace) -> Result<Vec<Value>> {
    ["slurm-auth-slurm", "slurm-auth-jwt"]
        .into_iter()
        .map(|name| {
            let secret = get(&["--namespace", &space.name, "secret", name])?;
            Ok(serde_json::json!([secret["metadata"]["uid"], secret["data"]]))
        })
        .collect()
}

/// Copies a chart with a later version number, and applies a change to the copy.
fn later(chart: &str, change: impl Fn(&Path) -> Result<()>) -> Result<tempfile::TempDir> {
    let directory = tempfile::tempdir()?;
    run(Command::new("cp")
        .args(["--recursive", "--dereference", &format!("{CHARTS}/{chart}")])
        .arg(directory.path()))?;
    let copy = directory.path().join(chart);
    replace(&copy.join("Chart.yaml"), "version: 0.1.0", "version: 99.0.0")?;
    change(&copy)?;
    Ok(directory)
}

fn replace(file: &Path, old: &str, new: &str) -> Result<()> {
    let text = std::fs::read_to_string(file)?;
    ensure!(text.contains(old), "{} has no {old:?}", file.display());
    Ok(std::fs::write(file, text.replacen(old, new, 1))?)
}

fn helm_3() -> Result<Command> {
    let program = std::env::var_os("KEELSON_TEST_HELM_3")
        .context("KEELSON_TEST_HELM_3 is not set: run with `cargo xtask test`")?;
    let mut command = Command::new(program);
    command.env("KUBECONFIG", cluster()?.layout().kubeconfig());
    Ok(command)
}

#[test]
fn a_release_is_tested_upgraded_rolled_back_removed_and_brought_back() -> Result<()> {
    let one = "nodesets: { cpu: { replicas: 1 } }";
    let slurm = Slurm::install_ready("release", one, 1)?;
    let space = &slurm.space;
    slurm.wait_condition(
        "loginsets.slinky.slurm.net/slurm-login-users",
        "Ready",
        "True",
        "",
    )?;
    let told = helm(space, &["test", "slurm", "--timeout=5m", "--logs"])?;
    ensure!(told.contains("a job in partition all:"), "{told}");
    a_job_that_never_ran_is_no_success(&slurm)?;
    let first = starts(&slurm)?;
    let made = keys(space)?;
    let job = slurm.sbatch(&["--job-name=lasting"], "sleep 3600")?;
    slurm.wait_job(&job, "RUNNING")?;

    // Another version of the chart or of the CRDs affects no running pod.
    let generation = slurm.get(&["nodeset", "slurm-worker-cpu"])?["metadata"]["generation"].clone();
    let bumped = later("slurm", |_| Ok(()))?;
    let bumped = bumped.path().join("slurm");
    upgrade(space, &bumped, &[])?;
    let map = slurm.get(&["configmap", "slurm-config-extra"])?;
    ensure!(
        map["metadata"]["labels"]["helm.sh/chart"] == "slurm-99.0.0",
        "{map}"
    );
    let set = slurm.get(&["nodeset", "slurm-worker-cpu"])?;
    ensure!(set["metadata"]["generation"] == generation, "{}", set["metadata"]);
    let kinds = later("slurm-operator-crds", |chart| {
        let file = chart.join("templates/slinky.slurm.net_nodesets.yaml");
        let field = "              paused:\n";
        let more = format!("              fieldOfTheFuture:\n                type: string\n{field}");
        replace(&file, field, &more)
    })?;
    let kinds = kinds.path().join("slurm-operator-crds");
    run(cluster()?
        .helm()
        .args(["upgrade", "slurm-operator-crds", "--namespace=slurm-operator"])
        .arg(&kinds))?;
    // The API server drops the field until it has loaded the new CRD.
    let upgraded = eventually("the field of the future", || {
        slurm.patch(
            "nodeset/slurm-worker-cpu",
            &serde_json::json!({"spec": {"fieldOfTheFuture": "kept"}}),
        )?;
        let upgraded = slurm.get(&["nodeset", "slurm-worker-cpu"])?;
        ensure!(
            upgraded["spec"]["fieldOfTheFuture"] == "kept",
            "{}",
            upgraded["spec"]
        );
        Ok(upgraded)
    })?;
    ensure!(
        upgraded["metadata"]["uid"] == set["metadata"]["uid"],
        "another object"
    );
    run(cluster()?
        .helm()
        .args(["rollback", "slurm-operator-crds", "--namespace=slurm-operator"]))?;

    // A changed value replaces only the pods that it affects.
    let rest = ["--set", "restapi.slurmrestd.resources.requests.cpu=11m"];
    upgrade(space, &bumped, &rest)?;
    let second = eventually("another slurmrestd, alone", || {
        let now = starts(&slurm)?;
        let (old, new) = (of(&first, "slurm-restapi"), of(&now, "slurm-restapi"));
        ensure!(new.len() == 1 && new != old, "{new:?}");
        Ok(now)
    })?;
    for daemon in ["slurm-controller", "slurm-worker", "slurm-login"] {
        ensure!(
            of(&first, daemon) == of(&second, daemon),
            "{daemon}: {first:?} {second:?}"
        );
    }
    helm(space, &["rollback", "slurm", "1"])?;
    eventually("slurmrestd as it was", || {
        let rest = slurm.get(&["deployment", "slurm-restapi"])?;
        let cpu = rest.pointer("/spec/template/spec/containers/0/resources/requests/cpu");
        ensure!(cpu.is_some_and(|cpu| cpu == "50m"), "{cpu:?}");
        let now = starts(&slurm)?;
        let (old, new) = (of(&second, "slurm-restapi"), of(&now, "slurm-restapi"));
        ensure!(new.len() == 1 && new != old, "{new:?}");
        for daemon in ["slurm-controller", "slurm-worker", "slurm-login"] {
            ensure!(
                of(&first, daemon) == of(&now, daemon),
                "{daemon}: {first:?} {now:?}"
            );
        }
        Ok(())
    })?;
    ensure!(slurm.job_state(&job)? == "RUNNING", "the job did not last");
    slurm.controller(&["scancel", &job])?;

    // Uninstalling keeps everything that cannot be recreated, and a new installation uses it.
    helm(space, &["uninstall", "slurm"])?;
    eventually("the end of every pod", || space.has_no("pods"))?;
    ensure!(keys(space)? == made, "the keys are others");
    space.get(&["pvc", "statesave-slurm-controller-0"])?;
    slurm.install_again(one)?;
    slurm.wait_idle(1)?;
    ensure!(keys(space)? == made, "the keys are others");
    let next = slurm.sbatch(&["--wait"], "true")?;
    ensure!(
        next.parse::<u32>()? > job.parse::<u32>()?,
        "slurmctld started again from job {next} after {job}"
    );
    Ok(())
}

fn a_job_that_never_ran_is_no_success(slurm: &Slurm) -> Result<()> {
    slurm.controller(&[
        "scontrol",
        "update",
        "nodename=cpu-0",
        "state=drain",
        "reason=test",
    ])?;
    let (cancelled, tested) = std::thread::scope(|scope| {
        let testing = scope.spawn(|| helm(&slurm.space, &["test", "slurm", "--timeout=5m"]));
        let cancelled = eventually("the test's job waits", || {
            let waiting = [
                "--noheader",
                "--name=helm-test",
                "--states=PENDING",
                "--format=%i",
            ];
            let job = slurm.controller(&[&["squeue"], &waiting[..]].concat())?;
            ensure!(!job.trim().is_empty(), "there is none");
            slurm.controller(&["scancel", job.trim()])
        });
        (cancelled, testing.join())
    });
    cancelled?;
    ensure!(matches!(tested, Ok(Err(_))), "{tested:?}");
    slurm.controller(&["scontrol", "update", "nodename=cpu-0", "state=resume"])?;
    // The pod of a failed test is kept, with its log.
    let log = slurm.space.kubectl(&["logs", "slurm-test"])?;
    ensure!(log.contains("PENDING") && log.contains("CANCELLED"), "{log}");
    slurm.space.kubectl(&["delete", "pod", "slurm-test"]).map(drop)
}

fn upgrade(space: &Namespace, chart: &Path, more: &[&str]) -> Result<()> {
    run(cluster()?
        .helm()
        .args(["upgrade", "slurm", "--reuse-values", "--namespace", &space.name])
        .arg(chart)
        .args(more))
    .map(drop)
}

/// Users switch from Helm 3 to Helm 4 with existing releases.
#[test]
fn a_release_of_helm_3_runs_jobs_and_is_taken_on_by_helm_4() -> Result<()> {
    let space = Namespace::create("helm3")?;
    let directory = tempfile::tempdir()?;
    let mut install = helm_3()?;
    install.args(["install", "slurm", CHART, "--namespace", &space.name]);
    lean_quick_start(&mut install, directory.path())?;
    install
        .args(["--set", "nodesets.cpu.replicas=1,loginsets.users.enabled=false"])
        .args(["--set", "nodesets.cpu.slurmd.resources.requests.cpu=10m"])
        .args(["--set", "nodesets.cpu.slurmd.resources.requests.memory=64Mi"]);
    run(&mut install)?;
    let slurm = Slurm::installed(space);
    slurm.wait_idle(1)?;
    let space = &slurm.space;
    run(helm_3()?.args(["test", "slurm", "--timeout=5m", "--namespace", &space.name]))?;
    let (before, made) = (starts(&slurm)?, keys(space)?);
    let annotation = "controller.metadata.annotations.example\\.com/by=helm-4";
    upgrade(space, Path::new(CHART), &["--set", annotation])?;
    let controller = slurm.get(&["controllers.slinky.slurm.net", "slurm"])?;
    let annotations = &controller["metadata"]["annotations"];
    ensure!(annotations["example.com/by"] == "helm-4", "{annotations}");
    ensure!(keys(space)? == made, "the keys are others");
    ensure!(
        of(&before, "slurm-worker") == of(&starts(&slurm)?, "slurm-worker"),
        "workers were replaced"
    );
    helm(space, &["uninstall", "slurm"]).map(drop)
}

/// Renders the chart without access to the cluster, and applies or compares the result with kubectl.
fn sync(space: &str, verb: &str) -> Result<String> {
    let directory = tempfile::tempdir()?;
    let values = directory.path().join("values.yaml");
    std::fs::write(&values, NO_PODS_FOR_USERS)?;
    let mut template = cluster()?.helm();
    template.args(["template", "slurm", CHART, "--no-hooks", "--namespace", space]);
    lean_quick_start(&mut template, directory.path())?;
    let rendered = run(template.arg("--values").arg(values))?;
    let words = [verb, "--server-side", "--field-manager=argocd-controller"];
    kubectl_with(&words, &rendered)
}

/// Applies the chart like Argo CD does: rendered without access to the cluster, and applied repeatedly, not by Helm.
#[test]
fn what_is_rendered_and_applied_again_keeps_its_keys() -> Result<()> {
    let space = Namespace::create("gitops")?;
    sync(&space.name, "apply")?;
    let slurm = Slurm::installed(space);
    let made = eventually("keys", || keys(&slurm.space))?;
    slurm.all_settled()?;
    let before = starts(&slurm)?;
    // A comparison shows no differences, although defaults and generated values were added to the objects.
    sync(&slurm.space.name, "diff").context("out of sync")?;
    sync(&slurm.space.name, "apply")?;
    // When the operator applies this later change, it has also seen the second sync.
    slurm.patch(
        "restapi.slinky.slurm.net/slurm",
        &serde_json::json!({"spec": {"replicas": 2}}),
    )?;
    eventually("a second slurmrestd", || {
        let rest = slurm.get(&["deployment", "slurm-restapi"])?;
        ensure!(rest["status"]["readyReplicas"] == 2, "{}", rest["status"]);
        Ok(())
    })?;
    ensure!(keys(&slurm.space)? == made, "the keys are others");
    let after = starts(&slurm)?;
    ensure!(
        before.iter().all(|(name, start)| after.get(name) == Some(start)),
        "{before:?} {after:?}"
    );
    Ok(())
}
