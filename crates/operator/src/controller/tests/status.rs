//! Tests of the status.

use jiff::Timestamp;
use keelson_runtime::optional_kind::Installed;
use serde_json::json;

use super::children;
use super::chosen;
use super::observed;
use crate::{
    conditions::tests::shown,
    controller::{
        delivery::Delivery,
        monitor,
        status::{self, Outcome},
    },
    pod_diagnosis::tests::crashing,
    problem::Problem,
    teardown::Teardown,
};

#[test]
fn a_blocked_controller_says_why() {
    let mut observed = observed(json!({}));
    observed.jwt_key = None;
    let problem = children(&observed).unwrap_err();
    let status = status::compute(
        &observed,
        &Outcome::Blocked(problem),
        &Teardown::Not,
        Timestamp::UNIX_EPOCH,
    );
    insta::assert_yaml_snapshot!("blocked-status", status);
}

#[test]
fn a_leaving_controller_does_not_miss_what_went_before_it() {
    let mut observed = observed(json!({}));
    observed.jwt_key = None;
    let problem = children(&observed).unwrap_err();
    let teardown = Teardown::Waiting(vec!["NodeSet cpu".to_owned()]);
    assert!(teardown.excuses(&problem));
    let status = status::compute(&observed, &Outcome::Leaving, &teardown, Timestamp::UNIX_EPOCH);
    assert_eq!(shown(&status.conditions, "Degraded")[0], "False");
    assert_eq!(shown(&status.conditions, "Terminating")[..2], ["True", "InUse"]);
    assert_eq!(Outcome::Leaving.problem(), None);
}

#[test]
fn a_starting_controller_is_not_ready() {
    let observed = observed(json!({}));
    let (_, chosen) = chosen(&observed).unwrap();
    let outcome = Outcome::Published {
        chosen: &chosen,
        delivery: Delivery::Pending,
        registration: None,
        monitor: None,
    };
    let status = status::compute(&observed, &outcome, &Teardown::Not, Timestamp::UNIX_EPOCH);
    insta::assert_yaml_snapshot!("starting-status", status);
}

#[test]
fn a_slurmctld_that_ends_is_quoted() {
    let mut observed = observed(json!({}));
    observed.live.pods = vec![crashing("slurm-controller-0", "fatal: no")];
    let (_, chosen) = chosen(&observed).unwrap();
    let outcome = Outcome::Published {
        chosen: &chosen,
        delivery: Delivery::Refused("slurmctld ended with status 1".into()),
        registration: None,
        monitor: None,
    };
    let status = status::compute(&observed, &outcome, &Teardown::Not, Timestamp::UNIX_EPOCH);
    let [holds, reason, message] = shown(&status.conditions, "Degraded");
    assert_eq!([holds, reason], ["True", "DaemonEnded"]);
    assert!(
        message.starts_with("pod slurm-controller-0: ") && message.ends_with("fatal: no"),
        "{message}"
    );
    assert!(shown(&status.conditions, "Ready")[2].ends_with(message));
}

#[test]
fn a_service_monitor_that_cannot_be_made_is_told_last() {
    let asked = json!({ "metrics": { "enabled": true, "serviceMonitor": { "enabled": true } } });
    let observed = observed(asked);
    let (_, chosen) = chosen(&observed).unwrap();
    let problem = |installed| monitor::missing_kind(&observed.controller, installed);
    assert_eq!(problem(Installed::Unknown), None, "nobody has looked yet");
    assert_eq!(problem(Installed::Yes), None);
    let shows = |delivery| {
        let monitor = problem(Installed::No);
        let outcome = Outcome::Published {
            chosen: &chosen,
            delivery,
            monitor,
            registration: None,
        };
        let status = status::compute(&observed, &outcome, &Teardown::Not, Timestamp::UNIX_EPOCH);
        shown(&status.conditions, "Degraded").map(str::to_owned)
    };
    let [holds, reason, message] = shows(Delivery::Applied);
    assert_eq!([holds, reason], ["True", "MonitoringUnavailable"]);
    assert!(
        message.contains("servicemonitors.monitoring.coreos.com"),
        "{message}"
    );
    assert_eq!(shows(Delivery::Refused("no".into()))[1], "ConfigRefused");
}

#[test]
fn a_refused_configuration_is_quoted() {
    let observed = observed(json!({}));
    let (_, chosen) = chosen(&observed).unwrap();
    let delivery = Delivery::Refused("fatal: Invalid node names in partition p2".into());
    let outcome = Outcome::Published {
        chosen: &chosen,
        delivery,
        registration: None,
        monitor: None,
    };
    let status = status::compute(&observed, &outcome, &Teardown::Not, Timestamp::UNIX_EPOCH);
    insta::assert_yaml_snapshot!("refused-status", status);
    assert_eq!(outcome.problem().unwrap().reason, "ConfigRefused");
}

#[test]
fn a_change_that_waits_is_not_in_use() {
    let observed = observed(json!({}));
    let (_, mut chosen) = chosen(&observed).unwrap();
    chosen.held = Some(Problem {
        reason: "ConfigPending",
        message: "SwitchType would kill running jobs".into(),
    });
    let outcome = Outcome::Published {
        chosen: &chosen,
        delivery: Delivery::Applied,
        registration: None,
        monitor: None,
    };
    let status = status::compute(&observed, &outcome, &Teardown::Not, Timestamp::UNIX_EPOCH);
    for kind in ["ConfigApplied", "Progressing"] {
        let [holds, reason, message] = shown(&status.conditions, kind);
        assert_eq!(holds == "True", kind == "Progressing");
        assert_eq!(
            [reason, message],
            ["ConfigPending", "SwitchType would kill running jobs"]
        );
    }
    assert_eq!(shown(&status.conditions, "Degraded")[0], "False");
    assert!(outcome.waits(), "an event that warns of nothing");
}
