//! The API fields that this client uses, so that a test can check them against the server's OpenAPI document.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde::de::value::{Error, StrDeserializer};
use serde::de::{DeserializeSeed, Deserializer, IntoDeserializer as _, MapAccess, Visitor};
use serde_json::Value;

use crate::accounting::Cluster;
use crate::endpoint::{self, Endpoint};
use crate::job::{self, Job, JobSubmit};
use crate::node::{self, Node, NodeUpdate};
use crate::partition::Partition;
use crate::reservation::{Reservation, ReservationRequest, ReservationUpdate};
use crate::response::Item;
use crate::value::NoVal;

/// Returns the paths that the client reads of each call's response, such as `nodes[].name`.
pub fn read() -> Vec<(Endpoint, BTreeSet<String>)> {
    vec![
        (endpoint::NODES, listing::<Node>()),
        (endpoint::NODE, listing::<Node>()),
        (endpoint::JOBS, listing::<Job>()),
        (endpoint::JOB, listing::<Job>()),
        (endpoint::JOB_SUBMIT, BTreeSet::from(["job_id".to_owned()])),
        (endpoint::JOB_SIGNAL, record::<job::RawStatus<'_>>("status[]")),
        (endpoint::PARTITIONS, listing::<Partition>()),
        (endpoint::PARTITION, listing::<Partition>()),
        (endpoint::RESERVATIONS, listing::<Reservation>()),
        (endpoint::RESERVATION, listing::<Reservation>()),
        (endpoint::CLUSTERS, item::<Cluster>()),
    ]
}

/// Returns a body for each call that sends one, with every field that the client can send.
pub fn written() -> Vec<(Endpoint, Value)> {
    let text = || Some("text".to_owned());
    let words = || vec!["word".to_owned()];
    let update = NodeUpdate {
        comment: text(),
        extra: text(),
        features: Some(words()),
        active_features: Some(words()),
        topology: text(),
        weight: Some(NoVal::Number(1)),
        resume_after: Some(NoVal::Number(1)),
        ..NodeUpdate::drain("reason")
    };
    let job = JobSubmit {
        name: "name".into(),
        script: "#!/bin/sh".into(),
        current_working_directory: "/".into(),
        environment: words(),
        partition: text(),
        account: text(),
        tasks: Some(1),
        nodes: text(),
        time_limit: Some(NoVal::Number(1)),
        required_nodes: words(),
        reservation: text(),
        standard_output: text(),
        hold: true,
        array: text(),
        requeue: Some(true),
        comment: text(),
    };
    let reservation = ReservationUpdate {
        name: "r".into(),
        start_time: Some(Timestamp::UNIX_EPOCH),
        duration: Some(SignedDuration::from_mins(1)),
        nodes: "n".parse().unwrap_or_default(),
        users: words(),
        accounts: words(),
        flags: vec!["MAINT".into()],
        partition: text(),
        comment: text(),
    };
    let requeue = job::RequeueRequest {
        jobs: words(),
        flags: vec!["Hold"],
    };
    let nodes = node::NodesUpdate {
        name: ["n".into()],
        update: &update,
    };
    let body = |body: serde_json::Result<Value>| body.unwrap_or_default();
    vec![
        (endpoint::NODE_UPDATE, body(serde_json::to_value(&update))),
        (endpoint::NODES_UPDATE, body(serde_json::to_value(&nodes))),
        (
            endpoint::JOB_SUBMIT,
            body(serde_json::to_value(job::Submission { job: &job })),
        ),
        (endpoint::JOBS_REQUEUE, body(serde_json::to_value(&requeue))),
        (
            endpoint::RESERVATION_UPDATE,
            body(serde_json::to_value(ReservationRequest::from(&reservation))),
        ),
    ]
}

fn item<T: Item>() -> BTreeSet<String>
where
    T::Raw<'static>: Deserialize<'static>,
{
    record::<T::Raw<'static>>(&format!("{}[]", T::KEY))
}

fn listing<T: Item>() -> BTreeSet<String>
where
    T::Raw<'static>: Deserialize<'static>,
{
    let mut paths = item::<T>();
    paths.insert("last_update".to_owned());
    paths
}

/// Returns the fields of a type, found by deserializing it from empty input.
fn record<T: Deserialize<'static>>(path: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let read = T::deserialize(Recorder {
        path: path.to_owned(),
        found: &mut found,
    });
    debug_assert!(read.is_ok(), "{path} does not read itself from nothing");
    found
}

struct Recorder<'a> {
    path: String,
    found: &'a mut BTreeSet<String>,
}

impl<'de> Deserializer<'de> for Recorder<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.found.insert(self.path);
        visitor.visit_unit()
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_map(Fields {
            path: self.path,
            left: fields.iter(),
            current: "",
            found: self.found,
        })
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

struct Fields<'a> {
    path: String,
    left: std::slice::Iter<'static, &'static str>,
    current: &'static str,
    found: &'a mut BTreeSet<String>,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let Some(field) = self.left.next() else {
            return Ok(None);
        };
        self.current = field;
        let key: StrDeserializer<'_, Error> = field.into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let path = format!("{}.{}", self.path, self.current);
        seed.deserialize(Recorder {
            path,
            found: self.found,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_at_every_depth() {
        let reads = read();
        let of = |call: &Endpoint| {
            reads
                .iter()
                .find(|(c, _)| c == call)
                .map(|(_, paths)| paths.clone())
                .unwrap()
        };
        assert!(of(&endpoint::NODES).contains("nodes[].active_features"));
        assert!(of(&endpoint::PARTITIONS).contains("partitions[].nodes.configured"));
        assert!(of(&endpoint::JOB_SIGNAL).contains("status[].error.code"));
    }

    #[test]
    fn every_call_that_sends_a_body_shows_one() {
        let sends: BTreeSet<_> = written().into_iter().map(|(call, _)| call.path).collect();
        let posts = endpoint::ALL
            .iter()
            .filter(|(_, call)| call.method == reqwest::Method::POST);
        assert_eq!(sends, posts.map(|(_, call)| call.path).collect());
        assert!(written().iter().all(|(_, body)| body.is_object()));
    }
}
