//! One connection and one mirror per Controller that has a RestApi, started, changed and ended as those objects are.

use std::{collections::HashMap, sync::Arc};

use jiff::SignedDuration;
use keelson_api::{Controller, RestApi};
use keelson_runtime::{Clock, Key, ReconcileError, Requeue, Retry, apply::Writer, contents};
use kube::ResourceExt;
use parking_lot::RwLock;
use secrecy::SecretSlice;
use slurm_rest::{Client, Credentials, OnCall, Options, token::Signer};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use url::Url;

use super::{
    connection::Connection,
    control::Control,
    facts::Slurm,
    jobs::{Jobs, WorkByNode},
    mirror::Mirror,
};
use crate::{caches::CONTROLLER, context::Context, problem::Problem, secrets};

/// Who we are to Slurm.
const USER: &str = "slurm";
const TOKEN_LIFETIME: SignedDuration = SignedDuration::from_mins(15);

struct Entry {
    endpoint: Url,
    signer: Arc<Signer>,
    connection: Connection,
    jobs: Arc<Jobs>,
    mirror: Arc<Mirror>,
    stop: CancellationToken,
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

    /// What jobs do with the nodes, asked now; `None` when nobody answers.
    pub async fn work(&self, controller: &Key) -> Option<WorkByNode> {
        let (jobs, client) = {
            let entries = self.entries.read();
            let entry = entries.get(controller)?;
            (Arc::clone(&entry.jobs), entry.connection.client.clone())
        };
        jobs.work(&client).await.ok()
    }

    /// Whom to ask what is kept nowhere.
    pub fn client(&self, controller: &Key) -> Option<Client> {
        self.entries
            .read()
            .get(controller)
            .map(|entry| entry.connection.client.clone())
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
    let url = restapi.url();
    Ok(Url::parse(&url)
        .map(|url| (url, key))
        .map_err(|_| Problem::invalid(format!("{url} is not an address"))))
}

/// The oldest counts, so that a second RestApi changes nothing.
fn age(restapi: &RestApi) -> (Option<jiff::Timestamp>, String) {
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
        },
        jobs: Arc::default(),
        mirror,
        stop,
    };
    mirrors.entries.write().insert(key.clone(), entry);
    Ok(())
}
