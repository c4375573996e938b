use keelson_api::validate::{Path, Violation, Warning};
use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

use super::*;

fn review(request: &Value) -> Vec<u8> {
    json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request })
        .to_string()
        .into_bytes()
}

fn request() -> Value {
    json!({
        "uid": "u-1", "operation": "CREATE", "name": "n", "namespace": "ns",
        "kind": { "group": "slinky.slurm.net", "version": "v1beta1", "kind": "Controller" },
        "object": { "spec": {} }, "oldObject": null, "options": null, "userInfo": {},
    })
}

#[test]
fn a_review_is_read() {
    let review = read(&review(&request())).unwrap();
    assert_eq!(review.request.operation, Operation::Create);
    assert_eq!(review.request.kind.kind, "Controller");
    assert!(review.request.object.is_some());
    assert!(review.request.old_object.is_none());
}

#[test]
fn an_unknown_operation_is_none_of_ours() {
    let mut request = request();
    request["operation"] = json!("PONDER");
    assert_eq!(
        read(&review(&request)).unwrap().request.operation,
        Operation::Other
    );
}

#[rstest]
#[case::empty("", "not an AdmissionReview: EOF")]
#[case::no_json("no", "not an AdmissionReview: expected")]
#[case::something_else(r#"{"apiVersion": "v1", "kind": "Pod"}"#, "kind \"Pod\", apiVersion \"v1\"")]
#[case::no_request(
    r#"{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}"#,
    "no request"
)]
#[case::no_uid(
    r#"{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"operation": "CREATE", "kind": {}}}"#,
    "missing field `uid`"
)]
fn what_is_no_review_is_refused_with_a_reason(#[case] body: &str, #[case] expected: &str) {
    let error = read(body.as_bytes()).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn deep_nesting_is_an_error_and_no_overflow() {
    let body = format!(
        r#"{{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {}{}}}"#,
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    assert!(read(body.as_bytes()).is_err());
}

fn violation(field: &str) -> Violation {
    Violation {
        path: Path::spec().field(field),
        problem: "is wrong".into(),
        remedy: "write it right".into(),
    }
}

#[test]
fn a_refusal_names_every_field() {
    let review = read(&review(&request())).unwrap();
    let report = Report {
        violations: vec![violation("a"), violation("b")],
        warnings: vec![],
    };
    let answer = serde_json::to_value(review.answer(report.into())).unwrap();
    assert_eq!(
        answer,
        json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "response": {
                "uid": "u-1", "allowed": false,
                "status": {
                    "status": "Failure", "code": 422, "reason": "Invalid",
                    "message": "spec.a: is wrong; write it right\nspec.b: is wrong; write it right",
                    "details": {
                        "name": "n", "group": "slinky.slurm.net", "kind": "Controller",
                        "causes": [
                            { "reason": "FieldValueInvalid", "field": "spec.a", "message": "is wrong; write it right" },
                            { "reason": "FieldValueInvalid", "field": "spec.b", "message": "is wrong; write it right" },
                        ],
                    },
                },
            },
        })
    );
}

#[test]
fn the_older_version_is_answered_in_kind() {
    let body = String::from_utf8(review(&request()))
        .unwrap()
        .replace("k8s.io/v1", "k8s.io/v1beta1");
    let answer = read(body.as_bytes()).unwrap().answer(Verdict::default());
    let answer = serde_json::to_value(answer).unwrap();
    assert_eq!(answer["apiVersion"], "admission.k8s.io/v1beta1");
    assert_eq!(answer["response"], json!({ "uid": "u-1", "allowed": true }));
}

#[test]
fn warnings_stay_within_what_the_api_server_passes_on() {
    let report = Report {
        violations: vec![],
        warnings: (0..99)
            .map(|_| Warning {
                path: Path::spec(),
                text: "ä".repeat(999),
            })
            .collect(),
    };
    let answer = read(&review(&request())).unwrap().answer(report.into());
    assert_eq!(answer.response.warnings.len(), WARNINGS);
    assert!(
        answer
            .response
            .warnings
            .iter()
            .all(|w| w.chars().count() == WARNING_CHARS)
    );
}

#[test]
fn a_patch_goes_out_in_base64() {
    let patch = serde_json::from_value(json!([{ "op": "remove", "path": "/x" }])).unwrap();
    let verdict = Verdict {
        patch: Some(patch),
        ..Verdict::default()
    };
    let answer = serde_json::to_value(read(&review(&request())).unwrap().answer(verdict)).unwrap();
    assert_eq!(answer["response"]["patchType"], "JSONPatch");
    assert_eq!(
        answer["response"]["patch"],
        "W3sib3AiOiJyZW1vdmUiLCJwYXRoIjoiL3gifV0="
    );
}

proptest! {
    #[test]
    fn no_body_makes_it_panic(body in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read(&body);
    }

    #[test]
    fn no_json_makes_it_panic(uid in "\\PC*", operation in "[A-Z]*", object in "[\\[\\]{}:,\"0-9a-z]*") {
        let body = format!(
            r#"{{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
                "request": {{"uid": {uid:?}, "operation": "{operation}", "kind": {{}}, "object": {object}}}}}"#
        );
        let _ = read(body.as_bytes());
    }
}
