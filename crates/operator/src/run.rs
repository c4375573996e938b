//! Starts all parts of the operator in order, and stops them in reverse order.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use keelson_api::well_known::event;
use keelson_runtime::{
    Clock, Key, ReconcileError, Requeue,
    apply::Writer,
    cache::Cache,
    contents::Contents,
    events::Events,
    health::Health,
    http,
    leader::{Election, Timings},
    metrics::Metrics,
    run::{Loop, chain},
    watch::{Scope, Watches},
};
use kube::{Client, Resource};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    accounting,
    caches::Caches,
    context::{Context, Settings},
    controller, loginset, nodeset, restapi,
    slurm::{
        meter,
        mirrors::{self, Mirrors},
    },
    slurmcluster, token,
    triggers::{Queues, Triggers},
    watches,
};

/// Name of the Lease and of the event reporter.
pub const NAME: &str = "slurm-operator";
/// Everything is reconciled this often, in case a trigger was missed.
const SAFETY_NET: Duration = Duration::from_mins(10);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Serve(#[from] http::Error),
    #[error("failed to create an HTTP client")]
    Http(#[source] reqwest::Error),
    #[error("lost the leader election lease to another replica")]
    LeadershipLost,
}

/// Number of objects of each kind that are reconciled at the same time.
#[derive(Debug, Clone, Copy)]
pub struct Workers {
    pub slurm_cluster: usize,
    pub controller: usize,
    pub accounting: usize,
    pub restapi: usize,
    pub loginset: usize,
    pub nodeset: usize,
    pub token: usize,
    pub slurm: usize,
}

#[derive(Debug, Clone)]
pub struct Options {
    pub namespaces: Vec<String>,
    /// Namespace of the Lease; without it there is no leader election.
    pub lease_namespace: Option<String>,
    /// This replica's name.
    pub identity: String,
    pub health: Option<SocketAddr>,
    pub metrics: Option<SocketAddr>,
    /// Whether metrics are served over TLS, to clients that the cluster authorizes.
    pub metrics_secure: bool,
    pub workers: Workers,
    pub settings: Settings,
}

/// Creates the client for pods: no proxies of the environment, which are for external hosts, and no redirects.
fn http_client() -> Result<reqwest::Client, Error> {
    let builder = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(Duration::from_secs(2));
    builder.build().map_err(Error::Http)
}

/// Runs the operator until `stop` or until the lease is lost.
pub async fn run(client: Client, options: Options, stop: CancellationToken) -> Result<(), Error> {
    let metrics = Metrics::default();
    let health = Health::default();
    let clock = Clock::system();
    let background = CancellationToken::new();
    let tasks = TaskTracker::new();

    let servers = {
        let (health, metrics, end) = (health.clone(), metrics.clone(), background.clone());
        let (health_address, metrics_address) = (options.health, options.metrics);
        let reviewer = options.metrics_secure.then(|| client.clone());
        async move {
            let health_server = async {
                match health_address {
                    Some(address) => http::health(address, health, end.clone()).await,
                    None => nothing_served(&end).await,
                }
            };
            let metrics_server = async {
                match (metrics_address, reviewer) {
                    (Some(address), Some(client)) => {
                        http::metrics_guarded(address, metrics, client, end.clone()).await
                    }
                    (Some(address), None) => http::metrics(address, metrics, end.clone()).await,
                    (None, _) => nothing_served(&end).await,
                }
            };
            tokio::try_join!(health_server, metrics_server).map(|_| ())
        }
    };
    let caches = Arc::new(Caches::default());
    let triggers = Triggers {
        caches: Arc::clone(&caches),
        queues: Arc::new(Queues::default()),
    };
    let watches = Watches {
        client: client.clone(),
        scope: Scope::from_list(&options.namespaces),
        health,
        metrics: metrics.clone(),
        tasks: tasks.clone(),
        stop: background.clone(),
    };
    watches::start(&watches, &triggers);
    let context = Arc::new(Context {
        secrets: Contents::new(client.clone(), Arc::clone(&caches.secrets)),
        config_maps: Contents::new(client.clone(), Arc::clone(&caches.config_maps)),
        events: Events::start(
            client.clone(),
            NAME,
            &options.identity,
            (clock.clone(), metrics.clone()),
            &tasks,
            background.clone(),
        ),
        mirrors: Mirrors::new(
            clock.clone(),
            meter::calls(&metrics),
            tasks.clone(),
            background.clone(),
        ),
        caches,
        triggers,
        clock: clock.clone(),
        metrics: metrics.clone(),
        settings: options.settings.clone(),
        http: http_client()?,
        client: client.clone(),
    });

    let led = lead(
        client,
        &options,
        clock,
        &metrics,
        &stop,
        run_loops(context, &options, metrics.clone(), &stop),
    );
    let result = tokio::select! {
        served = servers => served.map_err(Error::Serve),
        led = led => led,
    };
    background.cancel();
    tasks.close();
    tasks.wait().await;
    result
}

/// Waits for the end: a disabled server must not look like one that ended.
async fn nothing_served(end: &CancellationToken) -> Result<(), http::Error> {
    end.cancelled().await;
    Ok(())
}

/// Does the work while this replica holds the lease, and releases the lease at the end.
async fn lead(
    client: Client,
    options: &Options,
    clock: Clock,
    metrics: &Metrics,
    stop: &CancellationToken,
    work: impl Future<Output = ()>,
) -> Result<(), Error> {
    let Some(namespace) = &options.lease_namespace else {
        metrics.leading.set(1);
        work.await;
        return Ok(());
    };
    let mut election = Election::new(
        client,
        namespace,
        NAME,
        &options.identity,
        Timings::default(),
        clock,
    );
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        () = election.acquire() => {}
    }
    tracing::info!(identity = options.identity, "became leader");
    metrics.leading.set(1);
    let lost = tokio::select! {
        () = work => false,
        () = election.keep() => true,
    };
    metrics.leading.set(0);
    if lost {
        return Err(Error::LeadershipLost);
    }
    election.release().await;
    Ok(())
}

