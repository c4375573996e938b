//! What rules may look at beside the object itself: objects of our own kinds, and nothing else. Collected before a review is
//! judged, so that judging is pure.

use std::sync::Arc;

use jiff::Timestamp;
use keelson_api::{Accounting, Controller, LoginSet, NodeSet, RestApi, Token};
use kube::{Resource, ResourceExt as _};

/// An object that a rule asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup<T> {
    Found(T),
    Missing,
    /// No object can have that name; the reference is refused for it.
    Impossible,
    /// The API server did not say. No rule refuses on that.
    Unknown,
}

/// Everything around one object: its namespace as the watches know it.
#[derive(Debug, Clone, Default)]
pub struct NamespaceSnapshot {
    /// When this was collected.
    pub now: Option<Timestamp>,
    /// Whether the lists below are whole: without rights to watch, or just after the start, they are not, and that
    /// something is not in them says nothing.
    pub known: bool,
    /// Whether what no known Slurm can read is refused. Without it that is a warning, since a newer Slurm may know it.
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

/// Whether an object can have this name. It becomes part of a path.
pub fn is_object_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(plain)
}

/// The names of some objects for a sentence: `a, b, c and 4 more`.
pub fn listed<K: Resource>(objects: &[&Arc<K>]) -> String {
    const SHOWN: usize = 3;
    let shown = objects
        .iter()
        .take(SHOWN)
        .map(|object| object.name_any())
        .collect::<Vec<_>>()
        .join(", ");
    match objects.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
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
