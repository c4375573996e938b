//! Values that the API keeps as text because the API server does not check them: durations, times, quantities and
//! numbers-or-percentages. They are kept exactly as written and parsed where they are used.

use std::borrow::Cow;

use jiff::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Why a text is not the value that it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScalarError {
    /// Not a Go duration.
    #[error("{0:?} is not a duration; write a number with a unit, such as 90s, 30m or 2h15m")]
    Duration(String),
    /// Not an RFC 3339 time.
    #[error("{0:?} is not a time; write RFC 3339, such as 2026-11-15T22:00:00Z")]
    Time(String),
    /// Neither a whole number nor a percentage.
    #[error("{0:?} is neither a whole number nor a percentage such as 25%")]
    NumberOrPercent(String),
}

/// A duration in Go's notation: `90s`, `1h30m`, `1.5h`, `300ms`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct GoDuration(pub String);

impl GoDuration {
    /// The duration, or why it is none. Negative durations are none of ours.
    pub fn parse(&self) -> Result<std::time::Duration, ScalarError> {
        parse_go_duration(&self.0).ok_or_else(|| ScalarError::Duration(self.0.clone()))
    }
}

impl From<&str> for GoDuration {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

fn parse_go_duration(text: &str) -> Option<std::time::Duration> {
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    if unsigned == "0" {
        return Some(std::time::Duration::ZERO);
    }
    if unsigned.is_empty() {
        return None;
    }
    let mut rest = unsigned;
    let mut nanos: f64 = 0.0;
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(number_end);
        let unit_end = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, after) = tail.split_at(unit_end);
        if !number.contains(|c: char| c.is_ascii_digit()) {
            return None;
        }
        let scale = match unit {
            "ns" => 1.0,
            "us" | "µs" | "μs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            _ => return None,
        };
        let amount: f64 = format!("0{number}").parse().ok()?;
        nanos += amount * scale;
        rest = after;
    }
    // Go's durations are int64 nanoseconds.
    if nanos > 9.223_372_036_854_775e18 {
        return None;
    }
    std::time::Duration::try_from_secs_f64(nanos / 1e9).ok()
}

/// A point in time, RFC 3339.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rfc3339(pub String);

impl Rfc3339 {
    /// The time, or why it is none.
    pub fn parse(&self) -> Result<Timestamp, ScalarError> {
        self.0.parse().map_err(|_| ScalarError::Time(self.0.clone()))
    }
}

impl From<Timestamp> for Rfc3339 {
    fn from(time: Timestamp) -> Self {
        Self(time.to_string())
    }
}

impl JsonSchema for Rfc3339 {
    fn schema_name() -> Cow<'static, str> {
        "Rfc3339".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time" })
    }
}

/// A whole number or a text, most often a percentage.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum IntOrString {
    /// `3`
    Int(i64),
    /// `"25%"`
    String(String),
}

impl IntOrString {
    /// The number that this stands for out of `total`. A percentage rounds up, as the peer's does.
    pub fn scaled_up(&self, total: u32) -> Result<u32, ScalarError> {
        let wrong = || ScalarError::NumberOrPercent(self.to_string());
        match self {
            Self::Int(number) => u32::try_from(*number).map_err(|_| wrong()),
            Self::String(text) => {
                let percent: u64 = text
                    .strip_suffix('%')
                    .and_then(|number| number.parse().ok())
                    .ok_or_else(wrong)?;
                let scaled = percent.saturating_mul(u64::from(total)).div_ceil(100);
                u32::try_from(scaled).map_err(|_| wrong())
            }
        }
    }
}

impl std::fmt::Display for IntOrString {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Int(number) => write!(f, "{number}"),
            Self::String(text) => f.write_str(text),
        }
    }
}

impl From<&str> for IntOrString {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl JsonSchema for IntOrString {
    fn schema_name() -> Cow<'static, str> {
        "IntOrString".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "x-kubernetes-int-or-string": true, "anyOf": [{ "type": "integer" }, { "type": "string" }] })
    }
}

/// An amount such as `10Gi`, kept as written: the API server takes a bare number as well.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Quantity(pub IntOrString);

impl JsonSchema for Quantity {
    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "anyOf": [{ "type": "integer" }, { "type": "string" }],
            "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
        })
    }
}
