//! Values that the API keeps as text because the API server does not validate them: durations, times, quantities, and
//! numbers or percentages. They are kept exactly as written and parsed where they are used.

use std::borrow::Cow;

use jiff::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Why a text is not a valid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScalarError {
    /// Not a Go duration.
    #[error("{0:?} is not a valid duration; use a number with a unit, such as 90s, 30m or 2h15m")]
    Duration(String),
    /// Not an RFC 3339 time.
    #[error("{0:?} is not a valid time; use RFC 3339, such as 2026-11-15T22:00:00Z")]
    Time(String),
    /// Neither a whole number nor a percentage.
    #[error("{0:?} is neither a whole number nor a percentage such as 25%")]
    NumberOrPercent(String),
    /// Not a Kubernetes quantity.
    #[error("{0:?} is not a valid quantity; use a number with a unit, such as 500m, 2 or 10Gi")]
    Quantity(String),
}

/// A duration in Go's notation: `90s`, `1h30m`, `1.5h`, `300ms`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct GoDuration(pub String);

impl GoDuration {
    /// Parses the duration. Negative durations are invalid.
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

/// A timestamp, RFC 3339.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Rfc3339(pub String);

/// The API server accepts a list for `format: date-time`. One such object must not prevent a watch from decoding all others,
/// so it is read as an invalid time.
impl<'de> Deserialize<'de> for Rfc3339 {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(text) => Self(text),
            other => Self(other.to_string()),
        })
    }
}

impl Rfc3339 {
    /// Parses the time.
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

/// A whole number or a string, usually a percentage.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum IntOrString {
    /// `3`
    Int(i64),
    /// `"25%"`
    String(String),
}

impl IntOrString {
    /// The number, or the percentage of `total`. A percentage rounds up, as in Slinky.
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

/// An amount such as `10Gi`, kept as written: the API server accepts a plain number as well.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Quantity(pub IntOrString);

impl Quantity {
    /// Parses the amount.
    pub fn parse(&self) -> Result<Amount, ScalarError> {
        Amount::parse(&self.0.to_string())
    }
}

/// A parsed quantity, exact to the smallest unit of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount {
    nano: i128,
}

impl Amount {
    /// Zero.
    pub const ZERO: Self = Self { nano: 0 };

    /// Parses Kubernetes' notation: `1`, `1.5`, `500m`, `10Gi`, `1e3`.
    pub fn parse(text: &str) -> Result<Self, ScalarError> {
        parse_quantity(text)
            .map(|nano| Self { nano })
            .ok_or_else(|| ScalarError::Quantity(text.to_owned()))
    }

    /// In whole units, rounded up: CPUs of `1500m` are 2.
    pub fn ceil(self) -> i128 {
        let units = self.nano / NANO;
        if self.nano % NANO > 0 { units + 1 } else { units }
    }

    /// In MiB, rounded down.
    pub fn mebibytes(self) -> i128 {
        self.nano / NANO / (1024 * 1024)
    }
}

impl std::fmt::Display for Amount {
    /// In the smallest unit, so that equal amounts are printed alike.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}n", self.nano)
    }
}

const NANO: i128 = 1_000_000_000;

fn parse_quantity(text: &str) -> Option<i128> {
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let number_end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(number_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let digits: i128 = format!("0{whole}{fraction}").parse().ok()?;
    let point = i32::try_from(fraction.len()).ok()?;
    let (factor, exponent): (i128, i32) = match suffix {
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "" => (1, 0),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        "Ki" => (1 << 10, 0),
        "Mi" => (1 << 20, 0),
        "Gi" => (1 << 30, 0),
        "Ti" => (1 << 40, 0),
        "Pi" => (1 << 50, 0),
        "Ei" => (1 << 60, 0),
        other => (1, other.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    let shift = exponent.checked_add(9)?.checked_sub(point)?;
    let power = 10_i128.checked_pow(shift.unsigned_abs())?;
    let scaled = digits.checked_mul(factor)?;
    // Amounts smaller than nano round up, as in Kubernetes.
    let nano = if shift >= 0 {
        scaled.checked_mul(power)?
    } else {
        (scaled + power - 1) / power
    };
    Some(if negative { -nano } else { nano })
}

impl JsonSchema for Quantity {
    fn schema_name() -> Cow<'static, str> {
        "Quantity".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        // No pattern: the API server's error would name the pattern but no remedy.
        IntOrString::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("0", Some(0))]
    #[case("90s", Some(90_000))]
    #[case("1h30m", Some(5_400_000))]
    #[case("1.5h", Some(5_400_000))]
    #[case("300ms", Some(300))]
    #[case(".5s", Some(500))]
    #[case("+1m", Some(60_000))]
    #[case("1d", None)]
    #[case("30", None)]
    #[case("-5m", None)]
    #[case("", None)]
    #[case("m", None)]
    #[case("1m 30s", None)]
    #[case("1.2.3s", None)]
    #[case("99999999999h", None)]
    fn durations_are_gos(#[case] text: &str, #[case] millis: Option<u128>) {
        assert_eq!(GoDuration::from(text).parse().ok().map(|d| d.as_millis()), millis);
    }

    #[test]
    fn a_list_in_place_of_a_time_is_read_as_no_time() {
        let time: Rfc3339 = serde_json::from_str("[]").unwrap();
        assert_eq!(time.parse(), Err(ScalarError::Time("[]".to_owned())));
    }

    #[rstest]
    #[case("1", Some(1_000_000_000))]
    #[case("1500m", Some(1_500_000_000))]
    #[case("1.5", Some(1_500_000_000))]
    #[case(".5", Some(500_000_000))]
    #[case("1e3", Some(1_000_000_000_000))]
    #[case("1E", Some(1_000_000_000_000_000_000_000_000_000))]
    #[case("2Ki", Some(2_048_000_000_000))]
    #[case("-1", Some(-1_000_000_000))]
    #[case("0.1n", Some(1))]
    #[case("1 Gi", None)]
    #[case("abc", None)]
    #[case("1GiB", None)]
    #[case("", None)]
    #[case(".", None)]
    #[case("1e99999999999", None)]
    #[case("99999999999999999999999999999999999999999", None)]
    fn quantities_are_kubernetes(#[case] text: &str, #[case] nano: Option<i128>) {
        assert_eq!(Amount::parse(text).ok().map(|amount| amount.nano), nano);
    }

    #[test]
    fn equal_quantities_may_be_written_differently() {
        assert_eq!(Amount::parse("1Gi"), Amount::parse("1024Mi"));
        assert_eq!(Amount::parse("1500m").map(Amount::ceil), Ok(2));
        assert_eq!(Amount::parse("1536Mi").map(Amount::mebibytes), Ok(1536));
    }

    #[rstest]
    #[case(IntOrString::Int(3), 10, Some(3))]
    #[case("25%".into(), 10, Some(3))]
    #[case("25%".into(), 0, Some(0))]
    #[case("100%".into(), 7, Some(7))]
    #[case("3".into(), 10, None)]
    #[case(IntOrString::Int(-1), 10, None)]
    #[case("-5%".into(), 10, None)]
    #[case("x%".into(), 10, None)]
    fn percentages_round_up(#[case] value: IntOrString, #[case] total: u32, #[case] expected: Option<u32>) {
        assert_eq!(value.scaled_up(total).ok(), expected);
    }
}
