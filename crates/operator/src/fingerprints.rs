//! Fingerprints of Secret contents, for pod annotations that everyone who may view the pods can read. Pure.
//!
//! A plain hash would let its readers test guesses of a password, so fingerprints are keyed. The key is created once,
//! in a Secret of the same namespace: it survives a reinstallation of the operator, needs no permission that the
//! operator does not have there, and is no more exposed than the Secrets that it is used for. It is not derived from
//! slurm.key, because that changes, and everything else would restart before slurmctld has changed over.

use std::{collections::BTreeSet, fmt};

use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use keelson_api::well_known::{annotation, label, object};
use serde_json::{Value, json};
use slurm_conf::fingerprint::keyed;

use crate::{keys, problem::Problem};

/// The fingerprint key of one namespace.
#[derive(Clone, PartialEq, Eq)]
pub struct HashKey(Vec<u8>);

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey")
    }
}

impl HashKey {
    pub fn read(secret: &Secret) -> Option<Self> {
        let ByteString(bytes) = secret.data.as_ref()?.get(object::HASH_KEY_FILE)?;
        (bytes.len() >= 32).then(|| Self(bytes.clone()))
    }

    #[cfg(test)]
    pub fn for_tests() -> Self {
        Self(vec![7; 32])
    }
}

/// Builds the Secret with a namespace's key. It has no owner, like the other keys that the operator creates.
pub fn build_secret(namespace: &str, random: [u8; 32]) -> Value {
    json!({
        "metadata": {
            "name": object::HASH_KEY,
            "namespace": namespace,
            "labels": { label::MANAGED_BY: keys::MANAGER },
            "annotations": { annotation::GENERATED_KEY: "true" },
        },
        "type": "Opaque",
        "immutable": true,
        "data": { object::HASH_KEY_FILE: ByteString(random.to_vec()) },
    })
}

/// Computes the fingerprints for one object's pods.
#[derive(Debug, Clone)]
pub struct Fingerprints {
    key: HashKey,
    /// Fingerprints that the pods run with.
    running: BTreeSet<String>,
}

impl Fingerprints {
    /// `template` is the metadata of the pods that run.
    pub fn new(key: Option<&HashKey>, template: Option<&ObjectMeta>) -> Result<Self, Problem> {
        let running = template.and_then(|template| template.annotations.as_ref());
        Self::among(key, running.into_iter().flatten().map(|(_, value)| value.clone()))
    }

    /// Like [`Self::new`], with fingerprints from elsewhere.
    pub fn among(key: Option<&HashKey>, running: impl IntoIterator<Item = String>) -> Result<Self, Problem> {
        let remedy = "allow the operator to create Secrets in this namespace, or delete a Secret of this name that has no key";
        let key = key.ok_or_else(|| Problem::absent("Secret", object::HASH_KEY, remedy))?;
        Ok(Self {
            key: key.clone(),
            running: running.into_iter().collect(),
        })
    }

    /// Returns the fingerprint of the content with this plain hash. Pods that run with the plain hash keep it: the
    /// content is the same, and another fingerprint would replace them for nothing. Callers check whether the pods are
    /// replaced for another reason.
    pub fn of(&self, what: &str, plain: String) -> String {
        if plain.is_empty() || self.running.contains(&plain) {
            return plain;
        }
        self.keyed(what, &plain)
    }

    /// Like [`Self::of`], but returns slurmctld's fingerprint if slurmctld runs with other content: daemons that talk
    /// to slurmctld have to wait with it. The other fingerprint of the same content is no reason to restart.
    pub fn follow(&self, what: &str, plain: String, in_use: Option<&String>) -> String {
        match in_use {
            Some(other) if *other != plain && *other != self.keyed(what, &plain) => other.clone(),
            Some(_) | None => self.of(what, plain),
        }
    }

    fn keyed(&self, what: &str, plain: &str) -> String {
        keyed(&self.key.0, what, plain.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn running(values: &[&str]) -> ObjectMeta {
        let pair = |(i, value): (usize, &&str)| (i.to_string(), (*value).to_owned());
        ObjectMeta {
            annotations: Some(values.iter().enumerate().map(pair).collect::<BTreeMap<_, _>>()),
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn a_name_says_nothing_without_the_key_and_stays_the_same_with_it() {
        let key = HashKey::for_tests();
        let names = Fingerprints::new(Some(&key), None).unwrap();
        let name = names.of("sssd.conf", "plain".to_owned());
        assert_ne!(name, "plain");
        let later = Fingerprints::new(Some(&key), Some(&running(&[&name]))).unwrap();
        assert_eq!(later.of("sssd.conf", "plain".to_owned()), name);
        let other = HashKey(vec![8; 32]);
        let elsewhere = Fingerprints::new(Some(&other), None).unwrap();
        assert_ne!(elsewhere.of("sssd.conf", "plain".to_owned()), name);
    }

    #[test]
    fn pods_from_before_keep_their_plain_hash_until_the_content_changes() {
        let key = HashKey::for_tests();
        let names = Fingerprints::new(Some(&key), Some(&running(&["old"]))).unwrap();
        assert_eq!(names.of("slurm.key", "old".to_owned()), "old");
        assert_eq!(names.of("slurm.key", "new".to_owned()).len(), 64);
    }

    #[test]
    fn slurmctld_is_followed_when_it_has_another_key_and_not_when_it_has_another_name_for_it() {
        let key = HashKey::for_tests();
        let fresh = Fingerprints::new(Some(&key), None).unwrap();
        let old = Fingerprints::new(Some(&key), Some(&running(&["plain"]))).unwrap();
        let follow = |names: &Fingerprints, in_use: Option<&str>| {
            names.follow(
                "slurm.key",
                "plain".to_owned(),
                in_use.map(str::to_owned).as_ref(),
            )
        };
        let keyed = fresh.of("slurm.key", "plain".to_owned());
        for in_use in [None, Some("plain"), Some(keyed.as_str())] {
            assert_eq!(follow(&fresh, in_use), keyed);
            assert_eq!(follow(&old, in_use), "plain");
        }
        assert_eq!(follow(&old, Some("the key before")), "the key before");
    }

    #[test]
    fn without_the_key_nothing_is_built() {
        let problem = Fingerprints::new(None, Some(&running(&["old"]))).unwrap_err();
        assert!(
            problem
                .message
                .starts_with("Secret keelson-hash-key does not exist")
        );
    }

    #[test]
    fn the_key_is_read_back() {
        let secret: Secret = serde_json::from_value(build_secret("ns", [7; 32])).unwrap();
        assert_eq!(HashKey::read(&secret), Some(HashKey::for_tests()));
        assert_eq!(HashKey::read(&Secret::default()), None);
    }
}
