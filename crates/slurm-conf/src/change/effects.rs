//! The tables: which parameters of 26.05 need more than a reconfiguration, from Slurm's manual pages and from
//! trials with running jobs.

use std::collections::BTreeSet;

use super::{Attributes, Class, Daemon, MustBeEmpty};
use crate::catalogue::File;
use crate::hostlist::{Hostlist, MAX_RANGE};

const ALL: [Daemon; 4] = [
    Daemon::Slurmctld,
    Daemon::Slurmrestd,
    Daemon::Slurmd,
    Daemon::Sackd,
];

/// Never on a living cluster.
const FORBIDDEN: [(&str, &str); 3] = [
    (
        "ClusterName",
        "the saved state and the accounting records belong to the old name",
    ),
    ("SlurmUser", "the saved state and the keys belong to the old user"),
    ("StateSaveLocation", "slurmctld would start without its jobs"),
];

/// Running steps cannot go on, or their records are lost.
const NEEDS_EMPTY_CLUSTER: [&str; 4] = ["AuthType", "SelectType", "SwitchType", "SlurmdSpoolDir"];

/// A reconfiguration changes neither listening ports nor how messages are signed, and a peer with the old
/// setting does not understand one with the new.
const RESTARTS_ALL: [&str; 7] = [
    "AuthInfo",
    "CommunicationParameters",
    "CredType",
    "HashPlugin",
    "SlurmctldPort",
    "TLSParameters",
    "TLSType",
];

/// How slurmctld checks tokens.
const RESTARTS_TOKEN_READERS: [&str; 2] = ["AuthAltParameters", "AuthAltTypes"];

/// slurmrestd reads these too, and only when it starts.
const RESTARTS_SLURMRESTD: [&str; 11] = [
    "AccountingStorageBackupHost",
    "AccountingStorageHost",
    "AccountingStoragePort",
    "AccountingStorageType",
    "DataParserParameters",
    "HttpParserType",
    "MessageTimeout",
    "PluginDir",
    "SlurmctldAddr",
    "TCPTimeout",
    "UrlParserType",
];

/// All others of slurm.conf that Slurm knows: a reconfiguration does.
#[rustfmt::skip]
const RECONFIGURES: [&str; 196] = [
    "AccountingStorageEnforce", "AccountingStorageExternalHost", "AccountingStorageParameters",
    "AccountingStoragePass", "AccountingStorageTRES", "AccountingStorageUser", "AccountingStoreFlags",
    "AccountingStoreJobComment", "AcctGatherEnergyType", "AcctGatherFilesystemType", "AcctGatherInfinibandType",
    "AcctGatherInterconnectType", "AcctGatherNodeFreq", "AcctGatherProfileType", "AllowSpecResourcesUsage",
    "BatchStartTimeout", "BcastExclude", "BcastParameters", "BurstBufferParameters", "BurstBufferType",
    "CertgenParameters", "CertgenType", "CertmgrParameters", "CertmgrType", "CliFilterParameters",
    "CliFilterPlugins", "CompleteWait", "CoreSpecPlugin", "CpuFreqDef", "CpuFreqGovernors", "DebugFlags",
    "DefCPUPerGPU", "DefMemPerCPU", "DefMemPerGPU", "DefMemPerNode", "DependencyParameters", "DisableRootJobs",
    "EioTimeout", "EnforcePartLimits", "EpilogMsgTime", "EpilogTimeout", "FairShareDampeningFactor",
    "FederationParameters", "FirstJobId", "GpuFreqDef", "GresTypes", "GroupUpdateForce", "GroupUpdateTime",
    "HealthCheckInterval", "HealthCheckNodeState", "HealthCheckProgram", "HealthCheckTimeout", "InactiveLimit",
    "InteractiveStepOptions", "JobAcctGatherFrequency", "JobAcctGatherParams", "JobAcctGatherType",
    "JobCompHost", "JobCompLoc", "JobCompParams", "JobCompPass", "JobCompPassScript", "JobCompPort",
    "JobCompType", "JobCompUser", "JobContainerType", "JobFileAppend", "JobRequeue", "JobSubmitPlugins",
    "KeepAliveTime", "KillOnBadExit", "KillWait", "LaunchParameters", "LaunchType", "LicenseParameters",
    "Licenses", "LogTimeFormat", "MCSParameters", "MCSPlugin", "MailDomain", "MailProg", "MaxArraySize",
    "MaxBatchRequeue", "MaxDBDMsgs", "MaxJobCount", "MaxJobId", "MaxMemPerCPU", "MaxMemPerNode",
    "MaxNodeCount", "MaxStepCount", "MaxTasksPerNode", "MetricsAuthUsers", "MetricsParameters", "MetricsType",
    "MinJobAge", "MpiDefault", "MpiParams", "NamespaceType", "NodeFeaturesPlugins", "OverTimeLimit",
    "PlugStackConfig", "PrEpParameters", "PrEpPlugins", "PreemptExemptTime", "PreemptMode",
    "PreemptParameters", "PreemptType", "PriorityCalcPeriod", "PriorityDecayHalfLife", "PriorityFavorSmall",
    "PriorityFlags", "PriorityMaxAge", "PriorityParameters", "PrioritySiteFactorParameters",
    "PrioritySiteFactorPlugin", "PriorityType", "PriorityUsageResetPeriod", "PriorityWeightAge",
    "PriorityWeightAssoc", "PriorityWeightFairshare", "PriorityWeightJobSize", "PriorityWeightPartition",
    "PriorityWeightQOS", "PriorityWeightTRES", "PrivateData", "ProctrackType", "PrologEpilogTimeout",
    "PrologFlags", "PrologTimeout", "PropagatePrioProcess", "PropagateResourceLimits",
    "PropagateResourceLimitsExcept", "RebootProgram", "ReconfigFlags", "RequeueExit", "RequeueExitHold",
    "ResumeFailProgram", "ResumeProgram", "ResumeRate", "ResumeTimeout", "ResvEpilog", "ResvOverRun",
    "ResvProlog", "ReturnToService", "SallocDefaultCommand", "SbcastParameters", "SchedulerParameters",
    "SchedulerTimeSlice", "SchedulerType", "ScronParameters", "SelectTypeParameters", "SlurmSchedLogFile",
    "SlurmSchedLogLevel", "SlurmctldDebug", "SlurmctldHttpAuthParameters", "SlurmctldLogFile",
    "SlurmctldParameters", "SlurmctldPidFile", "SlurmctldPrimaryOffProg", "SlurmctldPrimaryOnProg",
    "SlurmctldSyslogDebug", "SlurmctldTimeout", "SlurmdDebug", "SlurmdHttpAuthParameters", "SlurmdLogFile",
    "SlurmdParameters", "SlurmdPidFile", "SlurmdSyslogDebug", "SlurmdTimeout", "SlurmdUser", "SrunEpilog",
    "SrunPortRange", "SrunProlog", "SuspendExcNodes", "SuspendExcParts", "SuspendExcStates", "SuspendProgram",
    "SuspendRate", "SuspendTime", "SuspendTimeout", "SwitchParameters", "TaskEpilog", "TaskPlugin",
    "TaskPluginParam", "TaskProlog", "TmpFS", "TopologyParam", "TopologyPlugin", "TrackWCKey", "TreeWidth",
    "UnkillableStepProgram", "UnkillableStepTimeout", "UsePAM", "VSizeFactor", "WaitTime", "X11Parameters",
];

