//! The namespace of the process and its termination signals.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// The namespace of the current pod.
pub fn own_namespace() -> io::Result<String> {
    Ok(std::fs::read_to_string(NAMESPACE_FILE)?.trim().to_owned())
}

/// Returns a token that SIGTERM and SIGINT cancel. The process finishes its current work before it exits.
pub fn stop_on_signal() -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let token = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("received a termination signal, shutting down");
        token.cancel();
    });
    Ok(stop)
}
