//! Progress of a StatefulSet or Deployment, worded for users. Pure.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, StatefulSet},
        core::v1::Pod,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use keelson_api::well_known::{condition, reason};

use crate::{conditions::Finding, pod_diagnosis};

/// What Kubernetes reports about a workload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Workload {
    pub replicas: i32,
    pub ready: i32,
    /// Pods of the latest template; 0 until Kubernetes has observed that template.
    updated: i32,
}

/// Returns the pod metadata in the template of a StatefulSet.
pub fn stateful_set_template(set: Option<&StatefulSet>) -> Option<&ObjectMeta> {
    set?.spec.as_ref()?.template.metadata.as_ref()
}

/// Returns the pod metadata in the template of a Deployment.
pub fn deployment_template(deployment: Option<&Deployment>) -> Option<&ObjectMeta> {
    deployment?.spec.as_ref()?.template.metadata.as_ref()
}

impl From<Option<&Deployment>> for Workload {
    fn from(deployment: Option<&Deployment>) -> Self {
        let Some(deployment) = deployment else {
            return Self::default();
        };
        let status = deployment.status.clone().unwrap_or_default();
        let seen = status.observed_generation >= deployment.metadata.generation;
        Self {
            replicas: status.replicas.unwrap_or(0),
            ready: status.ready_replicas.unwrap_or(0),
            updated: status.updated_replicas.filter(|_| seen).unwrap_or(0),
        }
    }
}

impl From<Option<&StatefulSet>> for Workload {
    fn from(set: Option<&StatefulSet>) -> Self {
        let Some(set) = set else { return Self::default() };
        let status = set.status.clone().unwrap_or_default();
        let seen = status.observed_generation >= set.metadata.generation;
        Self {
            replicas: status.replicas,
            ready: status.ready_replicas.unwrap_or(0),
            updated: status.updated_replicas.filter(|_| seen).unwrap_or(0),
        }
    }
}

impl Workload {
    /// Returns the Ready condition, with the problem of one pod that is not ready; most of the others have the same.
    pub fn readiness(self, daemon: &str, wanted: i32, pods: &[Arc<Pod>], now: Timestamp) -> Finding {
        let mut message = format!("{} of {wanted} {daemon} ready", self.ready);
        let holds = self.ready > 0 || wanted == 0;
        if self.ready < wanted {
            if let Some(why) = pod_diagnosis::among(pods, now) {
                message = format!("{message}; {}", why.message);
            }
            return Finding::new(condition::READY, holds, reason::STARTING, message);
        }
        if self.updated < wanted {
            message.push_str(", rolling out the latest pod template");
            return Finding::new(condition::READY, holds, reason::ROLLING_OUT, message);
        }
        Finding::new(condition::READY, holds, reason::AS_SPECIFIED, message)
    }

    /// Reports whether all existing pods have the latest template and are ready.
    pub fn is_settled(self) -> bool {
        self.replicas > 0 && self.ready >= self.replicas && self.updated >= self.replicas
    }

    /// Returns the Progressing condition: whether pods are starting or being replaced.
    pub fn progress(self, daemon: &str, wanted: i32) -> Finding {
        let (reason, message) = if self.ready < wanted {
            (
                reason::STARTING,
                format!("{} {daemon} starting", wanted - self.ready),
            )
        } else if self.updated < wanted {
            let old = wanted - self.updated;
            (
                reason::ROLLING_OUT,
                format!("{old} {daemon} still to be updated to the latest pod template"),
            )
        } else if self.replicas > wanted {
            // A Deployment keeps the old pods until the new ones are ready.
            let more = self.replicas - wanted;
            (
                reason::ROLLING_OUT,
                format!("{more} old {daemon} running until the updated ones are ready"),
            )
        } else {
            return Finding::settled();
        };
        Finding::new(condition::PROGRESSING, true, reason, message)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn deployment(generation: i64, status: &Value) -> Workload {
        let deployment = json!({ "metadata": { "generation": generation }, "status": status });
        Workload::from(Some(&serde_json::from_value::<Deployment>(deployment).unwrap()))
    }

    fn stuck(name: &str) -> Arc<Pod> {
        let status =
            json!({ "conditions": [{ "type": "PodScheduled", "status": "False", "message": "no room" }] });
        let pod = json!({ "metadata": { "name": name }, "status": status });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    #[rstest]
    #[case::none(0, 2, false, reason::STARTING, "0 of 2 x ready; pod a (and 1 more): no room")]
    #[case::some(1, 2, true, reason::STARTING, "1 of 2 x ready; pod a (and 1 more): no room")]
    #[case::all(2, 2, true, reason::AS_SPECIFIED, "2 of 2 x ready")]
    #[case::old_ones(
        2,
        1,
        true,
        reason::ROLLING_OUT,
        "2 of 2 x ready, rolling out the latest pod template"
    )]
    fn readiness_names_what_is_missing(
        #[case] ready: i32,
        #[case] updated: i32,
        #[case] holds: bool,
        #[case] reason: &'static str,
        #[case] message: &str,
    ) {
        let status = json!({ "observedGeneration": 1, "replicas": 2, "readyReplicas": ready, "updatedReplicas": updated });
        let found =
            deployment(1, &status).readiness("x", 2, &[stuck("a"), stuck("b")], Timestamp::UNIX_EPOCH);
        assert_eq!(found, Finding::new(condition::READY, holds, reason, message));
    }

    #[rstest]
    #[case::starting(1, 1, true, reason::STARTING, "1 x starting")]
    #[case::old_ones(
        2,
        1,
        true,
        reason::ROLLING_OUT,
        "1 x still to be updated to the latest pod template"
    )]
    #[case::settled(2, 2, false, reason::AS_SPECIFIED, "")]
    fn progress_tells_how_many_are_on_their_way(
        #[case] ready: i32,
        #[case] updated: i32,
        #[case] holds: bool,
        #[case] reason: &'static str,
        #[case] message: &str,
    ) {
        let status = json!({ "observedGeneration": 1, "replicas": 2, "readyReplicas": ready, "updatedReplicas": updated });
        let found = deployment(1, &status).progress("x", 2);
        assert_eq!(
            found,
            Finding::new(condition::PROGRESSING, holds, reason, message)
        );
    }

    #[test]
    fn a_deployment_with_pods_of_two_forms_is_not_settled() {
        let status =
            json!({ "observedGeneration": 1, "replicas": 3, "readyReplicas": 2, "updatedReplicas": 2 });
        let found = deployment(1, &status).progress("x", 2);
        assert_eq!(
            (found.reason, found.message.as_str()),
            (
                reason::ROLLING_OUT,
                "1 old x running until the updated ones are ready"
            )
        );
    }

    #[test]
    fn what_kubernetes_has_not_seen_is_not_settled() {
        let status =
            json!({ "observedGeneration": 1, "replicas": 1, "readyReplicas": 1, "updatedReplicas": 1 });
        let settled = |generation| {
            deployment(generation, &status)
                .readiness("x", 1, &[], Timestamp::UNIX_EPOCH)
                .reason
        };
        assert_eq!(
            [settled(1), settled(2)],
            [reason::AS_SPECIFIED, reason::ROLLING_OUT]
        );
    }

    #[test]
    fn nothing_wanted_is_ready() {
        let found = Workload::from(None::<&StatefulSet>).readiness("x", 0, &[], Timestamp::UNIX_EPOCH);
        assert_eq!(
            found,
            Finding::new(condition::READY, true, reason::AS_SPECIFIED, "0 of 0 x ready")
        );
    }
}
