//! Tests from the Token that a user writes to the decision, the Secret and the status, without a cluster.
#![allow(
    clippy::needless_pass_by_value,
    reason = "json! literals read better unborrowed"
)]

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use keelson_api::Token;
use rstest::rstest;
use serde_json::{Value, json};

use super::{
    build, jwt, next_look,
    observe::Observed,
    plan::{self, Cause, Plan},
    status::{self, Outcome},
    validate::{self, Place, Validated},
    *,
};

const SIGNED_AT: i64 = 1_000_000;
const KEY: &[u8] = b"key";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn token(spec: Value) -> Token {
    let mut object = json!({
        "apiVersion": "slinky.slurm.net/v1beta1",
        "kind": "Token",
        "metadata": { "name": "t", "namespace": "slurm", "uid": "uid-token", "generation": 2, "labels": { "team": "hpc" } },
        "spec": { "username": "anna", "lifetime": "1000s", "jwtKeyRef": { "name": "auth-jwt", "key": "jwt.key" } },
    });
    let Value::Object(fields) = spec else {
        panic!("{spec} has no fields");
    };
    for (key, value) in fields {
        object["spec"][key] = value;
    }
    serde_json::from_value(object).unwrap()
}

fn secret(owners: &Value, content: &[(&str, &[u8])]) -> Secret {
    let mut secret: Secret = serde_json::from_value(json!({
        "metadata": { "name": "t-jwt-anna", "namespace": "slurm", "ownerReferences": owners },
    }))
    .unwrap();
    let data = content
        .iter()
        .map(|(key, value)| ((*key).to_owned(), ByteString(value.to_vec())));
    secret.data = Some(data.collect::<BTreeMap<_, _>>());
    secret
}

fn owner(kind: &str, name: &str, uid: &str) -> Value {
    json!([{ "apiVersion": "v1", "kind": kind, "name": name, "uid": uid, "controller": true }])
}

fn of_token(content: &[(&str, &[u8])]) -> Secret {
    secret(&owner("Token", "t", "uid-token"), content)
}

fn signed(user: &str, lifetime: i64, key: &[u8]) -> Secret {
    let claims = Claims::new(user, at(SIGNED_AT), lifetime, 7);
    of_token(&[("SLURM_JWT", jwt::sign(&claims, key).unwrap().as_bytes())])
}

fn observed(spec: Value, secret: Option<Secret>) -> Observed {
    Observed {
        token: Arc::new(token(spec)),
        key: Some(Arc::new(self::secret(&json!([]), &[("jwt.key", KEY)]))),
        secret: secret.map(Arc::new),
        former: None,
    }
}

fn validated(spec: Value, secret: Option<Secret>) -> Validated {
    validate::validate(&observed(spec, secret)).unwrap()
}

