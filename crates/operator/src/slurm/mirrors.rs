//! One connection and one mirror per Controller that has a RestApi, kept up to date with these objects.

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Service;
use keelson_api::{Controller, RestApi};
use keelson_runtime::{Clock, Key, Requeue, apply::Writer, contents, run::chain};
use kube::ResourceExt;
use parking_lot::{Mutex, RwLock};
use secrecy::SecretSlice;
use slurm_rest::{Client, Credentials, OnCall, Options, token::Signer};
use tokio::sync::Notify;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use url::Url;

use super::{
    connection::Connection,
    control::Control,
    facts::{JobReading, NodeName, Slurm},
    mirror::Mirror,
    registrations,
};
use crate::{anchor, caches::CONTROLLER, context::Context, error::Error, problem::Problem, secrets};

/// Why nothing is known about a cluster before its connection is set up.
pub const NOT_CONNECTED: &str = "not connected to slurmrestd yet";
/// The Slurm user of the operator.
const USER: &str = "slurm";
const TOKEN_LIFETIME: SignedDuration = SignedDuration::from_mins(15);

struct Entry {
    endpoint: Url,
    signer: Arc<Signer>,
    connection: Connection,
    mirror: Arc<Mirror>,
    stop: CancellationToken,
    /// When slurmctld was last asked to register with slurmdbd, or could first have been asked.
    registers: Mutex<Option<Timestamp>>,
}

/// The connected Slurm clusters, by Controller.
pub struct Mirrors {
    entries: RwLock<HashMap<Key, Entry>>,
    /// Why a Controller has no entry.
    missing: RwLock<HashMap<Key, String>>,
    clock: Clock,
    on_call: OnCall,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl std::fmt::Debug for Mirrors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mirrors")
            .field("clusters", &self.entries.read().len())
            .finish_non_exhaustive()
    }
}

impl Mirrors {
    pub fn new(clock: Clock, on_call: OnCall, tasks: TaskTracker, stop: CancellationToken) -> Self {
        Self {
            entries: RwLock::default(),
            missing: RwLock::default(),
            clock,
            on_call,
            tasks,
            stop,
        }
    }

    /// Returns the cached state of this Controller's cluster.
    pub fn slurm(&self, controller: &Key) -> Slurm {
        if let Some(mirror) = self
            .entries
            .read()
            .get(controller)
            .map(|entry| Arc::clone(&entry.mirror))
        {
            return mirror.slurm();
        }
        let why = self.missing.read().get(controller).cloned();
        Slurm::Unknown {
            why: why.unwrap_or_else(|| NOT_CONNECTED.to_owned()),
        }
    }

    /// Keeps the state of these nodes current to a second, because decisions about this NodeSet wait for them. They
    /// replace those that it named before.
    pub fn wait_for(&self, controller: &Key, nodeset: &Key, nodes: impl IntoIterator<Item = NodeName>) {
        if let Some(entry) = self.entries.read().get(controller) {
            entry.mirror.wait_for(nodeset, nodes);
        }
    }

    /// Reads the jobs of this Controller's cluster now.
    pub async fn jobs(&self, controller: &Key) -> JobReading {
        let connection = self
            .entries
            .read()
            .get(controller)
            .map(|entry| entry.connection.clone());
        let Some(connection) = connection else {
            return JobReading::NotAsked;
        };
        match connection.jobs.read(&connection.client, &self.clock).await {
            Ok(list) => JobReading::Read(list),
            Err(error) => JobReading::Failed { why: chain(&error) },
        }
    }

    /// Returns how much longer the list of this cluster's jobs should rest.
    pub fn jobs_rest(&self, controller: &Key) -> Duration {
        let entries = self.entries.read();
        entries
            .get(controller)
            .map_or(Duration::ZERO, |entry| entry.connection.jobs.rest())
    }

    /// Returns the client for queries that are not cached.
    pub fn client(&self, controller: &Key) -> Option<Client> {
        self.entries
            .read()
            .get(controller)
            .map(|entry| entry.connection.client.clone())
    }