/// Where slurmdbd's records are. In a database of another name slurmdbd makes empty tables without a word. Host and port
/// are not among these: they are the way to a database, and the same one can be moved or have another name.
const RECORDS_ELSEWHERE: [&str; 3] = ["StorageLoc", "StorageType", "SlurmUser"];

/// slurmd sets its control groups up when it starts; the rest of cgroup.conf holds for new steps.
const CGROUP_AT_START: [&str; 6] = [
    "CgroupMountpoint",
    "CgroupPlugin",
    "CgroupSlice",
    "EnableControllers",
    "IgnoreSystemd",
    "IgnoreSystemdOnFailure",
];

/// What shapes a node: jobs that run there hold bits of it, which cannot be carried over.
pub(super) const NODE_SHAPE: [&str; 11] = [
    "boards",
    "corespersocket",
    "corespeccount",
    "cpus",
    "cpuspeclist",
    "gres",
    "memspeclimit",
    "procs",
    "sockets",
    "socketsperboard",
    "threadspercore",
];

fn among(names: &[&str], key: &str) -> bool {
    names.iter().any(|name| name.eq_ignore_ascii_case(key))
}

/// What a change of a single parameter needs, if anything is known of it.
pub(super) fn parameter_class(file: File, key: &str) -> Option<Class> {
    match file {
        File::Slurm => slurm_class(key),
        File::Slurmdbd if among(&RECORDS_ELSEWHERE, key) => Some(Class::Forbidden {
            why: "the accounting records would stay behind",
        }),
        File::Slurmdbd => Some(Class::restart(&[Daemon::Slurmdbd])),
        File::Cgroup if among(&CGROUP_AT_START, key) => Some(Class::restart(&[Daemon::Slurmd])),
        File::Cgroup => Some(Class::Reconfigure),
        File::Gres if among(&["AutoDetect"], key) => {
            Some(Class::kills(MustBeEmpty::Cluster, &[Daemon::Slurmd]))
        }
        File::Gres => None,
    }
}

