//! Starting, stopping and signalling the daemons.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::{HOST, Release, Slurm};

const START_TIMEOUT: Duration = Duration::from_mins(1);

impl Slurm {
    fn spawn(&mut self, name: &'static str, mut command: Command) -> Result<()> {
        let log = self.path(&format!("/var/log/slurm/{name}.out"));
        let log = fs::File::options().create(true).append(true).open(log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context(name)?;
        self.daemons.push((name, child));
        Ok(())
    }

    /// Starts slurmctld in the foreground and waits until it responds.
    pub fn start_slurmctld(&mut self) -> Result<()> {
        let mut command = self.as_slurm_user("slurmctld");
        command.arg("-D");
        self.spawn("slurmctld", command)?;
        self.await_ready("slurmctld", |slurm| {
            Ok(slurm.run(&["scontrol", "ping"])?.contains("is UP"))
        })
    }

    pub(super) fn start_managed_slurmctld(&mut self) -> Result<()> {
        let path = self.path("/run/slurmctld/notify");
        let socket = UnixDatagram::bind(&path).context("notify socket")?;
        self.manager = Some(socket.try_clone()?);
        // Receiving a message closes the attached descriptor. slurmctld waits for this.
        std::thread::spawn(move || while socket.recv(&mut [0; 4096]).is_ok_and(|length| length > 0) {});
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
        let mut command = self.command("NOTIFY_SOCKET=/run/slurmctld/notify");
        command.args([
            "setpriv",
            "--reuid=slurm",
            "--regid=slurm",
            "--clear-groups",
            "slurmctld",
            "--systemd",
        ]);
        self.spawn("slurmctld", command)?;
        self.await_ready("slurmctld", |slurm| {
            Ok(slurm.run(&["scontrol", "ping"])?.contains("is UP"))
        })
    }

    /// Starts slurmrestd and waits until it responds.
    pub fn start_slurmrestd(&mut self) -> Result<()> {
        let mut command = self.command("SLURM_JWT=daemon");
        command.arg("SLURMRESTD_SECURITY=disable_unshare_files,disable_unshare_sysv");
        command.args([
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "slurmrestd",
        ]);
        let mut plugins = "slurmctld".to_owned();
        // Without slurmdbd in slurm.conf, slurmrestd exits on requests for that part.
        if self.daemons.iter().any(|(daemon, _)| *daemon == "slurmdbd") {
            plugins.push_str(",slurmdbd");
        }
        if self.release == Release::V2605 {
            plugins.push_str(",util");
        }
        command.args(["-a", "rest_auth/jwt", "-s", &plugins, "127.0.0.1:6820"]);
        self.spawn("slurmrestd", command)?;
        self.await_ready("slurmrestd", |slurm| slurm.listens(6820))
    }

    /// Starts a slurmd that registers as a dynamic node and waits until slurmctld knows the node.
    pub fn start_slurmd(&mut self, conf: &str) -> Result<()> {
        let mut command = self.command("slurmd");
        command.args(["-D", "-Z", "--conf", conf]);
        self.spawn("slurmd", command)?;
        self.await_ready("slurmd", |slurm| {
            Ok(slurm
                .run(&["scontrol", "show", "node", HOST])?
                .contains("State=IDLE"))
        })
    }

    pub(super) fn start_database(&mut self, password: &str) -> Result<()> {
        self.run(&[
            "sh",
            "-c",
            "mkdir -p /run/mysqld /var/lib/mysql && mariadb-install-db --user=root --datadir=/var/lib/mysql \
             --skip-test-db --auth-root-authentication-method=normal >/dev/null",
        ])
        .context("the accounting tests require MariaDB in the root file system")?;
        let mut command = self.command("mariadbd");
        command.args([
            "--user=root",
            "--datadir=/var/lib/mysql",
            "--socket=/run/mysqld/mysqld.sock",
        ]);
        command.args(["--bind-address=127.0.0.1", "--skip-networking=0"]);
        command.args([
            "--innodb-buffer-pool-size=64M",
            "--innodb-lock-wait-timeout=900",
            "--innodb-flush-log-at-trx-commit=0",
        ]);
        self.spawn("mariadbd", command)?;
        self.await_ready("mariadbd", |slurm| slurm.listens(3306))?;
        let password = password.replace('\\', "\\\\").replace('\'', "\\'");
        // slurmdbd can create the database itself, but with libmariadb 3.4.10 it exits afterwards.
        let grant = format!(
            "CREATE DATABASE slurm_acct_db; CREATE USER 'slurm'@'%' IDENTIFIED BY '{password}'; GRANT ALL ON *.* TO 'slurm'@'%'; \
             DELETE FROM mysql.global_priv WHERE User=''; FLUSH PRIVILEGES;"
        );
        self.run(&[
            "mariadb",
            "--socket=/run/mysqld/mysqld.sock",
            "--user=root",
            "-e",
            &grant,
        ])?;
        Ok(())
    }

    pub(super) fn start_slurmdbd(&mut self) -> Result<()> {
        let mut command = self.as_slurm_user("slurmdbd");
        command.arg("-D");
        self.spawn("slurmdbd", command)?;
        self.await_ready("slurmdbd", |slurm| slurm.listens(6819))
    }

    fn as_slurm_user(&self, program: &str) -> Command {
        let mut command = self.command("setpriv");
        command.args(["--reuid=slurm", "--regid=slurm", "--clear-groups", program]);
        command
    }

    fn listens(&self, port: u16) -> Result<bool> {
        let table = fs::read_to_string(format!("/proc/{}/net/tcp", self.inside))?;
        let wanted = format!(":{port:04X} 00000000:0000 0A");
        Ok(table.lines().any(|line| line.contains(&wanted)))
    }

    fn await_ready(&mut self, name: &str, ready: impl Fn(&Self) -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if ready(self).unwrap_or(false) {
                return Ok(());
            }
            let gone = match self.daemons.iter_mut().find(|(daemon, _)| *daemon == name) {
                // A managed slurmctld exits its first process on a reconfiguration, never earlier.
                Some((_, child)) => child.try_wait()?,
                None => None,
            };
            if let Some(status) = gone {
                bail!("{name} exited with {status}:\n{}", self.log(name));
            }
            if Instant::now() > deadline {
                bail!("{name} is not ready after {START_TIMEOUT:?}:\n{}", self.log(name));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Stops a daemon with SIGTERM and waits until it has exited.
    pub fn stop(&mut self, name: &str) -> Result<()> {
        let Some(at) = self.daemons.iter().position(|(daemon, _)| *daemon == name) else {
            bail!("{name} is not running");
        };
        let (_, mut child) = self.daemons.remove(at);
        Self::signal(child.id(), "TERM")?;
        child.wait()?;
        Ok(())
    }

    /// Suspends a daemon (`STOP`), resumes it (`CONT`), or makes it reload its files (`HUP`).
    pub fn signal_daemon(&self, name: &str, signal: &str) -> Result<()> {
        let daemon = self.daemons.iter().find(|(daemon, _)| *daemon == name);
        let (_, child) = daemon.with_context(|| format!("{name} is not running"))?;
        Self::signal(child.id(), signal)
    }

    /// Signals the process that the nsenter command has become or waits for.
    fn signal(entered: u32, signal: &str) -> Result<()> {
        let children = fs::read_to_string(format!("/proc/{entered}/task/{entered}/children"))?;
        let daemon = children
            .split_whitespace()
            .next()
            .context("the daemon has exited")?;
        let mut command = Command::new("kill");
        command.args(["-s", signal, daemon]);
        if signal == "CONT" {
            // nsenter stops itself when its child is stopped.
            command.arg(entered.to_string());
        }
        let status = command.status()?;
        ensure!(status.success(), "kill -s {signal} {daemon}: {status}");
        if signal == "STOP" {
            wait_until_stopped(daemon)?;
        }
        Ok(())
    }
}

/// The kernel delivers a signal to one thread, which stops the others when it runs. Until then, they still respond.
fn wait_until_stopped(process: &str) -> Result<()> {
    let is_stopped = || -> Result<bool> {
        for thread in fs::read_dir(format!("/proc/{process}/task"))? {
            let stat = fs::read_to_string(thread?.path().join("stat"))?;
            let state = stat.rsplit(") ").next().and_then(|fields| fields.chars().next());
            if state != Some('T') {
                return Ok(false);
            }
        }
        Ok(true)
    };
    let limit = Instant::now() + START_TIMEOUT;
    while !is_stopped()? {
        ensure!(Instant::now() < limit, "process {process} does not stop");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
