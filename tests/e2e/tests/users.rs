//! Tests users from chart values: they are added, changed and removed in a running cluster with an open session, have a
//! partition for their group, and a condition reports a group that slurmctld does not know.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use e2e::slurm::Slurm;
use e2e::{Namespace, cluster, eventually, run};
use serde_json::{Value, json};

const CONTROLLER: &str = "controllers.slinky.slurm.net/slurm";
const LOGIN: &str = "app.kubernetes.io/name=login";
const LOGINSET: &str = "loginsets/slurm-login-users";

/// An SSH key pair.
struct Key {
    directory: tempfile::TempDir,
    public: String,
}

impl Key {
    fn new(comment: &str) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        run(Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-C", comment, "-f"])
            .arg(directory.path().join("key")))
        .context("an ssh client is needed: install openssh-client")?;
        let public = std::fs::read_to_string(directory.path().join("key.pub"))?;
        Ok(Self {
            directory,
            public: public.trim().to_owned(),
        })
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("key")
    }

    /// Returns an `ssh` command to the login pod with this key.
    fn command(&self, slurm: &Slurm, user: &str, command: &str) -> Result<Command> {
        let pods = slurm.get(&["pods", &format!("--selector={LOGIN}")])?;
        let address = pods
            .pointer("/items/0/status/podIP")
            .and_then(Value::as_str)
            .context("no login pod has an address")?;
        let mut ssh = cluster()?.in_control_plane()?;
        ssh.args(["ssh", "-F", "/dev/null", "-i"])
            .arg(self.path())
            .args(["-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes"])
            .args(["-o", "StrictHostKeyChecking=no", "-o", "LogLevel=ERROR"])
            .args(["-o", "UserKnownHostsFile=/dev/null", "-o", "ConnectTimeout=5"])
            .args([&format!("{user}@{address}"), command]);
        Ok(ssh)
    }

    fn ssh(&self, slurm: &Slurm, user: &str, command: &str) -> Result<String> {
        run(&mut self.command(slurm, user, command)?)
    }
}

/// Returns values for one worker and, of the users in `examples/users.yaml`, only ada. The example has a partition for
/// the group `research`. Null removes an entry.
fn values(ada: &Value, research: &Value, root: &str) -> String {
    json!({
        "nodesets": { "cpu": { "replicas": 1 } },
        "loginsets": { "users": { "rootSshAuthorizedKeys": root } },
        "users": { "ada": ada, "grace": null },
        "groups": { "research": research },
    })
    .to_string()
}

