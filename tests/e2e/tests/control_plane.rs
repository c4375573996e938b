//! Tests slurmctld and slurmrestd while a job runs: valid and invalid configuration changes, and changes of the keys.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use e2e::eventually;
use e2e::slurm::Slurm;
use serde_json::json;

const CONTROLLER: &str = "controllers.slinky.slurm.net/slurm";
const ONE_WORKER: &str = "nodesets: { cpu: { replicas: 1 } }";
/// Selects every pod of a release.
const ALL: &str = "app.kubernetes.io/name in (slurmctld, slurmrestd, login, slurmd)";

/// Installs a cluster and starts a job that runs until it is cancelled.
fn busy(test: &str, values: &str) -> Result<(Slurm, Job)> {
    let slurm = Slurm::install_ready(test, &format!("{ONE_WORKER}\n{values}"), 1)?;
    slurm.wait_condition(CONTROLLER, "ConfigApplied", "True", "AsSpecified")?;
    for deployment in ["deployment/slurm-restapi", "deployment/slurm-login-users"] {
        eventually(&format!("{deployment} is there"), || slurm.get(&[deployment]))?;
        slurm
            .space
            .kubectl(&["rollout", "status", deployment, "--timeout=180s"])?;
    }
    let id = slurm.sbatch(&["--no-requeue"], "sleep 3600")?;
    slurm.wait_job(&id, "RUNNING")?;
    let started = slurm.job_field(&id, "StartTime")?;
    Ok((slurm, Job { id, started }))
}

struct Job {
    id: String,
    started: String,
}

impl Job {
    /// Fails unless the job is running and was never restarted.
    fn goes_on(&self, slurm: &Slurm) -> Result<()> {
        let (state, started) = (
            slurm.job_state(&self.id)?,
            slurm.job_field(&self.id, "StartTime")?,
        );
        ensure!(
            state == "RUNNING" && started == self.started,
            "the job is {state}, started {started}"
        );
        Ok(())
    }
}

fn seconds_since(begun: Instant) -> String {
    format!("{:.1} s", begun.elapsed().as_secs_f32())
}

