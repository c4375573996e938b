//! What to do about a changed configuration: the decisions, without the doing.
//!
//! A running slurmctld takes a new configuration whole or not at all: on SIGHUP a new process reads it and takes over, or
//! gives up and the old one goes on. So a candidate is tried, and what was refused is taken away again, so that a restart
//! never meets a file that does not work. What has worked is kept, for a start that fails with what is mounted.
//!
//! Where there are several slurmctlds, only the one in charge tries. A standby reads new files without any such care and
//! dies of a bad one, so it gets only what the one in charge has accepted. A standby that has taken over goes back to
//! standing by when it refuses, and nobody is in charge any more; it does not if its process was in charge from the
//! beginning. So it hands over with the files that it has before it gets to see new ones.

use crate::files::Files;

/// How the mounted files fared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// They are in use.
    Applied,
    /// They do not work.
    Refused,
    /// They are being tried, or wait for slurmctld to come up, or on a standby for the one in charge to accept them.
    Pending,
}

impl Verdict {
    /// The word in the status report.
    pub fn word(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Refused => "refused",
            Self::Pending => "pending",
        }
    }
}

/// Something that is to be done.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Put these files where the daemon reads them.
    Install(Files),
    /// Start the daemon.
    Start,
    /// Ask the daemon to read its files again.
    Hangup,
}

/// Where a change stands.
#[derive(Debug)]
enum Phase {
    /// The daemon was started with these files and does not serve yet.
    Starting { trying: Files, fallback: Option<Files> },
    /// The daemon was asked to take the files that it has, and has not answered.
    Rehearsing,
    /// The daemon was asked to take these files, and has not answered.
    Trying(Files),
    /// Nothing is under way.
    Settled,
}

/// The state of one slurmctld's configuration. No keys are among the files.
#[derive(Debug)]
pub struct Transaction {
    phase: Phase,
    mounted: Files,
    active: Option<Files>,
    /// What has worked here, when this slurmctld was in charge.
    good: Option<Files>,
    /// What is kept.
    last_good: Option<Files>,
    verdict: Verdict,
    message: String,
    /// The daemon's process can refuse and stay in charge.
    rehearsed: bool,
    /// The daemon has not read its keys since they changed.
    rekeyed: bool,
    /// The daemon has not looked its users up since they changed.
    users_changed: bool,
    /// What the daemon is asked to take has other users with it, and whether they are the only change.
    users_tried: Option<Alone>,
}

/// Whether users change with nothing else.
type Alone = bool;

impl Transaction {
    /// At the container's start: the mounted files first, the last good ones if those do not work.
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

    /// Whether it has to be known what the daemon is now: in charge, or a standby.
    pub fn needs_role(&self) -> bool {
        match self.phase {
            Phase::Starting { .. } => true,
            Phase::Rehearsing | Phase::Trying(_) => false,
            Phase::Settled => self.verdict == Verdict::Pending || self.rekeyed || self.users_changed,
        }
    }

    /// The mounted files are these now.
    pub fn mounted(&mut self, files: Files) {
        if files != self.mounted {
            self.mounted = files;
            self.verdict = Verdict::Pending;
            self.message.clear();
        }
    }

    /// A key has changed that the daemon can take while it runs.
    pub fn rekey(&mut self) {
        self.rekeyed = true;
    }

    /// Users or groups have changed. The daemon keeps the members of groups in memory until it reads its files again.
    pub fn users(&mut self) {
        self.users_changed = true;
    }

    /// Whether the daemon still goes by an older key.
    pub fn is_rekeying(&self) -> bool {
        let other_users_alone = self.users_tried == Some(true);
        self.rekeyed || (matches!(self.phase, Phase::Trying(_)) && !other_users_alone)
    }

    /// Somebody asks to try once more what was refused.
    pub fn again(&mut self) {
        if self.verdict == Verdict::Refused {
            self.verdict = Verdict::Pending;
        }
    }

    /// The daemon serves, and is in charge.
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

    /// slurmctld reads keys and looks users up when it reads its files, so it is asked to take in those that it has.
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

    /// The daemon serves, and is in charge instead of another.
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
        // A start may fail for reasons that are not in the files, a name that does not resolve yet for one. Now a second
        // attempt costs nothing. What has a flaw does not get better.
        if self.mounted.flaw().is_none() {
            self.again();
        }
    }

    /// Whether the mounted files have to be tried, which only the daemon can answer.
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

    /// The daemon serves as a standby; the one in charge has accepted these files.
    pub fn standby(&mut self, accepted: Option<Files>) -> Vec<Step> {
        match &self.phase {
            Phase::Starting { trying, .. } => self.active = Some(trying.clone()),
            Phase::Settled => {}
            Phase::Rehearsing | Phase::Trying(_) => return Vec::new(),
        }
        self.phase = Phase::Settled;
        // What is good is for another to say now.
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

    /// The daemon has taken what it was asked to take.
    pub fn taken(&mut self) {
        match std::mem::replace(&mut self.phase, Phase::Settled) {
            Phase::Rehearsing => self.rehearsed = true,
            Phase::Trying(files) => {
                // The mounted files may have changed in the meantime; then they are next.
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

    /// The daemon went on with what it had and said why.
    pub fn refused(&mut self, why: &str) -> Vec<Step> {
        match std::mem::replace(&mut self.phase, Phase::Settled) {
            Phase::Rehearsing => self.refuse(why),
            Phase::Trying(files) => {
                if files == self.mounted {
                    self.refuse(why);
                }
                self.rehearsed = false;
                // The users are not at fault for files that do not work: they are next, with those that do.
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

    /// The daemon ended. Without an answer there is nothing left to try.
    pub fn ended(&mut self, why: &str) -> Option<Vec<Step>> {
        let Phase::Starting { fallback, .. } = &mut self.phase else {
            return None;
        };
        let good = fallback.take()?;
        self.refuse(why);
        Some(self.start(good, None))
    }

    /// The daemon was ended on purpose, to start anew as a standby with what it has.
    pub fn again_as_standby(&mut self) -> Vec<Step> {
        let files = self.active.clone().unwrap_or_else(|| self.mounted.clone());
        self.rehearsed = false;
        if self.verdict == Verdict::Applied {
            self.verdict = Verdict::Pending;
        }
        self.start(files, None)
    }

    /// Whether an answer is awaited.
    pub fn is_trying(&self) -> bool {
        matches!(self.phase, Phase::Rehearsing | Phase::Trying(_))
    }

    /// What is good but not kept yet.
    pub fn to_keep(&self) -> Option<&Files> {
        self.good
            .as_ref()
            .filter(|good| self.last_good.as_ref() != Some(good))
    }

    /// What was to be kept is kept.
    pub fn kept(&mut self) {
        self.last_good.clone_from(&self.good);
    }

    /// The report for those who ask.
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

/// What is told about the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The mounted files.
    pub candidate: String,
    /// What the daemon runs with.
    pub active: String,
    /// What a restart could fall back to.
    pub last_good: String,
    /// How the candidate fared.
    pub verdict: Verdict,
    /// Why it was refused.
    pub message: String,
}

#[cfg(test)]
mod tests;
