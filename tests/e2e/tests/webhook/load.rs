//! Simulates users who continuously create objects by dry run. Each request goes through the webhook.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::http::Method;
use kube::Client;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use crate::api::{path, send};

/// The pause between two requests of one user, which leaves capacity for the rest of the cluster.
const PAUSE: Duration = Duration::from_millis(20);

/// A failed request, with its start and end.
#[derive(Debug)]
pub struct Failure {
    pub begun: Instant,
    pub ended: Instant,
    pub why: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "after {:?}: {}", self.ended - self.begun, self.why)
    }
}

pub struct Load {
    stop: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
    tasks: Vec<AbortOnDropHandle<Vec<Failure>>>,
}

impl Load {
    pub fn start(client: &Client, namespace: &str, users: usize) -> Self {
        let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let tasks = (0..users)
            .map(|user| {
                let (client, stop, asked) = (client.clone(), Arc::clone(&stop), Arc::clone(&asked));
                let namespace = namespace.to_owned();
                AbortOnDropHandle::new(tokio::spawn(async move {
                    let mut failures = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        let begun = Instant::now();
                        if let Some(why) = ask(&client, &namespace, user).await {
                            failures.push(Failure {
                                begun,
                                ended: Instant::now(),
                                why,
                            });
                        }
                        asked.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(PAUSE).await;
                    }
                    failures
                }))
            })
            .collect();
        Self { stop, asked, tasks }
    }

    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// Stops the load and returns all failures.
    pub async fn finish(self) -> Vec<Failure> {
        self.stop.store(true, Ordering::Relaxed);
        let mut failures = Vec::new();
        for task in self.tasks {
            failures.extend(task.await.unwrap());
        }
        failures
    }
}

/// Creates a valid object by dry run. Returns why it was not accepted, or that the webhook was not called.
pub async fn ask(client: &Client, namespace: &str, user: usize) -> Option<String> {
    let object: Value = json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "metadata": { "name": format!("load-{user}") },
        "spec": { "controllerRef": { "name": "nobody" }, "slurmd": { "image": "slurmd" }, "logfile": { "image": "alpine" } },
    });
    match send(
        client,
        Method::POST,
        &path(namespace, "NodeSet", None),
        Some(&object),
        true,
    )
    .await
    {
        Err(error) => Some(format!("{error:#}")),
        Ok(outcome) => match outcome.refusal() {
            Some(refusal) => Some(refusal.to_owned()),
            None if outcome.warnings.is_empty() => Some("the webhook was not asked".to_owned()),
            None => None,
        },
    }
}
