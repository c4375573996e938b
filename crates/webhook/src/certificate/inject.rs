//! Injects the CA bundle into the webhook configurations.

use std::{fmt::Debug, time::Duration};

use k8s_openapi::{
    ByteString,
    api::admissionregistration::v1::{
        MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
    },
};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Field manager of the webhook's writes.
pub const FIELD_MANAGER: &str = "slurm-operator/webhook";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to {verb} {kind} {name}")]
    Call {
        verb: &'static str,
        kind: String,
        name: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("failed to {verb} {kind} {name}: timed out")]
    Silence {
        verb: &'static str,
        kind: String,
        name: String,
    },
    #[error("webhook configuration {0} not found")]
    Missing(String),
}

impl Error {
    /// Whether the write conflicted with another one.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Call { source, .. } if is_conflict(source))
    }
}

/// Whether the API server rejected a write because of a conflict.
pub fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

/// The CA bundle, and the webhook configurations to inject it into.
#[derive(Debug)]
pub struct Injection<'a> {
    pub configuration: &'a str,
    /// The CA certificates, PEM.
    pub bundle: &'a str,
    /// Timeout for one call.
    pub limit: Duration,
}

/// A kind of webhook configuration.
trait Configuration:
    Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static
{
    fn clients(&self) -> Vec<(&str, &WebhookClientConfig)>;
}

impl Configuration for ValidatingWebhookConfiguration {
    fn clients(&self) -> Vec<(&str, &WebhookClientConfig)> {
        let hooks = self.webhooks.iter().flatten();
        hooks
            .map(|hook| (hook.name.as_str(), &hook.client_config))
            .collect()
    }
}

impl Configuration for MutatingWebhookConfiguration {
    fn clients(&self) -> Vec<(&str, &WebhookClientConfig)> {
        let hooks = self.webhooks.iter().flatten();
        hooks
            .map(|hook| (hook.name.as_str(), &hook.client_config))
            .collect()
    }
}

/// Sets the CA bundle of every webhook in the configurations; writes only if it differs. One of the two kinds may be
/// missing, but not both.
pub async fn inject(client: &Client, injection: &Injection<'_>) -> Result<(), Error> {
    let validating = inject_kind::<ValidatingWebhookConfiguration>(client, injection).await?;
    let mutating = inject_kind::<MutatingWebhookConfiguration>(client, injection).await?;
    if validating || mutating {
        Ok(())
    } else {
        Err(Error::Missing(injection.configuration.to_owned()))
    }
}

/// Returns whether a configuration of this kind exists.
async fn inject_kind<K: Configuration>(client: &Client, injection: &Injection<'_>) -> Result<bool, Error> {
    let Injection {
        configuration: name,
        bundle,
        limit,
    } = injection;
    let api = Api::<K>::all(client.clone());
    let Some(found) = call::<K, _>("read", name, *limit, api.get_opt(name)).await? else {
        return Ok(false);
    };
    if let Some(patch) = missing_trust(&found, bundle) {
        let parameters = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let patch = Patch::Strategic(patch);
        call::<K, _>("patch", name, *limit, api.patch(name, &parameters, &patch)).await?;
        tracing::info!(kind = %K::kind(&()), name, "injected the CA bundle into the webhook configuration");
    }
    Ok(true)
}

/// The patch that sets the CA bundle of every webhook, if one is needed.
fn missing_trust<K: Configuration>(configuration: &K, bundle: &str) -> Option<Value> {
    let bundle = ByteString(bundle.as_bytes().to_vec());
    let webhooks: Vec<Value> = configuration
        .clients()
        .into_iter()
        .filter(|(_, client)| client.ca_bundle.as_ref() != Some(&bundle))
        .map(|(name, _)| json!({ "name": name, "clientConfig": { "caBundle": bundle } }))
        .collect();
    // The resourceVersion prevents the patch from adding back a webhook that was renamed concurrently.
    (!webhooks.is_empty()).then(|| {
        json!({
            "metadata": { "resourceVersion": configuration.meta().resource_version },
            "webhooks": webhooks,
        })
    })
}

async fn call<K: Configuration, T>(
    verb: &'static str,
    name: &str,
    limit: Duration,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Error> {
    let (kind, name) = (K::kind(&()).into_owned(), name.to_owned());
    match tokio::time::timeout(limit, call).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(source)) => Err(Error::Call {
            verb,
            kind,
            name,
            source: Box::new(source),
        }),
        Err(_) => Err(Error::Silence { verb, kind, name }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration(bundles: &[Option<&str>]) -> ValidatingWebhookConfiguration {
        let hooks: Vec<Value> = bundles
            .iter()
            .zip(0..)
            .map(|(bundle, number)| {
                json!({
                    "name": format!("hook-{number}"), "admissionReviewVersions": ["v1"], "sideEffects": "None",
                    "clientConfig": { "caBundle": bundle.map(|text| ByteString(text.as_bytes().to_vec())) },
                })
            })
            .collect();
        serde_json::from_value(
            json!({ "metadata": { "name": "n", "resourceVersion": "7" }, "webhooks": hooks }),
        )
        .unwrap()
    }

    #[test]
    fn only_webhooks_without_the_bundle_are_written() {
        let patch = missing_trust(&configuration(&[Some("new"), Some("old"), None]), "new").unwrap();
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        let names: Vec<_> = patch["webhooks"]
            .as_array()
            .unwrap()
            .iter()
            .map(|hook| &hook["name"])
            .collect();
        assert_eq!(names, ["hook-1", "hook-2"]);
        assert_eq!(patch["webhooks"][0]["clientConfig"]["caBundle"], "bmV3");
    }

    #[test]
    fn nothing_is_written_when_all_trust_it() {
        assert_eq!(missing_trust(&configuration(&[Some("new")]), "new"), None);
    }
}
