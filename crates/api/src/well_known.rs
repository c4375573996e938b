//! Every name that two processes, or a process and a person, must spell alike: labels, annotations, finalizers,
//! condition types and reasons, ports, environment, volumes, containers, files. They live here and nowhere else.
//! Names under `slinky.slurm.net/` are Slinky's and never change; names under `keelson.dev/` are ours.

/// API group of the six kinds.
pub const GROUP: &str = "slinky.slurm.net";
/// The one version served and stored.
pub const VERSION: &str = "v1beta1";
/// Category of the six kinds: `kubectl get slurm` lists them all. No kind, plural or short name may be the same word.
pub const CATEGORY: &str = "slurm";
/// Kubernetes' own label and annotation for the pod's default container, host name key and so on live here too,
/// so that nobody retypes them.
pub const HOSTNAME_TOPOLOGY_KEY: &str = "kubernetes.io/hostname";

/// Labels.
pub mod label {
    /// ConfigMap, by us: the kind of the object whose children it keeps until the object may go.
    pub const ANCHOR: &str = "keelson.dev/anchor";
    /// Which daemon a pod runs; see [`super::app`].
    pub const APP: &str = "app.kubernetes.io/name";
    /// Name of the custom resource that a child belongs to.
    pub const INSTANCE: &str = "app.kubernetes.io/instance";
    /// Which part of a cluster a child is; see [`super::component`].
    pub const COMPONENT: &str = "app.kubernetes.io/component";
    /// Standard label; not set on selectors.
    pub const PART_OF: &str = "app.kubernetes.io/part-of";
    /// Standard label; not set on selectors.
    pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
    /// Name of the Controller that a worker registers with. Workers only.
    pub const CLUSTER: &str = "slinky.slurm.net/cluster";
    /// `"true"` on the pod of the active slurmctld. Informational for us: no selector depends on it.
    pub const CONTROLLER_ACTIVE: &str = "controller.slinky.slurm.net/active";
    /// Worker pod: its own name.
    pub const POD_NAME: &str = "nodeset.slinky.slurm.net/pod-name";
    /// Worker pod: padded ordinal (StatefulSet mode).
    pub const POD_INDEX: &str = "nodeset.slinky.slurm.net/pod-index";
    /// Worker pod: host name, which is the Slurm node name.
    pub const POD_HOSTNAME: &str = "nodeset.slinky.slurm.net/pod-hostname";
    /// Worker pod: `"true"` while the disruption budget protects it from eviction.
    pub const POD_PROTECT: &str = "nodeset.slinky.slurm.net/pod-protect";
    /// Worker pod: the scaling mode that it was made under.
    pub const SCALING_MODE: &str = "nodeset.slinky.slurm.net/scaling-mode";
    /// Worker pod and ControllerRevision: hash of the revision.
    pub const REVISION_HASH: &str = "controller.kubernetes.io/hash";
}

/// Values of [`label::APP`].
pub mod app {
    /// Controller.
    pub const SLURMCTLD: &str = "slurmctld";
    /// NodeSet.
    pub const SLURMD: &str = "slurmd";
    /// Accounting.
    pub const SLURMDBD: &str = "slurmdbd";
    /// RestApi.
    pub const SLURMRESTD: &str = "slurmrestd";
    /// LoginSet.
    pub const LOGIN: &str = "login";
}

/// Values of [`label::COMPONENT`].
pub mod component {
    /// Controller.
    pub const CONTROLLER: &str = "controller";
    /// NodeSet.
    pub const WORKER: &str = "worker";
    /// Accounting.
    pub const ACCOUNTING: &str = "accounting";
    /// RestApi.
    pub const RESTAPI: &str = "restapi";
    /// LoginSet.
    pub const LOGIN: &str = "login";
}

