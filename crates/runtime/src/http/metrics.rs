//! `/metrics`: unauthenticated on a plain port, or over TLS with authentication and authorization.

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, UserInfo},
    authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};

use crate::{metrics::Metrics, run::chain};

const PATH: &str = "/metrics";
/// Timeout for the token and access reviews of a request.
const ASK: std::time::Duration = std::time::Duration::from_secs(5);

/// Serves metrics to everyone who can reach the port.
pub fn open(metrics: Metrics) -> Router {
    Router::new().route(PATH, get(render)).with_state(metrics)
}

/// Serves metrics to clients with a valid token whose user may `get` `/metrics`.
pub fn guarded(metrics: Metrics, client: Client) -> Router {
    open(metrics).layer(middleware::from_fn_with_state(client, guard))
}

async fn render(State(metrics): State<Metrics>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match metrics.render() {
        Ok(text) => ([(header::CONTENT_TYPE, kind)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn guard(State(client): State<Client>, request: Request, next: Next) -> Response {
    let Some(token) = bearer(request.headers()) else {
        return (StatusCode::UNAUTHORIZED, "a bearer token is required").into_response();
    };
    match tokio::time::timeout(ASK, may_read(&client, token)).await {
        Ok(Ok(Access::Granted)) => next.run(request).await,
        Ok(Ok(Access::Unknown)) => (StatusCode::UNAUTHORIZED, "the token is not valid").into_response(),
        Ok(Ok(Access::Denied)) => {
            let text = "this user may not get /metrics; bind the metrics reader ClusterRole";
            (StatusCode::FORBIDDEN, text).into_response()
        }
        Ok(Err(error)) => {
            tracing::warn!(error = chain(&error), "failed to authorize a metrics request");
            StatusCode::SERVICE_UNAVAILABLE.into_response()
        }
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then(|| token.trim())
        .filter(|token| !token.is_empty())
}

enum Access {
    Granted,
    Denied,
    Unknown,
}

async fn may_read(client: &Client, token: &str) -> Result<Access, kube::Error> {
    let review = TokenReview {
        spec: TokenReviewSpec {
            token: Some(token.to_owned()),
            ..TokenReviewSpec::default()
        },
        ..TokenReview::default()
    };
    let tokens: Api<TokenReview> = Api::all(client.clone());
    let known = tokens.create(&PostParams::default(), &review).await?;
    let Some(UserInfo {
        username,
        groups,
        uid,
        extra,
    }) = known
        .status
        .filter(|status| status.authenticated == Some(true))
        .and_then(|status| status.user)
    else {
        return Ok(Access::Unknown);
    };
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: username,
            groups,
            uid,
            extra,
            non_resource_attributes: Some(NonResourceAttributes {
                path: Some(PATH.to_owned()),
                verb: Some("get".to_owned()),
            }),
            resource_attributes: None,
        },
        ..SubjectAccessReview::default()
    };
    let accesses: Api<SubjectAccessReview> = Api::all(client.clone());
    let answer = accesses.create(&PostParams::default(), &review).await?;
    let allowed = answer.status.is_some_and(|status| status.allowed);
    Ok(if allowed { Access::Granted } else { Access::Denied })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("Bearer abc", Some("abc"))]
    #[case("bearer abc", Some("abc"))]
    #[case("Basic abc", None)]
    #[case("Bearer ", None)]
    #[case("abc", None)]
    fn the_token_is_taken_from_the_header(#[case] value: &str, #[case] expected: Option<&str>) {
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
        assert_eq!(bearer(&headers), expected);
    }
}
