//! An answer taken apart in one pass over its bytes: the part that is wanted, Slurm's errors and warnings, and
//! the release that wrote it.

use std::fmt;

use jiff::Timestamp;
use reqwest::StatusCode;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::endpoint::{Endpoint, Kind, NODES};
use crate::error::{Complaint, Error, Peer};
use crate::value::{NoVal, Strings, Text};

/// What a call wants from its answer.
pub(crate) trait Body: Default {
    /// The key without which a good answer says nothing. A list that is not there is no empty list: whoever took it for
    /// one would see everything gone.
    const REQUIRED: Option<&'static str> = None;
    /// Takes the value of a top-level key if it is wanted; says whether it did.
    fn field<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error>;
}

/// Nothing is wanted but that it worked.
impl Body for () {
    fn field<'de, A: MapAccess<'de>>(&mut self, _: &str, _: &mut A) -> Result<bool, A::Error> {
        Ok(false)
    }
}

/// One object of a list: read as `Raw`, of which the facts that are kept become `Self`.
pub(crate) trait Item: Sized {
    /// The list's key in the answer.
    const KEY: &'static str;
    /// Most objects that are read. An object takes more memory than three bytes of an answer that stand for an empty one.
    const MOST: usize = 100_000;
    /// The object as it stands in the answer.
    type Raw<'a>: Deserialize<'a>;
    /// Keeps what is kept of it.
    fn keep(raw: Self::Raw<'_>, strings: &mut Strings) -> Self;
}

/// A list, and the instant that it is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing<T> {
    /// The objects, in Slurm's order.
    pub items: Vec<T>,
    /// What to ask for changes since.
    pub last_update: Option<Timestamp>,
}

impl<T> Default for Listing<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            last_update: None,
        }
    }
}

impl<T: Item> Body for Listing<T> {
    const REQUIRED: Option<&'static str> = Some(T::KEY);

    fn field<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "last_update" => self.last_update = map.next_value::<NoVal>()?.timestamp(),
            key if key == T::KEY => map.next_value_seed(Items(&mut self.items))?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Reads a list object by object, so that at most one is held in full.
struct Items<'a, T>(&'a mut Vec<T>);

impl<'de, T: Item> DeserializeSeed<'de> for Items<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: Item> Visitor<'de> for Items<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of {}", T::KEY)
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let mut strings = Strings::default();
        while let Some(raw) = seq.next_element::<T::Raw<'de>>()? {
            if self.0.len() >= T::MOST {
                return Err(too_many(T::MOST, T::KEY));
            }
            self.0.push(T::keep(raw, &mut strings));
        }
        Ok(())
    }
}

/// Begins what is said of a list that is too long.
const TOO_MANY: &str = "has more than ";

/// More of something than is read.
pub(crate) fn too_many<E: serde::de::Error>(most: usize, what: &str) -> E {
    E::custom(format_args!("{TOO_MANY}{most} {what}"))
}

/// A whole answer.
#[derive(Debug, Default)]
pub(crate) struct Answer<B> {
    pub(crate) body: B,
    pub(crate) errors: Vec<Complaint>,
    pub(crate) warnings: Vec<Complaint>,
    pub(crate) release: String,
    /// Whether what the call requires was there.
    pub(crate) whole: bool,
}

impl<B: Body> Answer<B> {
    /// Holds an answer that is good to what it must have.
    pub(crate) fn require(&self, call: &Endpoint, missing: &Missing<'_>) -> Result<(), Error> {
        let Some(key) = B::REQUIRED.filter(|_| !self.whole) else {
            return Ok(());
        };
        // All that 26.05 says of an unknown partition.
        let unknown = |warning: &Complaint| warning.description.starts_with("Unable to find ");
        if !missing.what.is_empty() && self.warnings.iter().any(unknown) {
            return Err(missing.error());
        }
        Err(Error::Protocol {
            call: call.path.to_owned(),
            message: format!("there is no {key} in it"),
        })
    }
}

