//! Tolerant decoding of Slurm's JSON values: a field that another version writes differently, or omits, never fails a
//! list.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeStruct as _, Serializer};
use serde::{Deserialize, Serialize};

use crate::response::too_many;

/// A number that may be unset or infinite: `{"set":…,"infinite":…,"number":…}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, PartialOrd, Ord)]
pub enum NoVal {
    /// No value.
    #[default]
    Unset,
    /// A value.
    Number(u64),
    /// Infinite.
    Infinite,
}

impl NoVal {
    /// Returns the value, if it is finite.
    pub fn number(self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(number),
            Self::Unset | Self::Infinite => None,
        }
    }

    /// Returns the value as seconds since the Unix epoch; Slurm writes 0 for never.
    pub fn timestamp(self) -> Option<Timestamp> {
        let seconds = self.number().filter(|seconds| *seconds > 0)?;
        i64::try_from(seconds)
            .ok()
            .and_then(|seconds| Timestamp::from_second(seconds).ok())
    }
}

impl From<Timestamp> for NoVal {
    fn from(instant: Timestamp) -> Self {
        u64::try_from(instant.as_second()).map_or(Self::Unset, Self::Number)
    }
}

impl Serialize for NoVal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut value = serializer.serialize_struct("NoVal", 3)?;
        value.serialize_field("set", &(*self != Self::Unset))?;
        value.serialize_field("infinite", &(*self == Self::Infinite))?;
        value.serialize_field("number", &self.number().unwrap_or(0))?;
        value.end()
    }
}

/// The limit of words in one list.
const MOST_WORDS: usize = 100_000;

/// Any JSON value, as far as it can be converted to one of our types.
enum Loose<'a> {
    Nothing,
    Bool(bool),
    Number(u64),
    /// Negative or out of range; kept as digits for fields that want text.
    OtherNumber(String),
    Text(Cow<'a, str>),
    List(Vec<Text<'a>>),
    Object {
        set: bool,
        infinite: bool,
        number: NoVal,
    },
}

impl<'de> Deserialize<'de> for Loose<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LooseVisitor)
    }
}

struct LooseVisitor;

impl<'de> Visitor<'de> for LooseVisitor {
    type Value = Loose<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Loose<'de>, E> {
        Ok(Loose::Nothing)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Loose<'de>, E> {
        Ok(Loose::Bool(value))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Loose<'de>, E> {
        Ok(Loose::Number(number))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Loose<'de>, E> {
        Ok(u64::try_from(number).map_or_else(|_| Loose::OtherNumber(number.to_string()), Loose::Number))
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "in range, and whole seconds do"
    )]
    fn visit_f64<E>(self, number: f64) -> Result<Loose<'de>, E> {
        let fits = (0.0..9e15).contains(&number);
        Ok(if fits {
            Loose::Number(number as u64)
        } else {
            Loose::OtherNumber(number.to_string())
        })
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Loose<'de>, E> {
        Ok(Loose::Text(text.into()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Loose<'de>, E> {
        Ok(Loose::Text(text.to_owned().into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Loose<'de>, A::Error> {
        let mut list = Vec::new();
        while let Some(text) = seq.next_element()? {
            if list.len() >= MOST_WORDS {
                return Err(too_many(MOST_WORDS, "words in one list"));
            }
            list.push(text);
        }
        Ok(Loose::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Loose<'de>, A::Error> {
        let (mut set, mut infinite, mut number) = (true, false, NoVal::Unset);
        while let Some(key) = map.next_key::<Text<'de>>()? {
            match key.as_str() {
                "set" => set = map.next_value::<Switch>()?.0,
                "infinite" => infinite = map.next_value::<Switch>()?.0,
                "number" => number = map.next_value()?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Loose::Object {
            set,
            infinite,
            number,
        })
    }
}

impl<'de> Deserialize<'de> for NoVal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Loose::deserialize(deserializer)? {
            Loose::Number(number) => Self::Number(number),
            Loose::Object { infinite: true, .. } => Self::Infinite,
            Loose::Object {
                set: true, number, ..
            } => number,
            Loose::Text(text) => match text.trim() {
                "INFINITE" | "UNLIMITED" => Self::Infinite,
                text => text.parse().map_or(Self::Unset, Self::Number),
            },
            Loose::Nothing
            | Loose::Bool(_)
            | Loose::OtherNumber(_)
            | Loose::List(_)
            | Loose::Object { .. } => Self::Unset,
        })
    }
}

/// A Boolean; anything else is false.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Switch(pub(crate) bool);

impl<'de> Deserialize<'de> for Switch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match Loose::deserialize(deserializer)? {
            Loose::Bool(value) => value,
            Loose::Number(number) => number != 0,
            _ => false,
        }))
    }
}

/// A string, borrowed from the response if it has no escapes. A number becomes its digits; anything else is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Text<'a>(Cow<'a, str>);

impl Text<'_> {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn into_owned(self) -> String {
        self.0.into_owned()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match Loose::deserialize(deserializer)? {
            Loose::Text(text) => text,
            Loose::Number(number) => number.to_string().into(),
            Loose::OtherNumber(digits) => digits.into(),
            Loose::Bool(value) => value.to_string().into(),
            Loose::Nothing | Loose::List(_) | Loose::Object { .. } => "".into(),
        }))
    }
}

