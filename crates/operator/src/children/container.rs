//! Containers that several kinds of pods have, and parts of containers.

use keelson_api::{
    Controller,
    overrides::RawObject,
    well_known::{container, dir, env, slurm, volume as volumes},
};
use serde_json::{Value, json};

use super::{pod, volume};

const LOGFILE_SCRIPT: &str = include_str!("scripts/logfile.sh");
const INITCONF_SCRIPT: &str = include_str!("scripts/initconf.sh");

/// The arguments by which slurmd and sackd find their configuration: every slurmctld there may be, so that the loss of
/// one does not keep a daemon from starting.
pub fn conf_server(controller: &Controller) -> String {
    let replicas = controller.replicas();
    if replicas <= 1 {
        return controller.address().to_string();
    }
    let port = keelson_api::well_known::port::SLURMCTLD;
    let hosts: Vec<String> = (0..replicas)
        .map(|i| format!("{}:{port}", controller.pod_fqdn(i)))
        .collect();
    hosts.join(",")
}

/// Prints a log file that a daemon can only write to a path: a native sidecar that reads a FIFO. Without a uid it runs
/// as the image says.
pub fn logfile(log: &str, uid: Option<i64>, user: Option<&RawObject>) -> Value {
    let mut base = json!({
        "name": container::LOGFILE,
        "command": ["sh", "-c", LOGFILE_SCRIPT],
        "env": [{ "name": env::SOCKET, "value": format!("{}/{log}", dir::LOG) }],
        "restartPolicy": "Always",
        "volumeMounts": [volume::mount(volumes::SLURM_LOGFILE, dir::LOG)],
    });
    if let (Some(uid), Value::Object(base)) = (uid, &mut base) {
        base.insert("securityContext".into(), unprivileged(uid));
    }
    pod::container(base, user)
}

/// Copies keys to where sackd finds them with the owner that it demands.
pub fn initconf(user: Option<&RawObject>) -> Value {
    let base = json!({
        "name": container::INITCONF,
        "command": ["sh", "-c", INITCONF_SCRIPT],
        "env": [{ "name": env::SLURM_USER, "value": slurm::USER }],
        "volumeMounts": [
            volume::mount(volumes::SLURM_ETC, dir::INITCONF_TARGET),
            volume::read_only(volumes::SLURM_CONFIG, dir::INITCONF_SOURCE),
        ],
    });
    pod::container(base, user)
}

/// The security context of a daemon that needs no privilege and writes to its volumes alone, as the user of this id.
pub fn unprivileged(uid: i64) -> Value {
    json!({
        "runAsNonRoot": true,
        "runAsUser": uid,
        "runAsGroup": uid,
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": { "drop": ["ALL"] },
        "seccompProfile": { "type": "RuntimeDefault" },
    })
}

/// The same for the whole pod; volumes belong to the user's group.
pub fn unprivileged_pod(uid: i64) -> Value {
    json!({
        "runAsNonRoot": true,
        "runAsUser": uid,
        "runAsGroup": uid,
        "fsGroup": uid,
        "seccompProfile": { "type": "RuntimeDefault" },
    })
}

/// Asks a daemon over HTTP on its own port.
pub fn http_probe(path: &str, port: &str) -> Value {
    json!({ "httpGet": { "path": path, "port": port } })
}

/// Connects and hangs up.
pub fn tcp_probe(port: u16) -> Value {
    json!({ "tcpSocket": { "port": port } })
}

/// A probe of a daemon that others wait for.
pub fn often(mut probe: Value) -> Value {
    if let Value::Object(fields) = &mut probe {
        fields.insert("periodSeconds".into(), json!(2));
    }
    probe
}

/// A probe of a starting daemon: looks every second, gives up after a minute.
pub fn starting(probe: Value) -> Value {
    paced(probe, 1, 60)
}

/// A probe of a daemon that takes in all its state before it answers, however much that is: gives up after ten minutes.
pub fn recovering(probe: Value) -> Value {
    paced(probe, 1, 600)
}

/// A probe that tells soon when a daemon serves, and bears a pause of ten seconds.
pub fn prompt(probe: Value) -> Value {
    paced(probe, 2, 5)
}

/// A probe that gives up after a minute.
pub fn patient(probe: Value) -> Value {
    paced(probe, 10, 6)
}

/// A probe that gives up after two minutes: for a daemon that falls silent for a while to hand over its work.
pub fn forbearing(probe: Value) -> Value {
    paced(probe, 10, 12)
}

fn paced(mut probe: Value, period_seconds: u32, failures: u32) -> Value {
    if let Value::Object(fields) = &mut probe {
        fields.insert("failureThreshold".into(), json!(failures));
        fields.insert("periodSeconds".into(), json!(period_seconds));
    }
    probe
}

pub fn port(name: &str, number: impl Into<i64>) -> Value {
    json!({ "name": name, "containerPort": number.into(), "protocol": "TCP" })
}
