//! Every call that the client makes, in one table: what it sends where, and how it may be repeated.

use reqwest::Method;

/// One operation of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The method.
    pub method: Method,
    /// The path, with `{version}` and the names of its parameters.
    pub path: &'static str,
    /// What kind it is.
    pub kind: Kind,
}

/// How long a call may take and whether it may be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Changes nothing: repeated when the way to Slurm was broken.
    Read,
    /// Reads a list that may be long.
    List,
    /// Changes something: never repeated, except where it is certain that nothing was done.
    Write,
}

impl Kind {
    pub(crate) fn may_repeat(self) -> bool {
        matches!(self, Self::Read | Self::List)
    }
}

macro_rules! calls {
    ($($name:ident = $method:ident $path:literal $kind:ident;)*) => {
        $(#[doc = concat!("`", stringify!($method), " ", $path, "`")]
        pub const $name: Endpoint = Endpoint { method: Method::$method, path: $path, kind: Kind::$kind };)*
        /// All of them.
        pub const ALL: &[(&str, Endpoint)] = &[$((stringify!($name), $name)),*];
    };
}

calls! {
    PING = GET "/slurm/{version}/ping/" Read;
    DIAG = GET "/slurm/{version}/diag/" Read;
    CONF = GET "/slurm/{version}/conf" Read;
    RECONFIGURE = GET "/slurm/{version}/reconfigure/" Write;
    LICENSES = GET "/slurm/{version}/licenses/" Read;
    NODES = GET "/slurm/{version}/nodes/" List;
    NODE = GET "/slurm/{version}/node/{node_name}" Read;
    NODE_UPDATE = POST "/slurm/{version}/node/{node_name}" Write;
    NODES_UPDATE = POST "/slurm/{version}/nodes/" Write;
    NODE_DELETE = DELETE "/slurm/{version}/node/{node_name}" Write;
    NODE_CREATE = POST "/slurm/{version}/new/node/" Write;
    JOBS = GET "/slurm/{version}/jobs/" List;
    JOB_STATES = GET "/slurm/{version}/jobs/state/" List;
    JOB = GET "/slurm/{version}/job/{job_id}" Read;
    JOB_SUBMIT = POST "/slurm/{version}/job/submit" Write;
    JOB_SIGNAL = DELETE "/slurm/{version}/job/{job_id}" Write;
    JOBS_REQUEUE = POST "/slurm/{version}/jobs/requeue" Write;
    PARTITIONS = GET "/slurm/{version}/partitions/" List;
    PARTITION = GET "/slurm/{version}/partition/{partition_name}" Read;
    PARTITIONS_UPDATE = POST "/slurm/{version}/partitions/" Write;
    PARTITION_DELETE = DELETE "/slurm/{version}/partition/{partition_name}" Write;
    RESERVATIONS = GET "/slurm/{version}/reservations/" List;
    RESERVATION = GET "/slurm/{version}/reservation/{reservation_name}" Read;
    RESERVATION_UPDATE = POST "/slurm/{version}/reservation" Write;
    RESERVATION_DELETE = DELETE "/slurm/{version}/reservation/{reservation_name}" Write;
    DBD_PING = GET "/slurmdb/{version}/ping/" Read;
    CLUSTERS = GET "/slurmdb/{version}/clusters/" Read;
    CLUSTERS_ADD = POST "/slurmdb/{version}/clusters/" Write;
    CLUSTER_DELETE = DELETE "/slurmdb/{version}/cluster/{cluster_name}" Write;
    ACCOUNTS = GET "/slurmdb/{version}/accounts/" List;
    ACCOUNTS_ADD = POST "/slurmdb/{version}/accounts_association/" Write;
    ACCOUNT_DELETE = DELETE "/slurmdb/{version}/account/{account_name}" Write;
    USERS = GET "/slurmdb/{version}/users/" List;
    USERS_ADD = POST "/slurmdb/{version}/users_association/" Write;
    USER_DELETE = DELETE "/slurmdb/{version}/user/{name}" Write;
    ASSOCIATIONS = GET "/slurmdb/{version}/associations/" List;
    ASSOCIATIONS_DELETE = DELETE "/slurmdb/{version}/associations/" Write;
    QOS = GET "/slurmdb/{version}/qos/" Read;
    QOS_ADD = POST "/slurmdb/{version}/qos/" Write;
    QOS_DELETE = DELETE "/slurmdb/{version}/qos/{qos}" Write;
    TRES = GET "/slurmdb/{version}/tres/" Read;
}

/// Where a server describes itself.
pub(crate) const OPENAPI: Endpoint = Endpoint {
    method: Method::GET,
    path: "/openapi/v3",
    kind: Kind::Read,
};
