//! Decides whether a workload's pods are replaced when the desired form is applied. Pure.
//!
//! Pods of earlier operators carry plain hashes of Secrets, which they keep as long as they run: that alone is no
//! reason to replace them. When they are replaced anyway, the new pods get keyed fingerprints.

use keelson_api::scalars::Amount;
use keelson_runtime::apply::Desired;
use kube::Resource;
use serde::Serialize;
use serde_json::Value;

const TEMPLATE: &str = "/spec/template";

/// Reports whether the desired template differs from the live one. If that is uncertain, for example for a field that
/// is no longer sent, it counts as equal: keeping a fingerprint is better than replacing pods for it.
pub fn changes<K>(desired: &Desired<K>, live: Option<&K>) -> bool
where
    K: Resource<DynamicType = ()> + Serialize,
{
    let Some(live) = live else {
        return true;
    };
    if desired.is_applied_to(live) {
        return false;
    }
    let Ok(live) = serde_json::to_value(live) else {
        return false;
    };
    match (live.pointer(TEMPLATE), desired.value.pointer(TEMPLATE)) {
        (Some(live), Some(wanted)) => !has(live, wanted),
        _ => false,
    }
}

/// Reports whether `live` contains everything in `wanted`. The API server adds defaults and rewrites some values.
fn has(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => wanted.iter().all(|(name, wanted)| {
            live.get(name)
                .map_or_else(|| says_nothing(wanted), |live| has(live, wanted))
        }),
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len() && live.iter().zip(wanted).all(|(live, wanted)| has(live, wanted))
        }
        _ => live == wanted || is_same_amount(live, wanted),
    }
}

/// Reports whether the API server leaves this value out.
fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(yes) => !yes,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(says_nothing),
    }
}

/// Compares quantities: `1000m` is stored as `1`, and so is the number 1.
fn is_same_amount(live: &Value, wanted: &Value) -> bool {
    let amount = |value: &Value| match value {
        Value::String(text) => Amount::parse(text).ok(),
        Value::Number(number) => Amount::parse(&number.to_string()).ok(),
        _ => None,
    };
    amount(live).is_some_and(|live| Some(live) == amount(wanted))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::Deployment;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::the_same(json!({}), json!({}), false)]
    #[case::defaults_of_the_server(json!({ "image": "a" }), json!({ "image": "a", "imagePullPolicy": "Always" }), false)]
    #[case::another_image(json!({ "image": "b" }), json!({ "image": "a" }), true)]
    #[case::another_field(json!({ "tty": true }), json!({}), true)]
    #[case::the_same_amount(
        json!({ "resources": { "limits": { "cpu": "1000m", "memory": 1024 } } }),
        json!({ "resources": { "limits": { "cpu": "1", "memory": "1Ki" } } }),
        false
    )]
    #[case::another_amount(
        json!({ "resources": { "limits": { "cpu": "2" } } }),
        json!({ "resources": { "limits": { "cpu": "1" } } }),
        true
    )]
    #[case::an_empty_value(
        json!({ "env": [{ "name": "A", "value": "" }], "securityContext": {} }),
        json!({ "env": [{ "name": "A" }] }),
        false
    )]
    fn pods_are_replaced_for_what_their_template_says(
        #[case] wanted: Value,
        #[case] live: Value,
        #[case] expected: bool,
    ) {
        let with = |container: Value, replicas: i32| {
            let mut container = container;
            container["name"] = json!("c");
            json!({ "metadata": { "name": "d" }, "spec": { "replicas": replicas, "selector": {},
                "template": { "spec": { "containers": [container] } } } })
        };
        let live: Deployment = serde_json::from_value(with(live, 1)).unwrap();
        // Another number of replicas replaces no pods.
        let desired = Desired::<Deployment>::new(with(wanted, 2));
        assert_eq!(changes(&desired, Some(&live)), expected);
        assert!(changes(&desired, None), "there is none yet");
    }
}
