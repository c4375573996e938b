//! Computes the status of an Accounting. Pure.

use jiff::Timestamp;
use keelson_api::{
    AccountingStatus,
    status::Endpoint,
    well_known::{app, condition, reason},
};

use super::{
    build::Children,
    daemon::{self, Daemon},
    observe::{Live, Observed},
};
use crate::{
    conditions::{self, Finding},
    problem::Problem,
    teardown::Teardown,
};

/// Result of a reconcile.
#[derive(Debug)]
pub enum Outcome<'a> {
    /// Nothing could be built; what runs stays as it was.
    Blocked(&'a Problem),
    /// slurmdbd runs elsewhere.
    External,
    /// The children are up to date; these lines of the user's configuration have no effect.
    Applied(&'a [String]),
}

impl<'a> Outcome<'a> {
    /// `problem` is why the children were not built or not applied.
    pub fn of(
        built: &'a Result<Option<Children>, Problem>,
        problem: Option<&'a Problem>,
        teardown: &Teardown,
    ) -> Self {
        match (built, problem) {
            (Err(problem), _) if teardown.excuses(problem) => Self::Applied(&[]),
            (_, Some(problem)) | (Err(problem), None) => Self::Blocked(problem),
            (Ok(None), None) => Self::External,
            (Ok(Some(children)), None) => Self::Applied(&children.findings),
        }
    }
}

/// Returns the problem to report.
pub fn problem(observed: &Observed, outcome: &Outcome<'_>, now: Timestamp) -> Option<Problem> {
    match outcome {
        Outcome::Blocked(problem) => Some((*problem).clone()),
        Outcome::External => None,
        Outcome::Applied(unused) => trouble(observed, now).or_else(|| unused_lines(unused)),
    }
}

pub fn compute(
    observed: &Observed,
    outcome: &Outcome<'_>,
    teardown: &Teardown,
    now: Timestamp,
) -> AccountingStatus {
    let accounting = &observed.accounting;
    let before = accounting.status.clone().unwrap_or_default();
    let generation = accounting.metadata.generation;
    let mut findings = findings(observed, outcome, now);
    findings.extend(teardown.finding());
    AccountingStatus {
        observed_generation: generation,
        conditions: conditions::compute(&before.conditions, findings, generation, now),
        endpoints: vec![Endpoint {
            name: app::SLURMDBD.to_owned(),
            address: accounting.address().to_string(),
        }],
    }
}

fn findings(observed: &Observed, outcome: &Outcome<'_>, now: Timestamp) -> Vec<Finding> {
    let (ready, progressing) = match outcome {
        Outcome::Blocked(problem) => (
            not_ready(problem),
            settled("no changes will be made until this is fixed"),
        ),
        Outcome::External => {
            let address = observed.accounting.address();
            let message = format!("using the external slurmdbd at {address}");
            let ready = Finding::new(condition::READY, true, reason::EXTERNAL, message);
            (ready, settled(""))
        }
        Outcome::Applied(_) => {
            let daemon = daemon::of_pod(observed.live.pod.as_ref(), now);
            let ready = match trouble(observed, now) {
                Some(problem) => not_ready(&problem),
                None => readiness(observed, &daemon),
            };
            (ready, progress(&observed.live, &daemon))
        }
    };
    vec![
        ready,
        progressing,
        Finding::degraded(problem(observed, outcome, now)),
    ]
}

fn not_ready(Problem { reason, message }: &Problem) -> Finding {
    Finding::new(condition::READY, false, reason, message.clone())
}

fn settled(message: &str) -> Finding {
    Finding::new(condition::PROGRESSING, false, reason::AS_SPECIFIED, message)
}

fn readiness(observed: &Observed, daemon: &Daemon) -> Finding {
    match daemon {
        Daemon::Ready => {
            let message = format!("slurmdbd answers at {}", observed.accounting.address());
            Finding::new(condition::READY, true, reason::AS_SPECIFIED, message)
        }
        Daemon::Busy => {
            let last = observed.log.as_deref().and_then(daemon::last_line);
            let message = match last {
                Some(line) => format!("slurmdbd is not listening yet; last log line: {line}"),
                None => "slurmdbd is not listening yet; it is connecting to its database or converting it"
                    .to_owned(),
            };
            Finding::new(condition::READY, false, reason::STARTING, message)
        }
        _ => Finding::new(condition::READY, false, reason::STARTING, "slurmdbd is starting"),
    }
}

fn progress(live: &Live, daemon: &Daemon) -> Finding {
    let rolling = live.stateful_set.as_ref().is_some_and(|set| {
        let status = set.status.clone().unwrap_or_default();
        status.observed_generation < set.metadata.generation
            || status.current_revision != status.update_revision
    });
    if rolling {
        let message = "slurmdbd is restarting with the latest configuration";
        return Finding::new(condition::PROGRESSING, true, reason::ROLLING_OUT, message);
    }
    match daemon {
        Daemon::Starting | Daemon::Busy => Finding::new(
            condition::PROGRESSING,
            true,
            reason::STARTING,
            "slurmdbd is starting",
        ),
        Daemon::Troubled(_) | Daemon::Ready => settled(""),
    }
}

/// Returns why slurmdbd does not work, quoting slurmdbd or Kubernetes.
fn trouble(observed: &Observed, now: Timestamp) -> Option<Problem> {
    let log = observed.log.as_deref();
    let words = match daemon::of_pod(observed.live.pod.as_ref(), now) {
        Daemon::Starting => return None,
        Daemon::Troubled(why) if !daemon::is_about_the_database(&why) => return Some(why),
        Daemon::Troubled(why) => why.message,
        Daemon::Busy => log.and_then(daemon::refusal)?,
        Daemon::Ready => log.and_then(daemon::lost_connection)?,
    };
    Some(Problem {
        reason: reason::DATABASE_UNUSABLE,
        message: format!("slurmdbd cannot use {}: {words}", database(observed)),
    })
}

fn database(observed: &Observed) -> String {
    match &observed.accounting.spec.storage_config {
        Some(storage) => format!(
            "the database {} at {}:{}{}",
            storage.database(),
            storage.host,
            storage.port(),
            storage
                .username
                .as_ref()
                .map(|user| format!(" as user {user}"))
                .unwrap_or_default()
        ),
        None => "its database".to_owned(),
    }
}

fn unused_lines(unused: &[String]) -> Option<Problem> {
    (!unused.is_empty()).then(|| Problem::invalid(unused.join("; ")))
}
