//! Tests users from an LDAP directory: a real slapd, SSSD in our images, ssh with a password, and a job that runs as
//! the user.

use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context, Result, ensure};
use e2e::slurm::{EXAMPLES, Slurm};
use e2e::{Namespace, cluster, eventually, run};
use serde_json::{Value, json};

const LOGIN: &str = "app.kubernetes.io/name=login";
const PASSWORD: &str = "analytical-engine";

#[test]
fn a_user_of_the_directory_logs_in_and_her_job_runs_as_her() -> Result<()> {
    let space = Namespace::create("ldap")?;
    let host = format!("slapd.{}.svc", space.name);
    start_slapd(&space, &host)?;
    // The example, with only the address of the directory changed.
    let example = std::fs::read_to_string(format!("{EXAMPLES}/ldap.yaml"))?;
    let example: Value = serde_saphyr::from_str(&example)?;
    let conf = example
        .pointer("/sssd/conf")
        .and_then(Value::as_str)
        .context("the example has no sssd.conf")?
        .replace("ldap.example.com", &host);
    let values = json!({
        "nodesets": { "cpu": { "replicas": 1 } },
        "sssd": { "conf": conf },
    });
    let slurm = Slurm::install_examples(space, &["ldap"], &values.to_string())?;
    slurm.wait_idle(1)?;

    let who = "uid=21815(ada) gid=21900(analysts) groups=21900(analysts),21901(engineers)";
    let session = eventually("a session by password", || ssh(&slurm, PASSWORD, "id && pwd"))?;
    ensure!(session.trim() == format!("{who}\n/home/ada"), "{session}");
    ensure!(
        ssh(&slurm, "difference-engine", "id").is_err(),
        "any password will do"
    );

    // The worker has its own SSSD, which looks up the user independently.
    let job = eventually("a job as the user", || {
        ssh(&slurm, PASSWORD, "cd /tmp && srun id")
    })?;
    ensure!(job.trim() == who, "{job}");
    let number = ssh(
        &slurm,
        PASSWORD,
        "cd /tmp && sbatch --parsable --wait --output=/dev/null --wrap='test $(id -un) = ada'",
    )?;
    let user = slurm.job_field(number.trim(), "UserId")?;
    ensure!(user.contains("(21815)"), "the job is {user}'s");
    slurm.wait_job(number.trim(), "COMPLETED")?;

    // SSSD is supervised: `init` starts it again.
    slurm.login(&["pkill", "-KILL", "-x", "sssd"])?;
    eventually("the lookup after SSSD was killed", || {
        let processes = slurm.login(&["pgrep", "-x", "sssd"])?;
        ensure!(!processes.trim().is_empty(), "SSSD does not run");
        ssh(&slurm, PASSWORD, "true")
    })?;

    // An sssd.conf that would prevent all logins reaches no pod.
    let before = (slurm.pods(LOGIN)?, slurm.workers()?);
    slurm.set_secret(
        "slurm-sssd-conf",
        "sssd.conf",
        &conf.replace("= ldap\n", "= ldpa\n"),
    )?;
    let login = "loginsets/slurm-login-users";
    for object in [login, "nodeset.slinky.slurm.net/slurm-worker-cpu"] {
        let told = slurm.wait_condition(object, "Degraded", "True", "InvalidSpec")?;
        ensure!(told.contains("id_provider \"ldpa\""), "{object}: {told}");
    }
    let after = (slurm.pods(LOGIN)?, slurm.workers()?);
    ensure!(after == before, "pods were replaced: {before:?}, {after:?}");
    Ok(())
}

/// Starts slapd with a certificate for its Service, and creates the ConfigMap with the CA that SSSD trusts in the
/// example.
fn start_slapd(space: &Namespace, host: &str) -> Result<()> {
    let signed = rcgen::generate_simple_self_signed(vec![host.to_owned()])?;
    let (certificate, key) = (signed.cert.pem(), signed.signing_key.serialize_pem());
    let objects = json!({ "apiVersion": "v1", "kind": "List", "items": [
        { "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "slapd" },
          "stringData": { "tls.crt": certificate, "tls.key": key } },
        { "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "ldap-ca" },
          "data": { "ca.crt": certificate } },
    ] });
    space.apply(&objects.to_string())?;
    space.apply(&std::fs::read_to_string(format!("{EXAMPLES}/home.yaml"))?)?;
    space.apply(&include_str!("slapd.yaml").replace("IMAGE", &testbed::image::name("slapd")))?;
    space.kubectl(&["rollout", "status", "deployment/slapd", "--timeout=180s"])?;
    Ok(())
}

/// Runs a command on a login pod by `ssh` as ada, who has a password and no key.
fn ssh(slurm: &Slurm, password: &str, command: &str) -> Result<String> {
    let pods = slurm.get(&["pods", &format!("--selector={LOGIN}")])?;
    let address = pods
        .pointer("/items/0/status/podIP")
        .and_then(Value::as_str)
        .context("no login pod has an address")?;
    let directory = tempfile::tempdir()?;
    let answer = directory.path().join("answer");
    std::fs::write(&answer, format!("#!/bin/sh\necho {password}\n"))?;
    std::fs::set_permissions(&answer, std::fs::Permissions::from_mode(0o700))?;
    let mut ssh = cluster()?.in_control_plane()?;
    ssh.args(["env", "SSH_ASKPASS_REQUIRE=force"])
        .arg(format!("SSH_ASKPASS={}", answer.display()))
        .args(["ssh", "-F", "/dev/null", "-o", "StrictHostKeyChecking=no"])
        .args(["-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"])
        .args(["-o", "NumberOfPasswordPrompts=1", "-o", "ConnectTimeout=5"])
        .args([&format!("ada@{address}"), command]);
    run(&mut ssh)
}
