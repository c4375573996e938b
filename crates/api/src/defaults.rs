//! Defaults. The functions feed both the CRD schema and reading an object that was stored without the field, so the two
//! cannot differ. The methods answer for whole sub-objects that are absent, and for our own fields, which have no
//! default in the CRD so that an object written for the peer stays byte for byte what it was.

use std::time::Duration;

use crate::accounting::StorageConfig;
use crate::controller::{ClaimPolicy, Controller, ControllerSpec};
use crate::nodeset::{
    ClaimRetentionPolicy, DrainTimeoutAction, NodeSetDeletionPolicy, NodeSetSpec, RollingUpdate,
    ScheduledUpdate, UpdateStrategyType,
};
use crate::references::{SecretKeySelector, effective_jwt_key};
use crate::scalars::{GoDuration, IntOrString, ScalarError};
use crate::token::TokenSpec;
use crate::well_known::port;
use crate::{AccountingSpec, LoginSetSpec};

pub(crate) const fn yes() -> bool {
    true
}

pub(crate) const fn one() -> i32 {
    1
}

pub(crate) const fn ha_backups() -> i32 {
    1
}

pub(crate) fn max_unavailable() -> IntOrString {
    IntOrString::from("25%")
}

pub(crate) fn scheduled_update_duration() -> GoDuration {
    GoDuration::from("30m")
}

pub(crate) fn storage_port() -> i32 {
    i32::from(port::STORAGE)
}

pub(crate) fn storage_database() -> String {
    "slurm_acct_db".to_owned()
}

/// Lifetime of a token when the user wrote none.
pub const TOKEN_LIFETIME: Duration = Duration::from_mins(15);

/// Size of the volume for slurmctld's state when the user wrote none.
pub const STATE_VOLUME_SIZE: &str = "4Gi";

impl ControllerSpec {
    /// The JWT key that counts: `jwtKeyRef`, else the deprecated `jwtHs256KeyRef`.
    pub fn jwt_key(&self) -> Option<&SecretKeySelector> {
        effective_jwt_key(self.jwt_key_ref.as_ref(), self.jwt_hs256_key_ref.as_ref())
    }

    /// Whether slurmctld's state outlives its pod.
    pub fn persistence_enabled(&self) -> bool {
        self.persistence.as_ref().is_none_or(|p| p.enabled)
    }

    /// The claim that the user brought, if persistence is on and one is named.
    pub fn existing_claim(&self) -> Option<&str> {
        self.persistence
            .as_ref()
            .filter(|p| p.enabled)
            .and_then(|p| p.existing_claim.as_deref())
            .filter(|claim| !claim.is_empty())
    }

    /// What happens to the state volume's claim when the Controller is deleted.
    pub fn claim_deletion_policy(&self) -> ClaimPolicy {
        self.persistence
            .as_ref()
            .and_then(|p| p.deletion_policy)
            .unwrap_or_default()
    }

    /// Whether Slurm's own high availability is on.
    pub fn ha_enabled(&self) -> bool {
        self.ha.as_ref().is_some_and(|ha| ha.enabled)
    }

    /// Whether slurmctld serves metrics.
    pub fn metrics_enabled(&self) -> bool {
        self.metrics.as_ref().is_some_and(|m| m.enabled)
    }
}

impl Controller {
    /// How many slurmctld pods: one, and with high availability the backups. An external one counts as one.
    pub fn replicas(&self) -> i32 {
        match &self.spec.ha {
            Some(ha) if ha.enabled && !self.spec.external => ha.backups.saturating_add(1),
            _ => 1,
        }
    }
}

impl AccountingSpec {
    /// The JWT key that counts: `jwtKeyRef`, else the deprecated `jwtHs256KeyRef`.
    pub fn jwt_key(&self) -> Option<&SecretKeySelector> {
        effective_jwt_key(self.jwt_key_ref.as_ref(), self.jwt_hs256_key_ref.as_ref())
    }
}

impl StorageConfig {
    /// Port of the database. A written 0 means the default, as it does for the peer.
    pub fn port(&self) -> i32 {
        if self.port == 0 { storage_port() } else { self.port }
    }

    /// Name of the database. A written "" means the default, as it does for the peer.
    pub fn database(&self) -> String {
        if self.database.is_empty() {
            storage_database()
        } else {
            self.database.clone()
        }
    }
}

impl TokenSpec {
    /// The JWT key that counts: `jwtKeyRef`, else the deprecated `jwtHs256KeyRef`.
    pub fn jwt_key(&self) -> Option<&SecretKeySelector> {
        effective_jwt_key(self.jwt_key_ref.as_ref(), self.jwt_hs256_key_ref.as_ref())
    }

    /// How long a token is valid.
    pub fn lifetime(&self) -> Result<Duration, ScalarError> {
        self.lifetime
            .as_ref()
            .map_or(Ok(TOKEN_LIFETIME), GoDuration::parse)
    }
}

impl LoginSetSpec {
    /// Whether sssd.conf is mounted.
    pub fn sssd_enabled(&self) -> bool {
        self.sssd.as_ref().is_none_or(|s| s.enabled)
    }
}

impl NodeSetSpec {
    /// Whether sshd runs in the workers.
    pub fn ssh_enabled(&self) -> bool {
        self.ssh.as_ref().is_some_and(|ssh| ssh.enabled)
    }

    /// Whether sssd.conf is mounted: only with SSH, and unless the user turned it off.
    pub fn sssd_enabled(&self) -> bool {
        self.ssh
            .as_ref()
            .is_some_and(|ssh| ssh.enabled && ssh.sssd.as_ref().is_none_or(|s| s.enabled))
    }

    /// Which way workers are replaced.
    pub fn update_type(&self) -> UpdateStrategyType {
        self.update_strategy.as_ref().map(|s| s.kind).unwrap_or_default()
    }

    /// Bounds of a rolling update.
    pub fn rolling_update(&self) -> RollingUpdate {
        self.update_strategy
            .as_ref()
            .and_then(|s| s.rolling_update.clone())
            .unwrap_or_default()
    }

    /// Window of a scheduled update.
    pub fn scheduled_update(&self) -> ScheduledUpdate {
        self.update_strategy
            .as_ref()
            .and_then(|s| s.scheduled_update.clone())
            .unwrap_or_default()
    }

    /// What happens to the workers' claims.
    pub fn claim_retention(&self) -> ClaimRetentionPolicy {
        self.persistent_volume_claim_retention_policy.unwrap_or_default()
    }

    /// How long jobs are waited for when a worker has to go. `None`: for ever.
    pub fn drain_timeout(&self) -> Result<Option<Duration>, ScalarError> {
        self.drain
            .as_ref()
            .and_then(|d| d.timeout.as_ref())
            .map(GoDuration::parse)
            .transpose()
    }

    /// What happens to jobs that still run after the timeout.
    pub fn on_drain_timeout(&self) -> DrainTimeoutAction {
        self.drain.as_ref().and_then(|d| d.on_timeout).unwrap_or_default()
    }

    /// Whether a person stopped changes in the spec.
    pub fn paused(&self) -> bool {
        self.paused.unwrap_or(false)
    }

    /// What happens to running jobs when the NodeSet is deleted.
    pub fn deletion_policy(&self) -> NodeSetDeletionPolicy {
        self.deletion_policy.unwrap_or_default()
    }

    /// Seconds that a worker must be ready before it is available.
    pub fn min_ready(&self) -> Duration {
        Duration::from_secs(
            self.min_ready_seconds
                .and_then(|s| u64::try_from(s).ok())
                .unwrap_or(0),
        )
    }
}
