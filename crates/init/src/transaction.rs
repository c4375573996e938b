//! Decides what to do about a changed configuration, without doing it.
//!
//! A running slurmctld applies a new configuration entirely or not at all: on SIGHUP a new process reads it and takes over,
//! or exits and the old process continues. A candidate is therefore tried, and reverted if slurmctld rejects it, so that a
//! restart never reads a broken file. A working configuration is saved, for a start that fails with the mounted files.
//!
//! With several slurmctlds, only the active one tries a candidate. A standby exits on a bad file, so it gets only files
//! that the active slurmctld accepted. A standby that took over becomes a standby again when it rejects a configuration,
//! which leaves no active slurmctld, unless its process was active from the start. It therefore first hands over to a new
//! process with its current files, and only then tries new ones.

use crate::files::Files;

/// The result for the mounted files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// They are in use.
    Applied,
    /// They were rejected.
    Refused,
    /// They are being tried, or wait for slurmctld to start, or, on a standby, for the active slurmctld to accept them.
    Pending,
}

impl Verdict {
    /// Returns the word in the status report.
    pub fn word(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Refused => "refused",
            Self::Pending => "pending",
        }
    }
}

/// An action to take.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Write these files where the daemon reads them.
    Install(Files),
    /// Start the daemon.
    Start,
    /// Ask the daemon to reread its files (SIGHUP).
    Hangup,
}

/// The phase of a change.
#[derive(Debug)]
enum Phase {
    /// The daemon was started with these files and is not ready yet.
    Starting { trying: Files, fallback: Option<Files> },
    /// The daemon was asked to reread the files that it has, and has not responded.
    Rehearsing,
    /// The daemon was asked to read these files, and has not responded.
    Trying(Files),
    /// No change is in progress.
    Settled,
}

/// The state of one slurmctld's configuration. The files contain no keys.
#[derive(Debug)]
pub struct Transaction {
    phase: Phase,
    mounted: Files,
    active: Option<Files>,
    /// Files that worked here while this slurmctld was active.
    good: Option<Files>,
    /// The files in the store.
    last_good: Option<Files>,
    verdict: Verdict,
    message: String,
    /// The process of a stand-in was active from its start, so it stays active when it rejects files.
    rehearsed: bool,
    /// The keys changed and the daemon has not reread them.
    rekeyed: bool,
    /// The users changed and the daemon has not looked them up again.
    users_changed: bool,
    /// Set while the daemon is asked to pick up changed users; tells whether they are the only change.
    users_tried: Option<Alone>,
}

/// Whether users are the only change.
type Alone = bool;

impl Transaction {
    /// Starts with the mounted files, and falls back to the last good ones if the mounted files do not work.
    pub fn begin(mounted: Files, last_good: Option<Files>) -> (Self, Vec<Step>) {
        let mut transaction = Self {
            phase: Phase::Settled,
            mounted: mounted.clone(),
            active: None,
            good: None,
            last_good: last_good.clone(),
            verdict: Verdict::Pending,
            message: String::new(),
            rehearsed: false,
            rekeyed: false,
            users_changed: false,
            users_tried: None,
        };
        let fallback = last_good.filter(|good| *good != mounted);
        let steps = match (mounted.flaw(), fallback) {
            (Some(flaw), Some(good)) => {
                transaction.refuse(&flaw);
                transaction.start(good, None)
            }
            (_, fallback) => transaction.start(mounted, fallback),
        };
        (transaction, steps)
    }

    fn start(&mut self, files: Files, fallback: Option<Files>) -> Vec<Step> {
        self.phase = Phase::Starting {
            trying: files.clone(),
            fallback,
        };
        vec![Step::Install(files), Step::Start]
    }

    fn refuse(&mut self, why: &str) {
        self.verdict = Verdict::Refused;
        why.clone_into(&mut self.message);
    }

    fn apply(&mut self) {
        self.verdict = Verdict::Applied;
        self.message.clear();
    }