/// Annotations.
pub mod annotation {
    /// Worker pod, by a person or by us: `"true"` means that its Slurm node is to be drained.
    pub const POD_CORDON: &str = "nodeset.slinky.slurm.net/pod-cordon";
    /// Worker pod, by a person: int32; pods with a lower cost are removed first.
    pub const POD_DELETION_COST: &str = "nodeset.slinky.slurm.net/pod-deletion-cost";
    /// Worker pod, by us: RFC 3339 time at which its running jobs end at the latest.
    pub const POD_DEADLINE: &str = "nodeset.slinky.slurm.net/pod-deadline";
    /// Node, by a person: drain reason used while the node is cordoned.
    pub const NODE_CORDON_REASON: &str = "nodeset.slinky.slurm.net/node-cordon-reason";
    /// Node, by a person, and copied to its worker pods: Slurm dynamic topology line.
    pub const TOPOLOGY_SPEC: &str = "topology.slinky.slurm.net/spec";
    /// Node, by a person: comma separated Slurm features for the workers on it.
    pub const FEATURES_SPEC: &str = "features.slinky.slurm.net/spec";
    /// Node, by a person: host name of the worker on it (DaemonSet mode).
    pub const HOSTNAME_OVERRIDE: &str = "nodeset.slinky.slurm.net/hostname-override";
    /// Pod: container that `kubectl logs` and `exec` take when none is named.
    pub const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
    /// Pod: name of the content of the auth/slurm key Secret, as of all that are called hash here: keyed, see
    /// [`object::HASH_KEY`](super::object::HASH_KEY).
    pub const SLURM_KEY_HASH: &str = "slinky.slurm.net/slurm-key-hash";
    /// Pod: checksum of the JWT key Secret.
    pub const JWT_KEY_HASH: &str = "slinky.slurm.net/jwt-key-hash";
    /// Pod: checksum of the generated Slurm configuration.
    pub const SLURM_CONFIG_HASH: &str = "slinky.slurm.net/slurm-config-hash";
    /// Pod: checksum of slurmdbd.conf.
    pub const SLURMDBD_CONF_HASH: &str = "slinky.slurm.net/slurmdbd-conf-hash";
    /// Pod: checksum of `sshd_config`.
    pub const SSHD_CONF_HASH: &str = "slinky.slurm.net/sshd-conf-hash";
    /// Pod: checksum of sssd.conf.
    pub const SSSD_CONF_HASH: &str = "slinky.slurm.net/sssd-conf-hash";
    /// Pod: checksum of the SSH host keys.
    pub const SSH_HOST_KEYS_HASH: &str = "slinky.slurm.net/ssh-host-keys-hash";

    /// What all annotations of our own begin with.
    pub const PREFIX: &str = "keelson.dev/";
    /// Child object: hash of what we last applied, so that removals are seen too.
    pub const APPLIED_HASH: &str = "keelson.dev/applied-hash";
    /// Any of the six kinds, by a person: `"true"` skips drains and waits while the object is deleted.
    pub const FORCE_DELETE: &str = "keelson.dev/force-delete";
    /// NodeSet, by a person: `"true"` is the same as `spec.paused`.
    pub const PAUSED: &str = "keelson.dev/paused";
    /// Worker pod, by us: why we drain it, written before the first Slurm call so that a restart knows the cause.
    pub const DRAIN_CAUSE: &str = "keelson.dev/drain-cause";
    /// Worker pod, by us: RFC 3339 time of the drain request; the user's timeout counts from here.
    pub const DRAIN_SINCE: &str = "keelson.dev/drain-since";
    /// Worker pod, by us: RFC 3339 time at which the slurmd started that served its Slurm node before the pod was made.
    pub const REGISTERED_BEFORE: &str = "keelson.dev/registered-before";
    /// ConfigMap of a Controller, by us: the name of the configuration, under which slurmctld's pod and the status speak of it.
    pub const CONFIG_NAME: &str = "keelson.dev/config-name";
    /// Controller and Accounting pods, by us: changed to make the kubelet deliver a new configuration at once.
    pub const CONFIG_POKE: &str = "keelson.dev/config-poke";
    /// Controller, by us: name of the change for which all nodes are drained, because running jobs would not survive it.
    /// Written before the first Slurm call, so that a restarted operator knows of the drains.
    pub const QUIESCED_FOR: &str = "keelson.dev/quiesced-for";
    /// Controller, by us: name of a change that needed a cluster without jobs and that slurmctld refused, and its words. It is
    /// not tried again before it is another one.
    pub const REFUSED_CHANGE: &str = "keelson.dev/refused-change";
    /// Controller, by a person: `"true"`, or which of [`GENERATE_KEYS`], separated by commas; the operator makes the key
    /// Secrets that are missing.
    pub const GENERATE: &str = "keelson.dev/generate";
    /// Controller, by a person: JSON, the annotations of the Secrets that are made, under the same names.
    pub const GENERATE_ANNOTATIONS: &str = "keelson.dev/generate-annotations";
    /// The keys that can be made.
    pub const GENERATE_KEYS: [&str; 2] = ["slurmKey", "jwtKey"];
    /// Secret, by us: a key that we made and that is kept on uninstall.
    pub const GENERATED_KEY: &str = "keelson.dev/generated-key";
}

