//! Why a pod does not come up, in Kubernetes' own words. Pure.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

/// Every pod passes through these.
const PASSING: [&str; 2] = ["ContainerCreating", "PodInitializing"];

pub fn trouble(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let unscheduled = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
        .and_then(|condition| condition.message.clone());
    let containers = [&status.init_container_statuses, &status.container_statuses];
    let mut waiting = containers.into_iter().flatten().flatten().filter_map(waits);
    unscheduled.or_else(|| waiting.next())
}

fn waits(container: &ContainerStatus) -> Option<String> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting
        .reason
        .as_deref()
        .filter(|reason| !PASSING.contains(reason))?;
    let ended = container
        .last_state
        .as_ref()
        .and_then(|state| state.terminated.as_ref());
    // Of a container that ends again and again Kubernetes tells how long it waits now, which is of no use.
    let why = match (ended, &waiting.message) {
        (Some(ended), _) => match ended.message.as_deref().and_then(complaint) {
            Some(words) => format!(", it said: {words}"),
            None => format!(", it ended with status {}; see its log", ended.exit_code),
        },
        (None, Some(message)) => format!(": {message}"),
        (None, None) => String::new(),
    };
    Some(format!("container {} {reason}{why}", container.name))
}

/// The line that says best why a daemon of Slurm ended: the last fatal one, else the last error.
fn complaint(log: &str) -> Option<String> {
    let last = |word: &str| {
        log.lines().rev().find_map(|line| {
            let words = line.find(word).and_then(|at| line.get(at..))?;
            Some(words.trim_end().to_owned())
        })
    };
    last("fatal: ").or_else(|| last("error: "))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::starting(json!({ "containerStatuses": [status(&json!({ "waiting": { "reason": "ContainerCreating" } }))] }), None)]
    #[case::running(json!({ "containerStatuses": [status(&json!({ "running": {} }))] }), None)]
    #[case::no_room(
        json!({ "conditions": [{ "type": "PodScheduled", "status": "False", "message": "2 Insufficient cpu" }] }),
        Some("2 Insufficient cpu")
    )]
    #[case::no_image(
        json!({ "containerStatuses": [status(&json!({ "waiting": { "reason": "ImagePullBackOff", "message": "no such image" } }))] }),
        Some("container slurmd ImagePullBackOff: no such image")
    )]
    #[case::crash(
        json!({ "containerStatuses": [{ "name": "slurmd", "ready": false, "image": "", "imageID": "", "restartCount": 1,
            "state": { "waiting": { "reason": "CrashLoopBackOff", "message": "back-off 10s" } },
            "lastState": { "terminated": { "exitCode": 1 } } }] }),
        Some("container slurmd CrashLoopBackOff, it ended with status 1; see its log")
    )]
    #[case::crash_with_words(
        json!({ "containerStatuses": [{ "name": "slurmrestd", "ready": false, "image": "", "imageID": "", "restartCount": 1,
            "state": { "waiting": { "reason": "CrashLoopBackOff" } },
            "lastState": { "terminated": { "exitCode": 1, "message": "error: a\n[now] slurmrestd: fatal: Foo is unknown \nerror: b" } } }] }),
        Some("container slurmrestd CrashLoopBackOff, it said: fatal: Foo is unknown")
    )]
    fn what_holds_a_pod_up_is_told(#[case] status: Value, #[case] expected: Option<&str>) {
        let pod: Pod = serde_json::from_value(json!({ "status": status })).unwrap();
        assert_eq!(trouble(&pod).as_deref(), expected);
    }

    fn status(state: &Value) -> Value {
        json!({ "name": "slurmd", "ready": false, "image": "", "imageID": "", "restartCount": 0, "state": state })
    }
}
