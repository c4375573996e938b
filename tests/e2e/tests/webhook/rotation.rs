//! Tests that admission continues while certificates are renewed, replicas are replaced or killed, and the Secret or
//! the CA bundle is deleted.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use crate::load::{Load, ask};
use crate::release::Release;

const EXPIRY: &str = "keelson_certificate_expiry_timestamp_seconds";

#[expect(clippy::disallowed_methods, reason = "certificates live by the real clock")]
fn now() -> Timestamp {
    Timestamp::now()
}

/// Waits for a condition without blocking the tasks of the load.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !holds().await? {
        ensure!(begun.elapsed() < e2e::PATIENCE, "it did not happen: {what}");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    Ok(())
}

async fn without_failure(load: Load, meanwhile: &str) -> Result<()> {
    let asked = load.asked();
    let failures = load.finish().await;
    ensure!(
        failures.is_empty(),
        "{meanwhile}: {} of {asked} failed: {:?}",
        failures.len(),
        failures.first().map(ToString::to_string)
    );
    println!("{meanwhile}: {asked} admissions, none failed");
    ensure!(asked > 20, "{meanwhile}: only {asked} requests");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn admission_goes_on_while_certificates_and_replicas_change() -> Result<()> {
    let release = Release::install("rotate").await?;
    release.store_old_certificate(now()).await?;
    let old = release.stored().await?;
    release.run(&["--ca-settle=15s"]).await?;

    let load = Load::start(&release.client, &release.asked.name, 2);
    let uids = |release: &Release| -> Result<Vec<String>> {
        Ok(release
            .pods()?
            .values()
            .map(|pod| pod["metadata"]["uid"].to_string())
            .collect())
    };
    let before = uids(&release)?;
    until("a new authority signs what is served", async || {
        let stored = release.stored().await?;
        Ok(stored.newest() != old.newest() && stored.facts(&[])?.signed_by_newest)
    })
    .await?;
    // Every replica serves the new certificate, which expires later than the old one, without a restart.
    let soon = now().duration_since(Timestamp::UNIX_EPOCH).as_secs_f64() + 80.0 * 24.0 * 3600.0;
    until("every replica serves the new certificate", async || {
        Ok(release.sum(EXPIRY, f64::min)? > soon)
    })
    .await?;
    ensure!(uids(&release)? == before, "replicas were replaced meanwhile");
    without_failure(load, "authority and certificate replaced").await?;

    let load = Load::start(&release.client, &release.asked.name, 2);
    release.replace()?;
    ensure!(uids(&release)?.iter().all(|uid| !before.contains(uid)));
    without_failure(load, "every replica replaced").await?;

    killed_replicas_cost_what_was_in_flight(&release).await?;
    what_people_take_away_comes_back(&release).await
}

async fn killed_replicas_cost_what_was_in_flight(release: &Release) -> Result<()> {
    let load = Load::start(&release.client, &release.asked.name, 2);
    let asked_before = load.asked() + 20;
    until("some requests", async || Ok(load.asked() > asked_before)).await?;
    let killed = Instant::now();
    let pod = release.kill_one()?;
    release.wait_restarted(&pod)?;
    // The API server notices the restart later than the kubelet.
    let mut in_a_row = 0;
    until("admissions that work again", async || {
        let failed = ask(&release.client, &release.asked.name, 9).await.is_some();
        in_a_row = if failed { 0 } else { in_a_row + 1 };
        Ok(in_a_row > 5)
    })
    .await?;
    let asked = load.asked();
    let failures = load.finish().await;
    let early: Vec<_> = failures.iter().filter(|failure| failure.ended < killed).collect();
    ensure!(early.is_empty(), "failed before anybody was killed: {}", early[0]);
    println!("a replica killed: {} of {asked} failed", failures.len());
    ensure!(failures.len() < asked / 2, "the other replica did not serve");

    // The remaining replica serves requests, then both do.
    let load = Load::start(&release.client, &release.asked.name, 2);
    release.wait_rolled_out()?;
    until("some requests", async || Ok(load.asked() > 50)).await?;
    without_failure(load, "after a replica was killed").await
}

async fn what_people_take_away_comes_back(release: &Release) -> Result<()> {
    // The Secret is restored with the same contents, and no request fails.
    let served = release.stored().await?;
    let load = Load::start(&release.client, &release.asked.name, 2);
    release.delete_secret().await?;
    until("the Secret is back", async || release.has_secret().await).await?;
    ensure!(release.stored().await? == served);
    until("some requests", async || Ok(load.asked() > 50)).await?;
    without_failure(load, "the Secret deleted").await?;

    // The CA bundle in the configuration is restored.
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(release.client.clone());
    let hook =
        json!({ "webhooks": [{ "name": "nodeset-v1beta1.kb.io", "clientConfig": { "caBundle": null } }] });
    configurations
        .patch(&release.name, &PatchParams::default(), &Patch::Strategic(hook))
        .await?;
    until("the authority is back", async || {
        let configuration = configurations.get(&release.name).await?;
        let mut hooks = configuration.webhooks.into_iter().flatten();
        Ok(hooks.all(|hook| hook.client_config.ca_bundle.is_some()))
    })
    .await
}

/// Uses short lifetimes, so that one run renews the CA many times.
#[tokio::test(flavor = "multi_thread")]
async fn many_authorities_and_replicas_pass_in_a_soak_without_a_failed_admission() -> Result<()> {
    const AUTHORITIES: usize = 6;
    let release = Release::install("rotate-soak").await?;
    release
        .run(&["--cert-lifetime=30s", "--ca-lifetime=90s", "--ca-settle=5s"])
        .await?;
    let load = Load::start(&release.client, &release.asked.name, 4);
    let mut authorities = vec![release.stored().await?.newest().to_owned()];
    while authorities.len() < AUTHORITIES {
        release.replace()?;
        until("another authority", async || {
            Ok(release.stored().await?.newest() != authorities[authorities.len() - 1])
        })
        .await?;
        authorities.push(release.stored().await?.newest().to_owned());
    }
    without_failure(load, &format!("{AUTHORITIES} authorities, as many roll-outs")).await
}