    /// Reports whether the caller must determine the daemon's role: active or standby.
    pub fn needs_role(&self) -> bool {
        match self.phase {
            Phase::Starting { .. } => true,
            Phase::Rehearsing | Phase::Trying(_) => false,
            Phase::Settled => self.verdict == Verdict::Pending || self.rekeyed || self.users_changed,
        }
    }

    /// Sets the mounted files.
    pub fn mounted(&mut self, files: Files) {
        if files != self.mounted {
            self.mounted = files;
            self.verdict = Verdict::Pending;
            self.message.clear();
        }
    }

    /// Records that a key has changed that the daemon can reread while it runs.
    pub fn rekey(&mut self) {
        self.rekeyed = true;
    }

    /// Records that users or groups have changed. The daemon caches the members of groups until it rereads its files.
    pub fn users(&mut self) {
        self.users_changed = true;
    }

    /// Reports whether the daemon may still use an older key.
    pub fn is_rekeying(&self) -> bool {
        let other_users_alone = self.users_tried == Some(true);
        self.rekeyed || (matches!(self.phase, Phase::Trying(_)) && !other_users_alone)
    }

    /// Makes rejected files pending again.
    pub fn again(&mut self) {
        if self.verdict == Verdict::Refused {
            self.verdict = Verdict::Pending;
        }
    }

    /// Returns the next steps for an active daemon.
    pub fn in_charge(&mut self) -> Vec<Step> {
        self.settle_in_charge();
        if !self.is_due() {
            return self.read_again();
        }
        self.try_users(false);
        self.rekeyed = false;
        self.phase = Phase::Trying(self.mounted.clone());
        vec![Step::Install(self.mounted.clone()), Step::Hangup]
    }

    /// Makes slurmctld reread its current files if keys or users have changed, because only then does it read keys and
    /// look up users.
    fn read_again(&mut self) -> Vec<Step> {
        let wanted = (self.rekeyed || self.users_changed) && !self.is_trying();
        let Some(active) = self.active.clone().filter(|_| wanted) else {
            return Vec::new();
        };
        self.try_users(!self.rekeyed);
        self.rekeyed = false;
        self.phase = Phase::Trying(active.clone());
        vec![Step::Install(active), Step::Hangup]
    }

    fn try_users(&mut self, alone: Alone) {
        self.users_tried = std::mem::take(&mut self.users_changed).then_some(alone);
    }

    /// Returns the next steps for a daemon that is active in place of another.
    pub fn standing_in(&mut self) -> Vec<Step> {
        self.settle_in_charge();
        if self.rehearsed || !self.is_due() {
            return self.in_charge();
        }
        self.phase = Phase::Rehearsing;
        vec![Step::Hangup]
    }

    fn settle_in_charge(&mut self) {
        let Phase::Starting { trying, .. } = &self.phase else {
            return;
        };
        self.good = Some(trying.clone());
        self.active = Some(trying.clone());
        self.phase = Phase::Settled;
        // A start may fail for reasons outside the files, such as a name that does not resolve yet, and now a second
        // attempt costs nothing. Files with a flaw would fail again.
        if self.mounted.flaw().is_none() {
            self.again();
        }
    }

    /// Reports whether the daemon must try the mounted files. Settles the verdict where that is not necessary.
    fn is_due(&mut self) -> bool {
        if !matches!(self.phase, Phase::Settled) || self.verdict != Verdict::Pending {
            return false;
        }
        if self.active.as_ref() == Some(&self.mounted) {
            self.apply();
        } else if let Some(flaw) = self.mounted.flaw() {
            self.refuse(&flaw);
        }
        self.verdict == Verdict::Pending
    }

