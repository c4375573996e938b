//! Names inside the containers that the operator, the configuration files and `init` must agree on: ports, directories,
//! files, environment variables and the uid of Slurm. `keelson_api::well_known` re-exports them for the operator; `init`
//! takes them from here, because it must not depend on Kubernetes.

/// uid and gid of the user that runs slurmctld and slurmdbd, in every image.
pub const SLURM_UID: u32 = 401;

/// Start of the line in the log of slurmdbd's container that says why `init` does not start slurmdbd.
pub const DATABASE_ERROR: &str = "init: error: the database";

/// Ports.
pub mod port {
    /// Status of PID 1 in Keelson's images.
    pub const INIT: u16 = 6816;
    /// slurmctld.
    pub const SLURMCTLD: u16 = 6817;
}

/// Environment variables.
pub mod env {
    /// slurmd: CPU limit of the pod, rounded up; 0 without a limit.
    pub const POD_CPUS: &str = "POD_CPUS";
    /// slurmd: memory limit of the pod in MiB; 0 without a limit.
    pub const POD_MEMORY: &str = "POD_MEMORY";
    /// login: options of sackd.
    pub const SACKD_OPTIONS: &str = "SACKD_OPTIONS";
}

/// Directories.
pub mod dir {
    /// Slurm configuration.
    pub const SLURM_ETC: &str = "/etc/slurm";
    /// Log files.
    pub const LOG: &str = "/var/log/slurm";
    /// sackd's socket, and slurmd's run directory.
    pub const SACKD_RUN: &str = "/run/slurm";
    /// munged's files.
    pub const MUNGE_RUN: &str = "/run/munge";
    /// munged's socket, where libmunge looks for it.
    pub const MUNGE_SOCKET: &str = "/run/munge/munge.socket.2";
    /// Parent of slurmctld's state directory, which is named after the cluster.
    pub const SLURMCTLD_SPOOL: &str = "/var/spool/slurmctld";
    /// slurmd's spool.
    pub const SLURMD_SPOOL: &str = "/var/spool/slurmd";
    /// Files that are kept up to date in running pods; `init` links to them from their own paths.
    pub const LIVE_FILES: &str = "/run/keelson/files";
}

/// The key under which a ConfigMap has the file at an absolute path. Paths contain no `__`, so the path can be found again.
pub fn file_key(path: &str) -> String {
    path.trim_start_matches('/').replace('/', "__")
}

/// The path of the file with this key.
pub fn file_path(key: &str) -> String {
    format!("/{}", key.replace("__", "/"))
}

/// File names, which are also keys of ConfigMaps and Secrets.
pub mod file {
    /// Main configuration.
    pub const SLURM_CONF: &str = "slurm.conf";
    /// cgroup plug-in's configuration.
    pub const CGROUP_CONF: &str = "cgroup.conf";
    /// Generic resources.
    pub const GRES_CONF: &str = "gres.conf";
    /// Accounting daemon's configuration.
    pub const SLURMDBD_CONF: &str = "slurmdbd.conf";
    /// auth/slurm key.
    pub const SLURM_KEY: &str = "slurm.key";
    /// auth/munge key.
    pub const MUNGE_KEY: &str = "munge.key";
    /// HS256 key.
    pub const JWT_KEY: &str = "jwt.key";
    /// slurmdbd: certificates of the authorities that sign the database's certificate.
    pub const DATABASE_CA: &str = "database-ca.crt";
    /// slurmdbd: its certificate for the database.
    pub const DATABASE_CERT: &str = "database-client.crt";
    /// slurmdbd: the key of this certificate.
    pub const DATABASE_CERT_KEY: &str = "database-client.key";
    /// Log of slurmctld.
    pub const SLURMCTLD_LOG: &str = "slurmctld.log";
    /// Log of slurmd.
    pub const SLURMD_LOG: &str = "slurmd.log";
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("/etc/motd", "etc__motd")]
    #[case("/opt/a.d/b-c", "opt__a.d__b-c")]
    fn the_key_of_a_file_names_its_path(#[case] path: &str, #[case] key: &str) {
        assert_eq!(file_key(path), key);
        assert_eq!(file_path(key), path);
    }
}
