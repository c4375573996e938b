//! Why a pod does not come up, in Kubernetes' or its daemon's own words. Pure.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
use keelson_api::well_known::reason;

use crate::problem::Problem;

/// Every pod passes through these.
const PASSING: [&str; 2] = ["ContainerCreating", "PodInitializing"];
/// The container ended more than once, and waits to be started again.
const BACK_OFF: &str = "CrashLoopBackOff";

pub fn trouble(pod: &Pod) -> Option<Problem> {
    let status = pod.status.as_ref()?;
    let unscheduled = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
        .and_then(|condition| condition.message.clone())
        .map(held);
    let containers = [&status.init_container_statuses, &status.container_statuses];
    let mut troubled = containers
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(of_container);
    unscheduled.or_else(|| troubled.next())
}

fn held(message: String) -> Problem {
    Problem {
        reason: reason::POD_HELD,
        message,
    }
}

fn of_container(container: &ContainerStatus) -> Option<Problem> {
    if container.ready {
        return None;
    }
    let name = &container.name;
    let state = container.state.as_ref();
    let waiting = state.and_then(|state| state.waiting.as_ref());
    let why = waiting.and_then(|waiting| waiting.reason.as_deref());
    if let Some(why) = why.filter(|why| !PASSING.contains(why) && *why != BACK_OFF) {
        let message = waiting.and_then(|waiting| waiting.message.as_deref());
        let message = message.map(|message| format!(": {message}")).unwrap_or_default();
        return Some(held(format!("container {name} {why}{message}")));
    }
    // The same words while it has just ended, waits to be started again, or was started and is not ready yet: of
    // these it has one after the other, and nothing new happens.
    let ended = [state, container.last_state.as_ref()];
    let ended = ended
        .into_iter()
        .flatten()
        .find_map(|state| state.terminated.as_ref())?;
    (ended.exit_code != 0 || why == Some(BACK_OFF)).then(|| Problem {
        reason: reason::DAEMON_ENDED,
        message: format!("container {name} ended and is started again, {}", words_of(ended)),
    })
}

fn words_of(ended: &ContainerStateTerminated) -> String {
    match ended.message.as_deref().and_then(complaint) {
        Some(words) => format!("it said: {words}"),
        None => format!("it ended with status {}; see its log", ended.exit_code),
    }
}

/// The line that says best why a daemon of Slurm ended: the last fatal one, else the last error, else the last.
fn complaint(log: &str) -> Option<String> {
    let last = |word: &str| {
        log.lines().rev().find_map(|line| {
            let words = line.find(word).and_then(|at| line.get(at..))?;
            Some(words.trim_end().to_owned())
        })
    };
    let line = || log.lines().rev().map(str::trim).find(|line| !line.is_empty());
    last("fatal: ")
        .or_else(|| last("error: "))
        .or_else(|| line().map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::starting(json!({ "waiting": { "reason": "ContainerCreating" } }), json!({}), None)]
    #[case::running(json!({ "running": {} }), json!({}), None)]
    #[case::no_image(
        json!({ "waiting": { "reason": "ImagePullBackOff", "message": "no such image" } }),
        ended(1, "fatal: of another image"),
        Some((reason::POD_HELD, "container slurmd ImagePullBackOff: no such image"))
    )]
    #[case::crash(
        json!({ "waiting": { "reason": "CrashLoopBackOff", "message": "back-off 10s" } }),
        ended(1, ""),
        Some((reason::DAEMON_ENDED, "container slurmd ended and is started again, it ended with status 1; see its log"))
    )]
    #[case::crash_without_an_error(
        json!({ "waiting": { "reason": "CrashLoopBackOff" } }),
        ended(0, "bye\n"),
        Some((reason::DAEMON_ENDED, "container slurmd ended and is started again, it said: bye"))
    )]
    #[case::ended_as_it_should(json!({ "terminated": { "exitCode": 0 } }), json!({}), None)]
    #[case::has_just_ended(ended(1, FATAL), json!({}), Some((reason::DAEMON_ENDED, SAID)))]
    #[case::waits(json!({ "waiting": { "reason": "CrashLoopBackOff" } }), ended(1, FATAL), Some((reason::DAEMON_ENDED, SAID)))]
    #[case::tries_again(json!({ "running": {} }), ended(1, FATAL), Some((reason::DAEMON_ENDED, SAID)))]
    fn what_holds_a_container_up_is_told(
        #[case] state: Value,
        #[case] last: Value,
        #[case] expected: Option<(&str, &str)>,
    ) {
        let mut container = status(&state);
        container["lastState"] = last;
        let found = told(&json!({ "containerStatuses": [container] }));
        let found = found.as_ref().map(|found| (found.reason, found.message.as_str()));
        assert_eq!(found, expected);
        // One that came up has left it behind.
        container["ready"] = json!(true);
        assert_eq!(told(&json!({ "containerStatuses": [container] })), None);
    }

    #[test]
    fn a_pod_without_a_place_is_told_of() {
        let found = told(&json!({ "conditions": [
            { "type": "PodScheduled", "status": "False", "message": "2 Insufficient cpu" }] }));
        assert_eq!(found, Some(held("2 Insufficient cpu".to_owned())));
    }

    const FATAL: &str = "error: a\n[now] slurmd: fatal: Foo is unknown \nerror: b";
    const SAID: &str = "container slurmd ended and is started again, it said: fatal: Foo is unknown";

    fn ended(status: i32, message: &str) -> Value {
        json!({ "terminated": { "exitCode": status, "message": message } })
    }

    fn told(status: &Value) -> Option<Problem> {
        let pod: Pod = serde_json::from_value(json!({ "status": status })).unwrap();
        trouble(&pod)
    }

    fn status(state: &Value) -> Value {
        json!({ "name": "slurmd", "ready": false, "image": "", "imageID": "", "restartCount": 0, "state": state })
    }
}