#[derive(Debug, PartialEq)]
enum Decision {
    Keep,
    Sign(Cause),
    Leave(&'static str),
}

fn decide(refresh: bool, secret: Option<Secret>, now: i64) -> Decision {
    match plan::plan(&validated(json!({ "refresh": refresh }), secret), at(now)) {
        Plan::Keep(_) => Decision::Keep,
        Plan::Sign(cause) => Decision::Sign(cause),
        Plan::Leave(problem, _) => Decision::Leave(problem.reason),
    }
}

#[rstest]
#[case::nothing_there(None, 0, Decision::Sign(Cause::Missing))]
#[case::another_key_in_the_secret(Some(of_token(&[("other", b"x")])), 0, Decision::Sign(Cause::Missing))]
#[case::fresh(Some(signed("anna", 1_000, KEY)), 0, Decision::Keep)]
#[case::just_before_it_is_due(Some(signed("anna", 1_000, KEY)), 799, Decision::Keep)]
#[case::a_fifth_before_its_end(Some(signed("anna", 1_000, KEY)), 800, Decision::Sign(Cause::Due))]
#[case::long_expired(Some(signed("anna", 1_000, KEY)), 9_999, Decision::Sign(Cause::Due))]
#[case::signed_with_an_old_key(Some(signed("anna", 1_000, b"old")), 0, Decision::Sign(Cause::Unverifiable))]
#[case::no_token(Some(of_token(&[("SLURM_JWT", b"nonsense")])), 0, Decision::Sign(Cause::Unverifiable))]
#[case::no_text(Some(of_token(&[("SLURM_JWT", b"\xff\xfe")])), 0, Decision::Sign(Cause::Unverifiable))]
#[case::for_another_user(Some(signed("bob", 1_000, KEY)), 0, Decision::Sign(Cause::SpecChanged))]
#[case::of_another_lifetime(Some(signed("anna", 2_000, KEY)), 0, Decision::Sign(Cause::SpecChanged))]
#[case::rounded_by_the_peer(Some(signed("anna", 999, KEY)), 0, Decision::Keep)]
fn with_refresh_the_token_is_always_made_good(
    #[case] secret: Option<Secret>,
    #[case] after: i64,
    #[case] expected: Decision,
) {
    assert_eq!(decide(true, secret, SIGNED_AT + after), expected);
}

#[rstest]
#[case::nothing_there(None, 0, Decision::Sign(Cause::Missing))]
#[case::fresh(Some(signed("anna", 1_000, KEY)), 0, Decision::Keep)]
#[case::near_its_end(Some(signed("anna", 1_000, KEY)), 999, Decision::Keep)]
#[case::expired(Some(signed("anna", 1_000, KEY)), 1_000, Decision::Leave("Expired"))]
#[case::signed_with_an_old_key(Some(signed("anna", 1_000, b"old")), 0, Decision::Leave("KeyChanged"))]
#[case::for_another_user(Some(signed("bob", 1_000, KEY)), 0, Decision::Sign(Cause::SpecChanged))]
fn without_refresh_the_end_is_told_and_nothing_is_renewed(
    #[case] secret: Option<Secret>,
    #[case] after: i64,
    #[case] expected: Decision,
) {
    assert_eq!(decide(false, secret, SIGNED_AT + after), expected);
}

#[test]
fn what_was_signed_is_kept_by_the_next_look() {
    let first = validated(json!({ "lifetime": "1.5s" }), None);
    let claims = Claims::new(&first.user, at(SIGNED_AT), first.lifetime_secs, 1);
    let text = jwt::sign(&claims, KEY).unwrap();
    let desired = build::build_secret(&token(json!({})), &first, &text);
    let written: Secret = serde_json::from_value(desired.value).unwrap();
    let again = validated(json!({ "lifetime": "1.5s" }), Some(written));
    assert!(matches!(plan::plan(&again, at(SIGNED_AT)), Plan::Keep(held) if held.text == text));
}

#[rstest]
#[case::mutable(None, true, "a", "b", false)]
#[case::nothing_to_write(Some(true), false, "a", "a", false)]
#[case::another_token(Some(true), false, "a", "b", true)]
#[case::to_be_renewed_from_now_on(Some(true), true, "a", "a", true)]
fn only_an_immutable_secret_is_replaced(
    #[case] immutable: Option<bool>,
    #[case] refresh: bool,
    #[case] there: &str,
    #[case] wanted: &str,
    #[case] expected: bool,
) {
    let mut live = of_token(&[("SLURM_JWT", there.as_bytes())]);
    live.immutable = immutable;
    let validated = validated(json!({ "refresh": refresh }), Some(live.clone()));
    assert_eq!(plan::must_be_replaced(&live, wanted, &validated), expected);
}

#[test]
fn the_secret_belongs_to_the_token() {
    let refreshed = validated(json!({}), None);
    insta::assert_yaml_snapshot!(
        "secret",
        build::build_secret(&token(json!({})), &refreshed, "a.b.c").value
    );
    let spec = json!({ "refresh": false, "secretRef": { "name": "mine", "key": "k" } });
    let once = validated(spec.clone(), None);
    insta::assert_yaml_snapshot!(
        "immutable-secret",
        build::build_secret(&token(spec), &once, "a.b.c").value
    );
}

#[test]
fn somebody_elses_secret_is_not_touched_but_the_peers_is_taken_over() {
    let place = |owners: Value| {
        validate::validate(&observed(json!({}), Some(secret(&owners, &[])))).map(|validated| validated.place)
    };
    assert!(matches!(
        place(owner("Token", "t", "uid-token")),
        Ok(Place::Ours(_))
    ));
    assert!(matches!(
        place(owner("Secret", "auth-jwt", "k")),
        Ok(Place::Slinkys(_))
    ));
    let former = place(owner("Token", "t", "older")).unwrap_err().message;
    assert!(former.contains("about to be deleted"), "{former}");
    for foreign in [
        json!([]),
        owner("Token", "other", "o"),
        owner("Secret", "other", "o"),
    ] {
        let message = place(foreign).unwrap_err().message;
        assert!(message.contains("does not belong to this Token"), "{message}");
    }
}

#[rstest]
#[case::zero(json!({ "lifetime": "0s" }), "lifetime must be at least one second")]
#[case::no_duration(json!({ "lifetime": "soon" }), "lifetime: \"soon\" is not a valid duration")]
#[case::no_key(json!({ "jwtKeyRef": { "name": "auth-jwt", "key": "none" } }), "Secret auth-jwt has no key \"none\"")]
fn what_cannot_be_signed_is_named(#[case] spec: Value, #[case] expected: &str) {
    let problem = validate::validate(&observed(spec, None)).unwrap_err();
    assert!(problem.message.starts_with(expected), "{}", problem.message);
}

#[test]
fn a_lifetime_beyond_slurms_is_slurms() {
    assert_eq!(
        validated(json!({ "lifetime": "2000000h" }), None).lifetime_secs,
        2_147_483_646
    );
}

#[test]
fn the_status_says_until_when_and_what_to_do_then() {
    let claims = || Claims::new("anna", at(SIGNED_AT), 1_000, 7);
    let status = |spec: Value, outcome: &Outcome| status::compute(&token(spec), outcome, at(SIGNED_AT));
    insta::assert_yaml_snapshot!("issued", status(json!({}), &Outcome::Issued(claims())));
    let once = json!({ "refresh": false });
    let expired = validated(once.clone(), Some(signed("anna", 1_000, KEY)));
    let Plan::Leave(problem, claims) = plan::plan(&expired, at(SIGNED_AT + 1_000)) else {
        panic!("an expired token was not left");
    };
    insta::assert_yaml_snapshot!("expired", status(once, &Outcome::Left(problem, claims)));
}

#[rstest]
#[case::renewal(true, 0, 800)]
#[case::renewal_is_late(true, 900, 1)]
#[case::expiry_has_to_be_told(false, 900, 100)]
fn the_next_look_is_when_the_token_changes(#[case] refresh: bool, #[case] after: i64, #[case] seconds: u64) {
    let outcome = Outcome::Issued(Claims::new("anna", at(SIGNED_AT), 1_000, 7));
    assert_eq!(
        next_look(
            &token(json!({ "refresh": refresh })),
            &outcome,
            at(SIGNED_AT + after)
        ),
        Requeue::After(Duration::from_secs(seconds))
    );
}
