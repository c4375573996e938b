//! Tests every row of the webhook's tables of accepted and rejected objects through the API server, with the messages
//! that users see.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use axum::http::Method;
use serde_json::json;

use crate::api::{Outcome, path, send};
use crate::place::Place;
use crate::replicas::Replica;
use crate::rows::{self, Judge, Row, Table};

/// Returns how an outcome differs from the row, if it does.
fn complaint(row: &Row, outcome: &Outcome) -> Option<String> {
    let Outcome { warnings, .. } = outcome;
    match outcome.refusal() {
        Some(refusal) if row.refused.is_empty() => return Some(format!("refused: {refusal}")),
        None if !row.refused.is_empty() => return Some("accepted".to_owned()),
        None => {}
        Some(refusal) => {
            if let Some(missing) = row.refused.iter().find(|text| !refusal.contains(*text)) {
                return Some(format!("refused without {missing:?}: {refusal}"));
            }
            let by_webhook = refusal.starts_with("admission webhook");
            if by_webhook != (row.by == Judge::Webhook) {
                return Some(format!("refused by somebody else: {refusal}"));
            }
        }
    }
    // An object that the API server itself rejects never reaches the webhook, so it gets no warnings.
    if row.by != Judge::Webhook {
        return None;
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

/// Sends the request of a row: a create by dry run, or a change of an existing object by dry run.
async fn attempt(place: &Place, namespace: &str, table: &Table, number: usize, row: &Row) -> Result<Outcome> {
    let object = table.object(number, row, namespace);
    let kinds = path(namespace, &table.kind, None);
    let Some(then) = &row.then else {
        return send(&place.client, Method::POST, &kinds, Some(&object), true).await;
    };
    let own = path(namespace, &table.kind, object["metadata"]["name"].as_str());
    let made = row.existing.is_none() && !row.stored;
    if made {
        let created = send(&place.client, Method::POST, &kinds, Some(&object), false).await?;
        ensure!(
            created.refusal().is_none(),
            "cannot be made to be changed: {:?}",
            created.refusal()
        );
    }
    let outcome = send(&place.client, Method::PATCH, &own, Some(then), true).await;
    if made {
        send(&place.client, Method::DELETE, &own, None, false).await?;
    }
    outcome
}

/// Stores the objects that must exist before the webhook is configured: the context, and the objects of rows marked as
/// stored.
async fn store(place: &Place, namespace: &str, tables: &[Table]) -> Result<()> {
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": rows::context() });
    let mut apply = place.cluster.kubectl();
    apply.args(["--namespace", namespace, "apply", "--server-side", "-f", "-"]);
    pipe(apply, &list.to_string())?;
    for table in tables {
        for (number, row) in table.rows.iter().enumerate().filter(|(_, row)| row.stored) {
            let object = table.object(number, row, namespace);
            let kinds = path(namespace, &table.kind, None);
            let created = send(&place.client, Method::POST, &kinds, Some(&object), false).await?;
            ensure!(
                created.refusal().is_none(),
                "{}: {:?}",
                row.name,
                created.refusal()
            );
        }
    }
    Ok(())
}

fn pipe(mut command: Command, input: &str) -> Result<String> {
    use std::io::Write as _;
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    child
        .stdin
        .take()
        .context("no standard input")?
        .write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    let said =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{said}");
    Ok(said)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_row_goes_through_the_api_server_as_it_says() -> Result<()> {
    let place = Place::prepare("rows", 0).await?;
    let namespace = place.namespace("rows").await?;
    let tables = rows::tables();
    store(&place, &namespace, &tables).await?;
    place.configure()?;
    let _replica = Replica::start(&place).await?;
    place.asked(&namespace).await?;

    let (mut count, mut complaints) = (0, Vec::new());
    for table in &tables {
        for (number, row) in table.rows.iter().enumerate() {
            count += 1;
            let begun = Instant::now();
            // The webhook's cache may still contain an object of an earlier row that was already deleted.
            let complaint = loop {
                let outcome = attempt(&place, &namespace, table, number, row).await?;
                match complaint(row, &outcome) {
                    Some(_) if begun.elapsed() < Duration::from_secs(10) => {
                        tokio::time::sleep(Duration::from_millis(200)).await;
                    }
                    other => break other,
                }
            };
            complaints
                .extend(complaint.map(|text| format!("{} {number} ({}): {text}", table.kind, row.name)));
        }
    }
    ensure!(
        complaints.is_empty(),
        "{} of {count}:\n{}",
        complaints.len(),
        complaints.join("\n")
    );
    ensure!(count >= 150, "only {count} rows");

    kubectl_prints_a_line_for_each_field(&place, &namespace)?;
    deletion_warns(&place, &namespace).await?;
    a_stored_object_can_always_be_deleted(&place, &namespace, &tables).await
}

fn kubectl_prints_a_line_for_each_field(place: &Place, namespace: &str) -> Result<()> {
    let object = json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "metadata": { "name": "wrong" },
        "spec": { "controllerRef": { "name": "" }, "extraConf": "Gres" },
    });
    let mut create = place.cluster.kubectl();
    create.args(["--namespace", namespace, "create", "-f", "-"]);
    let said = pipe(create, &object.to_string())
        .expect_err("it was taken")
        .to_string();
    for line in [
        r#"The NodeSet "wrong" is invalid"#,
        "* spec.controllerRef.name: is empty; set the name of a Controller in the same namespace",
        "* spec.extraConf: ",
    ] {
        ensure!(said.contains(line), "no {line:?} in {said}");
    }
    Ok(())
}

async fn deletion_warns(place: &Place, namespace: &str) -> Result<()> {
    for (kind, name, expected) in [
        ("NodeSet", "busy", "drains its workers first"),
        (
            "Controller",
            "taken",
            "will not be deleted until these NodeSets are deleted: busy",
        ),
        (
            "Accounting",
            "records",
            "will not be deleted until these Controllers are deleted: taken",
        ),
        (
            "SlurmCluster",
            "site",
            "until these NodeSets are deleted, which are not its own: extra",
        ),
    ] {
        let outcome = send(
            &place.client,
            Method::DELETE,
            &path(namespace, kind, Some(name)),
            None,
            true,
        )
        .await?;
        ensure!(outcome.refusal().is_none(), "{outcome:?}");
        ensure!(
            outcome.warnings.iter().any(|warning| warning.contains(expected)),
            "{:?}",
            outcome.warnings
        );
    }
    Ok(())
}

/// Checks that finalizers can be added to and removed from stored objects that would be rejected today.
async fn a_stored_object_can_always_be_deleted(
    place: &Place,
    namespace: &str,
    tables: &[Table],
) -> Result<()> {
    for table in tables {
        for (number, row) in table.rows.iter().enumerate().filter(|(_, row)| row.stored) {
            let own = path(
                namespace,
                &table.kind,
                table.object(number, row, namespace)["metadata"]["name"].as_str(),
            );
            for (method, body) in [
                (
                    Method::PATCH,
                    Some(json!({ "metadata": { "finalizers": ["example.org/wait"] } })),
                ),
                (Method::DELETE, None),
                (Method::PATCH, Some(json!({ "metadata": { "finalizers": [] } }))),
            ] {
                let outcome = send(&place.client, method.clone(), &own, body.as_ref(), false).await?;
                ensure!(outcome.refusal().is_none(), "{} {method}: {outcome:?}", row.name);
            }
            let gone = send(&place.client, Method::GET, &own, None, false).await?;
            ensure!(gone.status == 404, "{}: {gone:?}", row.name);
        }
    }
    Ok(())
}
