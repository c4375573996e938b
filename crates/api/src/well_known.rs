//! All names that multiple processes or users rely on: labels, annotations, finalizers, condition types and reasons, ports,
//! environment variables, volumes, containers, files. They are defined only here, except those that `init` needs too:
//! these are in `slurm_conf::container` and re-exported here. Names under `slinky.slurm.net/` are Slinky's and never
//! change; names under `keelson.dev/` are ours.

/// API group of the six kinds.
pub const GROUP: &str = "slinky.slurm.net";
/// The only served and stored version.
pub const VERSION: &str = "v1beta1";
/// Category of the six kinds: `kubectl get slurm` lists them all. No kind, plural or short name may equal it.
pub const CATEGORY: &str = "slurm";
/// Node label of Kubernetes with the host name.
pub const HOSTNAME_TOPOLOGY_KEY: &str = "kubernetes.io/hostname";

/// Labels.
pub mod label {
    /// ConfigMap, set by the operator: the kind of the object whose children it keeps until the object may be deleted.
    pub const ANCHOR: &str = "keelson.dev/anchor";
    /// Which daemon a pod runs; see [`super::app`].
    pub const APP: &str = "app.kubernetes.io/name";
    /// Name of the custom resource that a child belongs to.
    pub const INSTANCE: &str = "app.kubernetes.io/instance";
    /// Which part of a cluster a child is; see [`super::component`].
    pub const COMPONENT: &str = "app.kubernetes.io/component";
    /// Standard label; version of the program. Charts set it.
    pub const APP_VERSION: &str = "app.kubernetes.io/version";
    /// Helm: name and version of the chart. Charts set it.
    pub const CHART: &str = "helm.sh/chart";
    /// Standard label; not set on selectors.
    pub const PART_OF: &str = "app.kubernetes.io/part-of";
    /// Standard label; not set on selectors.
    pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
    /// Name of the Controller that a worker registers with. Workers only.
    pub const CLUSTER: &str = "slinky.slurm.net/cluster";
    /// Worker pod: its own name.
    pub const POD_NAME: &str = "nodeset.slinky.slurm.net/pod-name";
    /// Worker pod: padded ordinal (StatefulSet mode).
    pub const POD_INDEX: &str = "nodeset.slinky.slurm.net/pod-index";
    /// Worker pod: host name, which is the Slurm node name.
    pub const POD_HOSTNAME: &str = "nodeset.slinky.slurm.net/pod-hostname";
    /// Worker pod: `"true"` while the disruption budget protects it from eviction.
    pub const POD_PROTECT: &str = "nodeset.slinky.slurm.net/pod-protect";
    /// Worker pod: the scaling mode under which it was created.
    pub const SCALING_MODE: &str = "nodeset.slinky.slurm.net/scaling-mode";
    /// Worker pod and ControllerRevision: hash of the revision.
    pub const REVISION_HASH: &str = "controller.kubernetes.io/hash";
    /// mariadb-operator: it notices changes of a Secret that has this label, whatever the value.
    pub const MARIADB_WATCH: &str = "k8s.mariadb.com/watch";
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
    /// Embedded database of a SlurmCluster. Not `mariadb`: pods of users have that name.
    pub const DATABASE: &str = "slurm-mariadb";
    /// Dumps of the embedded database. Not the same, which selects the server.
    pub const DATABASE_DUMP: &str = "slurm-mariadb-dump";
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
    /// Embedded database of a SlurmCluster.
    pub const DATABASE: &str = "database";
}

/// Annotations.
pub mod annotation {
    /// Worker pod, set by users or the operator: `"true"` drains its Slurm node.
    pub const POD_CORDON: &str = "nodeset.slinky.slurm.net/pod-cordon";
    /// Worker pod, set by users: int32; pods with a lower cost are removed first.
    pub const POD_DELETION_COST: &str = "nodeset.slinky.slurm.net/pod-deletion-cost";
    /// Worker pod, set by the operator: RFC 3339 time by which its running jobs end.
    pub const POD_DEADLINE: &str = "nodeset.slinky.slurm.net/pod-deadline";
    /// Node, set by users: drain reason used while the node is cordoned.
    pub const NODE_CORDON_REASON: &str = "nodeset.slinky.slurm.net/node-cordon-reason";
    /// Node, set by users and copied to its worker pods: Slurm dynamic topology line.
    pub const TOPOLOGY_SPEC: &str = "topology.slinky.slurm.net/spec";
    /// Node, set by users: comma-separated Slurm features for its workers.
    pub const FEATURES_SPEC: &str = "features.slinky.slurm.net/spec";
    /// Node, set by users: host name of its worker (DaemonSet mode).
    pub const HOSTNAME_OVERRIDE: &str = "nodeset.slinky.slurm.net/hostname-override";
    /// Pod: default container of `kubectl logs` and `exec`.
    pub const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
    /// Pod: hash of the auth/slurm key Secret. All hashes of Secrets are keyed; see
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

