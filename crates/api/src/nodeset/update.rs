//! Update strategies of a NodeSet.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::defaults;
use crate::scalars::{GoDuration, IntOrString, Rfc3339};

/// How the operator replaces workers when the NodeSet changes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "self.type != 'ScheduledUpdate' || (has(self.scheduledUpdate) && has(self.scheduledUpdate.startTime) && has(self.scheduledUpdate.duration))",
     "message": "scheduledUpdate.startTime and scheduledUpdate.duration are required when type is ScheduledUpdate",
     "fieldPath": ".scheduledUpdate", "reason": "FieldValueRequired"},
]))]
pub struct UpdateStrategy {
    /// Type of the strategy.
    #[serde(default, rename = "type")]
    pub kind: UpdateStrategyType,
    /// Parameters of `RollingUpdate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,
    /// Parameters of `ScheduledUpdate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled_update: Option<ScheduledUpdate>,
}

/// Type of the update strategy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum UpdateStrategyType {
    /// Replace a few workers at a time, draining each first.
    #[default]
    RollingUpdate,
    /// Replace a worker only when a user deletes it.
    OnDelete,
    /// Replace the workers in a maintenance window, which is a Slurm reservation.
    ScheduledUpdate,
}

/// Parameters of `RollingUpdate`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RollingUpdate {
    /// Maximum number of unavailable workers: a number of at least 1, or a percentage of the desired workers, rounded up.
    #[serde(default = "defaults::max_unavailable")]
    pub max_unavailable: IntOrString,
    /// Update only workers with this ordinal or a higher one, to try a change on a few workers first. `StatefulSet` mode
    /// only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub partition: Option<i32>,
}

impl Default for RollingUpdate {
    fn default() -> Self {
        Self {
            max_unavailable: defaults::max_unavailable(),
            partition: None,
        }
    }
}

/// Parameters of `ScheduledUpdate`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduledUpdate {
    /// Start of the window, RFC 3339. Required if `type` is `ScheduledUpdate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Rfc3339>,
    /// Length of the window, at least one minute.
    #[serde(default = "defaults::scheduled_update_duration")]
    pub duration: GoDuration,
    /// Reservation flags in addition to `MAINT` and `IGNORE_JOBS`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("nullable" = true))]
    pub flags: Option<Vec<String>>,
}

impl Default for ScheduledUpdate {
    fn default() -> Self {
        Self {
            start_time: None,
            duration: defaults::scheduled_update_duration(),
            flags: None,
        }
    }
}