impl<'de, B: Body> Deserialize<'de> for Answer<B> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnswerVisitor<B>(Answer<B>);
        impl<'de, B: Body> Visitor<'de> for AnswerVisitor<B> {
            type Value = Answer<B>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an answer")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Answer<B>, A::Error> {
                let mut answer = self.0;
                while let Some(key) = map.next_key::<Text<'de>>()? {
                    answer.whole |= B::REQUIRED == Some(key.as_str());
                    match key.as_str() {
                        "errors" => answer.errors = map.next_value::<Complaints>()?.0,
                        "warnings" => answer.warnings = map.next_value::<Complaints>()?.0,
                        "meta" => answer.release = map.next_value::<Meta>()?.slurm.release,
                        key if answer.body.field(key, &mut map)? => {}
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(answer)
            }
        }
        deserializer.deserialize_map(AnswerVisitor(Answer {
            body: B::default(),
            errors: Vec::new(),
            warnings: Vec::new(),
            release: String::new(),
            whole: false,
        }))
    }
}

/// Complaints beyond these say nothing new.
const MOST_COMPLAINTS: usize = 100;

#[derive(Deserialize)]
struct Complaints(#[serde(deserialize_with = "complaints")] Vec<Complaint>);

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawComplaint<'a> {
    error_number: i64,
    #[serde(borrow)]
    error: Text<'a>,
    #[serde(borrow)]
    description: Text<'a>,
}

fn complaints<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Complaint>, D::Error> {
    struct FirstComplaints;
    impl<'de> Visitor<'de> for FirstComplaints {
        type Value = Vec<Complaint>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of complaints")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Vec::new())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut kept = Vec::new();
            while kept.len() < MOST_COMPLAINTS {
                let Some(raw) = seq.next_element::<RawComplaint<'de>>()? else {
                    return Ok(kept);
                };
                kept.push(Complaint {
                    number: raw.error_number,
                    error: raw.error.into_owned(),
                    description: raw.description.into_owned(),
                });
            }
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            Ok(kept)
        }
    }
    deserializer.deserialize_any(FirstComplaints)
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Meta {
    slurm: MetaSlurm,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct MetaSlurm {
    release: String,
}

/// Reads an answer. Slurm hands on the bytes of names and comments as users wrote them: where they are no text they are
/// replaced, so that nobody's job hides the jobs of all others.
pub(crate) fn decode<B: Body>(call: &Endpoint, bytes: &[u8]) -> Result<Answer<B>, Error> {
    serde_json::from_slice(bytes).or_else(|_| decode_text(call, String::from_utf8_lossy(bytes).as_bytes()))
}

/// Reads an answer; one that cannot be read is read again to find the place that is wrong.
fn decode_text<B: Body>(call: &Endpoint, bytes: &[u8]) -> Result<Answer<B>, Error> {
    serde_json::from_slice(bytes).map_err(|_| {
        let deserializer = &mut serde_json::Deserializer::from_slice(bytes);
        let message = match serde_path_to_error::deserialize::<_, Answer<B>>(deserializer) {
            Err(error) => format!("at {}: {}", place(error.path()), unreadable(error.inner())),
            Ok(_) => "text behind its end".to_owned(),
        };
        Error::Protocol {
            call: call.path.to_owned(),
            message,
        }
    })
}

/// What is wrong with a JSON text, without any of it: serde quotes the values that it did not expect.
pub(crate) fn unreadable(error: &serde_json::Error) -> String {
    // Our own words, which nothing of the answer comes before.
    let text = error.to_string();
    if text.starts_with(TOO_MANY) {
        return text;
    }
    let what = match error.classify() {
        serde_json::error::Category::Io => "cannot be read",
        serde_json::error::Category::Syntax => "is not JSON",
        serde_json::error::Category::Data => "is not of the expected type",
        serde_json::error::Category::Eof => "ends too early",
    };
    format!("{what}, line {} column {}", error.line(), error.column())
}

/// The place of a value in an answer, with the keys that a Slurm object has; others may be anything.
fn place(path: &serde_path_to_error::Path) -> String {
    let text = path.to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '[' | ']');
    if text.len() <= 80 && text.chars().all(is_plain) {
        text
    } else {
        "an unknown key".to_owned()
    }
}

/// What an unknown object looks like in the answer to a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Missing<'a> {
    /// The object.
    pub(crate) what: &'a str,
    /// Slurm's numbers for it.
    pub(crate) numbers: &'a [i64],
}

