//! Tests a cluster that authenticates with munge: an unprivileged user's job, munged for everyone in a pod, and another key.

use anyhow::{Result, ensure};
use e2e::slurm::Slurm;
use e2e::{cluster, eventually, run};
use serde_json::json;

const VALUES: &str = "
auth: { type: munge }
nodesets: { cpu: { replicas: 1 } }
";

/// Runs a job as an unprivileged user, which asks munged itself.
fn users_job(slurm: &Slurm) -> Result<()> {
    let script = "id -un; munge --no-input | unmunge | grep UID";
    let said = eventually("a user's job", || {
        slurm.login(&[
            "timeout", "30", "runuser", "-u", "anna", "--", "srun", "sh", "-c", script,
        ])
    })?;
    ensure!(
        said.starts_with("anna\n") && said.contains("anna (2001)"),
        "{said}"
    );
    Ok(())
}

/// Returns the checksum of the key that a pod's munged runs with.
fn key_in_use(slurm: &Slurm, pod: &str, container: &str) -> Result<String> {
    let words = ["sh", "-c", "sha256sum </run/munge-key/munge.key"];
    slurm.space.exec_in(pod, container, &words)
}

#[test]
fn munge_serves_daemons_and_users_and_takes_another_key() -> Result<()> {
    let slurm = Slurm::install_ready("munge", VALUES, 1)?;
    slurm.wait_condition("loginset/slurm-login-users", "Ready", "True", "")?;
    users_job(&slurm)?;
    let mut test = cluster()?.helm();
    run(test.args(["test", "slurm", "--namespace", &slurm.space.name]))?;
    let config = slurm.ask(&["scontrol", "show", "config"])?;
    ensure!(
        config.contains("auth/munge") && config.contains("cred/munge"),
        "{config}"
    );

    let first = key_in_use(&slurm, "slurm-controller-0", "slurmctld")?;
    let key = "another-key-for-munged-that-is-long-enough";
    let changed = json!({ "stringData": { "slurm.key": key } });
    slurm.patch("secret/slurm-auth-slurm", &changed)?;
    for (pod, container) in [
        ("slurm-controller-0", "slurmctld"),
        ("slurm-worker-cpu-0", "slurmd"),
        ("deployment/slurm-login-users", "login"),
    ] {
        eventually(&format!("the new key in {pod}"), || {
            let now = key_in_use(&slurm, pod, container)?;
            ensure!(now != first, "it has the first key");
            Ok(())
        })?;
    }
    slurm.wait_idle(1)?;
    users_job(&slurm)
}
