//! How many reviews of each kind the server answers a second on one core, over HTTPS on the loopback.
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

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Authority, NAMESPACE, Server, cluster, path_of, review};

// As in the program that is shipped.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const WARM_UP: usize = 1_000;
const REVIEWS: usize = 10_000;
const CLIENTS: usize = 8;
/// Reviews per second of one core: a review may take half a millisecond of it.
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
    let mut slowest: BTreeMap<&str, f64> = BTreeMap::new();
    for case in cases() {
        let url = format!("https://{address}{}", path_of(case.kind));
        runtime.block_on(send(&authority, &url, &case, WARM_UP));
        let (before, begun) = (cpu_time(thread), Instant::now());
        let mut took = runtime.block_on(send(&authority, &url, &case, REVIEWS));
        let (wall, cpu) = (begun.elapsed(), cpu_time(thread).saturating_sub(before));
        took.sort_unstable();
        let rate = REVIEWS as f64 / cpu.as_secs_f64();
        let least = slowest.entry(case.kind).or_insert(rate);
        *least = least.min(rate);
        println!(
            "{:10}  {:26} {rate:>6.0} reviews per second of one core ({:.0} µs each, {} bytes); {:.0} per second on the wall, p50 {:?}, p99 {:?}",
            case.kind,
            case.what,
            cpu.as_secs_f64() * 1e6 / REVIEWS as f64,
            case.body.len(),
            REVIEWS as f64 / wall.as_secs_f64(),
            took[took.len() / 2],
            took[took.len() * 99 / 100],
        );
    }
    stop.cancel();
    server.join().unwrap();
    println!("\nslowest review of each kind, at least {BUDGET:.0} per second of one core");
    for (kind, rate) in &slowest {
        println!("{kind:10}  {rate:>6.0}");
    }
    if std::env::args().any(|word| word == "--check") {
        let under: Vec<_> = slowest.iter().filter(|(_, rate)| **rate < BUDGET).collect();
        assert!(under.is_empty(), "under the budget: {under:?}");
    }
}

async fn send(authority: &str, url: &str, case: &Case, count: usize) -> Vec<Duration> {
    let clients = (0..CLIENTS).map(|_| {
        let certificate = reqwest::Certificate::from_pem(authority.as_bytes()).unwrap();
        let client = reqwest::Client::builder()
            .tls_certs_only([certificate])
            .http1_only()
            .build()
            .unwrap();
        let (url, body, allowed) = (url.to_owned(), case.body.clone(), case.allowed);
        tokio::spawn(async move {
            let mut took = Vec::new();
            for _ in 0..count / CLIENTS {
                let begun = Instant::now();
                let answer = client.post(&url).body(body.clone()).send().await.unwrap();
                assert!(answer.status().is_success());
                let answer = answer.bytes().await.unwrap();
                took.push(begun.elapsed());
                // A review that fails early would look fast.
                if took.len() == 1 {
                    let answer: Value = serde_json::from_slice(&answer).unwrap();
                    assert_eq!(answer["response"]["allowed"], allowed, "{answer}");
                }
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

/// A cluster with fifty objects of the kinds that a namespace can have many of, which every review of another one is compared
/// with.
fn neighbours() -> Vec<Value> {
    let mut objects: Vec<Value> = (0..50)
        .flat_map(|number| {
            [
                nodeset(&format!("set-{number}"), 100),
                loginset(&format!("login-{number}"), 1),
                token(&format!("token-{number}"), "1h"),
            ]
        })
        .collect();
    objects.extend([
        controller("slurm", "UNLIMITED"),
        accounting("accounting", 3306),
        restapi("restapi", 1),
    ]);
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

fn controller(name: &str, time: &str) -> Value {
    let partitions = (0..50).map(|n| format!("PartitionName=p{n} Nodes=ALL MaxTime={time} State=UP\n"));
    json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller",
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "slurmKeyRef": { "name": "slurm-key", "key": "slurm.key" }, "jwtKeyRef": { "name": "jwt-key", "key": "jwt.key" },
            "accountingRef": { "name": "accounting" },
            "slurmctld": { "image": "ghcr.io/slinkyproject/slurmctld:26.05-ubuntu24.04" },
            "logfile": { "image": "docker.io/library/alpine:latest" },
            "extraConf": partitions.collect::<String>(), "persistence": { "enabled": true },
        },
    })
}

fn loginset(name: &str, replicas: u32) -> Value {
    json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "LoginSet",
        "metadata": { "name": name, "namespace": NAMESPACE, "labels": { "app.kubernetes.io/managed-by": "Helm" } },
        "spec": {
            "controllerRef": { "name": "slurm" }, "replicas": replicas, "sssdConfRef": { "name": "sssd", "key": "sssd.conf" },
            "rootSshAuthorizedKeys": "ssh-ed25519 AAAAC3Nz root@example.org\n",
            "extraSshdConfig": "X11Forwarding no\nMatch Group admins\n  PermitRootLogin yes\n",
            "login": {
                "image": "ghcr.io/slinkyproject/login:26.05-ubuntu24.04",
                "volumeMounts": (0..10).map(|n| json!({ "name": format!("volume-{n}"), "mountPath": format!("/volumes/{n}") })).collect::<Vec<_>>(),
            },
            "initconf": { "image": "ghcr.io/slinkyproject/sackd:26.05-ubuntu24.04" },
            "template": { "spec": {
                "volumes": (0..10).map(|n| json!({ "name": format!("volume-{n}"), "emptyDir": {} })).collect::<Vec<_>>(),
            } },
            "service": { "port": 2222, "spec": { "type": "LoadBalancer" } },
        },
    })
}

fn accounting(name: &str, port: u16) -> Value {
    json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Accounting",
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "slurmKeyRef": { "name": "slurm-key", "key": "slurm.key" }, "jwtKeyRef": { "name": "jwt-key", "key": "jwt.key" },
            "slurmdbd": { "image": "ghcr.io/slinkyproject/slurmdbd:26.05-ubuntu24.04" },
            "storageConfig": {
                "host": "db.example.org", "port": port, "database": "acct", "username": "slurm",
                "passwordKeyRef": { "name": "database", "key": "password" },
            },
            "extraConf": "ArchiveEvents=yes\nPurgeEventAfter=12months\nPurgeJobAfter=12months\nAuthInfo=cred_expire=300\n",
        },
    })
}