    /// Returns a client to ask slurmctld to register with slurmdbd, at most once per `between` and not at once:
    /// slurmctld may be about to register by itself.
    pub fn registers(&self, controller: &Key, now: Timestamp, between: SignedDuration) -> Option<Client> {
        let entries = self.entries.read();
        let entry = entries.get(controller)?;
        let mut last = entry.registers.lock();
        let due = last.is_some_and(|last| now.duration_since(last) >= between);
        if due || last.is_none() {
            *last = Some(now);
        }
        due.then(|| entry.connection.client.clone())
    }

    /// Reports whether a node's place in the topology can be changed, as far as that is known.
    pub fn places_nodes(&self, controller: &Key) -> bool {
        let entries = self.entries.read();
        let entry = entries.get(controller);
        entry.is_none_or(|entry| entry.connection.client.places_nodes())
    }

    /// Returns the handle for changing this Controller's cluster.
    pub fn control(&self, controller: &Key) -> Option<Arc<dyn Control>> {
        self.entries
            .read()
            .get(controller)
            .map(|entry| entry.connection.clone().shared())
    }

    fn end(&self, controller: &Key, why: Option<String>) {
        if let Some(entry) = self.entries.write().remove(controller) {
            entry.stop.cancel();
        }
        let mut missing = self.missing.write();
        match why {
            Some(why) => missing.insert(controller.clone(), why),
            None => missing.remove(controller),
        };
    }
}

pub const MANAGER: &str = "slurm-operator/slurm";

/// Brings the connection of one Controller up to date.
pub async fn reconcile(context: Arc<Context>, _writer: Writer, key: Key) -> Result<Requeue, Error> {
    let mirrors = &context.mirrors;
    let Some(controller) = context.caches.controllers.get(&key) else {
        mirrors.end(&key, None);
        return Ok(Requeue::OnChange);
    };
    match wanted(&context, &controller).await.map_err(Error::JwtKey)? {
        Ok((endpoint, jwt_key)) => connect(&context, &key, endpoint, jwt_key)?,
        Err(problem) => {
            let had = mirrors.entries.read().contains_key(&key);
            mirrors.end(&key, Some(problem.message));
            if had {
                context.triggers.slurm(&key);
            }
        }
    }
    Ok(Requeue::OnChange)
}

async fn wanted(
    context: &Context,
    controller: &Controller,
) -> Result<Result<(Url, SecretSlice<u8>), Problem>, contents::Error> {
    let namespace = controller.namespace().unwrap_or_default();
    let name = controller.name_any();
    let restapis = context
        .caches
        .restapis
        .find(CONTROLLER, &Key::new(&namespace, &name).to_string());
    let Some(restapi) = restapis.into_iter().min_by_key(|restapi| age(restapi)) else {
        return Ok(Err(Problem::missing(format!(
            "no RestApi refers to Controller {name}: create one"
        ))));
    };
    let Some(reference) = controller.spec.jwt_key() else {
        return Ok(Err(Problem::missing(format!(
            "Controller {name} has no jwtKeyRef: set it"
        ))));
    };
    let secret = context.secret(&namespace, &reference.name).await?;
    let key = match secrets::value(secret.as_deref(), reference) {
        Ok(key) => SecretSlice::from(key.to_vec()),
        Err(problem) => return Ok(Err(problem)),
    };
    let service = context
        .caches
        .services
        .get(&Key::new(&namespace, restapi.restapi_name()));
    if let Err(problem) = leads_to(service.as_deref(), &restapi) {
        return Ok(Err(problem));
    }
    let url = restapi.absolute_url(&context.settings.cluster_domain);
    Ok(Url::parse(&url)
        .map(|url| (url, key))
        .map_err(|_| Problem::invalid(format!("{url} is not an address"))))
}

/// Checks that a token may be sent to this Service: it must exist, belong to the RestApi, and lead to pods.
fn leads_to(service: Option<&Service>, restapi: &RestApi) -> Result<(), Problem> {
    let name = restapi.restapi_name();
    let Some(service) = service else {
        return Err(Problem::missing(format!("Service {name} does not exist yet")));
    };
    let owned = service.owner_references().iter().any(|owner| {
        let own = owner.kind == "RestApi" && owner.name == restapi.name_any();
        // In a foreground deletion the garbage collector removes the reference to the RestApi.
        own || (owner.kind == "ConfigMap" && owner.name == anchor::name(restapi))
    });
    if !owned {
        return Err(Problem::missing(format!(
            "Service {name} does not belong to the RestApi: rename it"
        )));
    }
    let kind = service.spec.as_ref().and_then(|spec| spec.type_.as_deref());
    if kind == Some("ExternalName") {
        return Err(Problem::invalid(format!(
            "Service {name} is of type ExternalName and leads elsewhere: delete it, and the operator creates it again"
        )));
    }
    Ok(())
}

