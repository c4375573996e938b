//! Order in which a cluster is taken down, whatever order its objects are deleted in.
//!
//! Workers can drain only while slurmctld and slurmrestd answer, and those run only while their keys exist. So each
//! object keeps a finalizer until its last user is gone, and a condition says what it waits for.

use keelson_api::well_known::{annotation, condition, reason};
use kube::ResourceExt;

use crate::{conditions::Finding, problem::Problem, wording::listed};

/// Progress of an object's deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Teardown {
    /// It is not being deleted.
    Not,
    /// It is being deleted, and these objects still need it.
    Waiting(Vec<String>),
    /// It is being deleted, and no object needs it.
    Done,
    /// It is being deleted without its children.
    Orphaned,
}

impl Teardown {
    /// `users` are the objects that need this one, such as `NodeSet a`. `orphaned` is whether its children stay, which
    /// then need not wait for its users.
    pub fn of(object: &impl ResourceExt, users: impl IntoIterator<Item = String>, orphaned: bool) -> Self {
        if object.meta().deletion_timestamp.is_none() {
            return Self::Not;
        }
        if orphaned {
            return Self::Orphaned;
        }
        let forced = object
            .annotations()
            .get(annotation::FORCE_DELETE)
            .is_some_and(|value| value == "true");
        let users: Vec<String> = users.into_iter().collect();
        if forced || users.is_empty() {
            Self::Done
        } else {
            Self::Waiting(users)
        }
    }

    /// Reports whether the object may go.
    pub fn lets_go(&self) -> bool {
        matches!(self, Self::Done | Self::Orphaned)
    }

    /// Reports whether a problem can be ignored: an object may outlive what it refers to, and what runs already has it.
    pub fn excuses(&self, problem: &Problem) -> bool {
        matches!(self, Self::Waiting(_)) && problem.reason == reason::REFERENCE_MISSING
    }

    /// Returns the condition to report while it waits.
    pub fn finding(&self) -> Option<Finding> {
        let Self::Waiting(users) = self else { return None };
        let shown = listed(users, 5);
        let message = format!(
            "waiting for {shown} to be deleted; set the annotation {}: \"true\" to skip",
            annotation::FORCE_DELETE
        );
        Some(Finding::new(
            condition::TERMINATING,
            true,
            reason::IN_USE,
            message,
        ))
    }
}

#[cfg(test)]
mod tests {
    use keelson_api::Controller;
    use serde_json::{Value, json};

    use super::*;

    fn controller(metadata: Value) -> Controller {
        let metadata = serde_json::from_value(metadata).unwrap();
        Controller {
            metadata,
            ..Controller::default()
        }
    }

    #[test]
    fn an_object_in_use_waits_and_says_for_whom() {
        let deleted = json!({ "deletionTimestamp": "2026-11-15T00:00:00Z" });
        let teardown = Teardown::of(&controller(deleted), ["NodeSet a".to_owned()], false);
        assert_eq!(teardown, Teardown::Waiting(vec!["NodeSet a".into()]));
        assert!(
            teardown
                .finding()
                .unwrap()
                .message
                .starts_with("waiting for NodeSet a to be deleted")
        );
    }

    #[test]
    fn what_goes_before_a_waiting_object_is_not_missed() {
        let missing = Problem::absent("Secret", "key", "create it");
        let waiting = Teardown::Waiting(vec!["NodeSet a".to_owned()]);
        assert!(waiting.excuses(&missing));
        assert!(!waiting.excuses(&Problem::invalid("extraConf")));
        assert!(!Teardown::Not.excuses(&missing));
    }

    #[test]
    fn it_goes_when_nobody_needs_it_or_a_person_forces_it() {
        let deleted = json!({ "deletionTimestamp": "2026-11-15T00:00:00Z" });
        assert_eq!(Teardown::of(&controller(deleted), [], false), Teardown::Done);
        let deleted = json!({ "deletionTimestamp": "2026-11-15T00:00:00Z" });
        let orphaned = Teardown::of(&controller(deleted), ["NodeSet a".to_owned()], true);
        assert!(orphaned == Teardown::Orphaned && orphaned.lets_go());
        let forced = json!({
            "deletionTimestamp": "2026-11-15T00:00:00Z",
            "annotations": { "keelson.dev/force-delete": "true" },
        });
        assert_eq!(
            Teardown::of(&controller(forced), ["NodeSet a".to_owned()], false),
            Teardown::Done
        );
        assert_eq!(
            Teardown::of(&controller(json!({})), ["NodeSet a".to_owned()], false),
            Teardown::Not
        );
    }
}