/// A list of words, which Slurm writes either as an array or separated by commas.
#[derive(Debug, Default)]
pub(crate) struct RawWords<'a>(Vec<Text<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for RawWords<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match Loose::deserialize(deserializer)? {
            Loose::List(list) => list,
            Loose::Text(text) => vec![Text(text)],
            _ => Vec::new(),
        }))
    }
}

impl RawWords<'_> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        self.0
            .iter()
            .flat_map(|text| text.as_str().split(','))
            .map(str::trim)
            .filter(|word| !word.is_empty())
    }
}

/// A few words that many objects share: features, partitions, flags.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Words(Arc<str>);

impl Words {
    /// Returns the words, in Slurm's order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.split(',').filter(|word| !word.is_empty())
    }

    /// Reports whether the list contains the word.
    pub fn contains(&self, word: &str) -> bool {
        self.iter().any(|w| w == word)
    }

    /// Reports whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the words, separated by commas.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Words {
    fn default() -> Self {
        Self("".into())
    }
}

impl<S: AsRef<str>> FromIterator<S> for Words {
    fn from_iter<I: IntoIterator<Item = S>>(words: I) -> Self {
        let words: Vec<S> = words.into_iter().collect();
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        Self(words.join(",").into())
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Keeps one copy of each string in a response.
#[derive(Debug, Default)]
pub(crate) struct Strings {
    known: HashSet<Arc<str>>,
    scratch: String,
}

impl Strings {
    pub(crate) fn keep(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.known.get(text) {
            return Arc::clone(known);
        }
        let text: Arc<str> = text.into();
        self.known.insert(Arc::clone(&text));
        text
    }

    pub(crate) fn keep_text(&mut self, text: &Text<'_>) -> Arc<str> {
        self.keep(text.as_str())
    }

    pub(crate) fn keep_words(&mut self, words: &RawWords<'_>) -> Words {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        for word in words.iter() {
            if !scratch.is_empty() {
                scratch.push(',');
            }
            scratch.push_str(word);
        }
        let words = Words(self.keep(&scratch));
        self.scratch = scratch;
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case(r#"{"set":true,"infinite":false,"number":7}"#, NoVal::Number(7))]
    #[case(r#"{"number":7,"set":false}"#, NoVal::Unset)]
    #[case(r#"{"set":false,"infinite":true,"number":0}"#, NoVal::Infinite)]
    #[case(r#"{"set":true,"number":7,"new":[1]}"#, NoVal::Number(7))]
    #[case("7", NoVal::Number(7))]
    #[case("7.9", NoVal::Number(7))]
    #[case("-1", NoVal::Unset)]
    #[case("null", NoVal::Unset)]
    #[case("\"UNLIMITED\"", NoVal::Infinite)]
    #[case("\"12\"", NoVal::Number(12))]
    #[case("[]", NoVal::Unset)]
    #[case("{}", NoVal::Unset)]
    fn a_number_is_read_in_every_shape(#[case] json: &str, #[case] value: NoVal) {
        assert_eq!(serde_json::from_str::<NoVal>(json).unwrap(), value);
    }

    #[rstest]
    #[case(r#"["a","b"]"#, "a,b")]
    #[case(r#""a,b""#, "a,b")]
    #[case(r#"["a, b",3]"#, "a,b,3")]
    #[case("null", "")]
    #[case("0", "")]
    #[case("{}", "")]
    fn words_are_read_in_every_shape(#[case] json: &str, #[case] words: &str) {
        let raw: RawWords<'_> = serde_json::from_str(json).unwrap();
        assert_eq!(Strings::default().keep_words(&raw).as_str(), words);
    }

    #[test]
    fn a_plain_string_is_borrowed_and_an_escaped_one_is_not() {
        let plain: Text<'_> = serde_json::from_str(r#""plain""#).unwrap();
        let escaped: Text<'_> = serde_json::from_str(r#""a\/b""#).unwrap();
        assert!(matches!(plain.0, Cow::Borrowed("plain")));
        assert_eq!(escaped.as_str(), "a/b");
    }

    #[test]
    fn an_instant_of_zero_is_never() {
        assert_eq!(NoVal::Number(0).timestamp(), None);
        assert_eq!(
            NoVal::Number(5).timestamp(),
            Some(Timestamp::from_second(5).unwrap())
        );
        assert_eq!(NoVal::Number(u64::MAX).timestamp(), None);
    }

    /// Generates any JSON that a Slurm release might write.
    fn any_json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<u64>().prop_map(Into::into),
            any::<f64>().prop_map(Into::into),
            "[a-zA-Z,/\"\\\\]{0,8}".prop_map(Into::into),
        ];
        leaf.prop_recursive(3, 20, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
                proptest::collection::hash_map("(set|infinite|number|[a-z]{1,3})", inner, 0..4)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_value_fails_a_read(json in any_json()) {
            let text = json.to_string();
            prop_assert!(serde_json::from_str::<NoVal>(&text).is_ok());
            prop_assert!(serde_json::from_str::<Text<'_>>(&text).is_ok());
            prop_assert!(serde_json::from_str::<RawWords<'_>>(&text).is_ok());
            prop_assert!(serde_json::from_str::<Switch>(&text).is_ok());
        }
    }
}
