//! Runs slurmctld and applies configuration changes one at a time.
//!
//! slurm.key or munge.key stays the one from the container's start: another key would cut off the nodes, so the operator
//! decides when to change it. A changed jwt.key is applied immediately.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use slurm_conf::container::dir::SLURMCTLD_SPOOL;
use slurm_conf::container::file::{JWT_KEY, MUNGE_KEY, SLURM_CONF, SLURM_KEY};

use crate::failback::{Failback, Wait};
use crate::files::{Files, Mounted};
use crate::first_save;
use crate::groups::Groups;
use crate::munge;
use crate::process::{Event, Manager, find};
use crate::process_start::Moment;
use crate::role::{self, Role};
use crate::status::{Status, StatusReport};
use crate::store::Store;
use crate::transaction::{Step, Transaction};
use crate::users::Users;
use crate::{EXTRA_USERS, MOUNTED, RUN, RUN_CONF};

/// How often the mounted files are checked.
const LOOK: Duration = Duration::from_millis(500);

/// A slurmctld that is ready but has not taken a new configuration over after this long counts as having rejected it.
const LATE: Duration = Duration::from_secs(30);

/// When to repeat a stop signal, which slurmctld may miss while it abandons a reconfiguration.
const STOP_AGAIN: Duration = Duration::from_secs(5);

/// Runs slurmctld to its end and returns its exit status.
pub fn run(args: &[String]) -> std::io::Result<i32> {
    let mut manager = Manager::new(Some(Path::new(RUN)))?;
    munge::add(&mut manager, Path::new(MOUNTED))?;
    let mut mounted = Mounted::new(Path::new(MOUNTED));
    let unreadable = |error| std::io::Error::other(format!("cannot read {MOUNTED}: {error}"));
    let files = loop {
        if let Some(files) = mounted.changed().map_err(unreadable)? {
            break files;
        }
    };
    let (files, keys) = files.split_keys();
    let store = Store::of(&files, Path::new(SLURMCTLD_SPOOL));
    let failback = Failback::of(&files);
    let (transaction, steps) = Transaction::begin(files, store.load());
    let mut users = Users::new(Path::new(EXTRA_USERS));
    // slurmctld reads the current users when it starts.
    users.changed();
    let mut daemon = Daemon {
        manager,
        mounted,
        unreadable: String::new(),
        keys,
        users,
        groups: Groups::default(),
        transaction,
        store,
        failback,
        status: Status::serve(),
        version: version(),
        // `--systemd` sets how it runs.
        args: args.iter().filter(|arg| *arg != "-D").cloned().collect(),
        installed: Files::default(),
        installed_at: Moment::now(),
        asked_at: Instant::now(),
    };
    if !daemon.wait_for_turn() {
        return Ok(0);
    }
    daemon.act(steps)?;
    daemon.run()
}

/// The release of the installed slurmctld, which prints `slurm 26.05.1`. Empty if it does not tell.
fn version() -> String {
    let told = Command::new(find("slurmctld")).arg("-V").output();
    let told = told.map(|output| output.stdout).unwrap_or_default();
    let told = String::from_utf8_lossy(&told);
    told.split_whitespace().last().unwrap_or_default().to_owned()
}

/// The result of a failback check.
enum FailedBack {
    No,
    Yes(Vec<Step>),
    /// The container was asked to stop meanwhile.
    Stopped(i32),
}

struct Daemon {
    manager: Manager,
    mounted: Mounted,
    /// The last read error of the mounted files, to log it only once.
    unreadable: String,
    keys: Files,
    users: Users,
    groups: Groups,
    transaction: Transaction,
    store: Store,
    failback: Option<Failback>,
    status: Status,
    /// Slurm release of this slurmctld, such as `26.05.1`.
    version: String,
    args: Vec<String>,
    /// The files that slurmctld reads, when they were written, and when it was asked to read them.
    installed: Files,
    installed_at: Moment,
    asked_at: Instant,
}