    /// Pod of an embedded database: hash of its password Secret.
    pub const DATABASE_PASSWORD_HASH: &str = "keelson.dev/database-password-hash";

    /// kubectl's copy of the object that it last applied.
    pub const LAST_APPLIED_CONFIGURATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
    /// Prefix of kubectl's annotations.
    pub const KUBECTL_PREFIX: &str = "kubectl.kubernetes.io/";
    /// Prefix of Helm's annotations.
    pub const HELM_PREFIX: &str = "meta.helm.sh/";
    /// Prefix of Argo CD's labels and annotations.
    pub const ARGO_CD_PREFIX: &str = "argocd.argoproj.io/";
    /// Prefix of labels and annotations of Flux's kustomize-controller.
    pub const FLUX_KUSTOMIZE_PREFIX: &str = "kustomize.toolkit.fluxcd.io/";
    /// Prefix of labels and annotations of Flux's helm-controller.
    pub const FLUX_HELM_PREFIX: &str = "helm.toolkit.fluxcd.io/";

    /// Prefix of our own annotations.
    pub const PREFIX: &str = "keelson.dev/";
    /// Child object: hash of the last applied content, to detect removals too.
    pub const APPLIED_HASH: &str = "keelson.dev/applied-hash";
    /// Anchor, set by the operator: uid of an object that is deleted in the foreground.
    pub const FOREGROUND_DELETION: &str = "keelson.dev/foreground-deletion";
    /// Any of the six kinds, set by users: `"true"` skips draining and waiting when the object is deleted.
    pub const FORCE_DELETE: &str = "keelson.dev/force-delete";
    /// NodeSet, set by users: `"true"` is the same as `spec.paused`.
    pub const PAUSED: &str = "keelson.dev/paused";
    /// Worker pod, set by the operator: why it drains the worker. Written before the first Slurm call, so that a restarted
    /// operator knows the cause.
    pub const DRAIN_CAUSE: &str = "keelson.dev/drain-cause";
    /// Worker pod, set by the operator: RFC 3339 time of the drain request, from which `drain.timeout` counts.
    pub const DRAIN_SINCE: &str = "keelson.dev/drain-since";
    /// Worker pod, set by the operator: RFC 3339 start time of the slurmd that served its Slurm node before the pod was
    /// created.
    pub const REGISTERED_BEFORE: &str = "keelson.dev/registered-before";
    /// ConfigMap of a Controller, set by the operator: the name of the configuration, as used by slurmctld's pod and the status.
    pub const CONFIG_NAME: &str = "keelson.dev/config-name";
    /// Controller and Accounting pods, set by the operator: changed to make the kubelet update the configuration immediately.
    pub const CONFIG_POKE: &str = "keelson.dev/config-poke";
    /// Controller, set by the operator: name of the change for which all nodes are drained, because running jobs would not
    /// survive it. Written before the first Slurm call, so that a restarted operator knows about the drains.
    pub const QUIESCED_FOR: &str = "keelson.dev/quiesced-for";
    /// Controller, set by the operator: name of a change that required a cluster without jobs and that slurmctld refused, and
    /// the error. The operator does not retry the change until it is different.
    pub const REFUSED_CHANGE: &str = "keelson.dev/refused-change";
    /// Controller, set by users: `"true"`, or some of [`GENERATE_KEYS`], separated by commas. The operator generates the key
    /// Secrets that are missing.
    pub const GENERATE: &str = "keelson.dev/generate";
    /// Controller, set by users: JSON object with the annotations of the generated Secrets, by key name.
    pub const GENERATE_ANNOTATIONS: &str = "keelson.dev/generate-annotations";
    /// The keys that the operator can generate.
    pub const GENERATE_KEYS: [&str; 2] = ["slurmKey", "jwtKey"];
    /// Secret, set by the operator: a generated key, which is kept on uninstall.
    pub const GENERATED_KEY: &str = "keelson.dev/generated-key";
}