/// Objects that the operator makes for a whole namespace.
pub mod object {
    /// Secret: the key of the names that pods carry for the contents of Secrets.
    pub const HASH_KEY: &str = "keelson-hash-key";
    /// The key in it.
    pub const HASH_KEY_FILE: &str = "hash.key";
}

/// Finalizers.
pub mod finalizer {
    /// NodeSet: a maintenance reservation of ours may exist in Slurm (Slinky's name).
    pub const NODESET_RESERVATION: &str = "nodeset.slinky.slurm.net/reservation";
    /// NodeSet: its workers are drained before they go.
    pub const NODESET_DRAIN: &str = "keelson.dev/drain";
    /// Controller, Accounting, RestApi and key Secrets: kept until the last user of them is gone.
    pub const IN_USE: &str = "keelson.dev/in-use";
}

/// Condition types on the six kinds and on worker pods.
pub mod condition {
    /// The object does what its spec says.
    pub const READY: &str = "Ready";
    /// A change is on its way.
    pub const PROGRESSING: &str = "Progressing";
    /// Something is wrong and a person should look.
    pub const DEGRADED: &str = "Degraded";
    /// slurmctld runs with the newest configuration.
    pub const CONFIG_APPLIED: &str = "ConfigApplied";
    /// Controller: slurmdbd keeps records of the cluster's jobs.
    pub const ACCOUNTING_REGISTERED: &str = "AccountingRegistered";
    /// Deletion waits for something.
    pub const TERMINATING: &str = "Terminating";
    /// NodeSet: the reservation for a scheduled update exists in Slurm.
    pub const RESERVATION_CREATED: &str = "ReservationCreated";
    /// Worker pod: prefix of the Slurm node state conditions, followed by one of [`super::slurm_state`].
    pub const SLURM_NODE_STATE_PREFIX: &str = "SlurmNodeState";
}

/// Suffixes of [`condition::SLURM_NODE_STATE_PREFIX`].
pub mod slurm_state {
    /// Base states, in Slinky's spelling.
    pub const BASE: [&str; 7] = ["Allocated", "Down", "Error", "Future", "Idle", "Mixed", "Unknown"];
    /// Flags on top of a base state.
    pub const FLAGS: [&str; 8] = [
        "Completing",
        "Drain",
        "Fail",
        "Invalid",
        "InvalidReg",
        "Maintenance",
        "NotResponding",
        "Undrain",
    ];
}

