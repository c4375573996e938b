//! Decodes a response in one pass: the requested part, Slurm's errors and warnings, and the server's release.

use std::fmt;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::endpoint::Endpoint;
use crate::error::{Complaint, Error};
use crate::value::{NoVal, Strings, Text};

/// The part of a response that a call reads.
pub(crate) trait Body: Default {
    /// The key that a successful response must have. A missing list is not an empty list: treating it as empty would make
    /// every object look deleted.
    const REQUIRED: Option<&'static str> = None;
    /// Reads the value of a top-level key if the call needs it; returns whether it did.
    fn field<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error>;
}

/// For calls that only need to know that they succeeded.
impl Body for () {
    fn field<'de, A: MapAccess<'de>>(&mut self, _: &str, _: &mut A) -> Result<bool, A::Error> {
        Ok(false)
    }
}

/// One object of a list: decoded as `Raw`, then reduced to the fields in `Self`.
pub(crate) trait Item: Sized {
    /// The list's key in the response.
    const KEY: &'static str;
    /// The limit of objects in a list. A decoded object takes far more memory than the three bytes of an empty one.
    const MOST: usize = 100_000;
    /// The object as it is in the response.
    type Raw<'a>: Deserialize<'a>;
    /// Reduces the decoded object to the fields in `Self`.
    fn keep(raw: Self::Raw<'_>, strings: &mut Strings) -> Self;
}

/// A list and the time of its last update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing<T> {
    /// The objects, in Slurm's order.
    pub items: Vec<T>,
    /// Pass this to the next call to ask for changes only.
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

/// Decodes a list object by object, so that at most one complete object is in memory.
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

/// Prefix of the error for a list that is too long.
const TOO_MANY: &str = "has more than ";

/// The error for more items than the limit.
pub(crate) fn too_many<E: serde::de::Error>(most: usize, what: &str) -> E {
    E::custom(format_args!("{TOO_MANY}{most} {what}"))
}

/// A whole response.
#[derive(Debug, Default)]
pub(crate) struct Answer<B> {
    pub(crate) body: B,
    pub(crate) errors: Vec<Complaint>,
    pub(crate) warnings: Vec<Complaint>,
    pub(crate) release: String,
    /// Whether the required key was present.
    pub(crate) whole: bool,
}

impl<B: Body> Answer<B> {
    /// Fails if a successful response lacks its required key.
    pub(crate) fn require(&self, call: &Endpoint, missing: &Missing<'_>) -> Result<(), Error> {
        let Some(key) = B::REQUIRED.filter(|_| !self.whole) else {
            return Ok(());
        };
        // 26.05 reports an unknown partition only by this warning.
        let unknown = |warning: &Complaint| warning.description.starts_with("Unable to find ");
        if !missing.what.is_empty() && self.warnings.iter().any(unknown) {
            return Err(missing.error());
        }
        Err(Error::Protocol {
            call: call.path.to_owned(),
            message: format!("the {key} field is missing"),
        })
    }
}

impl<'de, B: Body> Deserialize<'de> for Answer<B> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnswerVisitor<B>(Answer<B>);
        impl<'de, B: Body> Visitor<'de> for AnswerVisitor<B> {
            type Value = Answer<B>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a response object")
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

/// The limit of errors or warnings that are kept; more are ignored.
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
            f.write_str("a list of errors")
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

/// Decodes a response. Slurm passes on names and comments byte for byte, so invalid UTF-8 is replaced: one user's job name
/// must not make the whole list unreadable.
pub(crate) fn decode<B: Body>(call: &Endpoint, bytes: &[u8]) -> Result<Answer<B>, Error> {
    serde_json::from_slice(bytes).or_else(|_| decode_text(call, String::from_utf8_lossy(bytes).as_bytes()))
}

/// Decodes a response; on failure decodes it again to find the path of the error.
fn decode_text<B: Body>(call: &Endpoint, bytes: &[u8]) -> Result<Answer<B>, Error> {
    serde_json::from_slice(bytes).map_err(|_| {
        let deserializer = &mut serde_json::Deserializer::from_slice(bytes);
        let message = match serde_path_to_error::deserialize::<_, Answer<B>>(deserializer) {
            Err(error) => format!("at {}: {}", place(error.path()), unreadable(error.inner())),
            Ok(_) => "trailing characters".to_owned(),
        };
        Error::Protocol {
            call: call.path.to_owned(),
            message,
        }
    })
}

/// Describes a JSON error without quoting the response, because serde quotes unexpected values.
pub(crate) fn unreadable(error: &serde_json::Error) -> String {
    // Our own message, which quotes nothing from the response.
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

/// Describes the place of a value in a response. Quotes only keys that a Slurm object can have.
fn place(path: &serde_path_to_error::Path) -> String {
    let text = path.to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '[' | ']');
    if text.len() <= 80 && text.chars().all(is_plain) {
        text
    } else {
        "an unknown key".to_owned()
    }
}

/// How Slurm reports that the object of a call does not exist.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::{self, NODES};
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
            "invalid response to /slurm/{version}/nodes/: the things field is missing"
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
        // Such a warning does not make a missing list empty.
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
