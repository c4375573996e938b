//! Defaults. The functions define the defaults of both the CRD schema and deserialization, so the two cannot differ. The
//! methods return the defaults of absent sub-objects and of our own fields, which have no default in the CRD, so that an
//! object written for Slinky stays unchanged.

use std::time::Duration;

use slurm_conf::slurm_conf::AuthType;

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

pub(crate) fn slurm_release() -> String {
    SLURM_RELEASE.to_owned()
}

pub(crate) const fn kept_dumps() -> i32 {
    7
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

/// Slurm release of clusters that name none.
pub const SLURM_RELEASE: &str = "26.05";

/// Default lifetime of a token.
pub const TOKEN_LIFETIME: Duration = Duration::from_mins(15);

/// Default size of the volume for slurmctld's state.
pub const STATE_VOLUME_SIZE: &str = "4Gi";

impl ControllerSpec {
    /// How the daemons authenticate each other.
    pub fn auth_type(&self) -> AuthType {
        self.auth.unwrap_or_default().kind.into()
    }

    /// The JWT key in use: `jwtKeyRef`, or the deprecated `jwtHs256KeyRef`.
    pub fn jwt_key(&self) -> Option<&SecretKeySelector> {
        effective_jwt_key(self.jwt_key_ref.as_ref(), self.jwt_hs256_key_ref.as_ref())
    }

    /// Whether slurmctld's state is on a persistent volume.
    pub fn persistence_enabled(&self) -> bool {
        self.persistence.as_ref().is_none_or(|p| p.enabled)
    }

    /// The user's existing claim, if persistence is enabled and the claim is set.
    pub fn existing_claim(&self) -> Option<&str> {
        self.persistence
            .as_ref()
            .filter(|p| p.enabled)
            .and_then(|p| p.existing_claim.as_deref())
            .filter(|claim| !claim.is_empty())
    }

    /// Whether to keep the claim of the state volume when the Controller is deleted.
    pub fn claim_deletion_policy(&self) -> ClaimPolicy {
        self.persistence
            .as_ref()
            .and_then(|p| p.deletion_policy)
            .unwrap_or_default()
    }

    /// Whether Slurm's own high availability is enabled.
    pub fn ha_enabled(&self) -> bool {
        self.ha.as_ref().is_some_and(|ha| ha.enabled)
    }

    /// Whether slurmctld serves metrics.
    pub fn metrics_enabled(&self) -> bool {
        self.metrics.as_ref().is_some_and(|m| m.enabled)
    }
}

impl Controller {
    /// Number of slurmctld instances: one, plus the backups with high availability. An external slurmctld counts as one.
    pub fn replicas(&self) -> i32 {
        match &self.spec.ha {
            Some(ha) if ha.enabled && !self.spec.external => ha.backups.saturating_add(1),
            _ => 1,
        }
    }
}

impl AccountingSpec {
    /// How the daemons authenticate each other.
    pub fn auth_type(&self) -> AuthType {
        self.auth.unwrap_or_default().kind.into()
    }

    /// The JWT key in use: `jwtKeyRef`, or the deprecated `jwtHs256KeyRef`.
    pub fn jwt_key(&self) -> Option<&SecretKeySelector> {
        effective_jwt_key(self.jwt_key_ref.as_ref(), self.jwt_hs256_key_ref.as_ref())
    }
}

impl StorageConfig {
    /// Port of the database. 0 means the default, as in Slinky.
    pub fn port(&self) -> i32 {
        if self.port == 0 { storage_port() } else { self.port }
    }

    /// Name of the database. "" means the default, as in Slinky.
    pub fn database(&self) -> String {
        if self.database.is_empty() {
            storage_database()
        } else {
            self.database.clone()
        }
    }
}

impl TokenSpec {
    /// The JWT key in use: `jwtKeyRef`, or the deprecated `jwtHs256KeyRef`.
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
    /// Whether to mount sssd.conf.
    pub fn sssd_enabled(&self) -> bool {
        self.sssd.as_ref().is_none_or(|s| s.enabled)
    }
}

impl NodeSetSpec {
    /// Whether to run sshd in the workers.
    pub fn ssh_enabled(&self) -> bool {
        self.ssh.as_ref().is_some_and(|ssh| ssh.enabled)
    }

    /// Whether to mount sssd.conf: only with SSH, and unless the user disabled it.
    pub fn sssd_enabled(&self) -> bool {
        self.ssh
            .as_ref()
            .is_some_and(|ssh| ssh.enabled && ssh.sssd.as_ref().is_none_or(|s| s.enabled))
    }

    /// The update strategy.
    pub fn update_type(&self) -> UpdateStrategyType {
        self.update_strategy.as_ref().map(|s| s.kind).unwrap_or_default()
    }

    /// Parameters of a rolling update.
    pub fn rolling_update(&self) -> RollingUpdate {
        self.update_strategy
            .as_ref()
            .and_then(|s| s.rolling_update.clone())
            .unwrap_or_default()
    }

    /// Maintenance window of a scheduled update.
    pub fn scheduled_update(&self) -> ScheduledUpdate {
        self.update_strategy
            .as_ref()
            .and_then(|s| s.scheduled_update.clone())
            .unwrap_or_default()
    }

    /// Retention policy of the workers' claims.
    pub fn claim_retention(&self) -> ClaimRetentionPolicy {
        self.persistent_volume_claim_retention_policy.unwrap_or_default()
    }

    /// How long to wait for jobs when draining a worker. `None`: indefinitely.
    pub fn drain_timeout(&self) -> Result<Option<Duration>, ScalarError> {
        self.drain
            .as_ref()
            .and_then(|d| d.timeout.as_ref())
            .map(GoDuration::parse)
            .transpose()
    }

    /// What to do with jobs that still run after the timeout.
    pub fn on_drain_timeout(&self) -> DrainTimeoutAction {
        self.drain.as_ref().and_then(|d| d.on_timeout).unwrap_or_default()
    }

    /// Whether the NodeSet is paused in its spec.
    pub fn paused(&self) -> bool {
        self.paused.unwrap_or(false)
    }

    /// What to do with running jobs when the NodeSet is deleted.
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{LoginSetSpec, NodeSetSpec, RestApiSpec};

    fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn default_in_rust_is_the_empty_object_in_json() {
        let reference = json!({ "controllerRef": {} });
        assert_eq!(NodeSetSpec::default(), read(reference.clone()));
        assert_eq!(LoginSetSpec::default(), read(reference.clone()));
        assert_eq!(RestApiSpec::default(), read(reference));
        assert_eq!(ControllerSpec::default(), read(json!({})));
        assert_eq!(AccountingSpec::default(), read(json!({})));
        assert_eq!(TokenSpec::default(), read(json!({ "username": "" })));
        assert_eq!(
            StorageConfig::default(),
            read(json!({ "host": "", "passwordKeyRef": { "key": "" } }))
        );
        assert_eq!(RollingUpdate::default(), read(json!({})));
        assert_eq!(ScheduledUpdate::default(), read(json!({})));
        assert_eq!(crate::controller::Persistence::default(), read(json!({})));
        assert_eq!(crate::controller::HighAvailability::default(), read(json!({})));
        assert_eq!(crate::nodeset::Sssd::default(), read(json!({})));
    }

    #[test]
    fn an_absent_part_means_what_an_empty_one_means() {
        let absent = NodeSetSpec::default();
        let empty: NodeSetSpec = read(json!({ "controllerRef": {},
            "updateStrategy": { "rollingUpdate": {}, "scheduledUpdate": {} },
            "persistentVolumeClaimRetentionPolicy": {}, "drain": {}, "ssh": {} }));
        assert_eq!(absent.update_type(), empty.update_type());
        assert_eq!(absent.rolling_update(), empty.rolling_update());
        assert_eq!(absent.scheduled_update(), empty.scheduled_update());
        assert_eq!(absent.claim_retention(), empty.claim_retention());
        assert_eq!(absent.drain_timeout(), empty.drain_timeout());
        assert_eq!(absent.on_drain_timeout(), empty.on_drain_timeout());
        assert_eq!(absent.ssh_enabled(), empty.ssh_enabled());
        let controller: ControllerSpec = read(json!({ "persistence": {}, "ha": {}, "metrics": {} }));
        assert_eq!(
            ControllerSpec::default().persistence_enabled(),
            controller.persistence_enabled()
        );
        assert_eq!(ControllerSpec::default().ha_enabled(), controller.ha_enabled());
        assert_eq!(
            ControllerSpec::default().metrics_enabled(),
            controller.metrics_enabled()
        );
    }

    #[test]
    fn without_a_word_from_the_user_nothing_is_lost() {
        let nodeset = NodeSetSpec::default();
        assert_eq!(nodeset.deletion_policy(), NodeSetDeletionPolicy::Drain);
        assert_eq!(nodeset.on_drain_timeout(), DrainTimeoutAction::Wait);
        assert_eq!(nodeset.drain_timeout(), Ok(None));
        assert!(nodeset.workload_disruption_protection);
        assert_eq!(nodeset.claim_retention().when_deleted, ClaimPolicy::Retain);
        assert_eq!(
            ControllerSpec::default().claim_deletion_policy(),
            ClaimPolicy::Retain
        );
        assert!(ControllerSpec::default().persistence_enabled());
    }

    #[test]
    fn backups_count_only_with_high_availability() {
        let replicas = |spec: Value| Controller::new("c", read(spec)).replicas();
        assert_eq!(replicas(json!({})), 1);
        assert_eq!(replicas(json!({ "ha": { "enabled": false, "backups": 3 } })), 1);
        assert_eq!(replicas(json!({ "ha": { "enabled": true } })), 2);
        assert_eq!(replicas(json!({ "ha": { "enabled": true, "backups": 2 } })), 3);
        assert_eq!(
            replicas(json!({ "ha": { "enabled": true }, "external": true })),
            1
        );
    }

    #[test]
    fn a_state_volume_without_a_size_gets_one_and_a_written_one_is_kept() {
        let claim = |persistence: Value| read::<crate::controller::Persistence>(persistence).claim_spec();
        let value = |persistence: Value| serde_json::to_value(claim(persistence)).unwrap();
        assert_eq!(
            value(json!({})),
            json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "4Gi" } } })
        );
        assert_eq!(
            value(json!({ "accessModes": ["ReadWriteMany"], "storageClassName": "",
                          "resources": { "requests": { "storage": 5 }, "limits": { "storage": "9Gi" } } })),
            json!({ "accessModes": ["ReadWriteMany"], "storageClassName": "",
                    "resources": { "requests": { "storage": "5" }, "limits": { "storage": "9Gi" } } })
        );
    }

    #[test]
    fn the_current_jwt_key_wins_over_the_deprecated_one() {
        let key = |name: &str| json!({ "name": name, "key": "k" });
        let name = |spec: Value| read::<ControllerSpec>(spec).jwt_key().map(|key| key.name.clone());
        assert_eq!(name(json!({})), None);
        assert_eq!(
            name(json!({ "jwtHs256KeyRef": key("old") })).as_deref(),
            Some("old")
        );
        assert_eq!(
            name(json!({ "jwtHs256KeyRef": key("old"), "jwtKeyRef": key("new") })).as_deref(),
            Some("new")
        );
    }
}
