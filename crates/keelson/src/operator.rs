//! `keelson operator`.

use anyhow::Context as _;
use keelson_api::scalars::Amount;
use keelson_operator::{Options, Settings, Workers, cluster_domain};
use keelson_runtime::{client, http::listen_address};

use crate::{flags, logging, process};

pub fn run(flags: &flags::Operator) -> anyhow::Result<()> {
    logging::start(&flags.log)?;
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = client::connect(flags.kubeconfig.as_deref()).await?;
        let stop = process::stop_on_signal()?;
        // The future holds the loops of six controllers and is too large for the stack.
        Box::pin(keelson_operator::run(client, options(flags)?, stop))
            .await
            .context("the operator failed")
    })
}

fn options(flags: &flags::Operator) -> anyhow::Result<Options> {
    let lease_namespace = match (flags.leader_elect, flags.leader_elect_namespace.as_str()) {
        (false, _) => None,
        (true, "") => {
            Some(process::own_namespace().context("--leader-elect-namespace is required outside a pod")?)
        }
        (true, namespace) => Some(namespace.to_owned()),
    };
    let resolv_conf = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let flags::Workers {
        accounting_workers,
        controller_workers,
        loginset_workers,
        nodeset_workers,
        restapi_workers,
        slurmcluster_workers,
        token_workers,
        slurmclient_workers,
    } = flags.workers;
    Ok(Options {
        namespaces: flags.namespaces.clone(),
        lease_namespace,
        identity: std::env::var("HOSTNAME").unwrap_or_else(|_| format!("keelson-{}", std::process::id())),
        health: listen_address(&flags.health_addr)?,
        metrics: listen_address(&flags.metrics_addr)?,
        metrics_secure: flags.metrics_secure,
        workers: Workers {
            slurm_cluster: slurmcluster_workers,
            controller: controller_workers,
            accounting: accounting_workers,
            restapi: restapi_workers,
            loginset: loginset_workers,
            nodeset: nodeset_workers,
            token: token_workers,
            slurm: slurmclient_workers,
        },
        settings: Settings {
            propagated_node_conditions: flags
                .propagated_node_conditions
                .iter()
                .filter(|condition| !condition.is_empty())
                .cloned()
                .collect(),
            cluster_domain: cluster_domain(&resolv_conf),
            slurm_max_answer: bytes("--slurm-max-answer", &flags.slurm_max_answer)?,
        },
    })
}

/// A size as a Kubernetes quantity, at least 1Mi: a response about one object must fit.
fn bytes(flag: &str, text: &str) -> anyhow::Result<usize> {
    let amount = Amount::parse(text).with_context(|| flag.to_owned())?;
    let bytes = usize::try_from(amount.ceil()).with_context(|| format!("{flag}={text} is out of range"))?;
    anyhow::ensure!(bytes >= 1 << 20, "{flag}={text} is less than 1Mi");
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_kubernetes_writes_them() {
        assert_eq!(bytes("--x", "256Mi").unwrap(), 256 << 20);
        assert_eq!(bytes("--x", "1048576").unwrap(), 1 << 20);
        for wrong in ["", "lots", "-1Gi", "1k"] {
            let told = format!("{:#}", bytes("--x", wrong).unwrap_err());
            assert!(told.contains("--x"), "{told}");
        }
    }
}
