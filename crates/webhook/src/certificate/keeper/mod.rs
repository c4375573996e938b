//! A self-managed certificate in a Secret that all replicas share, and the CA bundle of the webhook configurations. Every
//! replica runs this; the first write wins, and the other replicas use its result.

use std::time::Duration;

use futures::{Stream, StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    core::v1::Secret,
};
use keelson_runtime::{Clock, run::chain};
use kube::{
    Api, Client, Resource,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
    runtime::watcher,
};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    Lifetimes, Material,
    inject::{self, Injection},
    material,
    plan::{Step, plan},
    tls::{self, Tls},
};
use crate::readiness::Readiness;

/// Timeout for one call.
const CALL: Duration = Duration::from_secs(10);
/// Delay before the next check after a write.
const AGAIN: Duration = Duration::from_millis(100);
/// Delay before the next check after an error.
const RETRY: Duration = Duration::from_secs(2);
/// Maximum delay between two checks, so that a watch that fails silently does not let the certificate expire.
const LOOK: Duration = Duration::from_mins(10);
const TLS_SECRET: &str = "kubernetes.io/tls";

/// Location, names and consumers of the certificate.
#[derive(Debug, Clone)]
pub struct Place {
    pub namespace: String,
    pub secret: String,
    /// DNS names of the server.
    pub names: Vec<String>,
    /// Name of the webhook configurations, validating and mutating, that get the CA bundle.
    pub configuration: String,
    pub lifetimes: Lifetimes,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("failed to {verb} Secret {name}")]
    Secret {
        verb: &'static str,
        name: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("failed to {verb} Secret {name}: no response within {} s", CALL.as_secs())]
    Silence { verb: &'static str, name: String },
    #[error(transparent)]
    Make(#[from] material::Error),
    #[error("failed to load the certificate in Secret {name}")]
    Load {
        name: String,
        #[source]
        source: tls::Error,
    },
    #[error("failed to inject the CA bundle")]
    Inject(#[source] inject::Error),
}

/// See the module docs.
pub struct Keeper {
    place: Place,
    client: Client,
    secrets: Api<Secret>,
    tls: Tls,
    clock: Clock,
    readiness: Readiness,
    /// The certificate in use, so that a deleted Secret is restored unchanged.
    served: Option<Material>,
    announced: Option<Announced>,
}

/// When a CA was first seen in every webhook configuration.
struct Announced {
    authority: String,
    since: Timestamp,
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper")
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

impl Keeper {
    pub fn new(client: Client, place: Place, tls: Tls, clock: Clock, readiness: Readiness) -> Self {
        Self {
            secrets: Api::namespaced(client.clone(), &place.namespace),
            place,
            client,
            tls,
            clock,
            readiness,
            served: None,
            announced: None,
        }
    }

    /// Manages the certificate until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut changes = std::pin::pin!(self.changes());
        loop {
            let pause = match self.look().await {
                Ok(pause) => {
                    self.readiness.certificate(None);
                    pause
                }
                // Another replica made the same change concurrently.
                Err(Error::Inject(error)) if error.is_conflict() => AGAIN,
                Err(error) => {
                    self.readiness.certificate(Some(chain(&error)));
                    RETRY
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
                _ = changes.next() => {}
            }
        }
    }

    /// Takes at most one step, then injects the CA bundle and loads the stored certificate. Returns the delay before the
    /// next check.
    async fn look(&mut self) -> Result<Duration, Error> {
        let now = self.clock.now();
        let (version, found) = self.read().await?;
        let lost = found.is_none();
        let known = found.or_else(|| self.served.clone());
        let facts = known
            .as_ref()
            .map(|material| material.facts(&self.place.names))
            .transpose()?;
        let announced = known.as_ref().and_then(|material| self.announced_since(material));
        let Place { names, lifetimes, .. } = &self.place;
        let next = match (plan(facts.as_ref(), announced, now, lifetimes), known.as_ref()) {
            (Step::Make, _) | (_, None) => Some(Material::make(names, now, lifetimes)?),
            (Step::Announce, Some(known)) => Some(known.announce(now, lifetimes)?),
            (Step::Issue, Some(known)) => Some(known.issue(names, now, lifetimes)?),
            (Step::Forget, Some(known)) => Some(known.forget()),
            (Step::Wait { .. }, Some(known)) if lost => Some(known.clone()),
            (Step::Wait { until }, Some(known)) => {
                let known = known.clone();
                self.settle(known, now).await?;
                return Ok(pause(now, until));
            }
        };
        if let Some(next) = next {
            match self.write(&next, version).await? {
                Written::Yes => {
                    tracing::info!(secret = self.place.secret, "stored the certificate");
                    self.settle(next, now).await?;
                }
                Written::SomebodyElse => {}
            }
        }
        // The next check reads the stored state again.
        Ok(AGAIN)
    }

    /// Injects the CA bundle first, then serves the certificate.
    async fn settle(&mut self, material: Material, now: Timestamp) -> Result<(), Error> {
        let injected = inject::inject(
            &self.client,
            &Injection {
                configuration: &self.place.configuration,
                bundle: &material.bundle(),
                limit: CALL,
            },
        )
        .await;
        if injected.is_ok() && self.announced_since(&material).is_none() {
            self.announced = Some(Announced {
                authority: material.newest().to_owned(),
                since: now,
            });
        }
        let same = self
            .served
            .as_ref()
            .is_some_and(|served| served.serving == material.serving);
        if !same {
            self.tls.load(&material.serving).map_err(|source| Error::Load {
                name: self.place.secret.clone(),
                source,
            })?;
        }
        self.served = Some(material);
        injected.map_err(Error::Inject)
    }

    fn announced_since(&self, material: &Material) -> Option<Timestamp> {
        self.announced
            .as_ref()
            .filter(|announced| announced.authority == material.newest())
            .map(|announced| announced.since)
    }

    /// The Secret's resourceVersion, and its content if valid.
    async fn read(&self) -> Result<(Option<String>, Option<Material>), Error> {
        let Some(secret) = self
            .call("read", self.secrets.get_opt(&self.place.secret))
            .await?
        else {
            return Ok((None, None));
        };
        let material = match Material::from_data(&secret.data.unwrap_or_default()) {
            Ok(material) => Some(material),
            Err(error) => {
                tracing::warn!(
                    secret = self.place.secret,
                    error = chain(&error),
                    "Secret does not hold a valid certificate, replacing its content"
                );
                None
            }
        };
        Ok((secret.metadata.resource_version, material))
    }

    async fn write(&self, material: &Material, version: Option<String>) -> Result<Written, Error> {
        let name = &self.place.secret;
        let written = if let Some(version) = version {
            // A patch keeps labels, owners and the type that others set.
            let patch = json!({ "metadata": { "resourceVersion": version }, "data": material.to_data() });
            let parameters = PatchParams {
                field_manager: Some(inject::FIELD_MANAGER.to_owned()),
                ..PatchParams::default()
            };
            let patch = Patch::Merge(patch);
            self.call("patch", self.secrets.patch(name, &parameters, &patch))
                .await
        } else {
            let secret = Secret {
                metadata: ObjectMeta {
                    name: Some(name.clone()),
                    ..ObjectMeta::default()
                },
                data: Some(material.to_data()),
                type_: Some(TLS_SECRET.to_owned()),
                ..Secret::default()
            };
            let parameters = PostParams {
                field_manager: Some(inject::FIELD_MANAGER.to_owned()),
                ..PostParams::default()
            };
            self.call("create", self.secrets.create(&parameters, &secret))
                .await
        };
        match written {
            Ok(_) => Ok(Written::Yes),
            Err(Error::Secret { source, .. }) if inject::is_conflict(&source) => Ok(Written::SomebodyElse),
            Err(error) => Err(error),
        }
    }

    async fn call<T>(
        &self,
        verb: &'static str,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Error> {
        let name = self.place.secret.clone();
        match tokio::time::timeout(CALL, call).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(source)) => Err(Error::Secret {
                verb,
                name,
                source: Box::new(source),
            }),
            Err(_) => Err(Error::Silence { verb, name }),
        }
    }

    /// Changes to the Secret and to the webhook configurations.
    fn changes(&self) -> impl Stream<Item = ()> + use<> {
        let configuration = &self.place.configuration;
        stream::select(
            changes_of(self.secrets.clone(), &self.place.secret),
            stream::select(
                changes_of::<ValidatingWebhookConfiguration>(Api::all(self.client.clone()), configuration),
                changes_of::<MutatingWebhookConfiguration>(Api::all(self.client.clone()), configuration),
            ),
        )
    }
}

enum Written {
    Yes,
    SomebodyElse,
}

fn pause(now: Timestamp, until: Timestamp) -> Duration {
    Duration::try_from(until.duration_since(now))
        .unwrap_or_default()
        .clamp(AGAIN, LOOK)
}

/// Changes to one object by name, so that permission on this name is enough.
fn changes_of<K>(api: Api<K>, name: &str) -> impl Stream<Item = ()> + use<K>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    use kube::runtime::WatchStreamExt as _;
    let config = watcher::Config::default()
        .fields(&format!("metadata.name={name}"))
        .timeout(200);
    watcher(api, config).default_backoff().filter_map(async |event| {
        // Each check reads the objects itself: after an error here, it runs on the timer.
        match event {
            Ok(watcher::Event::Apply(_) | watcher::Event::Delete(_) | watcher::Event::InitDone) => Some(()),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests;
