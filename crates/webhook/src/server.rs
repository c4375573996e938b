//! The HTTPS server: paths, limits and graceful shutdown.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Request as HttpRequest, State},
    http::{HeaderValue, StatusCode, Version, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use axum_server::{Handle, tls_rustls::RustlsConfig};
use keelson_api::{Accounting, Controller, LoginSet, NodeSet, RestApi, SlurmCluster, Token};
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    binding,
    certificate::tls::Tls,
    cluster::Cluster,
    limits::{self, Limits, Turns},
    metrics::Metrics,
    readiness::Readiness,
    review::{Operation, Request, Verdict, read},
    validate::{Case, Rules, validate_any},
};

/// Path of the webhook that warns about deletions, for all kinds.
pub const DELETION_PATH: &str = "/warn-slinky-slurm-net-v1beta1-deletion";
/// Path of the webhook on `pods/binding`.
pub const BINDING_PATH: &str = "/mutate--v1-binding";

/// How long requests in flight may take to finish during shutdown.
const LAST_REQUESTS: Duration = Duration::from_secs(15);
/// Timeout for the header of a request. hyper counts from the end of the previous request, so this also closes idle
/// connections. The API server closes them after 90 s itself; the timeout must be longer, so that the API server never
/// reuses a connection that was just closed.
const HEAD: Duration = Duration::from_mins(3);