/// Condition reasons. Event reasons are in [`event`].
pub mod reason {
    /// Ready: everything is as the spec says.
    pub const AS_SPECIFIED: &str = "AsSpecified";
    /// Ready: the daemon runs elsewhere and was not asked.
    pub const EXTERNAL: &str = "External";
    /// Not ready: pods are starting.
    pub const STARTING: &str = "Starting";
    /// Not ready: a referenced object does not exist.
    pub const REFERENCE_MISSING: &str = "ReferenceMissing";
    /// Not ready: the Controller named in `controllerRef` does not exist.
    pub const CONTROLLER_MISSING: &str = "ControllerMissing";
    /// Not ready or degraded: slurmctld or slurmrestd does not answer.
    pub const SLURM_UNREACHABLE: &str = "SlurmUnreachable";
    /// Not ready or degraded: workers are ready for Kubernetes and out of service in Slurm.
    pub const NODES_DOWN: &str = "NodesDown";
    /// Degraded: the list of jobs cannot be read.
    pub const JOBS_UNREADABLE: &str = "JobsUnreadable";
    /// Degraded: something that was to be done failed and is tried again.
    pub const STEP_FAILED: &str = "StepFailed";
    /// Degraded: partitions name groups that slurmctld does not find.
    pub const GROUPS_UNKNOWN: &str = "GroupsUnknown";
    /// Degraded: several machines give their workers the same name.
    pub const HOSTNAME_CONFLICT: &str = "HostnameConflict";
    /// Not progressing: Slurm keeps records of workers that are gone.
    pub const RECORDS_KEPT: &str = "RecordsKept";
    /// Degraded: the spec cannot be carried out as written.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// Degraded: the API server refused a child object.
    pub const APPLY_FAILED: &str = "ApplyFailed";
    /// Degraded: a ServiceMonitor is asked for, and the cluster does not have that kind.
    pub const MONITORING_UNAVAILABLE: &str = "MonitoringUnavailable";
    /// Degraded: slurmctld refused the new configuration and goes on with the last good one.
    pub const CONFIG_REFUSED: &str = "ConfigRefused";
    /// slurmdbd does not know where slurmctld is, and keeps no records of its jobs.
    pub const NOT_REGISTERED: &str = "NotRegistered";
    /// Config pending: it is on its way to the pod.
    pub const CONFIG_PENDING: &str = "ConfigPending";
    /// Another slurm.key waits until no job runs.
    pub const KEY_PENDING: &str = "KeyPending";
    /// Progressing: workers are added or removed.
    pub const SCALING: &str = "Scaling";
    /// Progressing: pods are replaced by ones of the newest revision.
    pub const ROLLING_OUT: &str = "RollingOut";
    /// Progressing: a worker is drained, jobs are still running on it.
    pub const DRAINING: &str = "Draining";
    /// Not progressing: workers take no new jobs, because of a cordon or of somebody's drain in Slurm.
    pub const DRAINED: &str = "Drained";
    /// Not progressing: a person asked for it.
    pub const PAUSED: &str = "Paused";
    /// Terminating: objects that use this one still exist.
    pub const IN_USE: &str = "InUse";
    /// Token: the Secret holds a valid token.
    pub const ISSUED: &str = "Issued";
    /// Token: its lifetime is over and it is not to be refreshed.
    pub const EXPIRED: &str = "Expired";
    /// Token: the signing key changed since, and it is not to be refreshed.
    pub const KEY_CHANGED: &str = "KeyChanged";
    /// Accounting: slurmdbd cannot reach its database, or is refused by it.
    pub const DATABASE_UNUSABLE: &str = "DatabaseUnusable";
    /// Not ready: the daemon ended with an error and is started again.
    pub const DAEMON_ENDED: &str = "DaemonEnded";
    /// Not ready: Kubernetes cannot schedule the pod or start its container.
    pub const POD_HELD: &str = "PodHeld";
    /// ReservationCreated is True (Slinky's word).
    pub const RESERVATION_CREATED: &str = "Created";
    /// ReservationCreated is False (Slinky's word).
    pub const RESERVATION_NOT_EXISTS: &str = "NotExists";
    /// ReservationCreated is Unknown: Slurm did not answer, or did not do what it was asked for.
    pub const RESERVATION_FAILED: &str = "ReservationFailed";
}