#[test]
fn a_configuration_is_applied_refused_and_healed_while_a_job_runs() -> Result<()> {
    let (slurm, job) = busy("conf", "")?;
    let installed = slurm.extra_conf()?;
    let pods = slurm.pods(ALL)?;

    let begun = Instant::now();
    slurm.add_conf(&installed, "MinJobAge=77")?;
    eventually("the new setting is in use", || {
        let age = slurm.setting("MinJobAge")?;
        ensure!(age == "77 sec", "MinJobAge is {age}");
        Ok(())
    })?;
    println!("an edit of extraConf was in use after {}", seconds_since(begun));
    slurm.wait_condition(CONTROLLER, "ConfigApplied", "True", "AsSpecified")?;
    let controllers = "app.kubernetes.io/name=slurmctld";
    let untouched = |slurm: &Slurm| -> Result<()> {
        let now = slurm.pods(controllers)?;
        ensure!(
            now.iter().all(|(name, pod)| pods.get(name) == Some(pod)),
            "slurmctld was replaced or restarted"
        );
        Ok(())
    };
    untouched(&slurm)?;
    job.goes_on(&slurm)?;

    // An error that only slurmctld can detect.
    slurm.add_conf(&installed, "MinJobAge=88\nPriorityType=priority/no_such_plugin")?;
    let said = slurm.wait_condition(CONTROLLER, "ConfigApplied", "False", "ConfigRefused")?;
    println!("a bad extraConf: {said}");
    ensure!(
        said.contains("fatal:") && said.contains("no_such_plugin"),
        "the condition does not quote slurmctld: {said}"
    );
    ensure!(slurm.setting("MinJobAge")? == "77 sec", "half of it is in use");
    a_pipeline_sees_the_refusal(&slurm)?;
    untouched(&slurm)?;
    job.goes_on(&slurm)?;

    // A slurmctld that restarts now starts with the last good configuration, not with the rejected one.
    slurm.space.kubectl(&["delete", "pod", "slurm-controller-0"])?;
    eventually("another slurmctld", || {
        let now = slurm.pods(controllers)?;
        ensure!(
            now.values()
                .all(|(uid, _)| pods.values().all(|(old, _)| old != uid)),
            "it is the old pod"
        );
        let age = slurm.setting("MinJobAge")?;
        ensure!(
            age == "77 sec",
            "not the last good configuration: MinJobAge is {age}"
        );
        Ok(())
    })?;
    job.goes_on(&slurm)?;
    slurm.wait_condition(CONTROLLER, "ConfigApplied", "False", "ConfigRefused")?;
    let second = slurm.pods(controllers)?;

    // A slurmrestd that starts now does not get the rejected configuration, because it would exit.
    let refused = |line: &str, why: &str| {
        slurm.add_conf(&installed, &format!("MinJobAge=88\n{line}"))?;
        slurm.wait_told(CONTROLLER, ["ConfigApplied", "False", "ConfigRefused"], &[why])
    };
    refused("NoSuchParameter=1", "NoSuchParameter")?;
    slurm
        .space
        .kubectl(&["delete", "pods", "--selector=app.kubernetes.io/name=slurmrestd"])?;
    let rolled_out = ["rollout", "status", "deployment/slurm-restapi", "--timeout=120s"];
    slurm.space.kubectl(&rolled_out)?;
    slurm.wait_condition("restapis/slurm", "Ready", "True", "AsSpecified")?;

    // slurmctld would wait for the missing file twice, a minute each, without serving requests.
    refused("Include /no/such/file", "/no/such/file, which is not there")?;
    slurm.add_conf(&installed, "MinJobAge=88\nInclude gpus.conf")?;
    let said = slurm.wait_condition(CONTROLLER, "Degraded", "True", "ReferenceMissing")?;
    ensure!(said.contains("spec.configFileRefs"), "{said}");
    slurm.wait_condition(CONTROLLER, "ConfigApplied", "False", "ReferenceMissing")?;

    // A change that waits for jobs replaces the report about the previously rejected one.
    refused("NoSuchParameter=1", "NoSuchParameter")?;
    slurm.add_conf(&installed, "MinJobAge=88\nSwitchType=switch/hpe_slingshot")?;
    slurm.wait_told(
        CONTROLLER,
        ["Progressing", "True", "ConfigPending"],
        &["SwitchType would kill running jobs"],
    )?;
    slurm.wait_condition(CONTROLLER, "ConfigApplied", "False", "ConfigPending")?;
    slurm.wait_condition(CONTROLLER, "Degraded", "False", "")?;

    slurm.add_conf(&installed, "MinJobAge=99")?;
    eventually("the correction is in use", || {
        let age = slurm.setting("MinJobAge")?;
        ensure!(age == "99 sec", "MinJobAge is {age}");
        Ok(())
    })?;
    slurm.wait_condition(CONTROLLER, "ConfigApplied", "True", "AsSpecified")?;
    slurm.wait_condition(CONTROLLER, "Degraded", "False", "")?;
    slurm.wait_condition(CONTROLLER, "Ready", "True", "AsSpecified")?;
    ensure!(
        slurm.pods(controllers)? == second,
        "slurmctld was stopped for a word that nobody knows"
    );
    job.goes_on(&slurm)
}

/// Checks that `helm test` fails with slurmctld's message, and that `kubectl wait` for the condition fails.
fn a_pipeline_sees_the_refusal(slurm: &Slurm) -> Result<()> {
    let mut test = e2e::cluster()?.helm();
    test.args(["test", "slurm", "--timeout=5m", "--namespace", &slurm.space.name]);
    ensure!(e2e::run(&mut test).is_err(), "the test of the release passed");
    let log = slurm.space.kubectl(&["logs", "slurm-test"])?;
    ensure!(
        log.contains("False ConfigRefused") && log.contains("no_such_plugin"),
        "{log}"
    );
    ensure!(!log.contains("a job in partition"), "it went on: {log}");
    let wait = [
        "wait",
        CONTROLLER,
        "--for=condition=ConfigApplied",
        "--timeout=1s",
    ];
    ensure!(slurm.space.kubectl(&wait).is_err(), "the wait was over");
    slurm.space.kubectl(&["delete", "pod", "slurm-test"]).map(drop)
}