#[derive(Debug, thiserror::Error)]
pub enum Error {
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
    #[error("failed to set up TLS")]
    Tls(#[from] crate::certificate::tls::Error),
}

/// State of the review handlers.
#[derive(Debug, Clone)]
pub struct Service {
    pub cluster: Cluster,
    pub metrics: Metrics,
    pub readiness: Readiness,
    pub limits: Limits,
    /// Whether to serve the webhook on `pods/binding`.
    pub pods_binding: bool,
}

/// The admission endpoints.
pub fn router(service: Service) -> Router {
    let limits = service.limits.clone();
    let body = DefaultBodyLimit::max(limits.body);
    let turns = Turns::new(limits, service.metrics.clone());
    let readiness = service.readiness.clone();
    let mut router = Router::new()
        .route(&path_of::<Accounting>(), post(validate::<Accounting>))
        .route(&path_of::<Controller>(), post(validate::<Controller>))
        .route(&path_of::<LoginSet>(), post(validate::<LoginSet>))
        .route(&path_of::<NodeSet>(), post(validate::<NodeSet>))
        .route(&path_of::<RestApi>(), post(validate::<RestApi>))
        .route(&path_of::<SlurmCluster>(), post(validate::<SlurmCluster>))
        .route(&path_of::<Token>(), post(validate::<Token>))
        .route(DELETION_PATH, post(deletion));
    // It reads pods and nodes for any client, so it is served only if it is used.
    if service.pods_binding {
        router = router.route(BINDING_PATH, post(bind));
    }
    router
        .layer(body)
        .layer(middleware::from_fn_with_state(turns, limits::take))
        .layer(middleware::from_fn_with_state(readiness, say_goodbye))
        .with_state(service)
}

/// Path of the validating webhook of a kind, the same as Slinky's for Slinky's kinds.
pub fn path_of<K: Rules>() -> String {
    let group = K::group(&()).replace('.', "-");
    format!("/validate-{group}-{}-{}", K::version(&()), K::KIND)
}

async fn validate<K: Rules>(State(service): State<Service>, body: Bytes) -> Response {
    answer(&service, K::KIND, &body, async |request| {
        validate_request::<K>(&service, request)
    })
    .await
}

/// One webhook for all kinds. It must not block deletions if it is unavailable, so it needs a different failure policy
/// than the others.
async fn deletion(State(service): State<Service>, body: Bytes) -> Response {
    answer(&service, "deletion", &body, async |request| {
        if request.operation != Operation::Delete {
            return Verdict::default();
        }
        validate_any(request, &service.cluster.snapshot(&request.namespace))
    })
    .await
}

async fn bind(State(service): State<Service>, body: Bytes) -> Response {
    answer(&service, binding::KIND, &body, async |request| {
        binding::review(request, &service.cluster).await
    })
    .await
}

fn validate_request<K: Rules>(service: &Service, request: &Request) -> Verdict {
    let case = Case::<K>::of(request);
    if matches!(case, Case::Pass) {
        return Verdict::default();
    }
    case.validate(&service.cluster.snapshot(&request.namespace))
}

async fn answer(
    service: &Service,
    kind: &'static str,
    body: &[u8],
    decide: impl AsyncFnOnce(&Request) -> Verdict,
) -> Response {
    let begun = Instant::now();
    let review = match read(body) {
        Ok(review) => review,
        Err(error) => {
            service.metrics.reviewed(kind, "unknown", "unreadable");
            return (StatusCode::BAD_REQUEST, error.to_string()).into_response();
        }
    };
    let verdict = decide(&review.request).await;
    let Request {
        operation,
        name,
        namespace,
        ..
    } = &review.request;
    let label = verdict.label();
    service.metrics.reviewed(kind, operation.as_str(), label);
    service.metrics.took(kind, begun.elapsed());
    if !verdict.report.is_valid() {
        // Only the field paths: their values belong in the response, not in the log.
        let fields: Vec<String> = verdict
            .report
            .violations
            .iter()
            .map(|v| v.path.to_string())
            .collect();
        tracing::info!(
            kind,
            namespace,
            name,
            operation = operation.as_str(),
            fields = fields.join(", "),
            "rejected"
        );
    }
    Json(review.answer(verdict)).into_response()
}

/// During shutdown, closes the connection after each response, so that the client connects to another replica and does not
/// run into a connection that is being closed.
async fn say_goodbye(State(readiness): State<Readiness>, request: HttpRequest, next: Next) -> Response {
    let closes = request.version() <= Version::HTTP_11;
    let mut response = next.run(request).await;
    if closes && readiness.is_leaving() {
        response
            .headers_mut()
            .insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// A server that listens but does not serve yet.
#[derive(Debug)]
pub struct Bound {
    listener: std::net::TcpListener,
    pub address: SocketAddr,
}

impl Bound {
    pub fn to(address: SocketAddr) -> Result<Self, Error> {
        let wrong = |source| Error::Listen { address, source };
        let listener = std::net::TcpListener::bind(address).map_err(wrong)?;
        listener.set_nonblocking(true).map_err(wrong)?;
        let address = listener.local_addr().map_err(wrong)?;
        Ok(Self { listener, address })
    }

    /// Serves until `stop`, then finishes the requests in flight.
    pub async fn serve(self, router: Router, tls: &Tls, stop: CancellationToken) -> Result<(), Error> {
        let Self { listener, address } = self;
        let wrong = |source| Error::Serve { address, source };
        let handle = Handle::new();
        let config = RustlsConfig::from_config(Arc::new(tls.server_config()?));
        let mut server = axum_server::from_tcp_rustls(listener, config)
            .map_err(wrong)?
            .handle(handle.clone());
        server
            .http_builder()
            .http1()
            .timer(hyper_util::rt::TokioTimer::new())
            .header_read_timeout(HEAD);
        let _ending = AbortOnDropHandle::new(tokio::spawn(async move {
            stop.cancelled().await;
            handle.graceful_shutdown(Some(LAST_REQUESTS));
        }));
        server.serve(router.into_make_service()).await.map_err(wrong)
    }
}

impl Bound {
    /// Serves without TLS until `stop`.
    pub async fn serve_plain(self, router: Router, stop: CancellationToken) -> Result<(), Error> {
        let Self { listener, address } = self;
        let wrong = |source| Error::Serve { address, source };
        let listener = tokio::net::TcpListener::from_std(listener).map_err(wrong)?;
        axum::serve(listener, router)
            .with_graceful_shutdown(stop.cancelled_owned())
            .await
            .map_err(wrong)
    }
}

/// `/healthz`: the process is alive. `/readyz`: the replica is ready.
pub fn health_router(readiness: Readiness) -> Router {
    let ready = async |State(readiness): State<Readiness>| {
        let complaints = readiness.complaints();
        if complaints.is_empty() {
            (StatusCode::OK, "ok".to_owned())
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, complaints.join("\n"))
        }
    };
    Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/readyz", get(ready))
        .with_state(readiness)
}