/// Event reasons. Those that Slinky has too are emitted where the same happens, so that alerts on them go on working. One
/// difference: Slinky's `Scheduled Update` has a space, which the events API accepts but tools do not.
/// `docs/src/reference/events.md` lists them all.
pub mod event {
    /// Workers are added.
    pub const SCALING_UP: &str = "ScalingUp";
    /// Workers are removed.
    pub const SCALING_DOWN: &str = "ScalingDown";
    /// A worker is drained because its node is cordoned.
    pub const NODE_CORDON: &str = "NodeCordon";
    /// A ready worker is unknown to Slurm.
    pub const SLURM_NODE_NOT_REGISTERED: &str = "SlurmNodeNotRegistered";
    /// The record of a worker that is gone for good was deleted from Slurm.
    pub const DEFUNCT_SLURM_NODE_PRUNED: &str = "DefunctSlurmNodePruned";
    /// A worker is replaced by a rolling update.
    pub const ROLLING_UPDATE: &str = "RollingUpdate";
    /// A worker is replaced by one with other resources or features, and Slurm's record of its node stays (not Slinky's).
    pub const NODE_NOT_RENEWED: &str = "NodeNotRenewed";
    /// Workers take no new jobs (not Slinky's).
    pub const DRAINING: &str = "Draining";
    /// Workers take jobs again (not Slinky's).
    pub const RESUMED: &str = "Resumed";
    /// `drain.timeout` is over, and jobs on leaving workers are requeued or cancelled (not Slinky's).
    pub const DRAIN_TIMEOUT: &str = "DrainTimeout";
    /// slurmrestd is too old to change the topology of a node (not Slinky's).
    pub const TOPOLOGY_NOT_CHANGED: &str = "TopologyNotChanged";
    /// A worker is replaced in its maintenance window.
    pub const SCHEDULED_UPDATE: &str = "ScheduledUpdate";
    /// A DaemonSet-mode worker failed and is replaced.
    pub const FAILED_DAEMON_POD: &str = "FailedDaemonPod";
    /// A DaemonSet-mode worker ended and is replaced.
    pub const SUCCEEDED_DAEMON_POD: &str = "SucceededDaemonPod";
    /// A worker's host name no longer is what its node asks for.
    pub const HOSTNAME_MISMATCH: &str = "HostnameMismatch";
    /// The Controller of `controllerRef` could not be read.
    pub const CONTROLLER_REF_FAILED: &str = "ControllerRefFailed";
    /// A reconcile step failed.
    pub const SYNC_FAILED: &str = "SyncFailed";
    /// Finalizer handling failed.
    pub const SYNC_FINALIZER_FAILED: &str = "SyncFinalizerFailed";
    /// A worker pod was created.
    pub const SUCCESSFUL_CREATE: &str = "SuccessfulCreate";
    /// A worker pod could not be created.
    pub const FAILED_CREATE: &str = "FailedCreate";
    /// A worker pod was deleted.
    pub const SUCCESSFUL_DELETE: &str = "SuccessfulDelete";
    /// A worker pod could not be deleted.
    pub const FAILED_DELETE: &str = "FailedDelete";
    /// A worker pod could not be changed.
    pub const FAILED_UPDATE: &str = "FailedUpdate";
}

/// Ports.
pub mod port {
    /// slurmctld.
    pub const SLURMCTLD: u16 = 6817;
    /// slurmd.
    pub const SLURMD: u16 = 6818;
    /// slurmdbd.
    pub const SLURMDBD: u16 = 6819;
    /// slurmrestd.
    pub const SLURMRESTD: u16 = 6820;
    /// sshd in login and worker pods.
    pub const SSH: u16 = 22;
    /// Status of PID 1 in our images.
    pub const INIT: u16 = 6816;
    /// MariaDB or MySQL behind slurmdbd.
    pub const STORAGE: u16 = 3306;
    /// Name of the container and Service port of sshd in a login pod.
    pub const LOGIN_NAME: &str = "login";
    /// Name of the container port of sshd in a worker pod.
    pub const SSH_NAME: &str = "ssh";
}

/// Environment variables of the containers.
pub mod env {
    /// slurmd: topology line of its node, spliced into `--conf`.
    pub const SLINKY_TOPOLOGY: &str = "SLINKY_TOPOLOGY";
    /// slurmd: CPU limit of the pod, rounded up; 0 without a limit.
    pub const POD_CPUS: &str = "POD_CPUS";
    /// slurmd: memory limit of the pod in MiB; 0 without a limit.
    pub const POD_MEMORY: &str = "POD_MEMORY";
    /// login: options of sackd.
    pub const SACKD_OPTIONS: &str = "SACKD_OPTIONS";
    /// slurmrestd: marks the token as to be taken from each request.
    pub const SLURM_JWT: &str = "SLURM_JWT";
    /// slurmrestd: what it may not drop inside a container.
    pub const SLURMRESTD_SECURITY: &str = "SLURMRESTD_SECURITY";
    /// initconf: owner of the copied files.
    pub const SLURM_USER: &str = "SLURM_USER";
    /// logfile: path of the FIFO that it reads.
    pub const SOCKET: &str = "SOCKET";
}