fn restapi(name: &str, replicas: u32) -> Value {
    json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "RestApi",
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "controllerRef": { "name": "slurm" }, "replicas": replicas,
            "slurmrestd": {
                "image": "ghcr.io/slinkyproject/slurmrestd:26.05-ubuntu24.04",
                "args": ["-v"], "resources": { "requests": { "cpu": "100m" } },
            },
        },
    })
}

fn token(name: &str, lifetime: &str) -> Value {
    json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Token",
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "jwtKeyRef": { "name": "jwt-key", "key": "jwt.key" }, "username": "alice", "lifetime": lifetime,
            "secretRef": { "name": format!("secret-of-{name}"), "key": "token" },
        },
    })
}

/// A review to measure.
struct Case {
    kind: &'static str,
    what: &'static str,
    allowed: bool,
    body: String,
}

fn cases() -> Vec<Case> {
    let case = |kind, what, operation, old: Option<&Value>, new: Option<&Value>| Case {
        kind,
        what,
        allowed: true,
        body: review(operation, kind, old, new).to_string(),
    };
    let kinds = [
        ("Accounting", accounting("own", 3306), accounting("own", 3307)),
        (
            "Controller",
            controller("own", "UNLIMITED"),
            controller("own", "60"),
        ),
        ("LoginSet", loginset("own", 1), loginset("own", 2)),
        ("NodeSet", nodeset("own", 10), nodeset("own", 11)),
        ("RestApi", restapi("own", 1), restapi("own", 2)),
        ("Token", token("own", "1h"), token("own", "2h")),
    ];
    let mut all: Vec<Case> = kinds
        .iter()
        .flat_map(|(kind, old, new)| {
            [
                case(kind, "created", "CREATE", None, Some(new)),
                case(kind, "changed", "UPDATE", Some(old), Some(new)),
                case(kind, "deleted", "DELETE", Some(old), None),
            ]
        })
        .collect();
    let old = nodeset("own", 10);
    let (mut labelled, mut wrong) = (old.clone(), old.clone());
    labelled["metadata"]["labels"]["a"] = json!("b");
    wrong["spec"]["extraConf"] = json!("Comment=$(reboot)");
    all.extend([
        case(
            "NodeSet",
            "with another label",
            "UPDATE",
            Some(&old),
            Some(&labelled),
        ),
        Case {
            allowed: false,
            ..case("NodeSet", "refused", "CREATE", None, Some(&wrong))
        },
    ]);
    all
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
