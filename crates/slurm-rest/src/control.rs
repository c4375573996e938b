//! The controller itself: whether it answers, how it does, what it runs with.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::MapAccess;
use serde_json::Value;

use crate::client::{Client, Reply, Request};
use crate::endpoint;
use crate::error::Error;
use crate::response::{Body, Item, Listing};
use crate::value::{NoVal, Strings, Switch, Text};

/// One controller, or one accounting daemon, as it answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ping {
    /// Its host.
    pub hostname: String,
    /// Whether it answered.
    pub responding: bool,
    /// Whether it is the primary; a backup otherwise.
    pub primary: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawPing<'a> {
    #[serde(borrow)]
    hostname: Text<'a>,
    responding: Option<Switch>,
    primary: Option<Switch>,
    /// Before v0.0.42: `UP` or `DOWN`.
    #[serde(borrow)]
    pinged: Text<'a>,
    /// Before v0.0.42: `primary` or `backup1`.
    #[serde(borrow)]
    mode: Text<'a>,
}

impl Item for Ping {
    const KEY: &'static str = "pings";
    type Raw<'a> = RawPing<'a>;

    fn keep(raw: RawPing<'_>, _: &mut Strings) -> Self {
        Self {
            responding: raw
                .responding
                .map_or(raw.pinged.as_str() == "UP", |responding| responding.0),
            primary: raw
                .primary
                .map_or(raw.mode.as_str() == "primary", |primary| primary.0),
            hostname: raw.hostname.into_owned(),
        }
    }
}

/// A licence that jobs share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct License {
    /// Its name.
    pub name: String,
    /// How many there are.
    pub total: u64,
    /// How many jobs hold.
    pub used: u64,
    /// How many are left.
    pub free: u64,
    /// How many reservations hold.
    pub reserved: u64,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct RawLicense<'a> {
    #[serde(borrow)]
    license_name: Text<'a>,
    total: NoVal,
    used: NoVal,
    free: NoVal,
    reserved: NoVal,
}

impl Item for License {
    const KEY: &'static str = "licenses";
    type Raw<'a> = RawLicense<'a>;

    fn keep(raw: RawLicense<'_>, _: &mut Strings) -> Self {
        let count = |value: NoVal| value.number().unwrap_or(0);
        Self {
            name: raw.license_name.into_owned(),
            total: count(raw.total),
            used: count(raw.used),
            free: count(raw.free),
            reserved: count(raw.reserved),
        }
    }
}

/// How the controller does.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Diag {
    /// Threads that serve requests.
    pub server_threads: u64,
    /// Messages to nodes that wait to be sent.
    pub agent_queue: u64,
    /// Messages to slurmdbd that wait to be sent: it grows while slurmdbd is away.
    pub dbd_agent_queue: u64,
    /// Jobs that wait.
    pub jobs_pending: u64,
    /// Jobs that run.
    pub jobs_running: u64,
    /// How long the last round of the main scheduler took, in microseconds.
    pub schedule_cycle_last: u64,
    /// How long the last round of the backfill scheduler took, in microseconds.
    pub backfill_cycle_last: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawDiag {
    server_thread_count: NoVal,
    agent_queue_size: NoVal,
    dbd_agent_queue_size: NoVal,
    jobs_pending: NoVal,
    jobs_running: NoVal,
    schedule_cycle_last: NoVal,
    bf_cycle_last: NoVal,
}

impl Body for Diag {
    const REQUIRED: Option<&'static str> = Some("statistics");

    fn field<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        if key != "statistics" {
            return Ok(false);
        }
        let raw: RawDiag = map.next_value()?;
        let count = |value: NoVal| value.number().unwrap_or(0);
        *self = Self {
            server_threads: count(raw.server_thread_count),
            agent_queue: count(raw.agent_queue_size),
            dbd_agent_queue: count(raw.dbd_agent_queue_size),
            jobs_pending: count(raw.jobs_pending),
            jobs_running: count(raw.jobs_running),
            schedule_cycle_last: count(raw.schedule_cycle_last),
            backfill_cycle_last: count(raw.bf_cycle_last),
        };
        Ok(true)
    }
}

/// The configuration that the controller runs with.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Conf {
    /// Parameters by name in lower case; lists are joined by commas.
    parameters: BTreeMap<String, String>,
}

impl Conf {
    /// A parameter, in any case. Empty where Slurm has no value for it.
    pub fn get(&self, parameter: &str) -> Option<&str> {
        self.parameters
            .get(&parameter.to_ascii_lowercase())
            .map(String::as_str)
    }
}