/// Container names.
pub mod container {
    /// Controller, main.
    pub const SLURMCTLD: &str = "slurmctld";
    /// Controller, sidecar that runs `scontrol reconfigure`.
    pub const RECONFIGURE: &str = "reconfigure";
    /// Controller and NodeSet, sidecar that prints the log file.
    pub const LOGFILE: &str = "logfile";
    /// Accounting, main.
    pub const SLURMDBD: &str = "slurmdbd";
    /// RestApi, main.
    pub const SLURMRESTD: &str = "slurmrestd";
    /// NodeSet, main.
    pub const SLURMD: &str = "slurmd";
    /// LoginSet, main.
    pub const LOGIN: &str = "login";
    /// LoginSet, init container that copies keys and configuration.
    pub const INITCONF: &str = "initconf";
}

/// Volume names.
pub mod volume {
    /// Slurm configuration and keys.
    pub const SLURM_ETC: &str = "slurm-etc";
    /// What initconf copies from.
    pub const SLURM_CONFIG: &str = "slurm-config";
    /// `/run`.
    pub const RUN: &str = "run";
    /// `/tmp` of a daemon whose root file system is read-only.
    pub const SLURM_TMP: &str = "slurm-tmp";
    /// FIFO of the log file sidecar.
    pub const SLURM_LOGFILE: &str = "slurm-logfile";
    /// Socket of slurmctld's sackd.
    pub const SLURM_AUTHSOCKET: &str = "slurm-authsocket";
    /// slurmctld's state; also the name of its volume claim template.
    pub const STATESAVE: &str = "statesave";
    /// sackd's socket directory.
    pub const SACKD_DIR: &str = "sackd-dir";
    /// `sshd_config` and `authorized_keys`.
    pub const SSH_CONFIG: &str = "ssh-config";
    /// root's keys, as a directory, so that they change in running pods.
    pub const SSH_KEYS: &str = "ssh-keys";
    /// SSH host keys.
    pub const SSH_HOST_KEYS: &str = "ssh-host-keys";
    /// sssd.conf.
    pub const SSSD_CONF: &str = "sssd-conf";
}

/// Directories inside the containers.
pub mod dir {
    /// Slurm configuration.
    pub const SLURM_ETC: &str = "/etc/slurm";
    /// Where initconf writes.
    pub const INITCONF_TARGET: &str = "/mnt/etc/slurm";
    /// Where initconf reads.
    pub const INITCONF_SOURCE: &str = "/mnt/slurm";
    /// Log files.
    pub const LOG: &str = "/var/log/slurm";
    /// Run directory.
    pub const RUN: &str = "/run";
    /// Scratch: scripts of users write there, and slurmdbd's archives unless told otherwise.
    pub const TMP: &str = "/tmp";
    /// slurmctld's authentication socket.
    pub const SLURMCTLD_RUN: &str = "/run/slurmctld";
    /// sackd's socket.
    pub const SACKD_RUN: &str = "/run/slurm";
    /// Parent of slurmctld's state directory, which is named after the cluster.
    pub const SLURMCTLD_SPOOL: &str = "/var/spool/slurmctld";
    /// slurmd's spool.
    pub const SLURMD_SPOOL: &str = "/var/spool/slurmd";
    /// sshd's configuration.
    pub const SSH: &str = "/etc/ssh";
    /// SSSD's configuration.
    pub const SSSD: &str = "/etc/sssd";
    /// root's SSH directory.
    pub const ROOT_SSH: &str = "/root/.ssh";
}

