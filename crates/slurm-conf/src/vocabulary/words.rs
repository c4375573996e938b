//! The words that Slurm 24.11 to 26.05 reads, and what each takes.

/// What a value must look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    /// A whole number up to this.
    Number(u64),
    YesNo,
    Time,
    /// Starts with one of these.
    Word(&'static [&'static str]),
    Text,
}

pub(super) const U16: Takes = Takes::Number(u16::MAX as u64);
pub(super) const U32: Takes = Takes::Number(u32::MAX as u64);
pub(super) const U64: Takes = Takes::Number(u64::MAX);

#[rustfmt::skip]
pub(super) const SLURM_U16: [&str; 37] = [
    "AccountingStoragePort", "AcctGatherNodeFreq", "BatchStartTimeout", "CompleteWait", "EioTimeout", "EpilogTimeout",
    "FairShareDampeningFactor", "GroupUpdateForce", "GroupUpdateTime", "HealthCheckInterval", "HealthCheckTimeout",
    "InactiveLimit", "JobFileAppend", "JobRequeue", "KillOnBadExit", "KillWait", "MaxTasksPerNode", "MessageTimeout",
    "OverTimeLimit", "PrologEpilogTimeout", "PrologTimeout", "PropagatePrioProcess", "ResumeRate", "ResumeTimeout",
    "ResvOverRun", "ReturnToService", "SchedulerTimeSlice", "SlurmSchedLogLevel", "SlurmctldTimeout", "SlurmdTimeout",
    "SuspendRate", "SuspendTimeout", "TCPTimeout", "TreeWidth", "UnkillableStepTimeout", "VSizeFactor", "WaitTime",
];
#[rustfmt::skip]
pub(super) const SLURM_U32: [&str; 19] = [
    "EpilogMsgTime", "FirstJobId", "JobCompPort", "KeepAliveTime", "MaxArraySize", "MaxBatchRequeue", "MaxDBDMsgs",
    "MaxJobCount", "MaxJobId", "MaxNodeCount", "MaxStepCount", "MinJobAge", "PriorityWeightAge", "PriorityWeightAssoc",
    "PriorityWeightFairshare", "PriorityWeightJobSize", "PriorityWeightPartition", "PriorityWeightQOS", "SlurmdPort",
];
pub(super) const SLURM_U64: [&str; 6] = [
    "DefCPUPerGPU",
    "DefMemPerCPU",
    "DefMemPerGPU",
    "DefMemPerNode",
    "MaxMemPerCPU",
    "MaxMemPerNode",
];
pub(super) const SLURM_YES_NO: [&str; 6] = [
    "AccountingStoreJobComment",
    "AllowSpecResourcesUsage",
    "DisableRootJobs",
    "PriorityFavorSmall",
    "TrackWCKey",
    "UsePAM",
];
pub(super) const SLURM_TIME: [&str; 4] = [
    "PreemptExemptTime",
    "PriorityCalcPeriod",
    "PriorityDecayHalfLife",
    "PriorityMaxAge",
];
/// Words of one release that another has no more, or not yet.
#[rustfmt::skip]
pub(super) const SLURM_OTHER: [&str; 21] = [
    "AccountingStorageLoc", "BackupAddr", "BackupController", "ControlAddr", "ControlMachine", "CryptoType",
    "DefRuntimePlugin", "ExtSensorsFreq", "ExtSensorsType", "FastSchedule", "GetEnvTimeout", "JobCredentialPrivateKey",
    "JobCredentialPublicCertificate", "PowerParameters", "PowerPlugin", "RoutePlugin", "SerializerParameters",
    "SerializerPlugins", "SlurmrestdHttpAuthParameters", "SlurmrestdParameters", "SlurmstepdParameters",
];

