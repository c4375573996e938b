//! The Kubernetes client, with limits that suit a controller.

use std::{path::Path, time::Duration};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

const CONNECT_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to read the kubeconfig {path}")]
    Kubeconfig {
        path: String,
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    #[error("no Kubernetes configuration found: neither a kubeconfig nor a service account")]
    Infer(#[source] Box<kube::config::InferConfigError>),
    #[error("failed to build a Kubernetes client")]
    Build(#[source] Box<kube::Error>),
}

/// Creates a client from the kubeconfig, or from the environment if none is given.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Client, Error> {
    let mut config = match kubeconfig {
        Some(path) => {
            let wrong = |source| Error::Kubeconfig {
                path: path.display().to_string(),
                source: Box::new(source),
            };
            let file = Kubeconfig::read_from(path).map_err(wrong)?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                .await
                .map_err(wrong)?
        }
        None => Config::infer()
            .await
            .map_err(|source| Error::Infer(Box::new(source)))?,
    };
    config.connect_timeout = Some(CONNECT_LIMIT);
    // The default retries one call for minutes; the work queue and the watches have their own backoff.
    config.default_retry = false;
    Client::try_from(config).map_err(|source| Error::Build(Box::new(source)))
}
