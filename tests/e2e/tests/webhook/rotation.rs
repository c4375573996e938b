//! Certificates change, replicas come and go, people delete what they should not: admission goes on.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::load::Load;
use crate::place::{HOME, NAME, Place, asked, namespace, remove_namespace};
use crate::replicas::Replica;

/// How long the webhook may take to learn of what we did just now.
const NEWS: Duration = Duration::from_secs(10);

/// Short lives, so that a test sees several.
const SHORT: [&str; 4] = [
    "--cert-lifetime=9s",
    "--ca-lifetime=30s",
    "--ca-settle=2s",
    "--drain=3s",
];

#[tokio::test(flavor = "multi_thread")]
async fn certificates_rotate_and_replicas_are_replaced_without_a_failed_admission() -> Result<()> {
    let place = Place::prepare("rotate").await?;
    let namespace = namespace(&place, "rotate").await?;
    place.configure()?;
    let mut replicas = vec![
        Replica::start(&place, &SHORT).await?,
        Replica::start(&place, &SHORT).await?,
    ];
    asked(&place, &namespace).await?;

    let load = Load::start(&place.client, &namespace, 4);
    let first = seen(&place).await?;
    let begun = Instant::now();
    let (mut authorities, mut certificates) = (vec![first.0], vec![first.1]);
    // Three authorities, with a replica replaced meanwhile whenever there was a certificate.
    while authorities.len() < 3 || certificates.len() < 6 {
        ensure!(
            begun.elapsed() < Duration::from_secs(150),
            "too slow: {} {}",
            authorities.len(),
            certificates.len()
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
        let (authority, certificate) = seen(&place).await?;
        if authorities.last() != Some(&authority) {
            authorities.push(authority);
        }
        if certificates.last() != Some(&certificate) {
            certificates.push(certificate);
            replicas.push(Replica::start(&place, &SHORT).await?);
            replicas.remove(0).stop().await?;
        }
    }
    let asked = load.asked();
    let failures = load.finish().await;
    ensure!(
        failures.is_empty(),
        "{} of {asked} failed: {:?}",
        failures.len(),
        failures.first().map(ToString::to_string)
    );
    ensure!(asked > 500, "only {asked} requests");
    println!(
        "{asked} admissions, {} authorities, {} certificates, {} replicas replaced, none failed",
        authorities.len(),
        certificates.len(),
        certificates.len() - 1
    );

    // Killed: what fails was under way, or was asked before the endpoint was gone.
    let load = Load::start(&place.client, &namespace, 4);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let killed = Instant::now();
    replicas.remove(0).kill().await?;
    let withdrawn = Instant::now();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let asked = load.asked();
    let failures = load.finish().await;
    let grace = Duration::from_millis(500);
    for failure in &failures {
        ensure!(
            failure.ended >= killed && failure.begun <= withdrawn + grace,
            "{failure}"
        );
    }
    println!("killed: {} of {asked} failed", failures.len());
    ensure!(asked > 100, "only {asked} requests");

    // Somebody deletes the Secret: what is served comes back, and nobody notices.
    let load = Load::start(&place.client, &namespace, 2);
    let secrets: Api<Secret> = Api::namespaced(place.client.clone(), HOME);
    secrets
        .delete("slurm-operator-webhook-ca", &DeleteParams::default())
        .await?;
    let begun = Instant::now();
    while secrets.get_opt("slurm-operator-webhook-ca").await?.is_none() {
        ensure!(begun.elapsed() < NEWS, "the Secret did not come back");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Somebody takes the authority out of the configuration: it comes back too.
    tokio::time::sleep(Duration::from_secs(1)).await;
    ensure!(load.finish().await.is_empty());
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(place.client.clone());
    let hook =
        json!({ "webhooks": [{ "name": "nodeset-v1beta1.kb.io", "clientConfig": { "caBundle": null } }] });
    configurations
        .patch(NAME, &PatchParams::default(), &Patch::Strategic(hook))
        .await?;
    asked_again(&place, &namespace).await?;
    drop(replicas);
    remove_namespace(&place, &namespace).await
}

async fn asked_again(place: &Place, namespace: &str) -> Result<()> {
    tokio::time::sleep(Duration::from_millis(500)).await;
    asked(place, namespace).await
}

/// The newest authority and the serving certificate in the Secret.
async fn seen(place: &Place) -> Result<(Vec<u8>, Vec<u8>)> {
    let secrets: Api<Secret> = Api::namespaced(place.client.clone(), HOME);
    let data = secrets
        .get("slurm-operator-webhook-ca")
        .await?
        .data
        .unwrap_or_default();
    let get = |key: &str| data.get(key).map(|bytes| bytes.0.clone()).context("no such key");
    let key = get("ca.key")?;
    Ok((key, get("tls.crt")?))
}