#[test]
fn what_needs_a_restart_gets_one_after_slurmctld_has_accepted_it() -> Result<()> {
    let (slurm, job) = busy("restarts", "")?;
    let installed = slurm.extra_conf()?;
    let controllers = "app.kubernetes.io/name=slurmctld";
    let before = slurm.pods(controllers)?;
    slurm.add_conf(
        &installed,
        "AuthAltParameters=disable_token_creation\nNoSuchParameter=1",
    )?;
    slurm.wait_condition(CONTROLLER, "ConfigApplied", "False", "ConfigRefused")?;
    ensure!(
        slurm.pods(controllers)? == before,
        "restarted for what was refused"
    );

    slurm.add_conf(&installed, "AuthAltParameters=disable_token_creation")?;
    eventually("one restart", || {
        let now = slurm.pods(controllers)?;
        ensure!(now != before && now.len() == 1, "{now:?}");
        let setting = slurm.setting("AuthAltParameters")?;
        ensure!(setting.contains("disable_token_creation"), "{setting}");
        Ok(())
    })?;
    slurm.wait_condition(CONTROLLER, "ConfigApplied", "True", "AsSpecified")?;
    slurm.wait_condition(CONTROLLER, "Progressing", "False", "")?;
    job.goes_on(&slurm)
}

/// Fails unless slurmctld accepts the token in this Secret. Returns the encoded token.
fn lets_in(slurm: &Slurm, secret: &str) -> Result<String> {
    let stored = slurm.get(&["secret", secret])?;
    let encoded = stored
        .pointer("/data/SLURM_JWT")
        .and_then(serde_json::Value::as_str)
        .context("no token in the Secret")?;
    let script = format!("SLURM_JWT=$(echo {encoded} | base64 -d) squeue --noheader");
    slurm.login(&["bash", "-c", &script])?;
    Ok(encoded.to_owned())
}

#[test]
fn the_jwt_key_is_rotated_while_a_job_runs_and_nothing_restarts() -> Result<()> {
    let (slurm, job) = busy("jwt", "")?;
    slurm.space.apply(
        r#"{"apiVersion": "slinky.slurm.net/v1beta1", "kind": "Token", "metadata": {"name": "visitor"},
            "spec": {"username": "slurm", "lifetime": "1h", "jwtKeyRef": {"name": "slurm-auth-jwt", "key": "jwt.key"}}}"#,
    )?;
    let secret = eventually("a token that lets in", || {
        let token = slurm.get(&["tokens.slinky.slurm.net", "visitor"])?;
        let secret = token
            .pointer("/status/secretName")
            .and_then(serde_json::Value::as_str)
            .context("no Secret yet")?
            .to_owned();
        lets_in(&slurm, &secret)?;
        Ok(secret)
    })?;
    let before = lets_in(&slurm, &secret)?;
    let pods = slurm.pods(ALL)?;

    let begun = Instant::now();
    slurm.set_secret("slurm-auth-jwt", "jwt.key", &"another-key-".repeat(8))?;
    eventually("a token of the new key lets in", || {
        let after = lets_in(&slurm, &secret)?;
        ensure!(after != before, "still the old token");
        Ok(())
    })?;
    println!("tokens of a rotated key worked after {}", seconds_since(begun));
    slurm.wait_condition(CONTROLLER, "ConfigApplied", "True", "AsSpecified")?;
    let old = format!("SLURM_JWT=$(echo {before} | base64 -d) squeue --noheader");
    ensure!(
        slurm.login(&["bash", "-c", &old]).is_err(),
        "a token of the old key still lets in"
    );
    // The operator reaches Slurm again, through a slurmrestd that has no JWT key and therefore did not restart.
    slurm.wait_condition("nodesets/slurm-worker-cpu", "Ready", "True", "")?;
    let now = slurm.pods(ALL)?;
    ensure!(
        now == pods,
        "a pod was replaced or restarted: {now:?} instead of {pods:?}"
    );
    job.goes_on(&slurm)
}

