//! The admission server: answers whether an object of ours may be stored, before it is, and gives workers their node's
//! topology when they are scheduled.
//!
//! One direction: a request is read (`review`), what its rules look at is collected (`cluster` into `namespace_snapshot`), it is
//! validated (`validate`, `kinds`, pure), and the verdict goes out. The certificate lives beside that (`certificate`).

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

/// Answers a review of any kind of ours as if it were alone in an empty cluster.
pub fn answer_alone(body: &[u8]) -> Result<review::Answer, review::ReadError> {
    let review = review::read(body)?;
    let verdict = validate::validate_any(&review.request, &namespace_snapshot::NamespaceSnapshot::default());
    Ok(review.answer(verdict))
}

/// What the server is told.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where admission is served.
    pub server: SocketAddr,
    /// Where `/healthz` and `/readyz` are served.
    pub health: Option<SocketAddr>,
    /// Where `/metrics` is served.
    pub metrics: Option<SocketAddr>,
    /// Whether `/metrics` is served over TLS, to those whom the cluster allows it.
    pub metrics_secure: bool,
    /// Namespaces whose objects are known to rules that compare; all when empty.
    pub namespaces: Vec<String>,
    /// Whether configuration that no known Slurm can read is refused instead of warned of.
    pub strict_configuration: bool,
    /// Where the serving certificate comes from.
    pub certificate: CertificateSource,
    /// How long requests are still taken after the replica has said that it leaves: until everyone has heard of it.
    pub drain: Duration,
    /// Bounds on what clients can make us do.
    pub limits: Limits,
    /// Whether the hook on `pods/binding` is served.
    pub pods_binding: bool,
}

/// Where the serving certificate comes from.
#[derive(Debug, Clone)]
pub enum CertificateSource {
    /// Files `tls.crt` and `tls.key` that somebody else keeps.
    Directory(PathBuf),
    /// Made by ourselves and kept in a Secret.
    Secret(Place),
}

/// Serves until `stop`, then drains and ends.
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
        tracing::info!(seconds = drain.as_secs_f32(), "leaving, requests are still taken");
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

/// A side server that fails takes nothing else with it, but somebody should know.
fn complain(served: Result<(), Error>) {
    if let Err(error) = served {
        tracing::error!(error = keelson_runtime::run::chain(&error), "a server ended");
    }
}
