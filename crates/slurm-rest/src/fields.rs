//! Which fields of the API this client names, so that a test can hold them against a server's own document.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde::de::value::{Error, StrDeserializer};
use serde::de::{DeserializeSeed, Deserializer, IntoDeserializer as _, MapAccess, Visitor};
use serde_json::Value;

use crate::accounting::{self, Account, Association, Cluster, Qos, Tres, User};
use crate::control::{License, Ping, RawDiag};
use crate::endpoint::{self, Endpoint};
use crate::job::{self, Job, JobStateOf, JobSubmit};
use crate::node::{self, Node, NodeUpdate};
use crate::partition::{Partition, PartitionState, PartitionUpdate, PartitionsRequest};
use crate::reservation::{Reservation, ReservationRequest, ReservationUpdate};
use crate::response::Item;
use crate::value::NoVal;

/// The paths that are read of each call's answer: `nodes[].name`.
pub fn read() -> Vec<(Endpoint, BTreeSet<String>)> {
    vec![
        (endpoint::PING, item::<Ping>()),
        (endpoint::DIAG, record::<RawDiag>("statistics")),
        (endpoint::CONF, BTreeSet::from(["slurm_conf".to_owned()])),
        (endpoint::LICENSES, item::<License>()),
        (endpoint::NODES, listing::<Node>()),
        (endpoint::NODE, listing::<Node>()),
        (endpoint::JOBS, listing::<Job>()),
        (endpoint::JOB, listing::<Job>()),
        (endpoint::JOB_STATES, item::<JobStateOf>()),
        (endpoint::JOB_SUBMIT, BTreeSet::from(["job_id".to_owned()])),
        (endpoint::JOB_SIGNAL, record::<job::RawStatus<'_>>("status[]")),
        (endpoint::PARTITIONS, listing::<Partition>()),
        (endpoint::PARTITION, listing::<Partition>()),
        (endpoint::RESERVATIONS, listing::<Reservation>()),
        (endpoint::RESERVATION, listing::<Reservation>()),
        (endpoint::DBD_PING, item::<Ping>()),
        (endpoint::CLUSTERS, item::<Cluster>()),
        (
            endpoint::CLUSTER_DELETE,
            BTreeSet::from(["deleted_clusters".to_owned()]),
        ),
        (endpoint::ACCOUNTS, item::<Account>()),
        (
            endpoint::ACCOUNT_DELETE,
            BTreeSet::from(["removed_accounts".to_owned()]),
        ),
        (endpoint::USERS, item::<User>()),
        (
            endpoint::USER_DELETE,
            BTreeSet::from(["removed_users".to_owned()]),
        ),
        (endpoint::ASSOCIATIONS, item::<Association>()),
        (
            endpoint::ASSOCIATIONS_DELETE,
            BTreeSet::from(["removed_associations".to_owned()]),
        ),
        (endpoint::QOS, item::<Qos>()),
        (endpoint::QOS_DELETE, BTreeSet::from(["removed_qos".to_owned()])),
        (endpoint::TRES, item::<Tres>()),
    ]
}

/// A body of each call that sends one, with every field that the client can send.
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
    let partition = PartitionUpdate {
        name: "p".into(),
        nodes: text(),
        state: Some(PartitionState::Drain),
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
            endpoint::NODE_CREATE,
            body(serde_json::to_value(node::NodeCreate { node_conf: "n" })),
        ),
        (
            endpoint::JOB_SUBMIT,
            body(serde_json::to_value(job::Submission { job: &job })),
        ),
        (endpoint::JOBS_REQUEUE, body(serde_json::to_value(&requeue))),
        (
            endpoint::PARTITIONS_UPDATE,
            body(serde_json::to_value(PartitionsRequest::from(&partition))),
        ),
        (
            endpoint::RESERVATION_UPDATE,
            body(serde_json::to_value(ReservationRequest::from(&reservation))),
        ),
    ]
    .into_iter()
    .chain(accounting::written())
    .collect()
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

/// The fields of a type, found by letting it read itself from nothing.
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
        assert!(of(&endpoint::LICENSES).contains("licenses[].LicenseName"));
        assert!(of(&endpoint::JOB_SIGNAL).contains("status[].error.code"));
        assert!(of(&endpoint::TRES).contains("TRES[].type"));
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