#[test]
fn users_come_change_and_go_while_everything_runs() -> Result<()> {
    let (ada, root, second) = (Key::new("ada")?, Key::new("root")?, Key::new("second")?);
    let ada_with = |groups: Value, keys: Value| json!({ "groups": groups, "sshKeys": keys });
    let (research, none) = (json!({ "gid": 3000 }), json!([]));

    // No users yet, and a partition whose group slurmctld does not know.
    let space = Namespace::create("users")?;
    let nobody = values(&Value::Null, &Value::Null, &root.public);
    let slurm = Slurm::install_examples(space, &["users"], &nobody)?;
    slurm.wait_idle(1)?;
    let told = slurm.wait_condition(CONTROLLER, "Degraded", "True", "GroupsUnknown")?;
    ensure!(told.contains("research (AllowGroups of research)"), "{told}");
    eventually("root by ssh", || root.ssh(&slurm, "root", "true"))?;
    let pods = || -> Result<_> {
        let selectors = ["login", "slurmd", "slurmctld"];
        selectors
            .map(|name| slurm.pods(&format!("app.kubernetes.io/name={name}")))
            .into_iter()
            .collect::<Result<Vec<_>>>()
    };
    let before = pods()?;

    // A session that stays open throughout the test.
    let mut session = root
        .command(
            &slurm,
            "root",
            "echo in; until [ -e /tmp/done ]; do sleep 1; done; echo out",
        )?
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    eventually("the session", || {
        let seen = slurm.login(&["pgrep", "-f", "until"])?;
        ensure!(!seen.trim().is_empty(), "not there yet");
        Ok(())
    })?;

    // Add a user who is only in her private group.
    slurm.upgrade(&values(
        &ada_with(none.clone(), json!([ada.public])),
        &research,
        &root.public,
    ))?;
    let id = eventually("ada by ssh", || ada.ssh(&slurm, "ada", "id && pwd"))?;
    ensure!(
        id == "uid=2101(ada) gid=2101(ada) groups=2101(ada)\n/home/ada\n",
        "{id}"
    );
    slurm.wait_condition(CONTROLLER, "Degraded", "False", "AsSpecified")?;
    let job = eventually("a job of hers", || {
        ada.ssh(&slurm, "ada", "cd /tmp && timeout 60 srun id -un")
    })?;
    ensure!(job.trim() == "ada", "{job}");
    let refused = ada.ssh(
        &slurm,
        "ada",
        "cd /tmp && timeout 20 srun --partition=research true",
    );
    ensure!(refused.is_err(), "she is not in the group: {refused:?}");

    // Add her to the group, and allow a second key for root.
    let keys = format!("{}\n{}\n", root.public, second.public);
    slurm.upgrade(&values(
        &ada_with(json!(["research"]), json!([ada.public])),
        &research,
        &keys,
    ))?;
    let job = eventually("a job in the partition of her group", || {
        ada.ssh(
            &slurm,
            "ada",
            "cd /tmp && timeout 20 srun --partition=research id -un",
        )
    })?;
    ensure!(job.trim() == "ada", "{job}");
    eventually("another key of root", || second.ssh(&slurm, "root", "true"))?;
    // Remove her key and the first key of root.
    slurm.upgrade(&values(
        &ada_with(json!(["research"]), none.clone()),
        &research,
        &second.public,
    ))?;
    eventually("keys that are taken away", || {
        ensure!(ada.ssh(&slurm, "ada", "true").is_err(), "hers is good still");
        ensure!(root.ssh(&slurm, "root", "true").is_err(), "root's is good still");
        second.ssh(&slurm, "root", "true")
    })?;

    // Remove the user and the group.
    slurm.upgrade(&values(&Value::Null, &Value::Null, &second.public))?;
    eventually("nobody knows her", || {
        let known = |found: Result<String>| found.is_ok();
        ensure!(!known(slurm.login(&["id", "ada"])), "the login pod does");
        ensure!(!known(slurm.controller(&["id", "ada"])), "slurmctld does");
        let worker = slurm.pod_of("cpu-0")?;
        let on_worker = slurm.space.exec_in(&worker, "slurmd", &["id", "ada"]);
        ensure!(!known(on_worker), "the worker does");
        Ok(())
    })?;
    slurm.wait_condition(CONTROLLER, "Degraded", "True", "GroupsUnknown")?;

    // No pod was restarted, and the session is still open.
    let after = pods()?;
    ensure!(after == before, "pods were replaced: {before:?}, {after:?}");
    ensure!(session.try_wait()?.is_none(), "the session was cut off");
    slurm.login(&["touch", "/tmp/done"])?;
    let output = session.wait_with_output()?;
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output == "in\nout\n", "{output:?}");
    Ok(())
}

#[test]
fn a_login_image_without_sssd_is_told_of() -> Result<()> {
    let space = Namespace::create("no-sssd")?;
    // The slurmctld image has the same `init`, but neither SSSD nor sshd.
    let image = testbed::image::name("slurmctld");
    let login = json!({
        "image": image, "command": ["/usr/sbin/keelson-init", "login"], "securityContext": { "runAsUser": 0 },
    });
    let values =
        json!({ "nodesets": { "cpu": { "replicas": 0 } }, "loginsets": { "users": { "login": login } } });
    let slurm = Slurm::install_examples(space, &[], &values.to_string())?;
    let told = slurm.wait_condition(LOGINSET, "Degraded", "True", "DaemonEnded")?;
    ensure!(
        told.contains("this image has no sssd: set sssd.enabled to false"),
        "{told}"
    );
    Ok(())
}
