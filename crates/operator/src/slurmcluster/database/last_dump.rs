//! What the last dump came to. Pure.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::{batch::v1::CronJob, core::v1::Pod};
use keelson_api::well_known::reason;
use kube::ResourceExt;

use crate::{pod_diagnosis, problem::Problem};

/// Returns what is wrong with the dumps. `pods` are those of this `CronJob`; Kubernetes keeps them until later ones have
/// ended.
pub fn problem(cron_job: &CronJob, pods: &[Arc<Pod>], now: Timestamp) -> Option<Problem> {
    let failed = |message: String| Problem {
        reason: reason::DUMP_FAILED,
        message,
    };
    let waiting: Vec<Arc<Pod>> = pods
        .iter()
        .filter(|pod| phase(pod) == Some("Pending"))
        .cloned()
        .collect();
    if let Some(held) = pod_diagnosis::among(&waiting, now) {
        return Some(failed(format!(
            "a dump of the database does not start: {}",
            held.message
        )));
    }
    let status = cron_job.status.clone().unwrap_or_default();
    let scheduled = status.last_schedule_time.map(|time| time.0);
    let succeeded = status.last_successful_time.map(|time| time.0);
    let last = pods
        .iter()
        .filter(|pod| has_ended(pod))
        .max_by_key(|pod| (pod.creation_timestamp(), pod.name_any()));
    let started = last.and_then(|pod| pod.creation_timestamp()).map(|time| time.0);
    match last {
        // One that a person started may have succeeded on a node that is gone by now, with its pod.
        Some(pod) if phase(pod) == Some("Failed") && succeeded < started => {
            let words = pod_diagnosis::last_words(pod);
            let words = words.map(|words| format!(": {words}")).unwrap_or_default();
            Some(failed(format!(
                "the last dump of the database failed in pod {}{words}",
                pod.name_any()
            )))
        }
        // The CronJob does not say so at once.
        Some(pod) if phase(pod) == Some("Succeeded") && started >= scheduled => None,
        // The pods of a dump that took too long are deleted.
        _ if status.active.is_none_or(|active| active.is_empty()) && succeeded < scheduled => {
            Some(failed("the last dump of the database failed".to_owned()))
        }
        _ => None,
    }
}

fn phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}

fn has_ended(pod: &Pod) -> bool {
    matches!(phase(pod), Some("Failed" | "Succeeded"))
}
