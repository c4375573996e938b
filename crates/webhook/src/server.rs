//! The HTTPS server: paths, limits, and an orderly end.

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
use keelson_api::{Accounting, Controller, LoginSet, NodeSet, RestApi, Token};
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

/// Path of the hook that warns of deletions, for all kinds.
pub const DELETION_PATH: &str = "/warn-slinky-slurm-net-v1beta1-deletion";
/// Path of the hook on `pods/binding`.
pub const BINDING_PATH: &str = "/mutate--v1-binding";

/// How long requests that are under way get to end once nothing new comes.
const LAST_REQUESTS: Duration = Duration::from_secs(15);
/// How long the head of a request may take. hyper counts from the end of the request before, so that this also ends
/// idle connections; the API server gives them up after 90 s itself, and must not find one closed that it wants to use.
const HEAD: Duration = Duration::from_mins(3);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot listen on {address}")]
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
    #[error("TLS cannot be set up")]
    Tls(#[from] crate::certificate::tls::Error),
}

/// What answers reviews.
#[derive(Debug, Clone)]
pub struct Service {
    pub cluster: Cluster,
    pub metrics: Metrics,
    pub readiness: Readiness,
    pub limits: Limits,
    /// Whether the hook on `pods/binding` is served.
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
        .route(&path_of::<Token>(), post(validate::<Token>))
        .route(DELETION_PATH, post(deletion));
    // It reads pods and nodes for whoever asks: it is there only where it is used.
    if service.pods_binding {
        router = router.route(BINDING_PATH, post(bind));
    }
    router
        .layer(body)
        .layer(middleware::from_fn_with_state(turns, limits::take))
        .layer(middleware::from_fn_with_state(readiness, say_goodbye))
        .with_state(service)
}

/// Path of the validating hook of a kind, as Slinky has it.
pub fn path_of<K: Rules>() -> String {
    format!("/validate-slinky-slurm-net-v1beta1-{}", K::KIND)
}

async fn validate<K: Rules>(State(service): State<Service>, body: Bytes) -> Response {
    answer(&service, K::KIND, &body, async |request| {
        validate_request::<K>(&service, request)
    })
    .await
}

/// One hook for all kinds: whether it is asked must not decide whether an object can be deleted, so that it needs
/// another failure policy than the others.
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
        // The fields alone: what a user wrote into them belongs into the answer and not into our log.
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
            "refused"
        );
    }
    Json(review.answer(verdict)).into_response()
}

/// While stopping, each answer ends its connection: the client then opens the next one elsewhere, and does not run into
/// a connection that is being closed.
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

/// A server that has its port but does not serve yet.
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

    /// Serves until `stop`, and then until the last request is answered.
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

/// `/healthz`: the process answers. `/readyz`: it should be asked.
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
