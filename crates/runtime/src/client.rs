//! The Kubernetes client, with limits that suit a controller.

use std::{path::Path, time::Duration};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

const CONNECT_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read the kubeconfig {path}")]
    Kubeconfig {
        path: String,
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    #[error("no cluster to talk to: neither a kubeconfig nor a service account")]
    Infer(#[source] Box<kube::config::InferConfigError>),
    #[error("cannot build a Kubernetes client")]
    Build(#[source] Box<kube::Error>),
}

/// Connects as the kubeconfig says, or as the environment does when none is named.
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
    // The default retries one call for minutes; the trigger queue and the watches' own back-off are better places to wait.
    config.default_retry = false;
    Client::try_from(config).map_err(|source| Error::Build(Box::new(source)))
}
