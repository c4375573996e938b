//! Derives the state of slurmdbd from its pod and its log. Pure.

use std::{slice, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use keelson_api::well_known::{container, reason};
use slurm_conf::container::DATABASE_ERROR;

use crate::{
    pod_diagnosis::{self, TRIES_AGAIN},
    problem::Problem,
};

/// State of slurmdbd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Daemon {
    /// slurmdbd is starting, and Kubernetes reports no problem.
    Starting,
    /// slurmdbd terminated and is restarted after a back-off, or Kubernetes cannot start it.
    Troubled(Problem),
    /// slurmdbd runs but does not listen: it waits for its database or converts it. This may take hours and is not an
    /// error, even if slurmdbd terminated before.
    Busy,
    Ready,
}

pub fn of_pod(pod: Option<&Arc<Pod>>, now: Timestamp) -> Daemon {
    let Some(pod) = pod.filter(|pod| pod.metadata.deletion_timestamp.is_none()) else {
        return Daemon::Starting;
    };
    let slurmdbd = container(pod);
    if slurmdbd.is_some_and(|slurmdbd| slurmdbd.ready) {
        return Daemon::Ready;
    }
    let state = slurmdbd.and_then(|slurmdbd| slurmdbd.state.as_ref());
    if state.is_some_and(|state| state.running.is_some()) {
        return Daemon::Busy;
    }
    pod_diagnosis::among(slice::from_ref(pod), now).map_or(Daemon::Starting, Daemon::Troubled)
}

fn container(pod: &Pod) -> Option<&ContainerStatus> {
    let all = pod.status.as_ref()?.container_statuses.as_ref()?;
    all.iter().find(|one| one.name == container::SLURMDBD)
}

/// The database client's error when the database is unreachable or rejects the user.
const NOT_CONNECTED: &str = "mysql_real_connect failed";
/// Returns why a starting slurmdbd makes no progress, if it is failing to connect to its database right now.
pub fn refusal(log: &str) -> Option<String> {
    let mut lines = log.lines().rev().filter(|line| !line.trim().is_empty());
    let last = lines.next()?;
    if last.contains(TRIES_AGAIN) {
        lines.find_map(|line| from("error: ", line))
    } else if last.contains(DATABASE_ERROR) {
        from("error: ", last)
    } else {
        lost_connection(last)
    }
}

/// Returns the error of a listening slurmdbd that has lost its database since it started, going by its recent log.
pub fn lost_connection(log: &str) -> Option<String> {
    log.lines()
        .rev()
        .take_while(|line| !(line.contains("slurmdbd version") && line.contains("started")))
        .find(|line| line.contains(NOT_CONNECTED))
        .and_then(|line| from("error: ", line))
}

fn from(word: &str, line: &str) -> Option<String> {
    line.find(word)
        .and_then(|at| line.get(at..))
        .map(|text| text.trim_end().to_owned())
}

/// Returns the last meaningful line of a log, without its timestamp.
pub fn last_line(log: &str) -> Option<&str> {
    let said = |line: &&str| !line.is_empty() && !pod_diagnosis::is_noise(line);
    let line = log.lines().rev().map(str::trim).find(said)?;
    let text = match line.split_once("] ") {
        Some((time, text)) if time.starts_with('[') => text,
        _ => line,
    };
    Some(text.strip_prefix("slurmdbd: ").unwrap_or(text))
}

/// Reports whether slurmdbd terminated because of the database, which may be someone else's responsibility.
pub fn is_about_the_database(Problem { reason, message }: &Problem) -> bool {
    *reason == reason::DAEMON_ENDED
        && (message.to_ascii_lowercase().contains("mysql") || message.contains("atabase"))
}
