//! Reads the inputs of a Token and its existing Secrets.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use keelson_api::Token;
use keelson_runtime::contents;
use kube::ResourceExt;

use crate::context::Context;

/// Input of the other steps.
#[derive(Clone)]
pub struct Observed {
    pub token: Arc<Token>,
    pub key: Option<Arc<Secret>>,
    /// The Secret that the token is to be stored in.
    pub secret: Option<Arc<Secret>>,
    /// The Secret that an earlier spec named, if it differs and still exists.
    pub former: Option<Arc<Secret>>,
}

pub async fn observe(context: &Context, token: Arc<Token>) -> Result<Observed, contents::Error> {
    let namespace = token.namespace().unwrap_or_default();
    let key = match token.spec.jwt_key() {
        Some(reference) => context.secret(&namespace, &reference.name).await?,
        None => None,
    };
    let name = token.secret_name();
    let before = token
        .status
        .as_ref()
        .and_then(|status| status.secret_name.as_deref());
    let former = match before {
        Some(before) if before != name => context.secret(&namespace, before).await?,
        _ => None,
    };
    Ok(Observed {
        key,
        secret: context.secret(&namespace, &name).await?,
        former,
        token,
    })
}