/// File names, which are also keys of ConfigMaps and Secrets.
pub mod file {
    /// Main configuration.
    pub const SLURM_CONF: &str = "slurm.conf";
    /// Accounting daemon's configuration.
    pub const SLURMDBD_CONF: &str = "slurmdbd.conf";
    /// cgroup plug-in's configuration.
    pub const CGROUP_CONF: &str = "cgroup.conf";
    /// auth/slurm key.
    pub const SLURM_KEY: &str = "slurm.key";
    /// HS256 key.
    pub const JWT_KEY: &str = "jwt.key";
    /// JSON Web Key Set.
    pub const JWKS: &str = "jwks.json";
    /// sshd.
    pub const SSHD_CONFIG: &str = "sshd_config";
    /// root's keys in login pods.
    pub const AUTHORIZED_KEYS: &str = "authorized_keys";
    /// The same in the directory of keys by user.
    pub const ROOT_KEYS: &str = "authorized_keys.root";
    /// SSSD.
    pub const SSSD_CONF: &str = "sssd.conf";
    /// Log of slurmctld.
    pub const SLURMCTLD_LOG: &str = "slurmctld.log";
    /// Log of slurmd.
    pub const SLURMD_LOG: &str = "slurmd.log";
    /// Key of a token Secret unless `secretRef.key` says otherwise.
    pub const TOKEN: &str = "SLURM_JWT";
    /// SSH host keys; the public half has `.pub` behind it.
    pub const SSH_HOST_KEYS: [&str; 3] = ["ssh_host_rsa_key", "ssh_host_ecdsa_key", "ssh_host_ed25519_key"];
    /// Files that only the operator writes: a configFileRef may not carry them.
    pub const RESERVED: [&str; 2] = [SLURM_CONF, SLURMDBD_CONF];
    /// Files that Slurm reads by name; others in a configFileRef are ignored by Slurm unless included.
    pub const KNOWN: [&str; 14] = [
        "acct_gather.conf",
        "burst_buffer.conf",
        CGROUP_CONF,
        "cli_filter.lua",
        "gres.conf",
        "helpers.conf",
        "job_container.conf",
        "job_submit.lua",
        "mpi.conf",
        "namespace.yaml",
        "oci.conf",
        "plugstack.conf",
        "topology.conf",
        "topology.yaml",
    ];
}

/// Words that Slurm sees.
pub mod slurm {
    /// User that runs slurmctld, slurmdbd; made in every image.
    pub const USER: &str = "slurm";
    /// Its uid and gid.
    pub const UID: i64 = 401;
    /// uid and gid of slurmrestd.
    pub const NOBODY_UID: i64 = 65534;
    /// Features that we manage from node annotations start with this.
    pub const FEATURE_PREFIX: &str = "k8s/";
    /// A node's reason is ours if it is empty or starts with this.
    pub const REASON_PREFIX: &str = "slurm-operator: ";
    /// Reason of nodes that a Controller has drained for a change that running jobs would not survive. It does not start
    /// with [`REASON_PREFIX`]: only the Controller brings these nodes back.
    pub const QUIESCE_REASON: &str =
        "keelson: a change of slurm.key or slurm.conf needs a cluster without jobs";
    /// Value of [`QUIESCED_FOR`](super::annotation::QUIESCED_FOR) once slurmctld runs with the change.
    pub const QUIESCE_OVER: &str = "in-use";
    /// Begins that value once slurmctld was given the change; its name follows.
    pub const QUIESCE_SWITCHED: &str = "switched:";
    /// Name of a scheduled update's reservation, followed by the NodeSet's name.
    pub const RESERVATION_PREFIX: &str = "SlurmOperatorMaint-";
    /// Longest ClusterName that Slurm takes.
    pub const CLUSTER_NAME_MAX: usize = 40;
    /// `iss` claim of tokens.
    pub const TOKEN_ISSUER: &str = "slurm-operator";
    /// Longest token lifetime in seconds that Slurm understands.
    pub const TOKEN_LIFETIME_MAX_SECS: i64 = 2_147_483_646;
    /// Liveness path of slurmctld and slurmd.
    pub const LIVEZ: &str = "/livez";
    /// Paths at which slurmctld serves its metrics.
    pub const METRICS_PATHS: [&str; 4] = [
        "/metrics/jobs",
        "/metrics/nodes",
        "/metrics/partitions",
        "/metrics/scheduler",
    ];
    /// Readiness path of slurmctld and slurmd.
    pub const READYZ: &str = "/readyz";
}

/// Taint that older workers were protected by; every worker still tolerates it.
pub const WORKER_TAINT: &str = "nodeset.slinky.slurm.net/worker";
