//! The admission webhook: validates objects of our kinds before they are stored, and sets the topology of workers when
//! they are scheduled.
//!
//! Data flows one way: `review` parses a request, `cluster` collects what the rules need into a `namespace_snapshot`,
//! `validate` and `kinds` (pure) return a verdict, and `review` encodes the response. `certificate` manages the serving
//! certificate. Any pod can send a review, so a response must not contain the content of other objects. The webhook
//! must not prevent a pod from being scheduled.

mod binding;
mod certificate;
mod children;
mod cluster;
mod conf;
mod kinds;
mod limits;
mod metrics;
mod namespace_snapshot;
mod readiness;
pub mod review;
mod server;
mod validate;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use axum::Router;
pub use certificate::{Lifetimes, Material, keeper::Place};
use certificate::{directory, keeper::Keeper, tls::Tls};
use cluster::{Caches, Cluster};
use keelson_runtime::{
    Clock,
    http::metrics as metrics_endpoint,
    watch::{Scope, Watches},
};
use kube::Client;
pub use limits::Limits;
use metrics::Metrics;
use readiness::Readiness;
pub use server::{BINDING_PATH, DELETION_PATH, Error};
use server::{Bound, Service};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Reviews an object of any of our kinds as if the cluster were otherwise empty.
pub fn answer_alone(body: &[u8]) -> Result<review::Answer, review::ReadError> {
    let review = review::read(body)?;
    let verdict = validate::validate_any(&review.request, &namespace_snapshot::NamespaceSnapshot::default());
    Ok(review.answer(verdict))
}

/// Options of the server.
#[derive(Debug, Clone)]
pub struct Options {
    /// Address of the admission endpoints.
    pub server: SocketAddr,
    /// Address of `/healthz` and `/readyz`.
    pub health: Option<SocketAddr>,
    /// Address of `/metrics`.
    pub metrics: Option<SocketAddr>,
    /// Whether `/metrics` uses TLS and requires authorization by the cluster.
    pub metrics_secure: bool,
    /// Namespaces to watch for rules that compare objects. All if empty.
    pub namespaces: Vec<String>,
    /// Whether to reject configuration that no known Slurm release can parse, instead of warning about it.
    pub strict_configuration: bool,
    /// Source of the serving certificate.
    pub certificate: CertificateSource,
    /// How long a stopping replica still accepts requests after it becomes unready, until all clients have noticed.
    pub drain: Duration,
    /// Limits on the resources that clients can use.
    pub limits: Limits,
    /// Whether to serve the webhook on `pods/binding`.
    pub pods_binding: bool,
}

/// Source of the serving certificate.
#[derive(Debug, Clone)]
pub enum CertificateSource {
    /// Files `tls.crt` and `tls.key` that are managed externally, such as by cert-manager.
    Directory(PathBuf),
    /// Created by the webhook and stored in a Secret.
    Secret(Place),
}

/// Serves until `stop`, then drains and returns.
pub async fn serve(client: Client, options: Options, stop: CancellationToken) -> Result<(), Error> {
    let Options {
        server,
        health,
        metrics: scraped,
        metrics_secure,
        namespaces,
        strict_configuration,
        certificate,
        drain,
        limits,
        pods_binding,
    } = options;
    let metrics = Metrics::new();
    let readiness = Readiness::default();
    let tls = Tls::new(metrics.clone());
    let admission = Bound::to(server)?;
    let health = health.map(Bound::to).transpose()?;
    let scraped = scraped.map(Bound::to).transpose()?;
    tracing::info!(address = %admission.address, "listening");

    // Watches, certificate, health and metrics outlive the drain; admission ends with it.
    let (end, drained) = (CancellationToken::new(), CancellationToken::new());
    let tasks = TaskTracker::new();
    let caches = Caches::default();
    caches.watch(&Watches {
        client: client.clone(),
        scope: Scope::from_list(&namespaces),
        health: readiness.watches().clone(),
        metrics: metrics.runtime().clone(),
        tasks: tasks.clone(),
        stop: end.clone(),
    });
    match certificate {
        CertificateSource::Directory(path) => {
            tasks.spawn(directory::follow(
                path,
                tls.clone(),
                readiness.clone(),
                end.clone(),
            ));
        }
        CertificateSource::Secret(place) => {
            let clock = Clock::system();
            let keeper = Keeper::new(client.clone(), place, tls.clone(), clock, readiness.clone());
            tasks.spawn(keeper.run(end.clone()));
        }
    }
    if let Some(bound) = health {
        let (router, end) = (server::health_router(readiness.clone()), end.clone());
        tasks.spawn(async move { complain(bound.serve_plain(router, end).await) });
    }
    if let Some(bound) = scraped {
        let (client, metrics, tls, end) = (client.clone(), metrics.clone(), tls.clone(), end.clone());
        tasks.spawn(async move {
            complain(if metrics_secure {
                bound
                    .serve(
                        metrics_endpoint::guarded(metrics.runtime().clone(), client),
                        &tls,
                        end,
                    )
                    .await
            } else {
                bound
                    .serve_plain(metrics_endpoint::open(metrics.runtime().clone()), end)
                    .await
            });
        });
    }
    tasks.close();

    let leaving = readiness.clone();
    let service = Service {
        cluster: Cluster::new(client, caches, strict_configuration),
        metrics,
        readiness,
        limits,
        pods_binding,
    };
    let router: Router = server::router(service);
    let draining = async {
        stop.cancelled().await;
        leaving.leave();
        tracing::info!(
            seconds = drain.as_secs_f32(),
            "shutting down, still accepting requests"
        );
        tokio::time::sleep(drain).await;
        drained.cancel();
        std::future::pending::<()>().await;
    };
    let served = tokio::select! {
        served = admission.serve(router, &tls, drained.clone()) => served,
        () = draining => Ok(()),
    };
    end.cancel();
    tasks.wait().await;
    served
}

/// Logs the failure of a secondary server, which does not stop the webhook.
fn complain(served: Result<(), Error>) {
    if let Err(error) = served {
        tracing::error!(error = keelson_runtime::run::chain(&error), "server failed");
    }
}