impl Missing<'_> {
    /// A call that names no object.
    pub(crate) const NONE: Missing<'static> = Missing {
        what: "",
        numbers: &[],
    };

    pub(crate) fn error(&self) -> Error {
        Error::NotFound {
            what: self.what.to_owned(),
        }
    }
}

/// What can be done about an answer with errors: another token may be taken, a list may be asked for without an
/// instant. Everything else is final.
#[derive(Debug)]
pub(crate) enum Verdict {
    TokenRefused(String),
    /// The list of nodes, without the partitions that they are in.
    WithoutPartitions(Error),
    Failed(Error),
}

const TOKEN_REFUSED: [i64; 6] = [1007, 6000, 6001, 6004, 6007, 6010];
/// "Access denied" and "Invalid user id", which Slurm says for the same thing.
const ACCESS_DENIED: [i64; 2] = [2002, 2010];
const DATABASE_UNREACHABLE: [i64; 2] = [7000, 7008];
const UNSPECIFIED: i64 = -1;

/// Lost ways between daemons, some by the system's own numbers, and a controller that is only a backup now.
fn is_unreachable(number: i64) -> bool {
    matches!(number, 32 | 101 | 104 | 110 | 111 | 113 | 1001..=1004 | 1013..=1023 | 1800..=1805 | 5003..=5005 | 2027 | 2131)
        || DATABASE_UNREACHABLE.contains(&number)
}

/// A controller's answer is whole without slurmdbd, which slurmrestd only asks for the names of what is counted:
/// partitions come with status 500 and this error while the accounting is away.
fn is_about_names_only(call: &Endpoint, complaint: &Complaint) -> bool {
    call.kind != Kind::Write
        && call.path.starts_with("/slurm/")
        && complaint.description == "Slurmdb query failed"
}

fn is_about_partitions_only(complaint: &Complaint) -> bool {
    complaint.number == UNSPECIFIED && complaint.description == "Unable to query partitions"
}

