//! Tests every row of accepted and rejected objects against the server over HTTPS.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that panics is a test that fails"
)]

mod support;

use serde_json::{Value, json};
use support::rows::{Judge, Row, Table, context, merge, tables};
use support::{Authority, NAMESPACE, Server, cluster, https, path_of, review};

/// The parts of a response to compare with a row.
struct Answer {
    refusal: Option<String>,
    warnings: Vec<String>,
}

fn read(answer: &Value) -> Answer {
    let response = &answer["response"];
    let texts = |list: &Value| -> Vec<String> {
        let list = list.as_array().cloned().unwrap_or_default();
        list.iter()
            .map(|text| text.as_str().unwrap().to_owned())
            .collect()
    };
    Answer {
        refusal: (response["allowed"] == false)
            .then(|| response["status"]["message"].as_str().unwrap().to_owned()),
        warnings: texts(&response["warnings"]),
    }
}

/// Returns a repetition in a response: a repeated rejection, or a warning about a rejected field.
fn twice(refusal: &str, warnings: &[String]) -> Option<String> {
    let path = |line: &str| line.split_once(": ").map(|(path, _)| path.to_owned());
    let lines: Vec<&str> = refusal.lines().collect();
    let again = |(index, line): &(usize, &&str)| lines[..*index].contains(*line);
    if let Some((_, line)) = lines.iter().enumerate().find(again) {
        return Some((*line).to_owned());
    }
    let refused: Vec<String> = lines.into_iter().filter_map(path).collect();
    let warned = |warning: &&String| path(warning).is_some_and(|at| refused.contains(&at));
    warnings.iter().find(warned).cloned()
}

/// Returns how a response differs from the row.
fn complaint(row: &Row, answer: &Answer) -> Option<String> {
    let Answer { refusal, warnings } = answer;
    if let Some(text) = refusal.as_deref().and_then(|refusal| twice(refusal, warnings)) {
        return Some(format!("says it twice: {text}"));
    }
    match refusal {
        Some(refusal) if row.refused.is_empty() => return Some(format!("refused: {refusal}")),
        None if !row.refused.is_empty() => return Some("accepted".to_owned()),
        Some(refusal) => {
            if let Some(missing) = row.refused.iter().find(|text| !refusal.contains(*text)) {
                return Some(format!("refused without {missing:?}: {refusal}"));
            }
        }
        None => {}
    }
    if row.warns.is_empty() && !warnings.is_empty() {
        return Some(format!("warned: {warnings:?}"));
    }
    let missing = row
        .warns
        .iter()
        .find(|text| !warnings.iter().any(|warning| warning.contains(*text)));
    missing.map(|missing| format!("did not warn of {missing:?}: {warnings:?}"))
}

fn question(table: &Table, number: usize, row: &Row) -> Value {
    let object = table.object(number, row, NAMESPACE);
    match &row.then {
        None => review("CREATE", &table.kind, None, Some(&object)),
        Some(then) => {
            let mut changed = object.clone();
            merge(&mut changed, then);
            review("UPDATE", &table.kind, Some(&object), Some(&changed))
        }
    }
}

fn in_namespace(mut objects: Vec<Value>) -> Vec<Value> {
    for (object, number) in objects.iter_mut().zip(1..) {
        object["metadata"]["namespace"] = json!(NAMESPACE);
        object["metadata"]["uid"] = json!(format!("uid-{number}"));
        object["metadata"]["resourceVersion"] = json!("1");
    }
    objects
}

#[tokio::test]
async fn every_row_is_answered_as_it_says() {
    let authority = Authority::new();
    let server = Server::start(cluster(in_namespace(context())), &authority, |_| {}).await;
    let client = https(&[&authority]);
    let (mut asked, mut complaints) = (0, Vec::new());
    for table in tables() {
        for (number, row) in table.rows.iter().enumerate() {
            // The webhook does not see objects that the schema or CEL rejects.
            if row.by != Judge::Webhook {
                continue;
            }
            let sent = client
                .post(server.url(&path_of(&table.kind)))
                .json(&question(&table, number, row))
                .send();
            let answer: Value = sent.await.unwrap().json().await.unwrap();
            asked += 1;
            if let Some(complaint) = complaint(row, &read(&answer)) {
                complaints.push(format!("{} {number} ({}): {complaint}", table.kind, row.name));
            }
        }
    }
    assert!(
        complaints.is_empty(),
        "{} of {asked}:\n{}",
        complaints.len(),
        complaints.join("\n")
    );
    assert!(asked >= 150, "only {asked} rows");
}

#[tokio::test]
async fn deletion_is_never_refused_and_says_what_it_means() {
    let authority = Authority::new();
    let context = in_namespace(context());
    let server = Server::start(cluster(context.clone()), &authority, |_| {}).await;
    let client = https(&[&authority]);
    let mut immediate = context
        .iter()
        .find(|object| object["kind"] == "NodeSet")
        .unwrap()
        .clone();
    immediate["spec"]["deletionPolicy"] = json!("Immediate");
    immediate["spec"]["volumeClaimTemplates"] = json!([{ "metadata": { "name": "s" } }]);
    immediate["spec"]["persistentVolumeClaimRetentionPolicy"] = json!({ "whenDeleted": "Delete" });
    let find = |kind: &str| context.iter().find(|object| object["kind"] == kind).unwrap();
    for (kind, object, expected) in [
        (
            "Controller",
            find("Controller"),
            vec![
                "until these NodeSets are deleted: busy",
                "until these LoginSets are deleted: front",
            ],
        ),
        (
            "Accounting",
            find("Accounting"),
            vec!["until these Controllers are deleted: taken"],
        ),
        (
            "RestApi",
            find("RestApi"),
            vec![
                "until these NodeSets are deleted: busy, busy-twin; the operator drains their workers through it",
            ],
        ),
        (
            "NodeSet",
            find("NodeSet"),
            vec!["drains its workers first", "keelson.dev/force-delete=true"],
        ),
        (
            "NodeSet",
            &immediate,
            vec![
                "deletionPolicy is Immediate",
                "volumes of the workers of NodeSet busy will be deleted",
            ],
        ),
        ("LoginSet", find("LoginSet"), vec!["will be disconnected"]),
        ("Token", find("Token"), vec!["valid until they expire"]),
        (
            "SlurmCluster",
            find("SlurmCluster"),
            vec![
                "with all its workers and logins, after running jobs have ended",
                "until these NodeSets are deleted, which are not its own: extra",
            ],
        ),
    ] {
        for path in [path_of(kind), keelson_webhook::DELETION_PATH.to_owned()] {
            let question = review("DELETE", kind, Some(object), None);
            let answer: Value = client
                .post(server.url(&path))
                .json(&question)
                .send()
                .await
                .unwrap()
                .json()
                .await
                .unwrap();
            let Answer { refusal, warnings } = read(&answer);
            assert_eq!(refusal, None, "{kind}");
            let all = warnings.join("\n");
            for text in &expected {
                assert!(all.contains(text), "{kind}: no {text:?} in {all}");
            }
        }
    }
}
