//! Reservations.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use slurm_conf::hostlist::Hostlist;

use crate::client::{Client, Reply, Request};
use crate::endpoint;
use crate::error::Error;
use crate::response::{Item, Listing, Missing};
use crate::since::{Fetched, since};
use crate::value::{NoVal, RawWords, Strings, Text, Words};

/// Slurm's error numbers for an unknown reservation; a read of one fails with "No error".
const UNKNOWN_RESERVATION: [i64; 2] = [0, 2053];

/// A reservation, with the fields that callers use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// Its name.
    pub name: Arc<str>,
    /// Its nodes, as a host list.
    pub nodes: Arc<str>,
    /// The partition, if it is bound to one.
    pub partition: Arc<str>,
    /// Who may use it.
    pub users: Words,
    /// Whose jobs may use it.
    pub accounts: Words,
    /// Its flags, in Slurm's words.
    pub flags: Words,
    /// When it begins.
    pub start_time: Option<Timestamp>,
    /// When it ends.
    pub end_time: Option<Timestamp>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawReservation<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    node_list: Text<'a>,
    #[serde(borrow)]
    partition: Text<'a>,
    #[serde(borrow)]
    users: RawWords<'a>,
    #[serde(borrow)]
    accounts: RawWords<'a>,
    #[serde(borrow)]
    flags: RawWords<'a>,
    start_time: NoVal,
    end_time: NoVal,
}

impl Item for Reservation {
    const KEY: &'static str = "reservations";
    type Raw<'a> = RawReservation<'a>;

    fn keep(raw: RawReservation<'_>, strings: &mut Strings) -> Self {
        Self {
            name: strings.keep_text(&raw.name),
            nodes: strings.keep_text(&raw.node_list),
            partition: strings.keep_text(&raw.partition),
            users: strings.keep_words(&raw.users),
            accounts: strings.keep_words(&raw.accounts),
            flags: strings.keep_words(&raw.flags),
            start_time: raw.start_time.timestamp(),
            end_time: raw.end_time.timestamp(),
        }
    }
}

/// A new reservation, or a change of one: fields that are `None` or empty stay unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReservationUpdate {
    /// Its name.
    pub name: String,
    /// When it begins.
    pub start_time: Option<Timestamp>,
    /// Its duration in whole minutes.
    pub duration: Option<SignedDuration>,
    /// Its nodes.
    pub nodes: Hostlist,
    /// Who may use it.
    pub users: Vec<String>,
    /// Whose jobs may use it.
    pub accounts: Vec<String>,
    /// Flags such as `MAINT` and `IGNORE_JOBS`.
    pub flags: Vec<String>,
    /// The partition that it is bound to.
    pub partition: Option<String>,
    /// A free-form comment.
    pub comment: Option<String>,
}

#[derive(Serialize)]
pub(crate) struct ReservationRequest<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_time: Option<NoVal>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration: Option<NoVal>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    node_list: Vec<String>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    users: &'a [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    accounts: &'a [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    flags: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    partition: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comment: Option<&'a str>,
}

impl<'a> From<&'a ReservationUpdate> for ReservationRequest<'a> {
    fn from(update: &'a ReservationUpdate) -> Self {
        let ReservationUpdate {
            name,
            start_time,
            duration,
            nodes,
            users,
            accounts,
            flags,
            partition,
            comment,
        } = update;
        let minutes =
            |duration: SignedDuration| u64::try_from(duration.as_mins()).map_or(NoVal::Unset, NoVal::Number);
        Self {
            name,
            start_time: start_time.map(NoVal::from),
            duration: duration.map(minutes),
            node_list: if nodes.is_empty() {
                Vec::new()
            } else {
                vec![nodes.to_string()]
            },
            users,
            accounts,
            flags,
            partition: partition.as_deref(),
            comment: comment.as_deref(),
        }
    }
}

impl Client {
    /// Lists all reservations, or returns `Unchanged`.
    pub async fn reservations(
        &self,
        changed_since: Option<Timestamp>,
    ) -> Result<Fetched<Listing<Reservation>>, Error> {
        self.execute(since(Request::new(&endpoint::RESERVATIONS), changed_since))
            .await
            .map(Fetched::from_reply)
    }

    /// Reads one reservation.
    pub async fn reservation(&self, name: &str) -> Result<Reservation, Error> {
        let what = format!("reservation {name}");
        let missing = Missing {
            what: &what,
            numbers: &UNKNOWN_RESERVATION,
        };
        let ask = Request::new(&endpoint::RESERVATION).about(name).missing(missing);
        let Reply::Body { body, .. } = self.execute::<Listing<Reservation>>(ask).await? else {
            return Err(missing.error());
        };
        body.items
            .into_iter()
            .find(|reservation| &*reservation.name == name)
            .ok_or_else(|| missing.error())
    }

    /// Creates a reservation, or changes it if it exists. Since v0.0.43.
    pub async fn update_reservation(&self, update: &ReservationUpdate) -> Result<(), Error> {
        let ask = Request::new(&endpoint::RESERVATION_UPDATE).body(&ReservationRequest::from(update))?;
        self.execute::<()>(ask).await.map(drop)
    }

    /// Deletes a reservation.
    pub async fn delete_reservation(&self, name: &str) -> Result<(), Error> {
        let what = format!("reservation {name}");
        let missing = Missing {
            what: &what,
            numbers: &UNKNOWN_RESERVATION,
        };
        self.execute::<()>(
            Request::new(&endpoint::RESERVATION_DELETE)
                .about(name)
                .missing(missing),
        )
        .await
        .map(drop)
    }
}
