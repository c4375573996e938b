//! `keelson webhook`.

use std::time::Duration;

use anyhow::Context as _;
use keelson_api::scalars::GoDuration;
use keelson_runtime::{client, http::listen_address};
use keelson_webhook::{CertificateSource, Lifetimes, Limits, Options, Place};

use crate::{flags, logging, process};

pub fn run(flags: &flags::Webhook) -> anyhow::Result<()> {
    logging::start(&flags.log)?;
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = client::connect(flags.kubeconfig.as_deref()).await?;
        let stop = process::stop_on_signal()?;
        keelson_webhook::serve(client, options(flags)?, stop)
            .await
            .context("the webhook failed")
    })
}

fn options(flags: &flags::Webhook) -> anyhow::Result<Options> {
    Ok(Options {
        server: listen_address(&flags.server_addr)?.context("--server-addr cannot be disabled")?,
        health: listen_address(&flags.health_addr)?,
        metrics: listen_address(&flags.metrics_addr)?,
        metrics_secure: flags.metrics_secure,
        namespaces: flags.namespaces.clone(),
        strict_configuration: flags.strict_configuration,
        certificate: certificate(&flags.certificate)?,
        drain: duration("--drain", &flags.drain)?,
        limits: Limits::default(),
        pods_binding: flags.pods_binding,
    })
}

fn certificate(flags: &flags::Certificate) -> anyhow::Result<CertificateSource> {
    let flags::Certificate {
        cert_dir,
        cert_secret,
        namespace,
        service_name: service,
        webhook_configuration,
        cert_lifetime,
        ca_lifetime,
        ca_settle,
    } = flags;
    let Some(secret) = cert_secret else {
        return Ok(CertificateSource::Directory(cert_dir.clone()));
    };
    let namespace = match namespace {
        Some(namespace) => namespace.clone(),
        None => process::own_namespace().context("--namespace is required outside a pod")?,
    };
    let signed = |flag, text| anyhow::Ok(duration(flag, text)?.try_into()?);
    Ok(CertificateSource::Secret(Place {
        names: vec![
            format!("{service}.{namespace}.svc"),
            format!("{service}.{namespace}"),
            service.clone(),
        ],
        namespace,
        secret: secret.clone(),
        configuration: webhook_configuration.clone(),
        lifetimes: Lifetimes {
            authority: signed("--ca-lifetime", ca_lifetime)?,
            serving: signed("--cert-lifetime", cert_lifetime)?,
            settle: signed("--ca-settle", ca_settle)?,
        },
    }))
}

fn duration(flag: &str, text: &str) -> anyhow::Result<Duration> {
    GoDuration::from(text).parse().with_context(|| flag.to_owned())
}
