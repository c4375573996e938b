//! One connection and one mirror per Controller that has a RestApi, started, changed and ended as those objects are.

use std::{collections::HashMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Service;
use keelson_api::{Controller, RestApi};
use keelson_runtime::{Clock, Key, ReconcileError, Requeue, Retry, apply::Writer, contents, run::chain};
use kube::ResourceExt;
use parking_lot::{Mutex, RwLock};
use secrecy::SecretSlice;
use slurm_rest::{Client, Credentials, OnCall, Options, token::Signer};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use url::Url;

use super::{
    connection::Connection,
    control::Control,
    facts::{JobReading, Slurm},
    mirror::Mirror,
};
use crate::{anchor, caches::CONTROLLER, context::Context, problem::Problem, secrets};

/// Who we are to Slurm.
const USER: &str = "slurm";
const TOKEN_LIFETIME: SignedDuration = SignedDuration::from_mins(15);

struct Entry {
    endpoint: Url,
    signer: Arc<Signer>,
    connection: Connection,
    mirror: Arc<Mirror>,
    stop: CancellationToken,
    /// When slurmctld was last asked to register with slurmdbd, or first could have been.
    registers: Mutex<Option<Timestamp>>,
}

/// The Slurm clusters that can be asked, by the Controller that stands for each.
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

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read the JWT key")]
    Key(#[from] contents::Error),
    #[error("cannot make a client for {endpoint}")]
    Client {
        endpoint: String,
        #[source]
        source: slurm_rest::Error,
    },
}

impl ReconcileError for Error {
    fn reason(&self) -> &'static str {
        "SlurmConnectionFailed"
    }

    fn retry(&self) -> Retry {
        Retry::Backoff
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

    /// What is known of the cluster of this Controller.
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
            why: why.unwrap_or_else(|| "there is no connection to Slurm yet".to_owned()),
        }
    }

    /// What jobs do with the nodes, asked now.
    pub async fn jobs(&self, controller: &Key) -> JobReading {
        let connection = self
            .entries
            .read()
            .get(controller)
            .map(|entry| entry.connection.clone());
        let Some(connection) = connection else {
            return JobReading::NotAsked;
        };
        let now = self.clock.now();
        match connection.jobs.read(&connection.client, now).await {
            Ok(list) => JobReading::Read(list),
            Err(error) => JobReading::Failed { why: chain(&error) },
        }
    }

    /// Whom to ask what is kept nowhere.
    pub fn client(&self, controller: &Key) -> Option<Client> {
        self.entries
            .read()
            .get(controller)
            .map(|entry| entry.connection.client.clone())
    }

    /// Whom to ask to register with slurmdbd, at most once in this time and not at once: slurmctld may be about to.
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

    /// Whether a node's place in the topology can be changed, as far as is known.
    pub fn places_nodes(&self, controller: &Key) -> bool {
        let entries = self.entries.read();
        let entry = entries.get(controller);
        entry.is_none_or(|entry| entry.connection.client.places_nodes())
    }

    /// Whom to ask for changes.
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
    match wanted(&context, &controller).await? {
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

/// Whether a token may be sent to this Service: it must be there, be the RestApi's, and lead to pods.
fn leads_to(service: Option<&Service>, restapi: &RestApi) -> Result<(), Problem> {
    let name = restapi.restapi_name();
    let Some(service) = service else {
        return Err(Problem::missing(format!("Service {name} does not exist yet")));
    };
    let owned = service.owner_references().iter().any(|owner| {
        let own = owner.kind == "RestApi" && owner.name == restapi.name_any();
        // The garbage collector takes the reference to a RestApi that is deleted in the foreground away.
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
            "Service {name} is of type ExternalName and leads elsewhere: delete it, and it is made anew"
        )));
    }
    Ok(())
}

/// The oldest counts, so that a second RestApi changes nothing.
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
        // A changed key is taken up by the calls under way.
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
    let client = Client::new(options).map_err(|source| Error::Client {
        endpoint: endpoint.to_string(),
        source,
    })?;
    let mirror = Arc::new(Mirror::new(clock.clone()));
    let stop = mirrors.stop.child_token();
    let (triggers, owner) = (context.triggers.clone(), key.clone());
    let (poll, kept, end) = (client.clone(), Arc::clone(&mirror), stop.clone());
    mirrors.tasks.spawn(async move {
        kept.keep(&poll, || triggers.slurm(&owner), end).await;
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
