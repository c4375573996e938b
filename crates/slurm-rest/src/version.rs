//! API versions, and the versions and calls that a server supports.

use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::endpoint::Endpoint;
use crate::value::Text;

/// An API version that this client supports.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    strum::EnumIter,
    strum::Display,
    strum::EnumString,
)]
pub enum Version {
    /// Since 24.05.
    #[strum(serialize = "v0.0.41")]
    V41,
    /// Since 24.11.
    #[strum(serialize = "v0.0.42")]
    V42,
    /// Since 25.05.
    #[strum(serialize = "v0.0.43")]
    V43,
    /// Since 25.11.
    #[strum(serialize = "v0.0.44")]
    V44,
    /// Since 26.05.
    #[strum(serialize = "v0.0.45")]
    V45,
}

/// The calls that a server offers in one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    /// The version.
    pub version: Version,
    /// The server's release according to its API document: `26.05.5`.
    pub release: String,
    /// Method and path of every operation, without the version and the names of parameters.
    operations: BTreeSet<(String, String)>,
}

impl Served {
    /// Reports whether the server offers this call.
    pub fn offers(&self, call: &Endpoint) -> bool {
        self.operations
            .contains(&(call.method.as_str().to_ascii_lowercase(), shape(call.path)))
    }
}

/// The parts of a server's API document (`/openapi/v3`) that this client reads.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Document {
    info: Info,
    paths: Paths,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Info {
    version: String,
}

/// Paths, each with its methods.
#[derive(Debug, Default)]
struct Paths(Vec<(String, Vec<String>)>);

impl<'de> Deserialize<'de> for Paths {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PathsVisitor)
    }
}

struct PathsVisitor;

impl<'de> Visitor<'de> for PathsVisitor {
    type Value = Paths;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("paths")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Paths, A::Error> {
        let mut paths = Vec::new();
        while let Some((path, Methods(methods))) = map.next_entry::<Text<'de>, Methods>()? {
            paths.push((path.into_owned(), methods));
        }
        Ok(Paths(paths))
    }
}

struct Methods(Vec<String>);

impl<'de> Deserialize<'de> for Methods {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MethodsVisitor;
        impl<'de> Visitor<'de> for MethodsVisitor {
            type Value = Methods;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("methods")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Methods, A::Error> {
                let mut methods = Vec::new();
                while let Some((method, IgnoredAny)) = map.next_entry::<Text<'de>, IgnoredAny>()? {
                    methods.push(method.into_owned());
                }
                Ok(Methods(methods))
            }
        }
        deserializer.deserialize_map(MethodsVisitor)
    }
}

impl Document {
    /// Returns the versions of the slurmctld API in numerical order, including those that this client does not support.
    pub(crate) fn versions(&self) -> Vec<String> {
        let mut versions: Vec<&str> = self
            .paths
            .0
            .iter()
            .filter_map(|(path, _)| path.strip_prefix("/slurm/")?.split('/').next())
            .filter(|version| is_version(version))
            .collect();
        versions.sort_by_key(|version| version.rsplit('.').next().and_then(|n| n.parse::<u32>().ok()));
        versions.dedup();
        versions.into_iter().map(str::to_owned).collect()
    }

    /// Returns the newest version, up to `newest`, that both sides support.
    pub(crate) fn agree(&self, newest: Version) -> Option<Served> {
        let known = self
            .versions()
            .iter()
            .filter_map(|v| v.parse().ok())
            .filter(|v| *v <= newest)
            .max()?;
        Some(self.served(known))
    }

    fn served(&self, version: Version) -> Served {
        let mark = format!("/{version}/");
        let operations = self
            .paths
            .0
            .iter()
            .filter(|(path, _)| path.contains(&mark))
            .flat_map(|(path, methods)| {
                let path = shape(&path.replacen(&mark, "/{version}/", 1));
                methods
                    .iter()
                    .map(move |method| (method.to_ascii_lowercase(), path.clone()))
            })
            .collect();
        let release = self
            .info
            .version
            .trim_start_matches("Slurm-")
            .split('&')
            .next()
            .unwrap_or_default();
        Served {
            version,
            release: release.to_owned(),
            operations,
        }
    }
}

/// Reports whether the path segment has the form of a version, known or not. Other segments do not belong to Slurm.
fn is_version(text: &str) -> bool {
    let digits = |part: &str| !part.is_empty() && part.len() <= 4 && part.bytes().all(|b| b.is_ascii_digit());
    text.strip_prefix('v')
        .is_some_and(|numbers| numbers.split('.').count() == 3 && numbers.split('.').all(digits))
}

/// Returns a path without parameter names and without a trailing slash: both vary between releases.
fn shape(path: &str) -> String {
    let segments = path.trim_end_matches('/').split('/');
    let plain = segments.map(|segment| if segment.starts_with('{') { "{}" } else { segment });
    plain.collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint;
    use rstest::rstest;

    const DOCUMENT: &str = r#"{"openapi":"3.0.3","info":{"version":"Slurm-24.11.5&openapi/slurmctld"},"paths":{
        "\/slurm\/v0.0.41\/nodes\/":{"get":{"x":[1]},"post":{}},
        "\/slurm\/v0.0.42\/nodes\/":{"get":{}},
        "\/slurm\/v0.0.42\/node\/{node}":{"delete":{}},
        "\/slurm\/v0.0.99\/nodes\/":{"get":{}},
        "\/slurmdb\/v0.0.42\/clusters\/":{"get":{}}},"components":{}}"#;

    fn document() -> Document {
        serde_json::from_str(DOCUMENT).unwrap()
    }

    #[rstest]
    #[case(Version::V45, Some(Version::V42))]
    #[case(Version::V41, Some(Version::V41))]
    fn the_newest_version_that_both_speak_is_agreed_on(
        #[case] newest: Version,
        #[case] agreed: Option<Version>,
    ) {
        assert_eq!(document().agree(newest).map(|served| served.version), agreed);
    }

    #[test]
    fn a_server_that_is_too_new_has_none_for_us() {
        let text = DOCUMENT
            .replace("v0.0.41", "v0.0.98")
            .replace("v0.0.42", "v0.0.98");
        let document: Document = serde_json::from_str(&text).unwrap();
        assert_eq!(document.agree(Version::V45), None);
        assert_eq!(document.versions(), ["v0.0.98", "v0.0.99"]);
    }

    #[test]
    fn what_is_offered_is_told_from_what_is_not() {
        let served = document().agree(Version::V45).unwrap();
        assert_eq!(served.release, "24.11.5");
        assert!(served.offers(&endpoint::NODES));
        assert!(served.offers(&endpoint::NODE_DELETE));
        assert!(served.offers(&endpoint::CLUSTERS));
        assert!(!served.offers(&endpoint::NODES_UPDATE));
        assert!(!served.offers(&endpoint::JOBS_REQUEUE));
    }
}