/// Objects that the operator creates for a whole namespace.
pub mod object {
    /// Secret: the key of the hashes of Secrets on pods.
    pub const HASH_KEY: &str = "keelson-hash-key";
    /// The key in it.
    pub const HASH_KEY_FILE: &str = "hash.key";
}

/// Limits of Kubernetes.
pub mod limit {
    /// Maximum size of a ConfigMap's contents, in bytes.
    pub const CONFIG_MAP_BYTES: usize = 1024 * 1024;
}

/// Finalizers.
pub mod finalizer {
    /// NodeSet: the operator's maintenance reservation may exist in Slurm (Slinky's name).
    pub const NODESET_RESERVATION: &str = "nodeset.slinky.slurm.net/reservation";
    /// NodeSet: the operator drains its workers before it is deleted.
    pub const NODESET_DRAIN: &str = "keelson.dev/drain";
    /// Controller, Accounting, RestApi and key Secrets: kept until no other object uses them.
    pub const IN_USE: &str = "keelson.dev/in-use";
}

/// Condition types on the six kinds and on worker pods.
pub mod condition {
    /// The object is as specified.
    pub const READY: &str = "Ready";
    /// A change is in progress.
    pub const PROGRESSING: &str = "Progressing";
    /// Something is wrong and needs attention.
    pub const DEGRADED: &str = "Degraded";
    /// slurmctld runs with the latest configuration.
    pub const CONFIG_APPLIED: &str = "ConfigApplied";
    /// Controller: slurmdbd records the cluster's jobs.
    pub const ACCOUNTING_REGISTERED: &str = "AccountingRegistered";
    /// Deletion is waiting.
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
    /// Flags in addition to a base state.
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
    /// Ready: everything is as specified.
    pub const AS_SPECIFIED: &str = "AsSpecified";
    /// Ready: the daemon is external and was not checked.
    pub const EXTERNAL: &str = "External";
    /// Not ready: pods are starting.
    pub const STARTING: &str = "Starting";
    /// Not ready: a referenced object does not exist.
    pub const REFERENCE_MISSING: &str = "ReferenceMissing";
    /// Not ready: the Controller named in `controllerRef` does not exist.
    pub const CONTROLLER_MISSING: &str = "ControllerMissing";
    /// Not ready or degraded: slurmctld or slurmrestd does not respond.
    pub const SLURM_UNREACHABLE: &str = "SlurmUnreachable";
    /// Not ready or degraded: workers are ready in Kubernetes but down in Slurm.
    pub const NODES_DOWN: &str = "NodesDown";
    /// Degraded: the list of jobs cannot be read.
    pub const JOBS_UNREADABLE: &str = "JobsUnreadable";
    /// Degraded: a step failed and will be retried.
    pub const STEP_FAILED: &str = "StepFailed";
    /// Degraded: partitions name groups that slurmctld cannot find.
    pub const GROUPS_UNKNOWN: &str = "GroupsUnknown";
    /// Degraded: multiple machines give their workers the same name.
    pub const HOSTNAME_CONFLICT: &str = "HostnameConflict";
    /// Not progressing: Slurm still has records of removed workers.
    pub const RECORDS_KEPT: &str = "RecordsKept";
    /// Degraded: the spec cannot be applied as written.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// Degraded: the API server rejected a child object.
    pub const APPLY_FAILED: &str = "ApplyFailed";
    /// Degraded: a ServiceMonitor is configured, but its CRD is not installed.
    pub const MONITORING_UNAVAILABLE: &str = "MonitoringUnavailable";
    /// Degraded: slurmctld refused the new configuration and keeps running with the last good one.
    pub const CONFIG_REFUSED: &str = "ConfigRefused";
    /// slurmdbd does not know the address of slurmctld and does not record its jobs.
    pub const NOT_REGISTERED: &str = "NotRegistered";
    /// The configuration is not in the pod yet.
    pub const CONFIG_PENDING: &str = "ConfigPending";
    /// A new slurm.key waits until no job is running.
    pub const KEY_PENDING: &str = "KeyPending";
    /// SlurmCluster, not ready: a component is not ready.
    pub const COMPONENT_NOT_READY: &str = "ComponentNotReady";
    /// SlurmCluster, progressing: a component changes.
    pub const COMPONENT_CHANGING: &str = "ComponentChanging";
    /// SlurmCluster, degraded: a component is degraded.
    pub const COMPONENT_DEGRADED: &str = "ComponentDegraded";
    /// SlurmCluster, a component's reason: someone deleted it.
    pub const BEING_DELETED: &str = "BeingDeleted";
    /// SlurmCluster, a component's reason: the last dump of the embedded database failed.
    pub const DUMP_FAILED: &str = "DumpFailed";
    /// Progressing: the operator is adding or removing workers.
    pub const SCALING: &str = "Scaling";
    /// Progressing: the operator is replacing pods with ones of the latest revision.
    pub const ROLLING_OUT: &str = "RollingOut";
    /// Progressing: a worker is draining and still runs jobs.
    pub const DRAINING: &str = "Draining";
    /// Not progressing: workers accept no new jobs because of a cordon, or because someone drained them in Slurm.
    pub const DRAINED: &str = "Drained";
    /// Not progressing: paused by a user.
    pub const PAUSED: &str = "Paused";
    /// Terminating: objects that use this one still exist.
    pub const IN_USE: &str = "InUse";
    /// Token: the Secret holds a valid token.
    pub const ISSUED: &str = "Issued";
    /// Token: it has expired and `refresh` is false.
    pub const EXPIRED: &str = "Expired";
    /// Token: the signing key has changed and `refresh` is false.
    pub const KEY_CHANGED: &str = "KeyChanged";
    /// Accounting: slurmdbd cannot connect to its database.
    pub const DATABASE_UNUSABLE: &str = "DatabaseUnusable";
    /// Not ready: the daemon exited with an error and is being restarted.
    pub const DAEMON_ENDED: &str = "DaemonEnded";
    /// Not ready: Kubernetes cannot schedule the pod or start its container.
    pub const POD_HELD: &str = "PodHeld";
    /// ReservationCreated is True (Slinky's reason).
    pub const RESERVATION_CREATED: &str = "Created";
    /// ReservationCreated is False (Slinky's reason).
    pub const RESERVATION_NOT_EXISTS: &str = "NotExists";
    /// ReservationCreated is Unknown: Slurm did not respond, or rejected the request.
    pub const RESERVATION_FAILED: &str = "ReservationFailed";
}