fn slurm_class(key: &str) -> Option<Class> {
    if let Some((_, why)) = FORBIDDEN.iter().find(|(name, _)| name.eq_ignore_ascii_case(key)) {
        return Some(Class::Forbidden { why });
    }
    if among(&NEEDS_EMPTY_CLUSTER, key) {
        return Some(Class::kills(MustBeEmpty::Cluster, &ALL));
    }
    let restarts: [(&[&str], &[Daemon]); 4] = [
        (&RESTARTS_ALL, &ALL),
        (&RESTARTS_TOKEN_READERS, &[Daemon::Slurmctld, Daemon::Slurmrestd]),
        (&["SlurmdPort"], &[Daemon::Slurmctld, Daemon::Slurmd]),
        (&RESTARTS_SLURMRESTD, &[Daemon::Slurmrestd]),
    ];
    if let Some((_, daemons)) = restarts.iter().find(|(names, _)| among(names, key)) {
        return Some(Class::restart(daemons));
    }
    among(&RECONFIGURES, key).then_some(Class::Reconfigure)
}

/// Whether slurm.conf has a single parameter of that name.
pub(crate) fn is_known(key: &str) -> bool {
    slurm_class(key).is_some()
}

/// The single parameters of slurm.conf.
pub(crate) fn known_names() -> impl Iterator<Item = &'static str> {
    FORBIDDEN
        .iter()
        .map(|(name, _)| *name)
        .chain(NEEDS_EMPTY_CLUSTER)
        .chain(RESTARTS_ALL)
        .chain(RESTARTS_TOKEN_READERS)
        .chain(["SlurmdPort"])
        .chain(RESTARTS_SLURMRESTD)
        .chain(RECONFIGURES)
}

/// What a change that nobody knows needs: everything that reads the file restarts.
pub(super) fn unknown(file: File) -> Class {
    match file {
        File::Slurm => Class::restart(&ALL),
        File::Slurmdbd => Class::restart(&[Daemon::Slurmdbd]),
        File::Cgroup => Class::restart(&[Daemon::Slurmd]),
        File::Gres => Class::restart(&[Daemon::Slurmctld, Daemon::Slurmd]),
    }
}

/// What a change of a record needs. `before` and `after` are its attributes, where it exists.
pub(super) fn record_class(
    file: File,
    key: &str,
    name: &str,
    before: Option<&Attributes>,
    after: Option<&Attributes>,
) -> Class {
    if file == File::Gres {
        // Slurm aborts jobs that hold a device whose count changes.
        let nodes = if key == "nodename" {
            MustBeEmpty::Nodes(name.to_owned())
        } else {
            MustBeEmpty::Cluster
        };
        return Class::kills(nodes, &[Daemon::Slurmd]);
    }
    if is_default(file, name) {
        return if key == "nodename" {
            Class::kills(MustBeEmpty::Cluster, &[])
        } else {
            Class::Reconfigure
        };
    }
    match (key, before, after) {
        ("slurmctldhost", ..) => Class::restart(&[Daemon::Slurmrestd]),
        ("frontendname", ..) => unknown(file),
        // Slurm kills the jobs of a partition that is no longer there.
        ("partitionname", Some(_), None) => Class::kills(MustBeEmpty::Partition(name.to_owned()), &[]),
        ("nodeset", Some(before), Some(after)) if only_gains_nodes(before, after) => Class::Reconfigure,
        ("nodeset", Some(_), None | Some(_)) => Class::kills(MustBeEmpty::NodeSet(name.to_owned()), &[]),
        ("downnodes", _, Some(after)) if !takes_no_node_down(after) => {
            Class::kills(MustBeEmpty::Nodes(name.to_owned()), &[])
        }
        _ => Class::Reconfigure,
    }
}

/// Whether a record of this name is none, but what those behind it start from.
pub(super) fn is_default(file: File, name: &str) -> bool {
    file == File::Slurm && name.eq_ignore_ascii_case("DEFAULT")
}

pub(super) fn differs(before: &Attributes, after: &Attributes, keys: &[&str]) -> bool {
    keys.iter().any(|key| before.get(*key) != after.get(*key))
}

/// Whether a node set keeps every node that it names, and is otherwise the same.
fn only_gains_nodes(before: &Attributes, after: &Attributes) -> bool {
    let others = |attributes: &Attributes| {
        let mut others = attributes.clone();
        others.remove("nodes");
        others
    };
    let names = |attributes: &Attributes| -> Option<BTreeSet<String>> {
        let list: Hostlist = attributes.get("nodes")?.parse().ok()?;
        (list.len() <= MAX_RANGE).then(|| list.names().collect())
    };
    match (names(before), names(after)) {
        (Some(old), Some(new)) => old.is_subset(&new) && others(before) == others(after),
        _ => false,
    }
}

/// `DownNodes` sets nodes down unless it names a gentler state.
fn takes_no_node_down(attributes: &Attributes) -> bool {
    let gentle = |state: &String| among(&["DRAIN", "FAIL", "FAILING", "FUTURE"], state);
    attributes.get("state").is_some_and(gentle)
}

/// The usual spelling of a record's key.
pub(super) fn spelling(key: &str) -> &str {
    let keys = [
        "SlurmctldHost",
        "NodeName",
        "NodeSet",
        "PartitionName",
        "DownNodes",
        "FrontendName",
        "PowerAction",
        "Name",
    ];
    keys.into_iter()
        .find(|name| name.eq_ignore_ascii_case(key))
        .unwrap_or(key)
}