#[test]
fn another_slurm_key_waits_until_no_job_runs() -> Result<()> {
    let (slurm, job) = busy("key", "")?;
    slurm.scale(2)?;
    let out_of_service = slurm.wait_idle(1)?.pop().context("no second worker")?;
    let drain = format!("NodeName={out_of_service}");
    slurm.controller(&["scontrol", "update", &drain, "State=DRAIN", "Reason=a bad disk"])?;
    let pods = slurm.pods(ALL)?;
    slurm.set_secret("slurm-auth-slurm", "slurm.key", &"another-key-".repeat(90))?;
    slurm.wait_told(
        CONTROLLER,
        ["Progressing", "True", "KeyPending"],
        &["waiting for 1 running job"],
    )?;
    job.goes_on(&slurm)?;
    let now = slurm.pods(ALL)?;
    ensure!(
        now == pods,
        "a pod was replaced while the job ran: {now:?} instead of {pods:?}"
    );

    let late = late_jobs(&slurm)?;
    slurm.controller(&["scancel", &job.id])?;
    eventually("slurmctld has another key", || {
        let now = slurm.pods("app.kubernetes.io/name=slurmctld")?;
        ensure!(!now.is_empty() && now.values().all(|pod| pods.values().all(|old| old != pod)));
        Ok(())
    })?;
    all_ran_once(&slurm, &late)?;
    slurm.wait_condition(CONTROLLER, "Progressing", "False", "")?;
    for app in ["slurmctld", "slurmrestd", "login", "slurmd"] {
        let selector = format!("app.kubernetes.io/name={app}");
        eventually(&format!("{app} has restarted"), || {
            let now = slurm.pods(&selector)?;
            ensure!(!now.is_empty(), "there is none");
            let old: Vec<_> = now
                .values()
                .filter(|pod| pods.values().any(|p| p == *pod))
                .collect();
            ensure!(old.is_empty(), "{old:?} run with the old key");
            Ok(())
        })?;
    }
    slurm.wait_idle(1)?;
    eventually("a job runs with the new key", || {
        slurm.login(&["srun", "hostname"])
    })?;
    ensure!(slurm.wait_drain(&out_of_service)? == "a bad disk");
    nothing_is_recorded(&slurm)?;
    a_configuration_that_jobs_do_not_survive_waits_likewise(&slurm)?;
    ensure!(slurm.wait_drain(&out_of_service)? == "a bad disk");
    nothing_is_recorded(&slurm)
}

fn a_configuration_that_jobs_do_not_survive_waits_likewise(slurm: &Slurm) -> Result<()> {
    let controllers = "app.kubernetes.io/name=slurmctld";
    let job = slurm.sbatch(&["--no-requeue"], "sleep 600")?;
    slurm.wait_job(&job, "RUNNING")?;
    let worker = slurm.job_field(&job, "NodeList")?;
    let before = slurm.pods(controllers)?;
    // A different path to the same directory, because only the parameter has to change.
    slurm.add_conf(&slurm.extra_conf()?, "SlurmdSpoolDir=/var/spool/slurmd/.")?;
    slurm.wait_told(
        CONTROLLER,
        ["Progressing", "True", "ConfigPending"],
        &[
            "SlurmdSpoolDir would kill running jobs",
            "waiting for 1 running job",
        ],
    )?;
    ensure!(
        slurm.setting("SlurmdSpoolDir")? == "/var/spool/slurmd" && slurm.pods(controllers)? == before,
        "slurmctld has the change while a job runs"
    );
    let late = late_jobs(slurm)?;
    slurm.controller(&["scancel", &job])?;
    eventually("the node is drained for the change", || {
        let reason = slurm.node_field(&worker, "Reason")?;
        ensure!(reason.starts_with("keelson:"), "{reason}");
        Ok(())
    })?;
    eventually("the change is in use", || {
        let folder = slurm.setting("SlurmdSpoolDir")?;
        ensure!(folder == "/var/spool/slurmd/.", "SlurmdSpoolDir is {folder}");
        Ok(())
    })?;
    all_ran_once(slurm, &late)?;
    slurm.wait_condition(CONTROLLER, "ConfigApplied", "True", "AsSpecified")?;
    slurm.wait_condition(CONTROLLER, "Progressing", "False", "")?;
    let pod = slurm.get(&["pod", "slurm-controller-0"])?;
    let restarted = pod.pointer("/status/startTime").and_then(|time| time.as_str());
    let restarted = restarted.context("no start")?.trim_end_matches('Z');
    for id in &late {
        let (begun, ended) = (slurm.job_field(id, "StartTime")?, slurm.job_field(id, "EndTime")?);
        ensure!(
            ended.as_str() <= restarted || restarted <= begun.as_str(),
            "job {id} ran from {begun} to {ended}, and slurmctld got the change at {restarted}"
        );
    }
    slurm.wait_idle(1)?;

    // A change that slurmctld rejects is withdrawn: the nodes are resumed, and slurmctld does not get the change at a
    // later start.
    let installed = slurm.extra_conf()?;
    slurm.add_conf(&installed, "SwitchType=switch/nosuch")?;
    slurm.wait_told(
        CONTROLLER,
        ["ConfigApplied", "False", "ConfigRefused"],
        &["SwitchType", "switch/nosuch"],
    )?;
    slurm.wait_idle(1)?;
    let job = slurm.sbatch(&[], "true")?;
    slurm.wait_job(&job, "COMPLETED")?;
    nothing_is_recorded(slurm)?;
    let published = slurm.get(&["configmap", "slurm-config"])?;
    ensure!(!published.to_string().contains("nosuch"), "it is still published");
    slurm.wait_condition(CONTROLLER, "ConfigApplied", "False", "ConfigRefused")?;
    slurm.add_conf(&installed, "")?;
    slurm
        .wait_condition(CONTROLLER, "ConfigApplied", "True", "AsSpecified")
        .map(drop)
}

