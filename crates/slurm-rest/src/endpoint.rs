//! The table of API calls: method, path, and whether a call may be retried.

use reqwest::Method;

/// One operation of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The method.
    pub method: Method,
    /// The path, with `{version}` and the names of its parameters.
    pub path: &'static str,
    /// The kind of call.
    pub kind: Kind,
}

/// Determines the deadline of a call and whether it may be retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Read-only: retried when Slurm is unreachable.
    Read,
    /// Reads a list that may be long; retried like `Read`.
    List,
    /// Changes state: never retried, unless the server certainly did nothing.
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
        /// All calls by name.
        pub const ALL: &[(&str, Endpoint)] = &[$((stringify!($name), $name)),*];
    };
}

calls! {
    RECONFIGURE = GET "/slurm/{version}/reconfigure/" Write;
    NODES = GET "/slurm/{version}/nodes/" List;
    NODE = GET "/slurm/{version}/node/{node_name}" Read;
    NODE_UPDATE = POST "/slurm/{version}/node/{node_name}" Write;
    NODES_UPDATE = POST "/slurm/{version}/nodes/" Write;
    NODE_DELETE = DELETE "/slurm/{version}/node/{node_name}" Write;
    JOBS = GET "/slurm/{version}/jobs/" List;
    JOB = GET "/slurm/{version}/job/{job_id}" Read;
    JOB_SUBMIT = POST "/slurm/{version}/job/submit" Write;
    JOB_SIGNAL = DELETE "/slurm/{version}/job/{job_id}" Write;
    JOBS_REQUEUE = POST "/slurm/{version}/jobs/requeue" Write;
    PARTITIONS = GET "/slurm/{version}/partitions/" List;
    PARTITION = GET "/slurm/{version}/partition/{partition_name}" Read;
    RESERVATIONS = GET "/slurm/{version}/reservations/" List;
    RESERVATION = GET "/slurm/{version}/reservation/{reservation_name}" Read;
    RESERVATION_UPDATE = POST "/slurm/{version}/reservation" Write;
    RESERVATION_DELETE = DELETE "/slurm/{version}/reservation/{reservation_name}" Write;
    CLUSTERS = GET "/slurmdb/{version}/clusters/" Read;
}

/// The server's own API description.
pub(crate) const OPENAPI: Endpoint = Endpoint {
    method: Method::GET,
    path: "/openapi/v3",
    kind: Kind::Read,
};
