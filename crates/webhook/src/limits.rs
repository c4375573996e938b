//! Limits on the resources that clients can use: memory, concurrency and time. Any client that reaches the port can send
//! anything, at any speed.
//!
//! A request's body is read before the request takes a concurrency slot, so that slow clients do not block others. The total
//! size of all bodies is limited, so that waiting requests use no more memory than the ones in progress.

use std::{sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures::StreamExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::metrics::Metrics;

/// Bytes per permit of the memory semaphore.
const UNIT: usize = 1 << 10;

/// Limits on the resources that clients can use.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum size of a review in bytes. etcd accepts objects of 1.5 MiB, and a review of an update holds two.
    pub body: usize,
    /// Maximum number of concurrent reviews. Further reviews wait.
    pub concurrent: usize,
    /// Timeout for receiving the body of a review.
    pub reading: Duration,
    /// Timeout for one review, including reading and waiting. The API server itself times out after at most 30 s.
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: (3 << 20) + (256 << 10),
            concurrent: 16,
            reading: Duration::from_secs(3),
            time: Duration::from_secs(10),
        }
    }
}

/// Permits for concurrent reviews and for memory.
#[derive(Clone)]
pub struct Turns {
    permits: Arc<Semaphore>,
    memory: Arc<Semaphore>,
    limits: Limits,
    metrics: Metrics,
}

impl Turns {
    pub fn new(limits: Limits, metrics: Metrics) -> Self {
        let units = limits.concurrent.saturating_mul(limits.body.div_ceil(UNIT));
        Self {
            permits: Arc::new(Semaphore::new(limits.concurrent)),
            memory: Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS))),
            limits,
            metrics,
        }
    }

    /// Reads a body and acquires memory permits for it.
    async fn read(&self, body: Body) -> Result<Held, Refused> {
        let mut stream = body.into_data_stream();
        let mut bytes = Vec::new();
        let mut counted: Option<OwnedSemaphorePermit> = None;
        while let Some(chunk) = stream.next().await {
            let chunk = chunk.map_err(|_| Refused::Broken)?;
            if bytes.len() + chunk.len() > self.limits.body {
                return Err(Refused::TooLarge);
            }
            let held = counted.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
            let more = (bytes.len() + chunk.len()).div_ceil(UNIT).saturating_sub(held);
            let more = u32::try_from(more).map_err(|_| Refused::TooLarge)?;
            let permit = Arc::clone(&self.memory).acquire_many_owned(more).await;
            let permit = permit.map_err(|_| Refused::Broken)?;
            match &mut counted {
                Some(counted) => counted.merge(permit),
                None => counted = Some(permit),
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(Held {
            bytes: bytes.into(),
            _counted: counted,
        })
    }
}

/// A body that holds its memory permits until it is dropped.
struct Held {
    bytes: Bytes,
    _counted: Option<OwnedSemaphorePermit>,
}

/// Why a body could not be read.
enum Refused {
    TooLarge,
    Broken,
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        match self {
            Self::TooLarge => {
                (StatusCode::PAYLOAD_TOO_LARGE, "the review exceeds the size limit").into_response()
            }
            Self::Broken => (StatusCode::BAD_REQUEST, "the request body is incomplete").into_response(),
        }
    }
}

/// Whether the Content-Length exceeds the limit.
fn announces_more(headers: &HeaderMap, limit: usize) -> bool {
    let length = headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    length.is_some_and(|length| length > limit)
}

pub async fn take(State(turns): State<Turns>, request: Request, next: Next) -> Response {
    let _counted = turns.metrics.in_flight();
    let review = async {
        let (parts, body) = request.into_parts();
        if announces_more(&parts.headers, turns.limits.body) {
            return Refused::TooLarge.into_response();
        }
        let held = match tokio::time::timeout(turns.limits.reading, turns.read(body)).await {
            Ok(Ok(held)) => held,
            Ok(Err(refused)) => return refused.into_response(),
            Err(_) => {
                return (StatusCode::REQUEST_TIMEOUT, "timed out reading the request body").into_response();
            }
        };
        let Ok(_permit) = turns.permits.acquire().await else {
            return StatusCode::SERVICE_UNAVAILABLE.into_response();
        };
        let request = Request::from_parts(parts, Body::from(held.bytes.clone()));
        next.run(request).await
    };
    match tokio::time::timeout(turns.limits.time, review).await {
        Ok(response) => response,
        Err(_) => (StatusCode::GATEWAY_TIMEOUT, "timed out processing the review").into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::{Router, middleware, routing::post};
    use futures::stream;
    use tower::Service as _;

    use super::*;

    fn router(limits: Limits) -> Router {
        let turns = Turns::new(limits, Metrics::new());
        let echo = async |body: Bytes| body.len().to_string();
        Router::new()
            .route("/", post(echo))
            .layer(middleware::from_fn_with_state(turns, take))
    }

    /// Sends a body of the given size, which ends or never does, and returns the status.
    async fn send(router: &Router, bytes: usize, ends: bool) -> StatusCode {
        let sent = stream::once(async move { Ok::<_, Infallible>(" ".repeat(bytes)) });
        let body = if ends {
            Body::from_stream(sent)
        } else {
            Body::from_stream(sent.chain(stream::pending()))
        };
        let request = Request::post("/").body(body).unwrap();
        router.clone().call(request).await.unwrap().status()
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_send_slowly_hold_up_nobody() {
        let router = router(Limits {
            concurrent: 2,
            ..Limits::default()
        });
        let slow = (0..20).map(|_| send(&router, 1, false));
        let slow = futures::future::join_all(slow);
        let quick = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let begun = tokio::time::Instant::now();
            (send(&router, 1, true).await, begun.elapsed())
        };
        let (slow, (quick, waited)) = tokio::join!(slow, quick);
        assert_eq!((quick, waited), (StatusCode::OK, Duration::ZERO));
        assert!(slow.iter().all(|status| *status == StatusCode::REQUEST_TIMEOUT));
    }

    #[tokio::test(start_paused = true)]
    async fn all_bodies_together_are_bounded() {
        let limits = Limits {
            concurrent: 1,
            body: 10 * UNIT,
            ..Limits::default()
        };
        let reading = limits.reading;
        let router = router(limits);
        let begun = tokio::time::Instant::now();
        let first = send(&router, 10 * UNIT, false);
        let second = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            (send(&router, UNIT, true).await, begun.elapsed())
        };
        let (first, (second, waited)) = tokio::join!(first, second);
        assert_eq!(first, StatusCode::REQUEST_TIMEOUT);
        assert_eq!(second, StatusCode::OK);
        assert!(
            waited >= reading,
            "there was no room before the first was given up: {waited:?}"
        );
        assert_eq!(
            send(&router, 10 * UNIT, true).await,
            StatusCode::OK,
            "all of it is free again"
        );
        assert_eq!(
            send(&router, 10 * UNIT + 1, true).await,
            StatusCode::PAYLOAD_TOO_LARGE
        );
    }
}