/// Reasons of a failed reconcile, in the log.
pub mod failure {
    /// A referenced object could not be read.
    pub const OBSERVE_FAILED: &str = "ObserveFailed";
    /// The Secret with a Slurm key could not be created.
    pub const KEY_FAILED: &str = "KeyFailed";
    /// SSH host keys could not be generated.
    pub const HOST_KEYS_FAILED: &str = "HostKeysFailed";
    /// A token could not be signed.
    pub const SIGN_FAILED: &str = "SignFailed";
    /// The status could not be written.
    pub const STATUS_FAILED: &str = "StatusFailed";
    /// No client for Slurm's REST API could be set up.
    pub const SLURM_CONNECTION_FAILED: &str = "SlurmConnectionFailed";
}

/// Event reasons. Reasons shared with Slinky are emitted in the same situations, so that existing alerts keep working. One
/// difference: Slinky's `Scheduled Update` has a space, which the events API accepts but tools do not.
/// `docs/src/reference/events.md` lists them all.
pub mod event {
    /// The operator adds workers.
    pub const SCALING_UP: &str = "ScalingUp";
    /// The operator removes workers.
    pub const SCALING_DOWN: &str = "ScalingDown";
    /// The operator drains a worker because its node is cordoned.
    pub const NODE_CORDON: &str = "NodeCordon";
    /// A ready worker is not registered with Slurm.
    pub const SLURM_NODE_NOT_REGISTERED: &str = "SlurmNodeNotRegistered";
    /// The operator deleted the record of a removed worker from Slurm.
    pub const DEFUNCT_SLURM_NODE_PRUNED: &str = "DefunctSlurmNodePruned";
    /// A rolling update replaces a worker.
    pub const ROLLING_UPDATE: &str = "RollingUpdate";
    /// A worker is replaced by one with other resources or features, but its node record in Slurm is kept (not Slinky's).
    pub const NODE_NOT_RENEWED: &str = "NodeNotRenewed";
    /// Workers accept no new jobs (not Slinky's).
    pub const DRAINING: &str = "Draining";
    /// Workers accept jobs again (not Slinky's).
    pub const RESUMED: &str = "Resumed";
    /// `drain.timeout` has passed, and the operator requeues or cancels jobs on workers to remove (not Slinky's).
    pub const DRAIN_TIMEOUT: &str = "DrainTimeout";
    /// slurmrestd is too old to change the topology of a node (not Slinky's).
    pub const TOPOLOGY_NOT_CHANGED: &str = "TopologyNotChanged";
    /// A worker is replaced in its maintenance window.
    pub const SCHEDULED_UPDATE: &str = "ScheduledUpdate";
    /// A DaemonSet-mode worker failed and is replaced.
    pub const FAILED_DAEMON_POD: &str = "FailedDaemonPod";
    /// A DaemonSet-mode worker exited and is replaced.
    pub const SUCCEEDED_DAEMON_POD: &str = "SucceededDaemonPod";
    /// A worker's host name no longer matches the annotation of its node.
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
    /// Someone changed a field of a child that the SlurmCluster sets, and the operator put it back (not Slinky's).
    pub const EDIT_REVERTED: &str = "EditReverted";
    /// A worker pod could not be changed.
    pub const FAILED_UPDATE: &str = "FailedUpdate";
}

