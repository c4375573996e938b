//! Diagnoses why a pod does not come up, in the words of Kubernetes or of its daemon. Pure.
//!
//! Used for the pods of every kind. A pod that is starting has no problem, however long it takes; only its volumes and
//! its network should be ready soon.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodCondition};
use keelson_api::well_known::{container, reason};
use kube::ResourceExt;

use crate::problem::Problem;

/// Waiting reasons that every pod passes through.
const PASSING: [&str; 2] = ["ContainerCreating", "PodInitializing"];
/// The container terminated more than once and waits to be restarted.
const BACK_OFF: &str = "CrashLoopBackOff";

const UNMOUNTED: &str = "its volumes or network have not been ready for over a minute; see the events of the pod \
    (kubectl describe pod)";

/// How long the volumes and the network of a pod may take. Only an event says what they wait for.
const MOUNTED_WITHIN: SignedDuration = SignedDuration::from_mins(1);

/// Markers of a daemon's last log lines, the most informative first. MariaDB's is `[ERROR] `. The lines after `Usage: `
/// explain every option.
const TELLING: [&str; 5] = [
    "fatal: ",
    "error: ",
    "[ERROR] ",
    "unrecognized option ",
    "Usage: ",
];

/// What slurmdbd logs after each failed connection to its database at startup. It retries forever.
pub const TRIES_AGAIN: &str = "The database must be up when starting the MYSQL plugin";

/// Returns what holds one of these pods up.
pub fn among(pods: &[Arc<Pod>], now: Timestamp) -> Option<Problem> {
    let troubled = pods
        .iter()
        .filter_map(|pod| Some((pod.name_any(), diagnose(pod, now)?)));
    one_of(troubled.collect())
}

/// Returns the problem of one of these pods, with its name; most of the others have the same.
pub fn one_of(mut troubled: Vec<(String, Problem)>) -> Option<Problem> {
    // Always the same pod, in whatever order they were read.
    troubled.sort_by(|(one, _), (other, _)| one.cmp(other));
    let ((pod, Problem { reason, message }), others) = troubled.split_first()?;
    let others = match others.len() {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    Some(Problem {
        reason,
        message: format!("pod {pod}{others}: {message}"),
    })
}

/// Returns when to check again the pods that are not late yet, if nothing changes until then.
pub fn requeue_after(pods: &[Arc<Pod>], now: Timestamp) -> Option<Duration> {
    let due = pods.iter().filter_map(|pod| unmounted_since(pod));
    let left = due.map(|since| MOUNTED_WITHIN - now.duration_since(since));
    left.filter(SignedDuration::is_positive)
        .min()
        .and_then(|left| Duration::try_from(left).ok())
}

/// Returns since when the pod has been waiting for its volumes or its network.
fn unmounted_since(pod: &Pod) -> Option<Timestamp> {
    if is_leaving(pod) || condition(pod, "PodReadyToStartContainers")?.status != "False" {
        return None;
    }
    let scheduled = condition(pod, "PodScheduled").filter(|scheduled| scheduled.status == "True")?;
    scheduled.last_transition_time.as_ref().map(|time| time.0)
}

fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == kind)
}

/// Reports whether the pod is terminating or has finished: it gets a successor, or is not wanted.
fn is_leaving(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Failed" | "Succeeded")) || pod.metadata.deletion_timestamp.is_some()
}

pub fn diagnose(pod: &Pod, now: Timestamp) -> Option<Problem> {
    let status = pod.status.as_ref()?;
    if is_leaving(pod) {
        return None;
    }
    let unscheduled = condition(pod, "PodScheduled")
        .filter(|scheduled| scheduled.status == "False")
        .and_then(|scheduled| scheduled.message.clone())
        .map(held);
    let containers = [&status.init_container_statuses, &status.container_statuses];
    let mut troubled = containers
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(of_container);
    let unmounted = || {
        unmounted_since(pod)
            .filter(|since| now.duration_since(*since) >= MOUNTED_WITHIN)
            .map(|_| held(UNMOUNTED.to_owned()))
    };
    unscheduled.or_else(|| troubled.next()).or_else(unmounted)
}

fn held(message: String) -> Problem {
    Problem {
        reason: reason::POD_HELD,
        message,
    }
}

