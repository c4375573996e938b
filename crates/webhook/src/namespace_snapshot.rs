//! The objects that rules can read besides the reviewed one: objects of our own kinds only. Collected before validation, so
//! that validation is pure.

use std::sync::Arc;

use jiff::Timestamp;
use keelson_api::{Accounting, Controller, LoginSet, NodeSet, RestApi, Token, wording};
use kube::{Resource, ResourceExt as _};

/// How many names a message lists; the rest is counted.
const SHOWN: usize = 3;

/// The result of looking up an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup<T> {
    Found(T),
    Missing,
    /// The name is invalid, so the reference is rejected.
    Impossible,
    /// The API server did not respond. No rule rejects an object because of this.
    Unknown,
}

/// The objects of our kinds in one namespace, from the watch caches.
#[derive(Debug, Clone, Default)]
pub struct NamespaceSnapshot {
    /// When the snapshot was taken.
    pub now: Option<Timestamp>,
    /// Whether the lists below are complete. Just after the start, or without permission to watch, they are not, and a
    /// missing object proves nothing.
    pub known: bool,
    /// Whether to reject configuration that no known Slurm release can parse. If false, it causes a warning only, because a
    /// newer release may support it.
    pub strict: bool,
    pub accountings: Vec<Arc<Accounting>>,
    pub controllers: Vec<Arc<Controller>>,
    pub loginsets: Vec<Arc<LoginSet>>,
    pub nodesets: Vec<Arc<NodeSet>>,
    pub restapis: Vec<Arc<RestApi>>,
    pub tokens: Vec<Arc<Token>>,
}

impl NamespaceSnapshot {
    pub fn controller(&self, name: &str) -> Option<&Controller> {
        by_name(&self.controllers, name)
    }

    pub fn accounting(&self, name: &str) -> Option<&Accounting> {
        by_name(&self.accountings, name)
    }
}

fn by_name<'a, K: Resource>(objects: &'a [Arc<K>], name: &str) -> Option<&'a K> {
    objects
        .iter()
        .find(|object| object.name_any() == name)
        .map(AsRef::as_ref)
}

/// Whether the name is a valid object name. It becomes part of a URL path.
pub fn is_object_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(plain)
}

/// Lists the names of objects in a message.
pub fn listed<K: Resource>(objects: &[&Arc<K>]) -> String {
    wording::listed(objects.iter().map(|object| object.name_any()), SHOWN)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("files", true)]
    #[case("my.files-2", true)]
    #[case("", false)]
    #[case("..", false)]
    #[case("../secrets/key", false)]
    #[case("a/b", false)]
    #[case("a?watch=true", false)]
    #[case("a%2fb", false)]
    fn a_name_stays_within_its_place_in_the_path(#[case] name: &str, #[case] expected: bool) {
        assert_eq!(is_object_name(name), expected);
    }
}
