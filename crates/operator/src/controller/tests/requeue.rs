//! Tests of when a Controller is reconciled again.

use std::time::Duration;

use jiff::Timestamp;
use keelson_api::well_known::reason;
use keelson_runtime::Requeue;
use rstest::rstest;
use serde_json::{Value, json};

use super::{chosen, observed};
use crate::{
    controller::{
        configuration::delivery::{Answer, Delivery},
        requeue::{after, under_way},
        status::Outcome,
    },
    problem::Problem,
};

const EXTERNAL: &str =
    r#"{ "external": true, "externalConfig": { "host": "ctl.example.com", "port": 6817 } }"#;

fn ours(candidate: &str) -> Answer {
    let report = json!({ "config": { "candidate": candidate, "active": "hash", "verdict": "applied" } });
    Answer::Ours(serde_json::from_value(report).unwrap())
}

fn problem(reason: &'static str) -> Problem {
    Problem {
        reason,
        message: "jobs run".to_owned(),
    }
}

fn within(seconds: u64) -> Requeue {
    Requeue::After(Duration::from_secs(seconds))
}

#[rstest]
#[case::applied("{}", ours("hash"), Delivery::Applied, None, Requeue::OnChange)]
#[case::on_its_way("{}", ours("hash"), Delivery::Pending, None, within(1))]
#[case::another_key_is_on_its_way("{}", ours("hash"), Delivery::KeyPending, None, within(1))]
#[case::nobody_would_report_it("{}", Answer::Silent, Delivery::Pending, None, Requeue::OnChange)]
#[case::jobs_hold_it_up(
    "{}",
    ours("hash"),
    Delivery::Applied,
    Some(problem(reason::CONFIG_PENDING)),
    within(5)
)]
#[case::refused(
    "{}",
    ours("hash"),
    Delivery::Applied,
    Some(problem(reason::CONFIG_REFUSED)),
    Requeue::OnChange
)]
#[case::withdrawn(
    "{}",
    ours("other"),
    Delivery::Applied,
    Some(problem(reason::CONFIG_REFUSED)),
    within(1)
)]
#[case::external(EXTERNAL, Answer::Silent, Delivery::Pending, None, Requeue::OnChange)]
fn a_configuration_is_polled_while_something_is_expected_of_it(
    #[case] spec: &str,
    #[case] answer: Answer,
    #[case] delivery: Delivery,
    #[case] held: Option<Problem>,
    #[case] expected: Requeue,
) {
    let mut observed = observed(serde_json::from_str::<Value>(spec).unwrap());
    observed.live.answers = vec![answer];
    let (_, mut chosen) = chosen(&observed).unwrap();
    chosen.held = held;
    let outcome = Outcome::Published {
        chosen: &chosen,
        delivery,
        registration: None,
        monitor: None,
    };
    assert_eq!(after(&observed, &outcome, false, Timestamp::UNIX_EPOCH), expected);
    let name = under_way(&observed, &outcome);
    assert_eq!(name, (expected == within(1)).then_some("hash"));
}

#[rstest]
#[case::waits_for_jobs(reason::KEY_PENDING, false, within(5))]
#[case::nodes_are_still_drained(reason::INVALID_SPEC, true, within(5))]
#[case::only_the_user_can_help(reason::INVALID_SPEC, false, Requeue::OnChange)]
fn a_blocked_controller_is_reconciled_again_while_slurm_has_to_change(
    #[case] reason: &'static str,
    #[case] are_drained: bool,
    #[case] expected: Requeue,
) {
    let outcome = Outcome::Blocked(problem(reason));
    let next = after(&observed(json!({})), &outcome, are_drained, Timestamp::UNIX_EPOCH);
    assert_eq!(next, expected);
}