fn of_container(status: &ContainerStatus) -> Option<Problem> {
    if status.ready {
        return None;
    }
    let name = &status.name;
    // The sidecar and its daemon may create the same file at the same moment; one restart of the sidecar is normal.
    if name == container::LOGFILE && status.restart_count <= 1 {
        return None;
    }
    let state = status.state.as_ref();
    let waiting = state.and_then(|state| state.waiting.as_ref());
    let why = waiting.and_then(|waiting| waiting.reason.as_deref());
    if let Some(why) = why.filter(|why| !PASSING.contains(why) && *why != BACK_OFF) {
        let message = waiting.and_then(|waiting| waiting.message.as_deref());
        let message = message.map(|message| format!(": {message}")).unwrap_or_default();
        return Some(held(format!("container {name} {why}{message}")));
    }
    // The same message while the container has just terminated, waits to be restarted, or was restarted and is not
    // ready yet: it goes through these in turn, and nothing new happens.
    let ended = [state, status.last_state.as_ref()];
    let ended = ended
        .into_iter()
        .flatten()
        .find_map(|state| state.terminated.as_ref())?;
    (ended.exit_code != 0 || why == Some(BACK_OFF)).then(|| Problem {
        reason: reason::DAEMON_ENDED,
        message: format!(
            "container {name} terminated and is being restarted: {}",
            words_of(ended)
        ),
    })
}

/// Returns why the containers of a pod that has ended failed.
pub fn last_words(pod: &Pod) -> Option<String> {
    let mut containers = pod.status.as_ref()?.container_statuses.iter().flatten();
    let ended = containers.find_map(|status| {
        let ended = status.state.as_ref()?.terminated.as_ref()?;
        (ended.exit_code != 0).then_some(ended)
    })?;
    Some(words_of(ended))
}

fn words_of(ended: &ContainerStateTerminated) -> String {
    // Its earlier log lines are unrelated.
    if ended.reason.as_deref() == Some("OOMKilled") {
        return "it ran out of memory (OOMKilled): raise its memory limit".to_owned();
    }
    match ended.message.as_deref().and_then(complaint) {
        Some(words) => words,
        None => format!("exit status {}; see its log", ended.exit_code),
    }
}

/// Reports whether this is an error that every start logs and that means nothing, or one that only follows the error
/// that matters.
pub fn is_noise(line: &str) -> bool {
    ["chown(/dev/null", TRIES_AGAIN, "[ERROR] Aborting"]
        .iter()
        .any(|noise| line.contains(noise))
}

/// Returns the line that best says why a Slurm daemon terminated: the last of the most informative kind, else the last.
fn complaint(log: &str) -> Option<String> {
    let lines = || log.lines().rev().map(str::trim).filter(|line| !is_noise(line));
    let last = |word: &str| lines().find_map(|line| line.find(word).and_then(|at| line.get(at..)));
    TELLING
        .into_iter()
        .find_map(last)
        .or_else(|| lines().find(|line| !line.is_empty()))
        .map(str::to_owned)
}