impl Daemon {
    fn run(&mut self) -> std::io::Result<i32> {
        let mut looked = Instant::now();
        loop {
            self.status.set(StatusReport {
                version: self.version.clone(),
                main_pid: self.manager.main(),
                jwt_key: self.jwt_key(),
                groups: self.groups.report(),
                report: self.transaction.report(),
            });
            let steps = match self.manager.next(LOOK.saturating_sub(looked.elapsed())) {
                Some(Event::Stop) => return Ok(self.stop()),
                Some(Event::Reload) => {
                    self.transaction.again();
                    Vec::new()
                }
                Some(Event::Ready) => self.ready(),
                Some(Event::Resumed) => {
                    // slurmctld would lose a signal that arrives at this moment.
                    looked = Instant::now();
                    self.refused()
                }
                Some(Event::Ended(code)) => {
                    let why = self.manager.reason().map(str::to_owned);
                    let why = why.unwrap_or_else(|| format!("slurmctld ended with status {code}"));
                    match self.transaction.ended(&why) {
                        Some(steps) => steps,
                        None => return Ok(code),
                    }
                }
                None => {
                    looked = Instant::now();
                    match self.failback() {
                        FailedBack::No => self.look(),
                        FailedBack::Yes(steps) => steps,
                        FailedBack::Stopped(code) => return Ok(code),
                    }
                }
            };
            self.act(steps)?;
        }
    }

    /// Waits until no stand-in is active; returns false if the container must stop first.
    fn wait_for_turn(&mut self) -> bool {
        let mut waiting = Wait::default();
        while self
            .failback
            .as_ref()
            .is_some_and(|failback| failback.must_wait(&mut waiting))
        {
            if self.manager.next(LOOK) == Some(Event::Stop) {
                return false;
            }
        }
        true
    }

    /// Stops slurmctld and starts it as a standby, if it is a stand-in for one that has returned.
    fn failback(&mut self) -> FailedBack {
        if self.transaction.is_trying()
            || !self.failback.as_ref().is_some_and(Failback::is_asked)
            || !self.stands_in()
        {
            return FailedBack::No;
        }
        println!("init: a preferred slurmctld is back: handing back control");
        match self.end(|manager| manager.signal(Signal::TERM)) {
            (code, true) => FailedBack::Stopped(code),
            (_, false) => FailedBack::Yes(self.transaction.again_as_standby()),
        }
    }

    /// Reports whether slurmctld is active in place of an earlier one on the list.
    fn stands_in(&self) -> bool {
        self.failback.as_ref().is_some_and(Failback::is_backup)
            && role::ask(&self.installed) == Some(Role::StandIn)
    }

    /// Stops slurmctld; returns its exit status and whether the container was asked to stop meanwhile. The slurmctld that
    /// waits to take over is notified when the state is saved.
    fn end(&mut self, ask: fn(&mut Manager)) -> (i32, bool) {
        let at_work = self.stands_in();
        let waited_for = self.failback.as_ref().filter(|_| at_work);
        let mut stop = false;
        loop {
            ask(&mut self.manager);
            let asked = Instant::now();
            while let Some(left) = STOP_AGAIN.checked_sub(asked.elapsed()) {
                match self.manager.next(left.min(LOOK)) {
                    Some(Event::Ended(code)) => {
                        waited_for.inspect(|failback| failback.done());
                        return (code, stop);
                    }
                    Some(Event::Stop) => stop = true,
                    _ => {}
                }
                waited_for.inspect(|failback| failback.not_yet());
            }
        }
    }

    /// Handles that slurmctld has started or has handed over to a new process.
    fn ready(&mut self) -> Vec<Step> {
        let theirs = |pid| self.installed_at.is_after_start_of(pid);
        if self.transaction.is_trying() && self.manager.main().is_some_and(theirs) {
            // Another `scontrol reconfigure` was faster and has read the old files.
            return vec![Step::Hangup];
        }
        self.transaction.taken();
        Vec::new()
    }

    fn refused(&mut self) -> Vec<Step> {
        let silent = "slurmctld kept its previous configuration and reported no error";
        self.transaction.refused(self.manager.reason().unwrap_or(silent))
    }

