//! Detects Controllers that cannot both run: on one volume they destroy each other's state, and under one name in one
//! Accounting their job records mix. The webhook does not check this, because its response would reveal another
//! object's contents. Pure.

use std::sync::Arc;

use keelson_api::{Controller, well_known::volume};
use kube::ResourceExt;

use super::observe::Observed;
use crate::problem::Problem;

/// Another Controller of the namespace.
#[derive(Debug, Clone)]
pub struct Rival {
    pub controller: Arc<Controller>,
    /// Whether its slurmctld has been started.
    pub runs: bool,
}

/// What two Controllers both want.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Contention {
    Claim(String),
    ClusterName(String),
}

/// Returns a problem if this Controller has to wait for another. One that runs takes precedence, and of two that do not
/// run, the older one. Two that already run are both left as they are.
pub fn check(observed: &Observed) -> Result<(), Problem> {
    let own = observed.controller.as_ref();
    let runs = observed.live.stateful_set.is_some();
    for rival in &observed.rivals {
        let goes_first = rival.runs || (!runs && age(&rival.controller) < age(own));
        let Some(contention) = contention(own, &rival.controller).filter(|_| goes_first) else {
            continue;
        };
        let other = rival.controller.name_any();
        return Err(Problem::invalid(match contention {
            Contention::Claim(claim) => format!(
                "Controller {other} also keeps its state in PersistentVolumeClaim {claim}, and the two would corrupt it: \
                 set a different spec.persistence.existingClaim for each Controller"
            ),
            Contention::ClusterName(name) => format!(
                "Controller {other} uses the same cluster name {name} in the same Accounting: change \
                 spec.clusterName or spec.accountingRef of one of them"
            ),
        }));
    }
    Ok(())
}

/// Reports whether these two cannot both run.
pub fn contend(one: &Controller, other: &Controller) -> bool {
    contention(one, other).is_some()
}

fn contention(one: &Controller, other: &Controller) -> Option<Contention> {
    if one.spec.external || other.spec.external {
        return None;
    }
    let claim = claim(one);
    if claim == self::claim(other) {
        return Some(Contention::Claim(claim));
    }
    // slurmdbd compares names in lower case.
    let name = one.cluster_name().to_lowercase();
    let accounting = one.spec.accounting_ref.as_ref();
    let same_name = other.cluster_name().to_lowercase() == name;
    let same = accounting.is_some() && accounting == other.spec.accounting_ref.as_ref() && same_name;
    same.then_some(Contention::ClusterName(name))
}

/// Returns the claim that the spec names, or the one that the StatefulSet would create.
fn claim(controller: &Controller) -> String {
    let made = || format!("{}-{}", volume::STATESAVE, controller.pod_name(0));
    controller
        .spec
        .existing_claim()
        .map_or_else(made, ToOwned::to_owned)
}

fn age(controller: &Controller) -> (Option<jiff::Timestamp>, String) {
    let created = controller.metadata.creation_timestamp.as_ref();
    (created.map(|time| time.0), controller.name_any())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::controller::tests::observed;

    fn rival(created: &str, runs: bool, spec: &Value) -> Rival {
        let object = json!({ "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller", "spec": spec,
            "metadata": { "name": "other", "namespace": "slurm", "creationTimestamp": created } });
        Rival {
            controller: Arc::new(serde_json::from_value(object).unwrap()),
            runs,
        }
    }

    fn persistent(claim: &str) -> Value {
        json!({ "persistence": { "enabled": true, "existingClaim": claim } })
    }

    #[rstest]
    #[case::its_claim(persistent("state"), persistent("state"), Some("PersistentVolumeClaim state"))]
    #[case::the_claim_that_is_made_for_it(persistent("statesave-other-controller-0"), json!({}), Some("PersistentVolumeClaim"))]
    #[case::another_claim(persistent("state"), persistent("other"), None)]
    #[case::elsewhere(persistent("state"), json!({ "external": true, "persistence": { "enabled": true, "existingClaim": "state" } }), None)]
    #[case::its_name(
        json!({ "clusterName": "Home", "accountingRef": { "name": "db" } }),
        json!({ "clusterName": "home", "accountingRef": { "name": "db" } }),
        Some("the same cluster name home")
    )]
    #[case::its_name_in_another_accounting(
        json!({ "clusterName": "home", "accountingRef": { "name": "db" } }),
        json!({ "clusterName": "home", "accountingRef": { "name": "db2" } }),
        None
    )]
    #[case::its_name_without_accounting(json!({ "clusterName": "home" }), json!({ "clusterName": "home" }), None)]
    fn what_two_cannot_share_is_told(
        #[case] own: Value,
        #[case] other: Value,
        #[case] expected: Option<&str>,
    ) {
        let mut observed = observed(own);
        observed.rivals = vec![rival("2026-01-01T00:00:00Z", true, &other)];
        let told = check(&observed).err().map(|problem| problem.message);
        match expected {
            None => assert_eq!(told, None),
            Some(words) => assert!(told.as_ref().unwrap().contains(words), "{told:?}"),
        }
    }

    #[rstest]
    #[case::a_running_one_is_left_alone(false, true, "2026-12-01T00:00:00Z", true)]
    #[case::a_running_one_goes_on(true, false, "2026-01-01T00:00:00Z", false)]
    #[case::the_older_goes_first(false, false, "2026-01-01T00:00:00Z", true)]
    #[case::the_younger_waits(false, false, "2026-12-01T00:00:00Z", false)]
    #[case::neither_of_two_that_run_is_changed(true, true, "2026-12-01T00:00:00Z", true)]
    fn of_two_the_one_that_runs_or_is_older_goes_first(
        #[case] runs: bool,
        #[case] rival_runs: bool,
        #[case] created: &str,
        #[case] waits: bool,
    ) {
        let mut observed = observed(persistent("state"));
        let mut own = observed.controller.as_ref().clone();
        own.metadata.creation_timestamp = serde_json::from_value(json!("2026-06-01T00:00:00Z")).unwrap();
        observed.controller = Arc::new(own);
        observed.live.stateful_set = runs.then(Arc::default);
        observed.rivals = vec![rival(created, rival_runs, &persistent("state"))];
        assert_eq!(check(&observed).is_err(), waits);
    }
}