/// Sort key: the oldest RestApi counts, so that a second one changes nothing.
fn age(restapi: &RestApi) -> (Option<Timestamp>, String) {
    (
        restapi.creation_timestamp().map(|time| time.0),
        restapi.name_any(),
    )
}

fn connect(context: &Context, key: &Key, endpoint: Url, jwt_key: SecretSlice<u8>) -> Result<(), Error> {
    let mirrors = &context.mirrors;
    if let Some(entry) = mirrors.entries.read().get(key)
        && entry.endpoint == endpoint
    {
        // The existing client picks up a changed key.
        entry.signer.rotate(jwt_key);
        return Ok(());
    }
    mirrors.end(key, None);
    let clock = mirrors.clock.clone();
    let now = clock.clone();
    let signer = Arc::new(Signer::new(
        USER,
        jwt_key,
        TOKEN_LIFETIME,
        Arc::new(move || now.now()),
    ));
    let options = Options {
        on_call: Some(mirrors.on_call.clone()),
        max_answer: context.settings.slurm_max_answer,
        ..Options::new(endpoint.clone(), Credentials::Signer(Arc::clone(&signer)))
    };
    let client = Client::new(options).map_err(|source| Error::Connect {
        endpoint: endpoint.to_string(),
        source: Box::new(source),
    })?;
    let mirror = Arc::new(Mirror::new(clock.clone()));
    let stop = mirrors.stop.child_token();
    let (triggers, owner) = (context.triggers.clone(), key.clone());
    let changed = Arc::new(Notify::new());
    let (poll, kept, end, news) = (
        client.clone(),
        Arc::clone(&mirror),
        stop.clone(),
        Arc::clone(&changed),
    );
    mirrors.tasks.spawn(async move {
        let on_change = || {
            triggers.slurm(&owner);
            news.notify_one();
        };
        kept.keep(&poll, on_change, end).await;
    });
    let (writer, seen, end) = (client.clone(), Arc::clone(&mirror), stop.clone());
    mirrors.tasks.spawn(async move {
        let saved = registrations::keep_saved(&writer, &seen, &changed);
        end.run_until_cancelled(saved).await;
    });
    tracing::info!(controller = %key, %endpoint, "watching Slurm");
    let entry = Entry {
        endpoint,
        signer,
        connection: Connection {
            client,
            clock,
            mirror: Arc::clone(&mirror),
            jobs: Arc::default(),
        },
        mirror,
        stop,
        registers: Mutex::default(),
    };
    mirrors.entries.write().insert(key.clone(), entry);
    Ok(())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::not_there(None, Some("does not exist yet"))]
    #[case::somebody_elses(Some(json!({ "metadata": {}, "spec": {} })), Some("does not belong to the RestApi"))]
    #[case::elsewhere(Some(json!({ "metadata": { "ownerReferences": [OWNER_JSON.clone()] },
        "spec": { "type": "ExternalName", "externalName": "example.org" } })), Some("ExternalName"))]
    #[case::ours(Some(json!({ "metadata": { "ownerReferences": [OWNER_JSON.clone()] }, "spec": {} })), None)]
    fn a_token_goes_to_our_own_service_only(#[case] service: Option<Value>, #[case] expected: Option<&str>) {
        let mut restapi = RestApi::default();
        restapi.metadata.name = Some("slurm".into());
        let service = service.map(|service| serde_json::from_value::<Service>(service).unwrap());
        let found = leads_to(service.as_ref(), &restapi)
            .err()
            .map(|problem| problem.message);
        match (&found, expected) {
            (Some(found), Some(expected)) => assert!(found.contains(expected), "{found}"),
            (found, expected) => assert_eq!(found.as_deref(), expected),
        }
    }

    static OWNER_JSON: std::sync::LazyLock<Value> = std::sync::LazyLock::new(
        || json!({ "apiVersion": "slinky.slurm.net/v1beta1", "kind": "RestApi", "name": "slurm", "uid": "u" }),
    );
}
