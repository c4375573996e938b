//! Tests the whole server on the loopback interface: certificate rotation and shutdown.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that panics is a test that fails"
)]

mod support;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::Value;
use support::{Authority, Server, ask, cluster, https, nodeset, path_of, review};
use tokio::{net::TcpListener, sync::watch};
use tokio_util::task::AbortOnDropHandle;

/// Sends requests from several tasks until dropped or stopped, and records failures.
struct Load {
    stop: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
    tasks: Vec<AbortOnDropHandle<Vec<String>>>,
}

impl Load {
    fn start(clients: Vec<reqwest::Client>, url: &str) -> Self {
        let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let tasks = clients
            .into_iter()
            .map(|client| {
                let (stop, asked, url) = (Arc::clone(&stop), Arc::clone(&asked), url.to_owned());
                AbortOnDropHandle::new(tokio::spawn(async move {
                    let mut failures = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        failures.extend(ask(&client, &url).await.err());
                        asked.fetch_add(1, Ordering::Relaxed);
                    }
                    failures
                }))
            })
            .collect();
        Self { stop, asked, tasks }
    }

    async fn finish(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            let failures = task.await.unwrap();
            assert!(
                failures.is_empty(),
                "{} failed: {:?}",
                failures.len(),
                failures.first()
            );
        }
        self.asked.load(Ordering::Relaxed)
    }
}

/// Returns a client that keeps its connections, like the API server.
fn keeping(authorities: &[&Authority]) -> reqwest::Client {
    https(authorities)
}

/// Returns a client that opens a connection for each request.
fn fresh(authorities: &[&Authority]) -> reqwest::Client {
    let certificates = authorities
        .iter()
        .map(|a| reqwest::Certificate::from_pem(a.pem.as_bytes()).unwrap());
    reqwest::Client::builder()
        .tls_certs_only(certificates)
        .pool_max_idle_per_host(0)
        .http1_only()
        .build()
        .unwrap()
}

#[tokio::test]
async fn certificates_and_authorities_change_under_load_without_a_failure() {
    let (old, new) = (Authority::new(), Authority::new());
    let server = Server::start(cluster(vec![]), &old, |_| {}).await;
    let url = server.url(&path_of("NodeSet"));
    // Both authorities are trusted during the rotation.
    let both = [&old, &new];
    let load = Load::start(
        vec![keeping(&both), keeping(&both), fresh(&both), fresh(&both)],
        &url,
    );
    for authority in [&old, &new, &old, &new] {
        authority.write_certificate(server.certificates.path());
        let client = fresh(&[authority]);
        let begun = Instant::now();
        while ask(&client, &url).await.is_err() {
            assert!(
                begun.elapsed() < Duration::from_secs(30),
                "the new certificate was not loaded"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    assert!(
        ask(&fresh(&[&old]), &url).await.is_err(),
        "the old authority still counts"
    );
    assert!(load.finish().await > 50);
}

#[tokio::test]
async fn half_a_certificate_is_not_loaded() {
    let authority = Authority::new();
    let server = Server::start(cluster(vec![]), &authority, |_| {}).await;
    std::fs::write(server.certificates.path().join("tls.crt"), "nonsense").unwrap();
    tokio::time::sleep(Duration::from_millis(2500)).await;
    ask(&fresh(&[&authority]), &server.url(&path_of("NodeSet")))
        .await
        .unwrap();
    assert!(server.is_ready().await);
}

/// Balances connections like a Service: each goes to a replica that is ready when it is opened, and stays there.
async fn balance(
    replicas: watch::Receiver<Vec<(SocketAddr, SocketAddr)>>,
) -> (SocketAddr, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let mut turn = 0;
        loop {
            let (mut from, _) = listener.accept().await.unwrap();
            let candidates = replicas.borrow().clone();
            turn += 1;
            let mut chosen = None;
            for offset in 0..candidates.len() {
                let (serving, health) = candidates[(turn + offset) % candidates.len()];
                let ready = reqwest::get(format!("http://{health}/readyz")).await;
                if ready.is_ok_and(|answer| answer.status().is_success()) {
                    chosen = Some(serving);
                    break;
                }
            }
            let chosen = chosen.expect("no replica is ready");
            tokio::spawn(async move {
                let mut to = tokio::net::TcpStream::connect(chosen).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
            });
        }
    });
    (address, AbortOnDropHandle::new(task))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_are_replaced_under_load_without_a_failure() {
    let authority = Authority::new();
    let start = || {
        Server::start(cluster(vec![]), &authority, |options| {
            options.drain = Duration::from_millis(700);
        })
    };
    let mut replicas = vec![start().await, start().await];
    let addresses = |replicas: &[Server]| replicas.iter().map(|r| (r.address, r.health)).collect::<Vec<_>>();
    let (told, known) = watch::channel(addresses(&replicas));
    let (address, _balancer) = balance(known).await;
    let clients = vec![
        keeping(&[&authority]),
        keeping(&[&authority]),
        fresh(&[&authority]),
    ];
    let load = Load::start(clients, &format!("https://{address}{}", path_of("NodeSet")));
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        replicas.push(start().await);
        told.send_replace(addresses(&replicas));
        let leaving = replicas.remove(0);
        leaving.stop.cancel();
        leaving.running.await.unwrap().unwrap();
        told.send_replace(addresses(&replicas));
    }
    assert!(load.finish().await > 50);
}

#[tokio::test]
async fn a_replica_that_leaves_says_so_and_still_answers() {
    let authority = Authority::new();
    let server = Server::start(cluster(vec![]), &authority, |options| {
        options.drain = Duration::from_secs(2);
    })
    .await;
    let url = server.url(&path_of("NodeSet"));
    let client = reqwest::Client::builder()
        .tls_certs_only([reqwest::Certificate::from_pem(authority.pem.as_bytes()).unwrap()])
        .http1_only()
        .build()
        .unwrap();
    let question = review("CREATE", "NodeSet", None, Some(&nodeset()));
    let before = client.post(&url).json(&question).send().await.unwrap();
    assert_eq!(before.headers().get("connection"), None);
    server.stop.cancel();
    while server.is_ready().await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let live = reqwest::get(format!("http://{}/healthz", server.health))
        .await
        .unwrap();
    assert!(
        live.status().is_success(),
        "a process that leaves is not to be killed"
    );
    let during = client.post(&url).json(&question).send().await.unwrap();
    assert_eq!(during.headers()["connection"], "close");
    let answer: Value = during.json().await.unwrap();
    assert_eq!(answer["response"]["allowed"], true);
    server.running.await.unwrap().unwrap();
}