/// Judges an answer: its `errors` first, since Slurm sends them with any status.
pub(crate) fn judge(
    call: &Endpoint,
    status: StatusCode,
    errors: &[Complaint],
    missing: &Missing<'_>,
) -> Result<(), Verdict> {
    let message = || {
        errors
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("; ")
    };
    let behind = if call.path.starts_with("/slurmdb/") {
        Peer::Slurmdbd
    } else {
        Peer::Slurmctld
    };
    let any = |test: &dyn Fn(i64) -> bool| errors.iter().any(|complaint| test(complaint.number));
    let failed = |error| Err(Verdict::Failed(error));

    if !errors.is_empty()
        && errors
            .iter()
            .all(|complaint| is_about_names_only(call, complaint))
    {
        return Ok(());
    }

    if errors.is_empty() {
        return match status.as_u16() {
            200..=299 => Ok(()),
            401 | 511 => Err(Verdict::TokenRefused(status.to_string())),
            403 => failed(Error::Unauthorised {
                message: status.to_string(),
            }),
            502..=504 => failed(Error::Unreachable {
                daemon: behind,
                message: status.to_string(),
            }),
            _ => failed(Error::Protocol {
                call: call.path.to_owned(),
                message: format!("status {status}"),
            }),
        };
    }
    if any(&|number| TOKEN_REFUSED.contains(&number)) {
        return Err(Verdict::TokenRefused(message()));
    }
    if any(&|number| ACCESS_DENIED.contains(&number)) {
        return failed(Error::Unauthorised { message: message() });
    }
    // 24.11 asks for the partitions of changed nodes with the same instant, and takes "no change" for a failure.
    if *call == NODES && errors.iter().all(is_about_partitions_only) {
        return Err(Verdict::WithoutPartitions(Error::Unreachable {
            daemon: behind,
            message: message(),
        }));
    }
    // A read that fails for no stated reason fails because the controller does not answer.
    if any(&is_unreachable) || (call.kind != Kind::Write && any(&|number| number == UNSPECIFIED)) {
        return failed(Error::Unreachable {
            daemon: behind,
            message: message(),
        });
    }
    // Slurm reports an unknown node or reservation as "No error".
    let unknown = |complaint: &Complaint| missing.numbers.contains(&complaint.number);
    if errors.iter().all(unknown) {
        return failed(missing.error());
    }
    failed(Error::Refused {
        complaints: errors.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint;
    use rstest::rstest;

    #[derive(Debug, PartialEq, Eq)]
    struct Thing(String);

    impl Item for Thing {
        const KEY: &'static str = "things";
        type Raw<'a> = Text<'a>;

        fn keep(raw: Text<'_>, _: &mut Strings) -> Self {
            Self(raw.into_owned())
        }
    }

    #[test]
    fn an_answer_is_read_in_one_pass_whatever_else_it_holds() {
        let json = r#"{"new":{"x":[1,{}]},"things":["a","b"],"last_update":{"set":true,"infinite":false,"number":9},
            "meta":{"slurm":{"release":"26.05.5","more":1}},"errors":[{"error_number":5,"error":"e","source":"s"}],
            "warnings":null}"#;
        let answer: Answer<Listing<Thing>> = decode(&NODES, json.as_bytes()).unwrap();
        assert_eq!(answer.body.items, [Thing("a".into()), Thing("b".into())]);
        assert_eq!(answer.body.last_update, Some(Timestamp::from_second(9).unwrap()));
        assert_eq!(answer.release, "26.05.5");
        assert_eq!(answer.errors[0].number, 5);
        assert!(answer.warnings.is_empty());
    }

    #[test]
    fn a_list_of_nothing_is_empty() {
        let answer: Answer<Listing<Thing>> = decode(&NODES, br#"{"things":null}"#).unwrap();
        assert!(answer.body.items.is_empty() && answer.require(&NODES, &Missing::NONE).is_ok());
    }

    #[rstest]
    #[case::nothing("{}")]
    #[case::another(r#"{"other":["a"],"last_update":{"set":true,"number":9},"errors":[]}"#)]
    fn a_list_that_is_not_there_is_not_taken_for_an_empty_one(#[case] json: &str) {
        let answer: Answer<Listing<Thing>> = decode(&NODES, json.as_bytes()).unwrap();
        let error = answer.require(&NODES, &Missing::NONE).unwrap_err().to_string();
        assert_eq!(
            error,
            "cannot understand the answer to /slurm/{version}/nodes/: there is no things in it"
        );
        let nothing_wanted = decode::<()>(&NODES, json.as_bytes()).unwrap();
        assert!(nothing_wanted.require(&NODES, &Missing::NONE).is_ok());
    }

    #[test]
    fn an_object_that_slurm_only_warns_of_is_not_found() {
        let json = br#"{"warnings":[{"description":"Unable to find partition p","source":"s"}]}"#;
        let answer: Answer<Listing<Thing>> = decode(&endpoint::PARTITION, json).unwrap();
        let missing = Missing {
            what: "partition p",
            numbers: &[],
        };
        let error = answer.require(&endpoint::PARTITION, &missing).unwrap_err();
        assert!(error.is_not_found(), "{error}");
        // No list is one of nothing because of such a warning.
        let error = answer.require(&endpoint::PARTITIONS, &Missing::NONE).unwrap_err();
        assert!(matches!(error, Error::Protocol { .. }), "{error}");
    }

    #[test]
    fn bytes_that_are_no_text_are_replaced_and_hide_nothing() {
        let json = b"{\"things\":[\"a\xff\",\"b\"],\"last_update\":{\"set\":true,\"number\":9}}";
        let answer: Answer<Listing<Thing>> = decode(&NODES, json).unwrap();
        assert_eq!(answer.body.items, [Thing("a\u{fffd}".into()), Thing("b".into())]);
        assert!(answer.body.last_update.is_some());
        decode::<Listing<Thing>>(&NODES, b"{\"things\":[\"a\xff\"").unwrap_err();
    }

    #[rstest]
    #[case::cut(r#"{"things":["a""#)]
    #[case::more(r#"{"things":["a"]} x"#)]
    #[case::other(r#"{"things":5}"#)]
    fn a_broken_answer_is_a_protocol_error(#[case] json: &str) {
        let error = decode::<Listing<Thing>>(&NODES, json.as_bytes()).unwrap_err();
        assert!(matches!(error, Error::Protocol { .. }), "{error}");
    }

    fn judged(call: &Endpoint, status: u16, numbers: &[i64]) -> String {
        let errors: Vec<_> = numbers
            .iter()
            .map(|number| Complaint {
                number: *number,
                error: "e".into(),
                description: "d".into(),
            })
            .collect();
        let missing = Missing {
            what: "node n",
            numbers: &[0, 2018],
        };
        match judge(call, StatusCode::from_u16(status).unwrap(), &errors, &missing) {
            Ok(()) => "fine".into(),
            Err(Verdict::TokenRefused(_)) => "token".into(),
            Err(Verdict::WithoutPartitions(_)) => "without partitions".into(),
            Err(Verdict::Failed(error)) => format!("{error:?}")
                .split([' ', '{'])
                .next()
                .unwrap_or_default()
                .to_owned(),
        }
    }

    #[rstest]
    #[case::fine(200, &[], "fine")]
    #[case::errors_win(200, &[2016], "Refused")]
    #[case::refused_500(500, &[2016], "Refused")]
    #[case::refused_422(422, &[2016], "Refused")]
    #[case::unknown(200, &[0], "NotFound")]
    #[case::unknown_by_number(422, &[2018], "NotFound")]
    #[case::partly_unknown(422, &[2018, 2016], "Refused")]
    #[case::bad_token(511, &[1007], "token")]
    #[case::no_token(401, &[], "token")]
    #[case::denied(403, &[2002], "Unauthorised")]
    #[case::controller_down(502, &[1800], "Unreachable")]
    #[case::standby(500, &[2027], "Unreachable")]
    #[case::unspecified(500, &[-1], "Unreachable")]
    #[case::gateway(503, &[], "Unreachable")]
    #[case::odd(418, &[], "Protocol")]
    fn answers_are_judged(#[case] status: u16, #[case] numbers: &[i64], #[case] verdict: &str) {
        assert_eq!(judged(&endpoint::NODE, status, numbers), verdict);
    }

    #[test]
    fn partitions_are_whole_while_the_accounting_is_away() {
        let error = Complaint {
            number: 111,
            error: "Connection refused".into(),
            description: "Slurmdb query failed".into(),
        };
        let judge = |call: &Endpoint| {
            judge(
                call,
                StatusCode::INTERNAL_SERVER_ERROR,
                std::slice::from_ref(&error),
                &Missing::NONE,
            )
        };
        assert!(judge(&endpoint::PARTITIONS).is_ok());
        assert!(judge(&endpoint::CLUSTERS).is_err());
        assert!(judge(&endpoint::PARTITIONS_UPDATE).is_err());
    }

    #[test]
    fn nodes_without_their_partitions_are_no_answer() {
        let error = Complaint {
            number: -1,
            error: "Unspecified error".into(),
            description: "Unable to query partitions".into(),
        };
        let judge = |call: &Endpoint| {
            judge(
                call,
                StatusCode::INTERNAL_SERVER_ERROR,
                std::slice::from_ref(&error),
                &Missing::NONE,
            )
        };
        assert!(matches!(
            judge(&NODES),
            Err(Verdict::WithoutPartitions(Error::Unreachable { .. }))
        ));
        assert!(matches!(
            judge(&endpoint::PARTITIONS),
            Err(Verdict::Failed(Error::Unreachable { .. }))
        ));
    }

    #[test]
    fn a_write_that_fails_for_no_reason_is_not_taken_for_a_lost_way() {
        assert_eq!(judged(&endpoint::NODE_DELETE, 500, &[-1]), "Refused");
    }

    #[test]
    fn a_list_of_too_many_small_objects_is_told_and_not_kept() {
        let answer = |key: &str, count: usize| {
            let items = vec!["{}"; count].join(",");
            format!("{{\"{key}\":[{items}]}}").into_bytes()
        };
        let most = <Thing as Item>::MOST;
        let nodes = |count| decode::<Listing<Thing>>(&NODES, &answer("things", count));
        assert_eq!(nodes(most).unwrap().body.items.len(), most);
        let told = nodes(most + 1).unwrap_err().to_string();
        assert!(told.contains("has more than 100000 things"), "{told}");

        let many = decode::<()>(&NODES, &answer("errors", 300_000)).unwrap();
        assert_eq!(many.errors.len(), MOST_COMPLAINTS);
    }
}