    /// Checks for changes: of the mounted files, of slurmctld's role, and of the files that the active slurmctld
    /// accepted.
    fn look(&mut self) -> Vec<Step> {
        match self.mounted.changed() {
            Ok(Some(files)) => {
                let (files, mut keys) = files.split_keys();
                self.take_jwt_key(keys.take(JWT_KEY));
                self.transaction.mounted(files);
            }
            Ok(None) => {}
            Err(error) => self.complain(error.to_string()),
        }
        let users_changed = self.users.changed();
        if users_changed {
            println!("init: users or groups changed");
            self.transaction.users();
        }
        self.groups.look(&self.installed, users_changed);
        let late = self.transaction.is_trying() && self.asked_at.elapsed() > LATE;
        let role = (late || self.transaction.needs_role())
            .then(|| role::ask(&self.installed))
            .flatten();
        let steps = match role {
            Some(Role::Primary | Role::StandIn) if late => self.refused(),
            Some(Role::Primary) => self.transaction.in_charge(),
            Some(Role::StandIn) => self.transaction.standing_in(),
            Some(Role::Standby) => self.transaction.standby(self.store.load()),
            None => Vec::new(),
        };
        if let Some(files) = self.transaction.to_keep()
            && self.store.keep(files)
        {
            self.transaction.kept();
        }
        steps
    }

    /// Takes a changed jwt.key. Ignores a missing one: without a key nobody could authenticate.
    fn take_jwt_key(&mut self, key: Option<Vec<u8>>) {
        let Some(key) = key.filter(|key| !key.is_empty()) else {
            return;
        };
        let before = self.keys.take(JWT_KEY);
        if before.as_ref() != Some(&key) {
            println!("init: {JWT_KEY} changed");
            self.transaction.rekey();
        }
        self.keys.put(JWT_KEY, key);
    }

    /// Returns a MAC of the jwt.key that slurmctld uses, keyed with the slurm.key or munge.key that it runs with; empty while
    /// slurmctld is about to read another jwt.key.
    fn jwt_key(&self) -> String {
        if self.transaction.is_rekeying() {
            return String::new();
        }
        [SLURM_KEY, MUNGE_KEY]
            .iter()
            .find_map(|key| self.keys.named_under(key, JWT_KEY))
            .unwrap_or_default()
    }

    fn complain(&mut self, error: String) {
        if self.unreadable != error {
            eprintln!("init: failed to read {MOUNTED}: {error}");
            self.unreadable = error;
        }
    }

    fn act(&mut self, steps: Vec<Step>) -> std::io::Result<()> {
        for step in steps {
            match step {
                Step::Install(files) => {
                    let Err(error) = self.install(files) else { continue };
                    if self.manager.main().is_none() {
                        return Err(error);
                    }
                    // It continues with the configuration in memory: a failed write is no reason to stop it.
                    let why = format!("cannot write {RUN_CONF}: {error}");
                    eprintln!("init: {why}");
                    for step in self.transaction.refused(&why) {
                        if let Step::Install(files) = step {
                            let _ = self.install(files);
                        }
                    }
                    return Ok(());
                }
                Step::Start => {
                    self.allow_incomplete_state();
                    let mut args = vec!["--systemd".to_owned()];
                    args.extend_from_slice(&self.args);
                    self.manager.start(&find("slurmctld"), &args, &environment())?;
                }
                Step::Hangup => {
                    self.manager.forget_reasons();
                    self.asked_at = Instant::now();
                    self.manager.signal(Signal::HUP);
                }
            }
        }
        Ok(())
    }

    fn install(&mut self, files: Files) -> std::io::Result<()> {
        files.clone().with(&self.keys).write(Path::new(RUN_CONF))?;
        if self.installed != files {
            self.groups.forget();
        }
        self.installed = files;
        self.installed_at = Moment::now();
        Ok(())
    }

    /// Lets a slurmctld start whose state was never saved. Not for a stand-in: another slurmctld may use the state.
    fn allow_incomplete_state(&self) {
        let stands_in = self.failback.as_ref().is_some_and(Failback::is_backup);
        let state = self.installed.parameters("StateSaveLocation").pop();
        if let Some(state) = state.filter(|_| !stands_in) {
            first_save::allow_restart(Path::new(&state));
        }
    }

    fn stop(&mut self) -> i32 {
        self.end(Manager::stop).0
    }
}

/// Returns the environment variables that tell daemons where their files are.
pub fn environment() -> Vec<(String, String)> {
    vec![("SLURM_CONF".to_owned(), format!("{RUN_CONF}/{SLURM_CONF}"))]
}
