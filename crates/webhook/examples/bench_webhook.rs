//! How many reviews the server answers a second on one core, over HTTPS on the loopback.
//!
//! The server has a runtime with one thread; what counts is the processor time of that thread, so that the clients,
//! which need more of it than the server, do not count. `cargo xtask bench webhook`; `--check` fails when the budget is
//! broken.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "a benchmark prints, and fails by panicking"
)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Authority, NAMESPACE, Server, cluster, path_of, review};

// As in the program that is shipped.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const WARM_UP: usize = 2_000;
const REVIEWS: usize = 20_000;
const CLIENTS: usize = 8;
/// Reviews per second of one core; a review may take a millisecond of it at most.
const BUDGET: f64 = 2_000.0;

fn main() {
    let authority = Authority::new();
    let (ready, started) = std::sync::mpsc::channel();
    // The server and everything that it does run on this one thread.
    let server = {
        let authority_pem = authority.pem.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let server = Server::start(cluster(neighbours()), &authority, |_| {}).await;
                let thread = thread_id();
                ready
                    .send((server.address, server.stop.clone(), thread, authority_pem))
                    .unwrap();
                server.running.await.unwrap().unwrap();
            });
        })
    };
    let (address, stop, thread, authority) = started.recv().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let mut slowest = f64::MAX;
    for (name, kind, body) in cases() {
        let url = format!("https://{address}{}", path_of(kind));
        runtime.block_on(send(&authority, &url, &body, WARM_UP));
        let (before, begun) = (cpu_time(thread), Instant::now());
        let mut took = runtime.block_on(send(&authority, &url, &body, REVIEWS));
        let (wall, cpu) = (begun.elapsed(), cpu_time(thread).saturating_sub(before));
        took.sort_unstable();
        let rate = REVIEWS as f64 / cpu.as_secs_f64();
        slowest = slowest.min(rate);
        println!(
            "{name}: {rate:>6.0} reviews per second of one core ({:.0} µs each, {} bytes); {:.0} per second on the wall, p50 {:?}, p99 {:?}",
            cpu.as_secs_f64() * 1e6 / REVIEWS as f64,
            body.len(),
            REVIEWS as f64 / wall.as_secs_f64(),
            took[took.len() / 2],
            took[took.len() * 99 / 100],
        );
    }
    stop.cancel();
    server.join().unwrap();
    if std::env::args().any(|word| word == "--check") {
        assert!(
            slowest >= BUDGET,
            "under the budget of {BUDGET} reviews per second of one core"
        );
    }
}

async fn send(authority: &str, url: &str, body: &str, count: usize) -> Vec<Duration> {
    let clients = (0..CLIENTS).map(|_| {
        let certificate = reqwest::Certificate::from_pem(authority.as_bytes()).unwrap();
        let client = reqwest::Client::builder()
            .tls_certs_only([certificate])
            .http1_only()
            .build()
            .unwrap();
        let (url, body) = (url.to_owned(), body.to_owned());
        tokio::spawn(async move {
            let mut took = Vec::new();
            for _ in 0..count / CLIENTS {
                let begun = Instant::now();
                let answer = client.post(&url).body(body.clone()).send().await.unwrap();
                assert!(answer.status().is_success());
                answer.bytes().await.unwrap();
                took.push(begun.elapsed());
            }
            took
        })
    });
    futures::future::join_all(clients)
        .await
        .into_iter()
        .flat_map(Result::unwrap)
        .collect()
}

/// A cluster with fifty `NodeSet`s, which every review of another one is compared with.
fn neighbours() -> Vec<Value> {
    let mut objects: Vec<Value> = (0..50)
        .map(|number| nodeset(&format!("set-{number}"), 100))
        .collect();
    objects.push(controller());
    for (object, number) in objects.iter_mut().zip(1..) {
        object["metadata"]["uid"] = json!(format!("uid-{number}"));
        object["metadata"]["resourceVersion"] = json!("1");
    }
    objects
}

fn nodeset(name: &str, replicas: u32) -> Value {
    json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet",
        "metadata": { "name": name, "namespace": NAMESPACE, "labels": { "app.kubernetes.io/managed-by": "Helm" } },
        "spec": {
            "controllerRef": { "name": "slurm" }, "replicas": replicas, "extraConf": "Features=a,b Gres=gpu:8 Weight=10",
            "partition": { "enabled": true, "config": "State=UP MaxTime=UNLIMITED Default=NO" },
            "ssh": { "enabled": true, "sssdConfRef": { "name": "sssd", "key": "sssd.conf" }, "extraSshdConfig": "LoginGraceTime 30" },
            "logfile": { "image": "docker.io/library/alpine:latest" },
            "slurmd": {
                "image": "ghcr.io/slinkyproject/slurmd:26.05-ubuntu24.04",
                "resources": { "limits": { "cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8" } },
                "env": (0..20).map(|n| json!({ "name": format!("VARIABLE_{n}"), "value": "some value or other" })).collect::<Vec<_>>(),
            },
            "template": { "spec": {
                "hostname": format!("{name}-"), "nodeSelector": { "kubernetes.io/os": "linux" },
                "tolerations": [{ "key": "gpu", "operator": "Exists" }],
                "volumes": (0..10).map(|n| json!({ "name": format!("volume-{n}"), "emptyDir": {} })).collect::<Vec<_>>(),
            } },
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": "25%" } },
        },
    })
}

fn controller() -> Value {
    let partitions = (0..50).map(|n| format!("PartitionName=p{n} Nodes=ALL MaxTime=UNLIMITED State=UP\n"));
    json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller",
        "metadata": { "name": "slurm", "namespace": NAMESPACE },
        "spec": {
            "slurmKeyRef": { "name": "slurm-key", "key": "slurm.key" }, "jwtKeyRef": { "name": "jwt-key", "key": "jwt.key" },
            "slurmctld": { "image": "ghcr.io/slinkyproject/slurmctld:26.05-ubuntu24.04" },
            "logfile": { "image": "docker.io/library/alpine:latest" },
            "extraConf": partitions.collect::<String>(), "persistence": { "enabled": true },
        },
    })
}

fn cases() -> Vec<(&'static str, &'static str, String)> {
    let (old, new) = (nodeset("own", 10), nodeset("own", 11));
    let mut labelled = old.clone();
    labelled["metadata"]["labels"]["a"] = json!("b");
    let mut wrong = new.clone();
    wrong["spec"]["extraConf"] = json!("Comment=$(reboot)");
    let controller = controller();
    let text = |operation, kind, old, new| review(operation, kind, old, new).to_string();
    vec![
        (
            "NodeSet created among 50 others ",
            "NodeSet",
            text("CREATE", "NodeSet", None, Some(&new)),
        ),
        (
            "NodeSet changed among 50 others ",
            "NodeSet",
            text("UPDATE", "NodeSet", Some(&old), Some(&new)),
        ),
        (
            "NodeSet with another label       ",
            "NodeSet",
            text("UPDATE", "NodeSet", Some(&old), Some(&labelled)),
        ),
        (
            "NodeSet refused                  ",
            "NodeSet",
            text("CREATE", "NodeSet", None, Some(&wrong)),
        ),
        (
            "Controller with 50 partitions    ",
            "Controller",
            text("CREATE", "Controller", None, Some(&controller)),
        ),
    ]
}

/// The id by which the kernel knows this thread.
fn thread_id() -> i32 {
    let link = std::fs::read_link("/proc/thread-self").unwrap();
    link.file_name().unwrap().to_str().unwrap().parse().unwrap()
}

/// Processor time that a thread of this process has used.
fn cpu_time(thread: i32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}
