//! What to do about a changed configuration: the decisions, without the doing.
//!
//! slurmctld takes a new configuration whole or not at all: on SIGHUP a new process reads it and takes over, or it
//! gives up and the old one goes on. So a candidate is tried, and what was refused is taken away again, so that a
//! restart never meets a file that does not work.

use crate::files::Files;

/// How the last candidate fared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is in use.
    Applied,
    /// It was tried and does not work.
    Refused,
    /// It is being tried, or waits for the primary to try it.
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

/// Something that the manager is to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Put these files where the daemon reads them.
    Install(Files),
    /// Keep these as the last that worked.
    Keep(Files),
    /// Start the daemon.
    Start,
    /// Ask the daemon to read its files again.
    Hangup,
    /// End with the daemon's status: nothing is left to try.
    GiveUp,
}

/// Where a change stands.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// The daemon was started with these files and has not said that it is ready.
    Starting { trying: Files, fallback: Option<Files> },
    /// Nothing is under way.
    Settled,
    /// The daemon was asked to take these files.
    Trying(Files),
}

/// The state of one slurmctld's configuration.
#[derive(Debug)]
pub struct Transaction {
    phase: Phase,
    mounted: Files,
    active: Option<Files>,
    last_good: Option<Files>,
    verdict: Verdict,
    message: String,
}

impl Transaction {
    /// At the container's start: the mounted files first, the last good ones if those do not work.
    pub fn begin(mounted: Files, last_good: Option<Files>) -> (Self, Vec<Step>) {
        let fallback = last_good.clone().filter(|good| good.hash() != mounted.hash());
        let steps = vec![Step::Install(mounted.clone()), Step::Start];
        let phase = Phase::Starting {
            trying: mounted.clone(),
            fallback,
        };
        (
            Self {
                phase,
                mounted,
                active: None,
                last_good,
                verdict: Verdict::Pending,
                message: String::new(),
            },
            steps,
        )
    }

    /// The daemon said that it is ready: what it was given works.
    pub fn ready(&mut self) -> Vec<Step> {
        let taken = match std::mem::replace(&mut self.phase, Phase::Settled) {
            Phase::Starting { trying, .. } | Phase::Trying(trying) => trying,
            Phase::Settled => return Vec::new(),
        };
        // A start with the last good files, after the mounted ones failed, leaves the refusal standing.
        if taken.hash() == self.mounted.hash() {
            self.verdict = Verdict::Applied;
            self.message.clear();
        }
        self.active = Some(taken.clone());
        let keep = taken.without_keys();
        if self.last_good.as_ref().map(Files::hash) == Some(keep.hash()) {
            return Vec::new();
        }
        self.last_good = Some(keep.clone());
        vec![Step::Keep(keep)]
    }

    /// The daemon went on with what it had and said why.
    pub fn refused(&mut self, why: &str) -> Vec<Step> {
        let Phase::Trying(_) = self.phase else {
            return Vec::new();
        };
        self.phase = Phase::Settled;
        self.verdict = Verdict::Refused;
        why.clone_into(&mut self.message);
        self.active.clone().map(Step::Install).into_iter().collect()
    }

    /// The daemon ended.
    pub fn ended(&mut self, why: &str) -> Vec<Step> {
        match std::mem::replace(&mut self.phase, Phase::Settled) {
            Phase::Starting {
                fallback: Some(good), ..
            } => {
                self.verdict = Verdict::Refused;
                why.clone_into(&mut self.message);
                let files = good.with_keys_of(&self.mounted);
                self.phase = Phase::Starting {
                    trying: files.clone(),
                    fallback: None,
                };
                vec![Step::Install(files), Step::Start]
            }
            Phase::Starting { fallback: None, .. } | Phase::Settled | Phase::Trying(_) => vec![Step::GiveUp],
        }
    }

    /// The mounted files are these now. `may_try` is false on a standby, which waits for what the primary accepted.
    pub fn mounted(&mut self, files: Files, may_try: bool) -> Vec<Step> {
        let known = files.hash() == self.mounted.hash();
        if !matches!(self.phase, Phase::Settled) || (known && self.verdict != Verdict::Pending) {
            return Vec::new();
        }
        self.mounted = files.clone();
        if self.active.as_ref().map(Files::hash) == Some(files.hash()) {
            self.verdict = Verdict::Applied;
            self.message.clear();
            return Vec::new();
        }
        self.verdict = Verdict::Pending;
        self.message.clear();
        if !may_try {
            return Vec::new();
        }
        self.phase = Phase::Trying(files.clone());
        vec![Step::Install(files), Step::Hangup]
    }

    /// On a standby: the primary has accepted these.
    pub fn accepted_elsewhere(&mut self, files: &Files) -> Vec<Step> {
        let settled = matches!(self.phase, Phase::Settled);
        if !settled || self.active.as_ref().map(Files::hash) == Some(files.hash()) {
            return Vec::new();
        }
        let files = files.with_keys_of(&self.mounted);
        self.last_good = Some(files.without_keys());
        self.phase = Phase::Trying(files.clone());
        vec![Step::Install(files), Step::Hangup]
    }

