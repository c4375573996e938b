//! How the daemons of a cluster authenticate each other.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use slurm_conf::slurm_conf as conf;

/// How the daemons and commands of a cluster authenticate each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Auth {
    /// `slurm` (default), or `munge`, which requires images with munged. The key is in `slurmKeyRef` either way. Immutable.
    #[serde(default, rename = "type")]
    pub kind: AuthType,
}

/// Slurm's `AuthType`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AuthType {
    /// auth/slurm.
    #[default]
    Slurm,
    /// auth/munge.
    Munge,
}

impl From<AuthType> for conf::AuthType {
    fn from(auth: AuthType) -> Self {
        match auth {
            AuthType::Slurm => Self::Slurm,
            AuthType::Munge => Self::Munge,
        }
    }
}
