//! HTTP servers for health probes and Prometheus metrics.

pub mod metrics;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, extract::State, http::StatusCode, routing::get};
use axum_server::{Handle, tls_rustls::RustlsConfig};
use kube::Client;
use rustls::{ServerConfig, crypto::aws_lc_rs, pki_types::PrivateKeyDer};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{health::Health, metrics::Metrics};

/// How long a shutdown waits for running requests.
const LAST_REQUESTS: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0:?} is not a listen address: use [host]:port, or 0 to disable it")]
    Address(String),
    #[error("failed to listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("the server on {address} failed")]
    Serve {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("failed to generate a certificate")]
    Certificate(#[source] rcgen::Error),
    #[error("failed to set up TLS")]
    Tls(#[source] rustls::Error),
}

/// Parses a listen address in the form of Go programs: `:8081`, `127.0.0.1:8081`, `localhost:6060`; `0` means none.
pub fn listen_address(text: &str) -> Result<Option<SocketAddr>, Error> {
    let wrong = || Error::Address(text.to_owned());
    if text == "0" || text.is_empty() {
        return Ok(None);
    }
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    let host = match host {
        "" => "0.0.0.0",
        "localhost" => "127.0.0.1",
        host => host.trim_start_matches('[').trim_end_matches(']'),
    };
    Ok(Some(SocketAddr::new(host.parse().map_err(|_| wrong())?, port)))
}

/// Serves `/healthz` (the process answers) and `/readyz` (its watches work).
pub async fn health(address: SocketAddr, health: Health, stop: CancellationToken) -> Result<(), Error> {
    let router = Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(ready))
        .with_state(health);
    serve(address, router, stop).await
}

async fn ready(State(health): State<Health>) -> (StatusCode, String) {
    let complaints = health.complaints();
    if complaints.is_empty() {
        (StatusCode::OK, "ok".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, complaints.join("\n"))
    }
}

/// Serves `/metrics` to everyone.
pub async fn metrics(address: SocketAddr, metrics: Metrics, stop: CancellationToken) -> Result<(), Error> {
    serve(address, metrics::open(metrics), stop).await
}

/// Serves `/metrics` over TLS to authorized users. The certificate is self-signed at startup: it encrypts tokens in
/// transit but does not authenticate the server.
pub async fn metrics_guarded(
    address: SocketAddr,
    metrics: Metrics,
    client: Client,
    stop: CancellationToken,
) -> Result<(), Error> {
    let config = RustlsConfig::from_config(Arc::new(self_signed()?));
    let handle = Handle::new();
    let _ending = AbortOnDropHandle::new(tokio::spawn({
        let handle = handle.clone();
        async move {
            stop.cancelled().await;
            handle.graceful_shutdown(Some(LAST_REQUESTS));
        }
    }));
    axum_server::bind_rustls(address, config)
        .handle(handle)
        .serve(metrics::guarded(metrics, client).into_make_service())
        .await
        .map_err(|source| Error::Serve { address, source })
}

fn self_signed() -> Result<ServerConfig, Error> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).map_err(Error::Certificate)?;
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(Error::Tls)?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .map_err(Error::Tls)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

async fn serve(address: SocketAddr, router: Router, stop: CancellationToken) -> Result<(), Error> {
    let listener = TcpListener::bind(address)
        .await
        .map_err(|source| Error::Listen { address, source })?;
    axum::serve(listener, router)
        .with_graceful_shutdown(stop.cancelled_owned())
        .await
        .map_err(|source| Error::Serve { address, source })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(":8081", Some("0.0.0.0:8081"))]
    #[case("127.0.0.1:1", Some("127.0.0.1:1"))]
    #[case("localhost:6060", Some("127.0.0.1:6060"))]
    #[case("[::]:8080", Some("[::]:8080"))]
    #[case("0", None)]
    fn addresses_as_go_programs_write_them(#[case] text: &str, #[case] expected: Option<&str>) {
        assert_eq!(
            listen_address(text).unwrap(),
            expected.map(|address| address.parse().unwrap())
        );
    }

    #[rstest]
    #[case("8081")]
    #[case(":http")]
    #[case("no such host:1")]
    fn other_addresses_are_refused(#[case] text: &str) {
        assert!(listen_address(text).is_err());
    }
}