/// Ports.
pub mod port {
    pub use slurm_conf::container::port::{INIT, SLURMCTLD};

    /// slurmd.
    pub const SLURMD: u16 = 6818;
    /// slurmdbd.
    pub const SLURMDBD: u16 = 6819;
    /// slurmrestd.
    pub const SLURMRESTD: u16 = 6820;
    /// sshd in login and worker pods.
    pub const SSH: u16 = 22;
    /// MariaDB or MySQL behind slurmdbd.
    pub const STORAGE: u16 = 3306;
    /// Name of the container and Service port of sshd in a login pod.
    pub const LOGIN_NAME: &str = "login";
    /// Name of the container port of sshd in a worker pod.
    pub const SSH_NAME: &str = "ssh";
}

/// Environment variables of the containers.
pub mod env {
    pub use slurm_conf::container::env::{POD_CPUS, POD_MEMORY, SACKD_OPTIONS};

    /// slurmd: topology line of its node, inserted into `--conf`.
    pub const SLINKY_TOPOLOGY: &str = "SLINKY_TOPOLOGY";
    /// slurmrestd: makes it take the token from each request.
    pub const SLURM_JWT: &str = "SLURM_JWT";
    /// slurmrestd: security features to disable inside a container.
    pub const SLURMRESTD_SECURITY: &str = "SLURMRESTD_SECURITY";
    /// initconf: owner of the copied files.
    pub const SLURM_USER: &str = "SLURM_USER";
    /// logfile: path of the FIFO to read.
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
    /// Source of the files that initconf copies.
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
    /// root's keys, mounted as a directory, so that they are updated in running pods.
    pub const SSH_KEYS: &str = "ssh-keys";
    /// SSH host keys.
    pub const SSH_HOST_KEYS: &str = "ssh-host-keys";
    /// sssd.conf.
    pub const SSSD_CONF: &str = "sssd-conf";
}

/// Directories inside the containers.
pub mod dir {
    pub use slurm_conf::container::dir::{
        LIVE_FILES, LOG, MUNGE_SOCKET, SACKD_RUN, SLURM_ETC, SLURMCTLD_SPOOL, SLURMD_SPOOL,
    };

    /// Target directory of initconf.
    pub const INITCONF_TARGET: &str = "/mnt/etc/slurm";
    /// Source directory of initconf.
    pub const INITCONF_SOURCE: &str = "/mnt/slurm";
    /// Run directory.
    pub const RUN: &str = "/run";
    /// Scratch directory for user scripts, and the default for slurmdbd's archives.
    pub const TMP: &str = "/tmp";
    /// slurmctld's authentication socket.
    pub const SLURMCTLD_RUN: &str = "/run/slurmctld";
    /// sshd's configuration.
    pub const SSH: &str = "/etc/ssh";
    /// SSSD's configuration.
    pub const SSSD: &str = "/etc/sssd";
    /// root's SSH directory.
    pub const ROOT_SSH: &str = "/root/.ssh";
}