impl Body for Conf {
    const REQUIRED: Option<&'static str> = Some("slurm_conf");

    fn field<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        if key != "slurm_conf" {
            return Ok(false);
        }
        let raw: BTreeMap<String, Value> = map.next_value()?;
        self.parameters = raw
            .iter()
            .map(|(key, value)| (key.to_ascii_lowercase(), plain(value)))
            .collect();
        Ok(true)
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(","),
        Value::Object(object) if object.contains_key("infinite") => match NoVal::deserialize(value) {
            Ok(NoVal::Infinite) => "INFINITE".to_owned(),
            Ok(NoVal::Number(number)) => number.to_string(),
            Ok(NoVal::Unset) | Err(_) => String::new(),
        },
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => value.to_string(),
    }
}

impl Client {
    /// The controllers, the primary first, and whether each answers.
    pub async fn ping(&self) -> Result<Vec<Ping>, Error> {
        self.items(Request::new(&endpoint::PING)).await
    }

    /// How the controller does.
    pub async fn diag(&self) -> Result<Diag, Error> {
        match self.execute(Request::new(&endpoint::DIAG)).await? {
            Reply::Body { body, .. } => Ok(body),
            Reply::NotModified => Ok(Diag::default()),
        }
    }

    /// The licences.
    pub async fn licenses(&self) -> Result<Vec<License>, Error> {
        self.items(Request::new(&endpoint::LICENSES)).await
    }

    /// The configuration that the controller runs with. From v0.0.45 on.
    pub async fn conf(&self) -> Result<Conf, Error> {
        match self.execute(Request::new(&endpoint::CONF)).await? {
            Reply::Body { body, .. } => Ok(body),
            Reply::NotModified => Ok(Conf::default()),
        }
    }

    /// Tells all daemons to read their files again. A controller that was started in the foreground **dies** of a
    /// file that it cannot use, and this call still succeeds.
    pub async fn reconfigure(&self) -> Result<(), Error> {
        self.execute::<()>(Request::new(&endpoint::RECONFIGURE))
            .await
            .map(drop)
    }

    /// A whole list that has no changes to ask for.
    pub(crate) async fn items<T: Item>(&self, ask: Request<'_>) -> Result<Vec<T>, Error> {
        match self.execute::<Listing<T>>(ask).await? {
            Reply::Body { body, .. } => Ok(body.items),
            Reply::NotModified => Ok(Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::response::decode;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case::v41(json!({"hostname": "c", "pinged": "UP", "mode": "primary"}), true, true)]
    #[case::v41_down(json!({"hostname": "c", "pinged": "DOWN", "mode": "backup1"}), false, false)]
    #[case::v45(json!({"hostname": "c", "responding": true, "primary": false, "status": "x"}), true, false)]
    #[case::both(json!({"hostname": "c", "pinged": "UP", "responding": false, "primary": true}), false, true)]
    fn a_ping_is_read_in_every_version(#[case] ping: Value, #[case] responding: bool, #[case] primary: bool) {
        let json = json!({"pings": [ping]}).to_string();
        let pings = decode::<Listing<Ping>>(&endpoint::PING, json.as_bytes())
            .unwrap()
            .body
            .items;
        assert_eq!(
            pings,
            [Ping {
                hostname: "c".into(),
                responding,
                primary
            }]
        );
    }

    #[test]
    fn the_configuration_is_read_as_text() {
        let json = json!({"slurm_conf": {
            "SlurmctldPort": 6817, "AuthAltTypes": ["auth/jwt", "x"], "MailProg": "/bin/mail", "KillOnBadExit": false,
            "SuspendTime": {"set": false, "infinite": true, "number": 0}, "DefMemPerCPU": {"set": false,
            "infinite": false, "number": 0}, "ClusterName": "c"}});
        let conf = decode::<Conf>(&endpoint::CONF, json.to_string().as_bytes())
            .unwrap()
            .body;
        let shown = [
            "slurmctldport",
            "AUTHALTTYPES",
            "MailProg",
            "KillOnBadExit",
            "SuspendTime",
            "DefMemPerCPU",
        ];
        let values: Vec<_> = shown.iter().map(|key| conf.get(key).unwrap()).collect();
        assert_eq!(
            values,
            ["6817", "auth/jwt,x", "/bin/mail", "false", "INFINITE", ""]
        );
        assert_eq!(conf.get("nothing"), None);
    }
}