    /// Whether a verdict is awaited.
    pub fn is_trying(&self) -> bool {
        matches!(self.phase, Phase::Trying(_))
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
mod tests {
    use super::*;
    use crate::files::tests::files;

    fn conf(text: &str) -> Files {
        files(&[("slurm.conf", text), ("slurm.key", "k")])
    }

    fn running(text: &str) -> Transaction {
        let (mut transaction, _) = Transaction::begin(conf(text), None);
        transaction.ready();
        transaction
    }

    #[test]
    fn the_first_start_keeps_what_worked() {
        let (mut transaction, steps) = Transaction::begin(conf("1"), None);
        assert_eq!(steps, [Step::Install(conf("1")), Step::Start]);
        assert_eq!(transaction.ready(), [Step::Keep(conf("1").without_keys())]);
        assert_eq!(transaction.report().verdict, Verdict::Applied);
    }

    #[test]
    fn a_first_start_that_fails_gives_up() {
        let (mut transaction, _) = Transaction::begin(conf("bad"), None);
        assert_eq!(transaction.ended("fatal: no"), [Step::GiveUp]);
    }

    #[test]
    fn a_start_with_bad_files_falls_back_and_says_so() {
        let good = conf("1").without_keys();
        let (mut transaction, _) = Transaction::begin(conf("bad"), Some(good));
        assert_eq!(
            transaction.ended("fatal: no"),
            [Step::Install(conf("1")), Step::Start]
        );
        assert_eq!(transaction.ready(), []);
        let report = transaction.report();
        assert_eq!(
            (report.verdict, report.message.as_str()),
            (Verdict::Refused, "fatal: no")
        );
        assert_eq!(report.active, conf("1").hash());
        assert_eq!(report.candidate, conf("bad").hash());
    }

    #[test]
    fn a_fallback_that_fails_too_gives_up() {
        let (mut transaction, _) = Transaction::begin(conf("bad"), Some(conf("1").without_keys()));
        transaction.ended("fatal: no");
        assert_eq!(transaction.ended("fatal: still no"), [Step::GiveUp]);
    }

    #[test]
    fn a_good_change_is_tried_and_kept() {
        let mut transaction = running("1");
        assert_eq!(
            transaction.mounted(conf("2"), true),
            [Step::Install(conf("2")), Step::Hangup]
        );
        assert_eq!(transaction.report().verdict, Verdict::Pending);
        assert_eq!(transaction.ready(), [Step::Keep(conf("2").without_keys())]);
        assert_eq!(transaction.report().verdict, Verdict::Applied);
    }

    #[test]
    fn a_bad_change_is_taken_back_and_not_tried_again() {
        let mut transaction = running("1");
        transaction.mounted(conf("bad"), true);
        assert_eq!(transaction.refused("fatal: bad"), [Step::Install(conf("1"))]);
        assert_eq!(transaction.mounted(conf("bad"), true), []);
        let report = transaction.report();
        assert_eq!(
            (report.verdict, report.message.as_str()),
            (Verdict::Refused, "fatal: bad")
        );
        assert_eq!(report.last_good, conf("1").hash());
        // Taking the change back is all it needs.
        assert_eq!(transaction.mounted(conf("1"), true), []);
        assert_eq!(transaction.report().verdict, Verdict::Applied);
    }

    #[test]
    fn a_change_in_the_middle_of_another_waits_its_turn() {
        let mut transaction = running("1");
        transaction.mounted(conf("2"), true);
        assert_eq!(transaction.mounted(conf("3"), true), []);
        transaction.ready();
        assert_eq!(
            transaction.mounted(conf("3"), true),
            [Step::Install(conf("3")), Step::Hangup]
        );
    }

    #[test]
    fn a_standby_waits_for_the_primary() {
        let mut transaction = running("1");
        assert_eq!(transaction.mounted(conf("2"), false), []);
        assert_eq!(transaction.report().verdict, Verdict::Pending);
        let accepted = conf("2").without_keys();
        assert_eq!(
            transaction.accepted_elsewhere(&accepted),
            [Step::Install(conf("2")), Step::Hangup]
        );
        transaction.ready();
        assert_eq!(transaction.report().verdict, Verdict::Applied);
        // The primary died before it tried: whoever is primary now does.
        let mut transaction = running("1");
        transaction.mounted(conf("2"), false);
        assert_eq!(
            transaction.mounted(conf("2"), true),
            [Step::Install(conf("2")), Step::Hangup]
        );
    }

    #[test]
    fn a_changed_key_alone_is_no_change() {
        let mut transaction = running("1");
        let rotated = files(&[("slurm.conf", "1"), ("slurm.key", "other")]);
        assert_eq!(transaction.mounted(rotated, true), []);
    }

    #[test]
    fn a_crash_later_on_ends_the_container() {
        let mut transaction = running("1");
        assert_eq!(transaction.ended("fatal: disk"), [Step::GiveUp]);
    }
}