async fn run_loops(context: Arc<Context>, options: &Options, metrics: Metrics, stop: &CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => return,
        () = context.caches.synced() => {}
    }
    tracing::info!("caches synced, starting controllers");
    let queues = Arc::clone(&context.triggers.queues);
    let workers = options.workers;
    let a_loop = |controller, concurrency| Loop {
        controller,
        concurrency,
        metrics: metrics.clone(),
        stop: stop.clone(),
    };
    tokio::join!(
        a_loop("slurmcluster", workers.slurm_cluster).run(
            Arc::clone(&queues.slurm_cluster),
            with_failure_events(
                &context,
                slurmcluster::MANAGER,
                |caches| &caches.slurm_clusters,
                slurmcluster::reconcile
            )
        ),
        a_loop("controller", workers.controller).run(
            Arc::clone(&queues.controller),
            with_failure_events(
                &context,
                controller::MANAGER,
                |caches| &caches.controllers,
                controller::reconcile
            )
        ),
        a_loop("restapi", workers.restapi).run(
            Arc::clone(&queues.restapi),
            with_failure_events(
                &context,
                restapi::MANAGER,
                |caches| &caches.restapis,
                restapi::reconcile
            )
        ),
        a_loop("loginset", workers.loginset).run(
            Arc::clone(&queues.loginset),
            with_failure_events(
                &context,
                loginset::MANAGER,
                |caches| &caches.loginsets,
                loginset::reconcile
            )
        ),
        a_loop("accounting", workers.accounting).run(
            Arc::clone(&queues.accounting),
            with_failure_events(
                &context,
                accounting::MANAGER,
                |caches| &caches.accountings,
                accounting::reconcile
            )
        ),
        a_loop("token", workers.token).run(
            Arc::clone(&queues.token),
            with_failure_events(
                &context,
                token::MANAGER,
                |caches| &caches.tokens,
                token::reconcile
            )
        ),
        a_loop("nodeset", workers.nodeset).run(
            Arc::clone(&queues.nodeset),
            with_failure_events(
                &context,
                nodeset::MANAGER,
                |caches| &caches.nodesets,
                nodeset::reconcile
            )
        ),
        a_loop("slurm", workers.slurm).run(
            Arc::clone(&queues.mirror),
            with(&context, mirrors::MANAGER, mirrors::reconcile)
        ),
        safety_net(&context, stop),
    );
}

/// Gives a reconcile function its context and its writer.
fn with<F, Fut, E>(
    context: &Arc<Context>,
    manager: &'static str,
    reconcile: F,
) -> impl Fn(Key) -> Fut + use<F, Fut, E>
where
    F: Fn(Arc<Context>, Writer, Key) -> Fut,
    Fut: Future<Output = Result<Requeue, E>>,
{
    let context = Arc::clone(context);
    let writer = context.writer(manager);
    move |key| reconcile(Arc::clone(&context), writer.clone(), key)
}

/// Like [`with`], and emits an event for the object on failure.
fn with_failure_events<K, F, Fut, E>(
    context: &Arc<Context>,
    manager: &'static str,
    cache: fn(&Caches) -> &Arc<Cache<K>>,
    reconcile: F,
) -> impl Fn(Key) -> BoxFuture<'static, Result<Requeue, E>> + use<K, F, Fut, E>
where
    K: Resource<DynamicType = ()> + Send + Sync + 'static,
    F: Fn(Arc<Context>, Writer, Key) -> Fut,
    Fut: Future<Output = Result<Requeue, E>> + Send + 'static,
    E: ReconcileError,
{
    let reconcile = with(context, manager, reconcile);
    let context = Arc::clone(context);
    move |key| {
        let (work, context) = (reconcile(key.clone()), Arc::clone(&context));
        Box::pin(async move {
            let done = work.await;
            if let Err(error) = &done
                && let Some(object) = cache(&context.caches).get(&key)
            {
                context
                    .events
                    .warning(object.as_ref(), failure_reason(error), chain(error));
            }
            done
        })
    }
}

/// Returns the event reason. Slinky has two reasons for all failures; the note says what failed.
fn failure_reason(error: &impl ReconcileError) -> &'static str {
    match error.reason() {
        event::SYNC_FINALIZER_FAILED => event::SYNC_FINALIZER_FAILED,
        _ => event::SYNC_FAILED,
    }
}

async fn safety_net(context: &Context, stop: &CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(SAFETY_NET) => context.triggers.everything(),
        }
    }
}
