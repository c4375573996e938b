//! What every process of ours needs to know of where it runs and when it ends.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// The namespace of the pod that this runs in.
pub fn own_namespace() -> io::Result<String> {
    Ok(std::fs::read_to_string(NAMESPACE_FILE)?.trim().to_owned())
}

/// SIGTERM and SIGINT end the process in order; the work under way is finished first.
pub fn stop_on_signal() -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let token = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("asked to stop");
        token.cancel();
    });
    Ok(stop)
}
