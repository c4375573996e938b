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

/// What slurmdbd says behind every failed attempt; the line before it has the cause.
const TRIES_AGAIN: &str = "The database must be up when starting the MYSQL plugin";

/// The line of a log that says best what is wrong: the last fatal one, else the last error.
pub fn complaint(log: &str) -> Option<String> {
    let last = |word: &str| {
        log.lines()
            .rev()
            .filter(|line| !line.contains(TRIES_AGAIN))
            .find_map(|line| line.find(word).and_then(|at| line.get(at..)))
            .map(|line| line.trim_end().to_owned())
    };
    last("fatal: ").or_else(|| last("error: "))
}

/// The last line of a log, without the time before it.
pub fn last_line(log: &str) -> Option<&str> {
    let line = log.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    let text = match line.split_once("] ") {
        Some((time, text)) if time.starts_with('[') => text,
        _ => line,
    };
    Some(text.strip_prefix("slurmdbd: ").unwrap_or(text))
}

/// Whether a complaint is about the database, which somebody else may be responsible for.
pub fn is_about_the_database(complaint: &str) -> bool {
    complaint.to_ascii_lowercase().contains("mysql") || complaint.contains("atabase")
}