/// File names, which are also keys of ConfigMaps and Secrets.
pub mod file {
    pub use slurm_conf::container::file::{
        CGROUP_CONF, DATABASE_CA, DATABASE_CERT, DATABASE_CERT_KEY, GRES_CONF, JWT_KEY, MUNGE_KEY,
        SLURM_CONF, SLURM_KEY, SLURMCTLD_LOG, SLURMD_LOG, SLURMDBD_CONF,
    };

    /// Certificate in a Secret of type `kubernetes.io/tls`.
    pub const TLS_CERT: &str = "tls.crt";
    /// Key in a Secret of type `kubernetes.io/tls`.
    pub const TLS_KEY: &str = "tls.key";

    /// JSON Web Key Set.
    pub const JWKS: &str = "jwks.json";
    /// sshd.
    pub const SSHD_CONFIG: &str = "sshd_config";
    /// root's keys in login pods.
    pub const AUTHORIZED_KEYS: &str = "authorized_keys";
    /// root's keys in the directory with one file per user.
    pub const ROOT_KEYS: &str = "authorized_keys.root";
    /// SSSD.
    pub const SSSD_CONF: &str = "sssd.conf";
    /// Default key of a token Secret.
    pub const TOKEN: &str = "SLURM_JWT";
    /// SSH host keys; the public keys have the suffix `.pub`.
    pub const SSH_HOST_KEYS: [&str; 3] = ["ssh_host_rsa_key", "ssh_host_ecdsa_key", "ssh_host_ed25519_key"];
    /// Files that only the operator writes: not allowed in a configFileRef.
    pub const RESERVED: [&str; 2] = [SLURM_CONF, SLURMDBD_CONF];
    /// Files that Slurm reads by name. Slurm ignores other files of a configFileRef unless they are included.
    pub const KNOWN: [&str; 14] = [
        "acct_gather.conf",
        "burst_buffer.conf",
        CGROUP_CONF,
        "cli_filter.lua",
        GRES_CONF,
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

/// Names and values used in Slurm.
pub mod slurm {
    /// User that runs slurmctld and slurmdbd; exists in every image.
    pub const USER: &str = "slurm";
    /// Its uid and gid.
    pub const UID: i64 = slurm_conf::container::SLURM_UID as i64;
    /// uid and gid of slurmrestd.
    pub const NOBODY_UID: i64 = 65534;
    /// Prefix of the features that the operator manages from node annotations.
    pub const FEATURE_PREFIX: &str = "k8s/";
    /// Prefix of the operator's node reasons. An empty reason counts as the operator's too.
    pub const REASON_PREFIX: &str = "slurm-operator: ";
    /// Reason of nodes that a Controller has drained for a change that running jobs would not survive. It does not start
    /// with [`REASON_PREFIX`]: only the Controller resumes these nodes.
    pub const QUIESCE_REASON: &str =
        "keelson: a change of slurm.key or slurm.conf needs a cluster without jobs";
    /// Value of [`QUIESCED_FOR`](super::annotation::QUIESCED_FOR) once slurmctld runs with the change.
    pub const QUIESCE_OVER: &str = "in-use";
    /// Prefix of that value once slurmctld has received the change, followed by the name of the change.
    pub const QUIESCE_SWITCHED: &str = "switched:";
    /// Name of a scheduled update's reservation, followed by the NodeSet's name.
    pub const RESERVATION_PREFIX: &str = "SlurmOperatorMaint-";
    /// Maximum length of a ClusterName in Slurm.
    pub const CLUSTER_NAME_MAX: usize = 40;
    /// `iss` claim of tokens.
    pub const TOKEN_ISSUER: &str = "slurm-operator";
    /// Maximum token lifetime in seconds that Slurm supports.
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

/// Taint that protected older workers; every worker still tolerates it.
pub const WORKER_TAINT: &str = "nodeset.slinky.slurm.net/worker";
