//! The certificate in use. It is replaced without downtime: open connections continue, new handshakes use the new one.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::{
    ServerConfig,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use super::Serving;
use crate::metrics::Metrics;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the certificate or its key is not valid PEM")]
    Pem(#[source] rustls::pki_types::pem::Error),
    #[error("the certificate and its key cannot be used together")]
    Pair(#[source] rustls::Error),
    #[error("no supported TLS version")]
    Versions(#[source] rustls::Error),
    #[error(transparent)]
    Certificate(#[from] super::material::Error),
}

/// The certificate for incoming connections. None before the first one is loaded.
#[derive(Debug, Clone)]
pub struct Tls {
    current: Arc<Current>,
    provider: Arc<CryptoProvider>,
    metrics: Metrics,
}

#[derive(Debug, Default)]
struct Current {
    key: ArcSwapOption<CertifiedKey>,
}

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.key.load_full()
    }
}

impl Tls {
    pub fn new(metrics: Metrics) -> Self {
        Self {
            current: Arc::default(),
            provider: Arc::new(aws_lc_rs::default_provider()),
            metrics,
        }
    }

    /// Loads a certificate for new connections.
    pub fn load(&self, serving: &Serving) -> Result<(), Error> {
        let chain = CertificateDer::pem_slice_iter(serving.certificate.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(Error::Pem)?;
        let key = PrivateKeyDer::from_pem_slice(serving.key.as_bytes()).map_err(Error::Pem)?;
        let certified = CertifiedKey::from_der(chain, key, &self.provider).map_err(Error::Pair)?;
        let expires = serving.expires()?;
        self.current.key.store(Some(Arc::new(certified)));
        self.metrics.certificate_expires(expires);
        tracing::info!(%expires, "loaded the serving certificate");
        Ok(())
    }

    pub fn server_config(&self) -> Result<ServerConfig, Error> {
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()
            .map_err(Error::Versions)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&self.current) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}
