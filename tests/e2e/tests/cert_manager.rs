//! Tests a webhook certificate that cert-manager issues, with the charts of both. The test is in the soak tier, because
//! building cert-manager without a cache takes minutes.
//!
//! This webhook validates a system namespace that the test cluster's own webhook excludes, so only this webhook can
//! reject objects there.

#![allow(
    clippy::indexing_slicing,
    reason = "a missing entry fails the test, as it should"
)]

use std::process::Command;

use anyhow::{Context, Result, ensure};
use e2e::slurm::condition;
use e2e::{Namespace, api, cluster, eventually, get, kubectl_with, run};
use jiff::Timestamp;
use serde_json::{Value, json};
use testbed::cache::Cache;
use testbed::cert_manager::{self, CertManager};
use testbed::progress::Progress;

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/slurm-operator");
const CERTIFICATE: &str = "certified-webhook";
const WEBHOOK: &str = "certified-webhook";
const LOOKED_AFTER: &str = "kube-public";

/// A release that is uninstalled with the test, including its cluster-wide objects.
struct Release {
    space: Namespace,
    name: &'static str,
}

impl Release {
    fn install(name: &'static str, chart: &str, values: &Value) -> Result<Self> {
        let release = Self {
            space: Namespace::create(name)?,
            name,
        };
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), values.to_string())?;
        run(release
            .helm("install")?
            .arg(chart)
            .arg("--values")
            .arg(file.path())
            .args(["--wait", "--timeout=3m"]))?;
        Ok(release)
    }

    fn helm(&self, verb: &str) -> Result<Command> {
        let mut helm = cluster()?.helm();
        helm.args([verb, self.name, "--namespace", &self.space.name]);
        Ok(helm)
    }

    fn get(&self, words: &[&str]) -> Result<Value> {
        self.space.get(words)
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        let _ = self
            .helm("uninstall")
            .and_then(|mut helm| run(helm.arg("--wait")));
    }
}

fn install_cert_manager() -> Result<Release> {
    let progress = Progress::new(false);
    let CertManager { chart, archive } = cert_manager::build(&Cache::open()?, &progress)?;
    cluster()?.import(&progress, &[archive])?;
    let of = |program: &str| {
        let image = cert_manager::image(program);
        let (repository, tag) = image.rsplit_once(':').unwrap_or((&image, ""));
        json!({ "repository": repository, "tag": tag, "pullPolicy": "Never" })
    };
    let values = json!({
        "crds": { "enabled": true, "keep": false },
        "startupapicheck": { "enabled": false },
        "image": of("controller"),
        // The testbed's build of the controller serves no health endpoint.
        "livenessProbe": { "enabled": false },
        "webhook": { "image": of("webhook") },
        "cainjector": { "image": of("cainjector") },
    });
    Release::install("cert-manager", &chart.to_string_lossy(), &values)
}

fn install_webhook() -> Result<Release> {
    let values = json!({
        "nameOverride": "certified",
        "operator": { "enabled": false },
        "certManager": { "enabled": true, "secretName": CERTIFICATE },
        "webhook": {
            "metricsPort": 8080,
            "podsBinding": true,
            "validating": { "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": LOOKED_AFTER } } },
        },
    });
    Release::install("certified", CHART, &values)
}

/// Returns the revision and the expiry of the latest certificate, from the Certificate's status.
fn issued(release: &Release) -> Result<(u64, Timestamp)> {
    let certificate = release.get(&["certificate", CERTIFICATE])?;
    let ready = condition(&certificate, "Ready")?;
    ensure!(ready["status"] == "True", "{certificate}");
    let revision = certificate.pointer("/status/revision").and_then(Value::as_u64);
    let end = certificate.pointer("/status/notAfter").and_then(Value::as_str);
    Ok((revision.context("no revision")?, end.context("no end")?.parse()?))
}

/// Returns the identity of the webhook's only pod, and the expiry of the certificate that it serves.
fn served(release: &Release) -> Result<(String, f64)> {
    let pods = release.get(&["pods"])?;
    let pods = pods["items"].as_array().context("no list")?;
    let [pod] = pods.as_slice() else {
        anyhow::bail!("{} pods", pods.len());
    };
    let name = pod["metadata"]["name"].as_str().context("a pod without a name")?;
    let path = format!(
        "/api/v1/namespaces/{}/pods/{name}:8080/proxy/metrics",
        release.space.name
    );
    let metrics = api::raw(&path)?;
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix("keelson_certificate_expiry_timestamp_seconds "));
    let until = line
        .with_context(|| format!("no certificate in {metrics}"))?
        .parse()?;
    Ok((pod["status"]["containerStatuses"].to_string() + name, until))
}

fn is_until(served: f64, issued: Timestamp) -> bool {
    (served - issued.as_duration().as_secs_f64()).abs() < 1.0
}

/// Creates a NodeSet with this name by dry run. Fails if the API server rejects it.
fn ask(name: &str) -> Result<String> {
    let nodeset = json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "metadata": { "name": name },
        "spec": { "controllerRef": { "name": "slurm" }, "slurmd": { "image": "slurmd:1" }, "logfile": { "image": "login:1" } },
    });
    kubectl_with(
        &["--namespace", LOOKED_AFTER, "create", "--dry-run=server"],
        &nodeset.to_string(),
    )
}

fn admission_works() -> Result<()> {
    eventually("a good NodeSet is let through", || ask("workers"))?;
    // `all` has a special meaning in Slurm.
    let refused = ask("all").err().context("a bad NodeSet was let through")?;
    ensure!(refused.to_string().contains("rename this NodeSet"), "{refused:#}");
    Ok(())
}

#[test]
fn cert_manager_makes_the_webhooks_certificate_and_another_when_it_is_lost_soak() -> Result<()> {
    let _cert_manager = install_cert_manager()?;
    let webhook = install_webhook()?;
    let (revision, end) = eventually("a certificate", || issued(&webhook))?;
    for kind in ["validatingwebhookconfiguration", "mutatingwebhookconfiguration"] {
        eventually("its authority in the configuration", || {
            let configuration = get(&[kind, WEBHOOK])?;
            let all = configuration["webhooks"].as_array().context("no webhooks")?;
            let without = all
                .iter()
                .filter(|one| one.pointer("/clientConfig/caBundle").is_none())
                .count();
            ensure!(!all.is_empty() && without == 0, "{without} webhooks without a CA");
            Ok(())
        })?;
    }
    admission_works()?;
    let (pod, until) = served(&webhook)?;
    ensure!(is_until(until, end), "served until {until}, issued until {end}");

    webhook.space.kubectl(&["delete", "secret", CERTIFICATE])?;
    let (_, end) = eventually("another certificate", || {
        let (newest, end) = issued(&webhook)?;
        ensure!(newest > revision, "still revision {newest}");
        Ok((newest, end))
    })?;
    let mut looks = 0;
    eventually("the webhook serves it", || {
        // Annotate the pods, because the kubelet updates volumes when a pod changes, and otherwise only periodically.
        looks += 1;
        let poke = format!("looks={looks}");
        webhook
            .space
            .kubectl(&["annotate", "pods", "--all", "--overwrite", &poke])?;
        let (_, until) = served(&webhook)?;
        ensure!(is_until(until, end), "served until {until}, issued until {end}");
        Ok(())
    })?;
    ensure!(served(&webhook)?.0 == pod, "the webhook was restarted meanwhile");
    admission_works()
}