/// Submits jobs that begin a few seconds apart, so that some become eligible before and some while the nodes are
/// drained.
fn late_jobs(slurm: &Slurm) -> Result<Vec<String>> {
    [1, 7, 14, 21, 28]
        .iter()
        .map(|seconds| slurm.sbatch(&["--no-requeue", &format!("--begin=now+{seconds}")], "sleep 3"))
        .collect()
}

fn all_ran_once(slurm: &Slurm, jobs: &[String]) -> Result<()> {
    for id in jobs {
        slurm.wait_job(id, "COMPLETED")?;
        let restarts = slurm.job_field(id, "Restarts")?;
        ensure!(restarts == "0", "job {id} was started again");
    }
    Ok(())
}

fn nothing_is_recorded(slurm: &Slurm) -> Result<()> {
    eventually("the end of the drains is written down", || {
        let controller = slurm.get(&[CONTROLLER])?;
        let left = controller.pointer("/metadata/annotations/keelson.dev~1quiesced-for");
        ensure!(left.is_none(), "still recorded: {left:?}");
        Ok(())
    })
}

#[test]
fn slurmrestd_is_ready_while_it_reaches_slurmctld() -> Result<()> {
    let slurm = Slurm::install_ready("restapi", &format!("{ONE_WORKER}\nrestapi: {{ replicas: 2 }}"), 1)?;
    slurm.wait_condition("restapis/slurm", "Ready", "True", "AsSpecified")?;
    let budget = slurm.get(&["pdb", "slurm-restapi"])?;
    ensure!(
        budget.pointer("/spec/maxUnavailable") == Some(&json!(1)),
        "{budget}"
    );
    let template = |selector: serde_json::Value| json!({ "spec": { "template": { "spec": { "nodeSelector": selector } } } });
    slurm.patch(
        CONTROLLER,
        &template(json!({ "kubernetes.io/hostname": "nowhere" })),
    )?;
    let said = slurm.wait_condition("restapis/slurm", "Ready", "False", "")?;
    ensure!(said.contains("0 of 2"), "{said}");
    slurm.patch(CONTROLLER, &template(json!(null)))?;
    slurm.wait_condition("restapis/slurm", "Ready", "True", "AsSpecified")?;
    // A single pod gets no PodDisruptionBudget, which would only block drains of its node.
    slurm.patch("restapis/slurm", &json!({ "spec": { "replicas": 1 } }))?;
    eventually("the budget is gone", || {
        ensure!(slurm.get(&["pdb", "slurm-restapi"]).is_err(), "it is there");
        Ok(())
    })
}

#[test]
fn a_slurmctld_that_dies_comes_back_with_its_workers() -> Result<()> {
    let slurm = Slurm::install_ready("dies", ONE_WORKER, 1)?;
    let worker = slurm.nodes()?.pop_first().context("no worker")?;
    // Without the operator, slurmctld may take up to five minutes to save new workers.
    eventually("the worker is written down", || {
        let saved = format!("grep --quiet {worker} /var/spool/slurmctld/*/node_state");
        slurm.controller(&["sh", "-c", &saved])
    })?;
    let before = slurm.pods("app.kubernetes.io/name=slurmctld")?;
    let kill = "for it in /proc/[0-9]*; do \
        if [ \"$(cat $it/comm)\" = slurmctld ]; then kill -9 ${it#/proc/}; fi; done";
    // The command fails, because its container is killed.
    let _ = slurm.controller(&["bash", "-c", kill]);
    eventually("slurmctld was started again", || {
        let now = slurm.pods("app.kubernetes.io/name=slurmctld")?;
        ensure!(now != before, "{now:?}");
        Ok(())
    })?;
    slurm.wait_idle(1)?;
    let job = slurm.sbatch(&[], "srun hostname")?;
    slurm.wait_job(&job, "COMPLETED").map(drop)
}
