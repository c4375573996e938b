//! What slurmdbd's pod tells about slurmdbd. Pure.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
use keelson_api::well_known::container;
use kube::ResourceExt;

/// How far slurmdbd came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Daemon {
    /// It is on its way, and Kubernetes has nothing to complain about.
    Starting,
    /// Kubernetes cannot start it, in its own words.
    Held(String),
    /// It ended, with these last words, and is started again after a pause.
    Ended(String),
    /// It runs but does not listen: it waits for its database or converts it.
    Busy,
    Ready,
}

/// Reasons for which a container waits that a person has to do something about.
const HELD: [&str; 7] = [
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
];

pub fn of_pod(pod: Option<&Pod>) -> Daemon {
    let Some(pod) = pod.filter(|pod| pod.metadata.deletion_timestamp.is_none()) else {
        return Daemon::Starting;
    };
    let status = pod.status.as_ref();
    let container = status
        .and_then(|status| status.container_statuses.as_ref())
        .and_then(|all| all.iter().find(|one| one.name == container::SLURMDBD));
    match container {
        Some(container) => of_container(container),
        None => unschedulable(pod).map_or(Daemon::Starting, Daemon::Held),
    }
}

fn of_container(container: &ContainerStatus) -> Daemon {
    if container.ready {
        return Daemon::Ready;
    }
    let state = container.state.as_ref();
    if state.is_some_and(|state| state.running.is_some()) {
        return Daemon::Busy;
    }
    let waiting = state.and_then(|state| state.waiting.as_ref());
    if let Some(waiting) = waiting
        && let Some(reason) = waiting.reason.as_deref().filter(|reason| HELD.contains(reason))
    {
        let message = waiting.message.as_deref().unwrap_or("no more is known");
        return Daemon::Held(format!("{reason}: {message}"));
    }
    let ended = |state: Option<&k8s_openapi::api::core::v1::ContainerState>| {
        state.and_then(|state| state.terminated.clone())
    };
    ended(state)
        .or_else(|| ended(container.last_state.as_ref()))
        .map_or(Daemon::Starting, |end| Daemon::Ended(last_words(&end)))
}

fn last_words(end: &ContainerStateTerminated) -> String {
    end.message
        .as_deref()
        .and_then(complaint)
        .unwrap_or_else(|| match end.reason.as_deref() {
            Some(reason) if reason != "Error" => format!("{reason}, exit status {}", end.exit_code),
            _ => format!("exit status {}", end.exit_code),
        })
}

fn unschedulable(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
        .map(|condition| {
            format!(
                "pod {} cannot be scheduled: {}",
                pod.name_any(),
                condition.message.as_deref().unwrap_or("no more is known")
            )
        })
}

/// The driver's words when the database cannot be reached or refuses the user.
const NOT_CONNECTED: &str = "mysql_real_connect failed";
/// What slurmdbd says behind each attempt while it starts. It goes on for ever.
const TRIES_AGAIN: &str = "The database must be up when starting the MYSQL plugin";
/// Complaints that every start has and that mean nothing.
const NOISE: [&str; 2] = ["chown(/dev/null", TRIES_AGAIN];

/// The line of an ended slurmdbd's log that says best what was wrong: the last fatal one, else the last error.
fn complaint(log: &str) -> Option<String> {
    let last = |word: &str| {
        log.lines()
            .rev()
            .filter(|line| !NOISE.iter().any(|noise| line.contains(noise)))
            .find_map(|line| from(word, line))
    };
    last("fatal: ").or_else(|| last("error: "))
}

/// Why a slurmdbd that starts does not get on: it is at its database just now, in vain.
pub fn refusal(log: &str) -> Option<String> {
    let mut lines = log.lines().rev().filter(|line| !line.trim().is_empty());
    let last = lines.next()?;
    if last.contains(TRIES_AGAIN) {
        lines.find_map(|line| from("error: ", line))
    } else {
        lost_connection(last)
    }
}

/// Whether a slurmdbd that listens found its database gone since it started, going by what it said of late.
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

/// The last line of a log, without the time before it.
pub fn last_line(log: &str) -> Option<&str> {
    let said = |line: &&str| !line.is_empty() && !NOISE.iter().any(|noise| line.contains(noise));
    let line = log.lines().rev().map(str::trim).find(said)?;
    let text = match line.split_once("] ") {
        Some((time, text)) if time.starts_with('[') => text,
        _ => line,
    };
    Some(text.strip_prefix("slurmdbd: ").unwrap_or(text))
}

/// Whether an end is about the database, which somebody else may be responsible for.
pub fn is_about_the_database(complaint: &str) -> bool {
    complaint.to_ascii_lowercase().contains("mysql") || complaint.contains("atabase")
}