    /// Returns the next steps for a standby; `accepted` are the files that the active slurmctld has accepted.
    pub fn standby(&mut self, accepted: Option<Files>) -> Vec<Step> {
        match &self.phase {
            Phase::Starting { trying, .. } => self.active = Some(trying.clone()),
            Phase::Settled => {}
            Phase::Rehearsing | Phase::Trying(_) => return Vec::new(),
        }
        self.phase = Phase::Settled;
        // From now on the active slurmctld decides which files are good.
        self.good = None;
        let Some(accepted) = accepted else {
            return Vec::new();
        };
        self.last_good = Some(accepted.clone());
        if accepted == self.mounted {
            self.apply();
        } else {
            self.verdict = Verdict::Pending;
        }
        if self.active.as_ref() == Some(&accepted) && !self.rekeyed && !self.users_changed {
            return Vec::new();
        }
        self.rekeyed = false;
        self.users_changed = false;
        self.active = Some(accepted.clone());
        vec![Step::Install(accepted), Step::Hangup]
    }

    /// Records that the daemon has accepted the files.
    pub fn taken(&mut self) {
        match std::mem::replace(&mut self.phase, Phase::Settled) {
            Phase::Rehearsing => self.rehearsed = true,
            Phase::Trying(files) => {
                // The mounted files may have changed in the meantime; then they are tried next.
                if files == self.mounted {
                    self.apply();
                }
                self.good = Some(files.clone());
                self.active = Some(files);
                self.rehearsed = false;
                self.users_tried = None;
            }
            other => self.phase = other,
        }
    }

    /// Records that the daemon rejected the files and why; returns the steps that restore its current files.
    pub fn refused(&mut self, why: &str) -> Vec<Step> {
        match std::mem::replace(&mut self.phase, Phase::Settled) {
            Phase::Rehearsing => self.refuse(why),
            Phase::Trying(files) => {
                if files == self.mounted {
                    self.refuse(why);
                }
                self.rehearsed = false;
                // The users did not cause the rejection: they are tried again, with files that work.
                if self.users_tried.take().is_some() && self.active.as_ref() != Some(&files) {
                    self.users_changed = true;
                }
            }
            other => {
                self.phase = other;
                return Vec::new();
            }
        }
        self.active.clone().map(Step::Install).into_iter().collect()
    }

    /// Returns the steps after the daemon exited, or `None` if there is no fallback.
    pub fn ended(&mut self, why: &str) -> Option<Vec<Step>> {
        let Phase::Starting { fallback, .. } = &mut self.phase else {
            return None;
        };
        let good = fallback.take()?;
        self.refuse(why);
        Some(self.start(good, None))
    }

    /// Returns the steps that start the daemon again as a standby with its current files, after it was stopped for
    /// this.
    pub fn again_as_standby(&mut self) -> Vec<Step> {
        let files = self.active.clone().unwrap_or_else(|| self.mounted.clone());
        self.rehearsed = false;
        if self.verdict == Verdict::Applied {
            self.verdict = Verdict::Pending;
        }
        self.start(files, None)
    }

    /// Reports whether the daemon was asked to read files and has not responded.
    pub fn is_trying(&self) -> bool {
        matches!(self.phase, Phase::Rehearsing | Phase::Trying(_))
    }

    /// Returns the good files that are not in the store yet.
    pub fn to_keep(&self) -> Option<&Files> {
        self.good
            .as_ref()
            .filter(|good| self.last_good.as_ref() != Some(good))
    }

    /// Records that [`Self::to_keep`] was stored.
    pub fn kept(&mut self) {
        self.last_good.clone_from(&self.good);
    }

    /// Returns the status report.
    pub fn report(&self) -> Report {
        let hash = |files: &Option<Files>| files.as_ref().map(Files::hash).unwrap_or_default();
        Report {
            candidate: self.mounted.hash(),
            active: hash(&self.active),
            last_good: hash(&self.last_good),
            verdict: self.verdict,
            message: self.message.clone(),
        }
    }
}

/// The status report of the configuration; files are given as hashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The mounted files.
    pub candidate: String,
    /// The files that the daemon runs with.
    pub active: String,
    /// The files that a restart can fall back to.
    pub last_good: String,
    /// The result for the candidate.
    pub verdict: Verdict,
    /// Why the candidate was rejected.
    pub message: String,
}

#[cfg(test)]
mod tests;