pub(super) const SLURMDBD_U16: [&str; 5] = [
    "CommitDelay",
    "DbdPort",
    "MessageTimeout",
    "StoragePort",
    "TCPTimeout",
];
#[rustfmt::skip]
pub(super) const SLURMDBD_U32: [&str; 9] = [
    "JobPurge", "MaxPurgeLimit", "PurgeEventMonths", "PurgeJobMonths", "PurgeStepMonths", "PurgeSuspendMonths",
    "PurgeTXNMonths", "PurgeUsageMonths", "StepPurge",
];
#[rustfmt::skip]
pub(super) const SLURMDBD_YES_NO: [&str; 16] = [
    "AllResourcesAbsolute", "AllowNoDefAcct", "ArchiveEvents", "ArchiveJobEnv", "ArchiveJobScript", "ArchiveJobs",
    "ArchiveResvs", "ArchiveSteps", "ArchiveSuspend", "ArchiveTXN", "ArchiveUsage", "DisableArchiveCommands",
    "DisableCoordDBD", "DisableRollups", "TrackSlurmctldDown", "TrackWCKey",
];
#[rustfmt::skip]
pub(super) const SLURMDBD_TEXT: [&str; 44] = [
    "ArchiveDir", "ArchiveScript", "AuthAltParameters", "AuthAltTypes", "AuthInfo", "AuthType",
    "CommunicationParameters", "DbdAddr", "DbdBackupHost", "DbdHost", "DebugFlags", "DebugLevel", "DebugLevelSyslog",
    "DefaultQOS", "HashPlugin", "LogFile", "LogTimeFormat", "MaxQueryTimeRange", "Parameters", "PidFile", "PluginDir",
    "PrivateData", "PurgeEventAfter", "PurgeJobAfter", "PurgeJobEnvAfter", "PurgeJobScriptAfter", "PurgeResvAfter",
    "PurgeStepAfter", "PurgeSuspendAfter", "PurgeTXNAfter", "PurgeUsageAfter", "SerializerParameters",
    "SerializerPlugins", "SlurmUser", "StorageBackupHost", "StorageHost", "StorageLoc", "StorageParameters",
    "StoragePass", "StoragePassScript", "StorageType", "StorageUser", "TLSParameters", "TLSType",
];

const SHARED: Takes = Takes::Word(&["NO", "EXCLUSIVE", "YES", "FORCE"]);

/// What may stand on a `PartitionName` line.
pub(super) const PARTITION: [(&str, Takes); 48] = [
    ("AllocNodes", Takes::Text),
    ("AllowAccounts", Takes::Text),
    ("AllowGroups", Takes::Text),
    ("AllowQos", Takes::Text),
    ("Alternate", Takes::Text),
    ("CpuBind", Takes::Text),
    ("DefCPUPerGPU", U64),
    ("DefMemPerCPU", U64),
    ("DefMemPerGPU", U64),
    ("DefMemPerNode", U64),
    ("Default", Takes::YesNo),
    ("DefaultTime", Takes::Time),
    ("DenyAccounts", Takes::Text),
    ("DenyQos", Takes::Text),
    ("DisableRootJobs", Takes::YesNo),
    ("Exclusive", Takes::Text),
    ("ExclusiveTopo", Takes::YesNo),
    ("ExclusiveUser", Takes::YesNo),
    ("GraceTime", U32),
    ("Hidden", Takes::YesNo),
    ("LLN", Takes::YesNo),
    ("MaxCPUsPerNode", U32),
    ("MaxCPUsPerSocket", U32),
    ("MaxMemPerCPU", U64),
    ("MaxMemPerNode", U64),
    ("MaxNodes", U32),
    ("MaxTime", Takes::Time),
    ("MinNodes", U32),
    ("Nodes", Takes::Text),
    ("OverSubscribe", SHARED),
    ("OverTimeLimit", Takes::Text),
    ("PartitionName", Takes::Text),
    ("PowerDownOnIdle", Takes::YesNo),
    ("PreemptMode", Takes::Text),
    ("Priority", U16),
    ("PriorityJobFactor", U16),
    ("PriorityTier", U16),
    ("QOS", Takes::Text),
    ("ReqResv", Takes::YesNo),
    ("ResumeTimeout", U16),
    ("RootOnly", Takes::YesNo),
    ("SelectTypeParameters", Takes::Word(&["CR_Core", "CR_Socket"])),
    ("Shared", SHARED),
    ("State", Takes::Word(&["UP", "DOWN", "DRAIN", "INACTIVE"])),
    ("SuspendTime", Takes::Text),
    ("SuspendTimeout", U16),
    ("TRESBillingWeights", Takes::Text),
    ("Topology", Takes::Text),
];