#[cfg(test)]
pub mod tests {
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
        Some((reason::DAEMON_ENDED, "container slurmd terminated and is being restarted: exit status 1; see its log"))
    )]
    #[case::crash_without_an_error(
        json!({ "waiting": { "reason": "CrashLoopBackOff" } }),
        ended(0, "bye\n"),
        Some((reason::DAEMON_ENDED, "container slurmd terminated and is being restarted: bye"))
    )]
    #[case::ended_as_it_should(json!({ "terminated": { "exitCode": 0 } }), json!({}), None)]
    #[case::has_just_ended(ended(1, FATAL), json!({}), Some((reason::DAEMON_ENDED, SAID)))]
    #[case::waits(json!({ "waiting": { "reason": "CrashLoopBackOff" } }), ended(1, FATAL), Some((reason::DAEMON_ENDED, SAID)))]
    #[case::tries_again(json!({ "running": {} }), ended(1, FATAL), Some((reason::DAEMON_ENDED, SAID)))]
    #[case::noise(
        ended(1, "error: chown(/dev/null, 1, 1): no\nerror: refused\nerror: The database must be up when starting the MYSQL plugin.\n"),
        json!({}),
        Some((reason::DAEMON_ENDED, "container slurmd terminated and is being restarted: error: refused"))
    )]
    #[case::mariadb(
        ended(1, "2026-11-19 4:47:35 0 [ERROR] InnoDB: Cannot open './ibdata1'\n2026-11-19 4:47:35 0 [ERROR] Aborting\n"),
        json!({}),
        Some((
            reason::DAEMON_ENDED,
            "container slurmd terminated and is being restarted: [ERROR] InnoDB: Cannot open './ibdata1'"
        ))
    )]
    #[case::only_noise(ended(1, "slurmdbd: error: chown(/dev/null, 1, 1): no\n"), json!({}), Some((
        reason::DAEMON_ENDED,
        "container slurmd terminated and is being restarted: exit status 1; see its log"
    )))]
    #[case::mistaken_arguments(
        ended(1, "Usage: slurmctld [OPTIONS]\n  -V   Print version information and exit.\n"),
        json!({}),
        Some((reason::DAEMON_ENDED, "container slurmd terminated and is being restarted: Usage: slurmctld [OPTIONS]"))
    )]
    #[case::no_memory(
        json!({ "terminated": { "exitCode": 137, "reason": "OOMKilled", "message": "all is well" } }),
        json!({}),
        Some((
            reason::DAEMON_ENDED,
            "container slurmd terminated and is being restarted: it ran out of memory (OOMKilled): raise its memory limit"
        ))
    )]
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
        // A container that is ready has recovered.
        container["ready"] = json!(true);
        assert_eq!(told(&json!({ "containerStatuses": [container] })), None);
    }

    #[rstest]
    #[case::once("logfile", 1, None)]
    #[case::again_and_again("logfile", 2, Some(reason::DAEMON_ENDED))]
    #[case::the_daemon("slurmd", 1, Some(reason::DAEMON_ENDED))]
    fn the_log_container_may_restart_once(
        #[case] name: &str,
        #[case] restarts: i32,
        #[case] expected: Option<&str>,
    ) {
        let mut container = status(&json!({ "running": {} }));
        container["name"] = json!(name);
        container["restartCount"] = json!(restarts);
        container["lastState"] = ended(1, "");
        let found = told(&json!({ "containerStatuses": [container] }));
        assert_eq!(found.map(|found| found.reason), expected);
    }

    #[test]
    fn a_pod_without_a_place_is_told_of() {
        assert_eq!(told(&no_room()), Some(held("2 Insufficient cpu".to_owned())));
    }

    #[rstest]
    #[case::is_deleted(json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }), "Running")]
    #[case::was_evicted(json!({}), "Failed")]
    #[case::is_done(json!({}), "Succeeded")]
    fn one_that_is_on_its_way_out_is_no_trouble(#[case] metadata: Value, #[case] phase: &str) {
        let mut status = no_room();
        status["phase"] = json!(phase);
        let pod = json!({ "metadata": metadata, "status": status });
        assert_eq!(
            diagnose(&serde_json::from_value(pod).unwrap(), Timestamp::UNIX_EPOCH),
            None
        );
    }

    #[test]
    fn of_several_always_the_same_one_is_named() {
        let pod = |name: &str, status: &Value| {
            let pod = json!({ "metadata": { "name": name }, "status": status });
            Arc::new(serde_json::from_value(pod).unwrap())
        };
        let fine = pod("a", &json!({}));
        let (b, c) = (pod("b", &no_room()), pod("c", &no_room()));
        assert_eq!(among(&[Arc::clone(&fine)], Timestamp::UNIX_EPOCH), None);
        for order in [[&fine, &b, &c], [&c, &b, &fine]] {
            let found = among(&order.map(Arc::clone), Timestamp::UNIX_EPOCH).unwrap();
            assert_eq!(found, held("pod b (and 1 more): 2 Insufficient cpu".to_owned()));
        }
    }

    #[rstest]
    #[case::not_yet("False", 59, None, Some(1))]
    #[case::too_long("False", 60, Some(UNMOUNTED), None)]
    #[case::mounted("True", 60, None, None)]
    fn a_pod_without_its_volumes_is_told_of_after_a_while(
        #[case] mounted: &str,
        #[case] seconds: i64,
        #[case] expected: Option<&str>,
        #[case] look_in: Option<u64>,
    ) {
        let status = json!({ "conditions": [
            { "type": "PodScheduled", "status": "True", "lastTransitionTime": "1970-01-01T00:00:00Z" },
            { "type": "PodReadyToStartContainers", "status": mounted },
        ] });
        let pod: Arc<Pod> = Arc::new(serde_json::from_value(json!({ "status": status })).unwrap());
        let now = Timestamp::from_second(seconds).unwrap();
        assert_eq!(
            diagnose(&pod, now).map(|problem| problem.message).as_deref(),
            expected
        );
        assert_eq!(requeue_after(&[pod], now), look_in.map(Duration::from_secs));
    }

    /// Returns a pod whose daemon keeps terminating with this error.
    pub fn crashing(name: &str, complaint: &str) -> Arc<Pod> {
        let mut container = status(&json!({ "waiting": { "reason": BACK_OFF } }));
        container["lastState"] = ended(1, complaint);
        let pod = json!({ "metadata": { "name": name }, "status": { "containerStatuses": [container] } });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn no_room() -> Value {
        json!({ "conditions": [{ "type": "PodScheduled", "status": "False", "message": "2 Insufficient cpu" }] })
    }

    const FATAL: &str = "error: a\n[now] slurmd: fatal: Foo is unknown \nerror: b";
    const SAID: &str = "container slurmd terminated and is being restarted: fatal: Foo is unknown";

    fn ended(status: i32, message: &str) -> Value {
        json!({ "terminated": { "exitCode": status, "message": message } })
    }

    fn told(status: &Value) -> Option<Problem> {
        let pod: Pod = serde_json::from_value(json!({ "status": status })).unwrap();
        diagnose(&pod, Timestamp::UNIX_EPOCH)
    }

    fn status(state: &Value) -> Value {
        json!({ "name": "slurmd", "ready": false, "image": "", "imageID": "", "restartCount": 0, "state": state })
    }
}
