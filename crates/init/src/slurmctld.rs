//! slurmctld: started as a service, with configuration changes carried in one at a time.
//!
//! slurm.key is that of the container's start for as long as it runs: with another one the nodes would be cut off, and it
//! is for the operator to say when that may be. The key of tokens is taken in as soon as it changes.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::failback::{Failback, Wait};
use crate::files::{Files, Mounted};
use crate::groups::Groups;
use crate::process::{Event, Manager, find};
use crate::process_start::Moment;
use crate::role::{self, Role};
use crate::status::{Status, Told};
use crate::store::Store;
use crate::transaction::{Step, Transaction};
use crate::users::Users;
use crate::{EXTRA_USERS, MOUNTED, RUN, RUN_CONF};

/// Where state directories are.
const SPOOL: &str = "/var/spool/slurmctld";

/// The key that tokens are signed with.
const JWT_KEY: &str = "jwt.key";
const SLURM_KEY: &str = "slurm.key";

/// How often the mounted files are looked at.
const LOOK: Duration = Duration::from_millis(500);

/// After this long, a slurmctld that serves as before has not taken what it was asked to take.
const LATE: Duration = Duration::from_secs(30);

/// A stop that slurmctld may have missed, because it was just giving up an attempt to reconfigure, is repeated.
const STOP_AGAIN: Duration = Duration::from_secs(5);

/// Runs slurmctld to its end and returns its exit status.
pub fn run(args: &[String]) -> std::io::Result<i32> {
    let manager = Manager::new(Some(Path::new(RUN)))?;
    let mut mounted = Mounted::new(Path::new(MOUNTED));
    let unreadable = |error| std::io::Error::other(format!("cannot read {MOUNTED}: {error}"));
    let files = loop {
        if let Some(files) = mounted.changed().map_err(unreadable)? {
            break files;
        }
    };
    let (files, keys) = files.split_keys();
    let store = Store::of(&files, Path::new(SPOOL));
    let failback = Failback::of(&files);
    let (transaction, steps) = Transaction::begin(files, store.load());
    let mut users = Users::new(Path::new(EXTRA_USERS));
    // slurmctld finds these when it starts.
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
        // How it runs is for us to say.
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

/// Whether a stand-in has handed back.
enum FailedBack {
    No,
    Yes(Vec<Step>),
    /// The container was to stop meanwhile.
    Stopped(i32),
}

struct Daemon {
    manager: Manager,
    mounted: Mounted,
    /// Why the mounted files could not be read the last time.
    unreadable: String,
    keys: Files,
    users: Users,
    groups: Groups,
    transaction: Transaction,
    store: Store,
    failback: Option<Failback>,
    status: Status,
    args: Vec<String>,
    /// What slurmctld reads, since when, and when it was asked to.
    installed: Files,
    installed_at: Moment,
    asked_at: Instant,
}

impl Daemon {
    fn run(&mut self) -> std::io::Result<i32> {
        let mut looked = Instant::now();
        loop {
            self.status.set(Told {
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
                    // A signal that came in this very moment would be lost on slurmctld.
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

    /// Waits until nobody stands in for us; false when the container is to stop first.
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

    /// Ends slurmctld and starts it as a standby, if it stands in for one that has returned.
    fn failback(&mut self) -> FailedBack {
        if self.transaction.is_trying()
            || !self.failback.as_ref().is_some_and(Failback::is_asked)
            || !self.stands_in()
        {
            return FailedBack::No;
        }
        println!("init: a slurmctld that comes first has returned: handing back");
        match self.end(|manager| manager.signal(Signal::TERM)) {
            (code, true) => FailedBack::Stopped(code),
            (_, false) => FailedBack::Yes(self.transaction.again_as_standby()),
        }
    }

    /// Whether slurmctld does the work of one that comes first.
    fn stands_in(&self) -> bool {
        self.failback.as_ref().is_some_and(Failback::is_backup)
            && role::ask(&self.installed) == Some(Role::StandIn)
    }

    /// Ends slurmctld: its status, and whether the container was to stop meanwhile. Whoever waits for its work is told when
    /// everything is saved.
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

    /// slurmctld has handed over to a new process, or has started.
    fn ready(&mut self) -> Vec<Step> {
        let theirs = |pid| self.installed_at.is_after_start_of(pid);
        if self.transaction.is_trying() && self.manager.main().is_some_and(theirs) {
            // Somebody else's `scontrol reconfigure` was quicker, and has read what was there before.
            return vec![Step::Hangup];
        }
        self.transaction.taken();
        Vec::new()
    }

    fn refused(&mut self) -> Vec<Step> {
        let silent = "slurmctld went on with the configuration that it had and did not say why";
        self.transaction.refused(self.manager.reason().unwrap_or(silent))
    }

    /// Sees what has changed: the mounted files, what slurmctld is, what the one in charge has accepted.
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
            println!("init: users or groups have changed");
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

    /// A key that has gone is no change: without any, nobody could come in.
    fn take_jwt_key(&mut self, key: Option<Vec<u8>>) {
        let Some(key) = key.filter(|key| !key.is_empty()) else {
            return;
        };
        let before = self.keys.take(JWT_KEY);
        if before.as_ref() != Some(&key) {
            println!("init: {JWT_KEY} has changed");
            self.transaction.rekey();
        }
        self.keys.put(JWT_KEY, key);
    }

    /// The key of tokens that slurmctld goes by, named under the slurm.key that it runs with; nothing while it is about to
    /// take in another.
    fn jwt_key(&self) -> String {
        if self.transaction.is_rekeying() {
            return String::new();
        }
        self.keys.named_under(SLURM_KEY, JWT_KEY).unwrap_or_default()
    }

    fn complain(&mut self, error: String) {
        if self.unreadable != error {
            eprintln!("init: cannot read {MOUNTED}: {error}");
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
                    // It runs with what it has in memory; that there is no room for a change is no reason to end it.
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

    fn stop(&mut self) -> i32 {
        self.end(Manager::stop).0
    }
}

/// Where daemons find their files.
pub fn environment() -> Vec<(String, String)> {
    vec![("SLURM_CONF".to_owned(), format!("{RUN_CONF}/slurm.conf"))]
}
