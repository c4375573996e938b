//! Tests login by ssh with a key, jobs from the session, and sessions during a replacement of the pod.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use e2e::slurm::{EXAMPLES, Slurm};
use e2e::{Namespace, cluster, eventually, run};
use serde_json::Value;

const LOGINSET: &str = "loginsets/slurm-login-users";
const LOGIN: &str = "app.kubernetes.io/name=login";

/// A user outside the cluster, with an ssh client and a key.
struct Visitor {
    directory: tempfile::TempDir,
    slurm: Option<Slurm>,
}

impl Visitor {
    /// Creates a user. Returns it with the public key, which the LoginSet must accept.
    fn come() -> Result<(Self, String)> {
        let directory = tempfile::tempdir()?;
        let key = directory.path().join("key");
        run(Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-C", "visitor", "-f"])
            .arg(&key))
        .context("an ssh client is needed: install openssh-client")?;
        let public = std::fs::read_to_string(key.with_extension("pub"))?;
        let visitor = Self {
            directory,
            slurm: None,
        };
        Ok((visitor, public.trim().to_owned()))
    }

    /// Returns an `ssh` command to a login pod that is not being deleted. It accepts the host keys of the first
    /// connection, and requires the same keys afterwards.
    fn command(&self, command: &str) -> Result<Command> {
        self.command_with(&[], command)
    }

    fn command_with(&self, options: &[&str], command: &str) -> Result<Command> {
        let slurm = self.slurm.as_ref().context("nowhere to go")?;
        let pods = slurm.get(&["pods", &format!("--selector={LOGIN}")])?;
        let address = pods
            .pointer("/items")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter(|pod| pod.pointer("/metadata/deletionTimestamp").is_none())
            .find_map(|pod| pod.pointer("/status/podIP")?.as_str())
            .context("no login pod has an address")?
            .to_owned();
        let file = |name: &str| self.directory.path().join(name).display().to_string();
        let mut ssh = cluster()?.in_control_plane()?;
        ssh.args([
            "ssh",
            "-F",
            "/dev/null",
            "-i",
            &file("key"),
            "-o",
            "HostKeyAlias=login",
        ])
        // ssh uses the first value of each option.
        .args(options)
        .args(["-o", "StrictHostKeyChecking=accept-new", "-o", "BatchMode=yes"])
        .args(["-o", &format!("UserKnownHostsFile={}", file("known"))])
        .args(["-o", "ConnectTimeout=5", &format!("root@{address}"), command]);
        Ok(ssh)
    }

    fn ssh(&self, command: &str) -> Result<String> {
        run(&mut self.command(command)?)
    }
}

#[test]
fn users_come_in_by_ssh_and_work_and_are_not_thrown_out() -> Result<()> {
    let (mut visitor, key) = Visitor::come()?;
    let begun = Instant::now();
    visitor.slurm = Some(install(&key)?);
    let slurm = visitor.slurm.as_ref().context("nowhere to go")?;
    let job = eventually("a job by ssh", || {
        let idle = visitor.ssh("sinfo --noheader --states=idle --format=%D")?;
        ensure!(idle.trim() == "1", "{idle} workers are idle");
        visitor.ssh("cd /tmp && sbatch --parsable --wait --output=/dev/null --wrap=true")
    })?;
    let job = job.trim();
    eventually("the job's record", || {
        let state = visitor.ssh(&format!(
            "sacct --noheader --allocations --parsable2 --format=state --jobs={job}"
        ))?;
        ensure!(state.trim() == "COMPLETED", "{state:?}");
        Ok(())
    })?;
    println!(
        "control plane, accounting, login and a recorded job {:.1} s after helm install",
        begun.elapsed().as_secs_f32()
    );

    // The host can authenticate with each type of host key.
    for algorithm in ["rsa-sha2-512", "ecdsa-sha2-nistp256", "ssh-ed25519"] {
        let insists = format!("HostKeyAlgorithms={algorithm}");
        let other = [
            "-o",
            &insists,
            "-o",
            "UserKnownHostsFile=/dev/null",
            "-o",
            "StrictHostKeyChecking=no",
        ];
        run(&mut visitor.command_with(&other, "true")?).context(algorithm)?;
    }

    // A session stays open while its pod is replaced.
    let before = slurm.pods(LOGIN)?;
    let mut session = visitor
        .command("echo in; sleep 25; sinfo --noheader >/dev/null && echo out")?
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    eventually("the session", || {
        let seen = slurm.login(&["pgrep", "-f", "sleep 25"])?;
        ensure!(!seen.trim().is_empty(), "not there yet");
        Ok(())
    })?;
    slurm.patch(
        LOGINSET,
        &serde_json::json!({ "spec": { "template": { "metadata": { "annotations": { "change": "one" } } } } }),
    )?;
    eventually("the old pod is asked to go, a new one is there", || {
        let now = slurm.pods(LOGIN)?;
        ensure!(now.keys().any(|name| !before.contains_key(name)), "no new pod");
        Ok(())
    })?;
    let output = session.wait_with_output_in_time()?;
    ensure!(output == "in\nout\n", "the session was cut off: {output:?}");

    // The new pod has the same host keys, which the client requires.
    eventually("only the new pod is left, with the old host keys", || {
        let now = slurm.pods(LOGIN)?;
        ensure!(
            now.keys().all(|name| !before.contains_key(name)),
            "the old pod is there"
        );
        visitor.ssh("true")
    })?;

    slurm.space.kubectl(&["scale", LOGINSET, "--replicas=2"])?;
    eventually("two login pods", || {
        let set = slurm.get(&[LOGINSET])?;
        ensure!(
            set.pointer("/status/replicas") == Some(&serde_json::json!(2)),
            "{}",
            set["status"]
        );
        ensure!(slurm.pods(LOGIN)?.len() == 2, "not two pods");
        Ok(())
    })
}

trait Finish {
    fn wait_with_output_in_time(&mut self) -> Result<String>;
}

impl Finish for std::process::Child {
    fn wait_with_output_in_time(&mut self) -> Result<String> {
        eventually("the session ends", || {
            self.try_wait()?.context("it goes on")?;
            Ok(())
        })?;
        let mut text = String::new();
        std::io::Read::read_to_string(&mut self.stdout.take().context("no output")?, &mut text)?;
        Ok(text)
    }
}

/// Installs Slurm with a database, one worker, and a login pod with a grace period of two minutes for sessions.
fn install(key: &str) -> Result<Slurm> {
    let space = Namespace::create("login")?;
    let database = std::fs::read_to_string(format!("{EXAMPLES}/mariadb.yaml"))?;
    space.apply(&database)?;
    let values = format!(
        "
nodesets: {{ cpu: {{ replicas: 1 }} }}
loginsets:
  users:
    rootSshAuthorizedKeys: {key}
    podSpec: {{ terminationGracePeriodSeconds: 120 }}
"
    );
    Slurm::install_examples(space, &["accounting"], &values)
}
