//! How workers are replaced.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::defaults;
use crate::scalars::{GoDuration, IntOrString, Rfc3339};

/// How workers are replaced when the NodeSet changes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "self.type != 'ScheduledUpdate' || (has(self.scheduledUpdate) && has(self.scheduledUpdate.startTime) && has(self.scheduledUpdate.duration))",
     "message": "scheduledUpdate.startTime and scheduledUpdate.duration are required when type is ScheduledUpdate",
     "fieldPath": ".scheduledUpdate", "reason": "FieldValueRequired"},
]))]
pub struct UpdateStrategy {
    /// Which way.
    #[serde(default, rename = "type")]
    pub kind: UpdateStrategyType,
    /// For `RollingUpdate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,
    /// For `ScheduledUpdate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled_update: Option<ScheduledUpdate>,
}

/// Which way workers are replaced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum UpdateStrategyType {
    /// A few at a time, each drained first.
    #[default]
    RollingUpdate,
    /// When a person deletes them.
    OnDelete,
    /// In a maintenance window, which is a Slurm reservation.
    ScheduledUpdate,
}

/// For `RollingUpdate`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RollingUpdate {
    /// How many workers may be unavailable: a number of at least 1, or a percentage of the desired workers, which
    /// rounds up.
    #[serde(default = "defaults::max_unavailable")]
    pub max_unavailable: IntOrString,
    /// Only workers with this ordinal or a higher one are updated, so that a change can be tried on a few.
    /// `StatefulSet` mode only.
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

/// For `ScheduledUpdate`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduledUpdate {
    /// When the window opens, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Rfc3339>,
    /// How long it is open, at least one minute.
    #[serde(default = "defaults::scheduled_update_duration")]
    pub duration: GoDuration,
    /// Reservation flags on top of `MAINT` and `IGNORE_JOBS`.
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
