//! Containers that several kinds of pods share, and parts of containers.

use keelson_api::{
    Controller,
    overrides::RawObject,
    well_known::{container, dir, env, slurm, volume as volumes},
};
use serde_json::{Value, json};

use super::{pod, volume};

const LOGFILE_SCRIPT: &str = include_str!("scripts/logfile.sh");
/// How that script creates its FIFO, and how its first version did: open to everyone in the pod, including jobs.
const CREATE_FIFO: &str = "mkfifo -m 600";
const CREATE_FIFO_AT_FIRST: &str = "mkfifo -m 777";
const INITCONF_SCRIPT: &str = include_str!("scripts/initconf.sh");

/// Returns the servers from which slurmd and sackd fetch their configuration: every slurmctld, so that daemons can
/// start while one is lost.
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

/// Builds a native sidecar that prints the log of a daemon that can log only to a path: it reads a FIFO there. Without
/// `uid` it runs as the image's user.
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

/// Returns a worker's spec as its revision records it, with the first version of the log sidecar's script: a better
/// script reaches a worker when its pod is recreated anyway, and is no reason to drain it.
pub fn as_recorded(pod_spec: &Value) -> Value {
    let mut recorded = pod_spec.clone();
    let sidecars = recorded.get_mut("initContainers").and_then(Value::as_array_mut);
    for sidecar in sidecars.into_iter().flatten() {
        let script = sidecar.pointer_mut("/command/2");
        if let Some(script) = script.filter(|script| script.as_str() == Some(LOGFILE_SCRIPT)) {
            *script = json!(LOGFILE_SCRIPT.replace(CREATE_FIFO, CREATE_FIFO_AT_FIRST));
        }
    }
    recorded
}

/// Builds a container that copies keys to where sackd expects them, with the owner that it requires.
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

/// Returns the security context of a daemon that needs no privileges and writes only to its volumes, run as this user.
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

/// Returns the same for the whole pod; volumes belong to the user's group.
pub fn unprivileged_pod(uid: i64) -> Value {
    json!({
        "runAsNonRoot": true,
        "runAsUser": uid,
        "runAsGroup": uid,
        "fsGroup": uid,
        "seccompProfile": { "type": "RuntimeDefault" },
    })
}

pub fn http_probe(path: &str, port: &str) -> Value {
    json!({ "httpGet": { "path": path, "port": port } })
}

pub fn tcp_probe(port: u16) -> Value {
    json!({ "tcpSocket": { "port": port } })
}

/// Paces the probe of a daemon that others wait for: runs every two seconds.
pub fn often(mut probe: Value) -> Value {
    if let Value::Object(fields) = &mut probe {
        fields.insert("periodSeconds".into(), json!(2));
    }
    probe
}

/// Paces the probe of a starting daemon: runs every second, gives up after a minute.
pub fn starting(probe: Value) -> Value {
    paced(probe, 1, 60)
}

/// Paces the probe of a daemon that loads all its state, however large, before it answers: gives up after ten minutes.
pub fn recovering(probe: Value) -> Value {
    paced(probe, 1, 600)
}

/// Paces a probe that soon detects that a daemon serves, and tolerates a pause of ten seconds.
pub fn prompt(probe: Value) -> Value {
    paced(probe, 2, 5)
}

/// Paces a probe that gives up after a minute.
pub fn patient(probe: Value) -> Value {
    paced(probe, 10, 6)
}

/// Paces a probe that gives up after two minutes, for a daemon that is silent while it hands over its work.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_fifo_is_its_owners_alone() {
        let sidecar = logfile("slurmd.log", None, None);
        let script = sidecar.pointer("/command/2").and_then(Value::as_str);
        assert!(
            script.is_some_and(|script| script.contains("mkfifo -m 600 \"$SOCKET\"")),
            "{script:?}"
        );
    }

    #[test]
    fn a_worker_of_before_the_fifo_was_closed_is_still_current() {
        let spec = json!({ "initContainers": [logfile("slurmd.log", None, None)] });
        let recorded = as_recorded(&spec);
        let script = recorded
            .pointer("/initContainers/0/command/2")
            .and_then(Value::as_str);
        // The hash of every existing revision covers this text.
        let first = "# Prints what a daemon writes to $SOCKET, a FIFO. Ends when asked to.\nset -eu\ntrap 'exit 0' TERM\n\
             trap 'exit 1' INT HUP\nif [ ! -p \"$SOCKET\" ]; then\n    mkdir -p \"${SOCKET%/*}\"\n    rm -f \"$SOCKET\"\n    \
             mkfifo -m 777 \"$SOCKET\"\nfi\n# Each writer's end of file ends cat; wait in the background so that TERM is not held \
             up by it.\nwhile :; do\n    cat \"$SOCKET\" &\n    wait $! || :\ndone\n";
        assert_eq!(script, Some(first));
    }

    #[test]
    fn a_command_of_the_users_own_is_recorded_as_it_is() {
        let spec =
            json!({ "initContainers": [{ "name": "mine", "command": ["sh", "-c", "mkfifo -m 600 x"] }] });
        assert_eq!(as_recorded(&spec), spec);
    }
}
