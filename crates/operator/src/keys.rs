//! The keys of a Controller: where slurm.key is stored, and the key Secrets that the operator creates on request (once,
//! if they do not exist, and never again). Pure.
//!
//! A chart cannot create keys safely: rendered without access to the cluster it creates a new key, and replacing a key
//! under running daemons cuts them off from each other.

use std::collections::BTreeMap;

use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::Secret};
use keelson_api::{
    Controller,
    references::SecretKeySelector,
    well_known::{annotation, label},
};
use kube::ResourceExt;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use slurm_conf::slurm_conf::AuthType;

use crate::{problem::Problem, secrets};

pub use keelson_api::well_known::annotation::{GENERATE, GENERATE_ANNOTATIONS};
/// Value of the managed-by label of objects that the operator creates without an owner.
pub const MANAGER: &str = "keelson";

/// Returns where the slurm.key of this Controller is stored, and the plain hash of its Secret, for daemons that
/// authenticate to slurmctld with it.
pub fn of_controller(
    controller: &Controller,
    secret: Option<&Secret>,
) -> Result<(SecretKeySelector, String), Problem> {
    let reference = controller.spec.slurm_key_ref.clone().ok_or_else(|| {
        Problem::missing(format!(
            "Controller {} has no slurmKeyRef: set it",
            controller.name_any()
        ))
    })?;
    let hash = secrets::checksum(secret, &reference)?;
    Ok((reference, hash))
}

/// munged does not start with a shorter key.
const MUNGE_KEY_MIN: usize = 32;

/// Refuses a key with which the daemons would not start.
pub fn check_length(auth: AuthType, key: &[u8], reference: &SecretKeySelector) -> Result<(), Problem> {
    if auth != AuthType::Munge || key.len() >= MUNGE_KEY_MIN {
        return Ok(());
    }
    Err(Problem::invalid(format!(
        "key {:?} of Secret {} has {} bytes, but munged requires at least {MUNGE_KEY_MIN}",
        reference.key,
        reference.name,
        key.len()
    )))
}

/// Returns the fingerprint of the slurm.key that slurmctld was told to run with. Its Secret may contain another key
/// that waits for jobs to end; daemons that talk to slurmctld have to wait with it.
pub fn slurm_key_in_use(slurmctld: Option<&StatefulSet>) -> Option<String> {
    let template = slurmctld?.spec.as_ref()?.template.metadata.as_ref()?;
    template
        .annotations
        .as_ref()?
        .get(annotation::SLURM_KEY_HASH)
        .cloned()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    Slurm,
    Jwt,
}

impl KeyKind {
    fn word(self) -> &'static str {
        match self {
            Self::Slurm => "slurmKey",
            Self::Jwt => "jwtKey",
        }
    }

    fn length(self) -> usize {
        match self {
            Self::Slurm => 1_024,
            Self::Jwt => 32,
        }
    }
}

/// Returns the keys that this Controller asks for.
pub fn wanted(controller: &Controller) -> Vec<(KeyKind, SecretKeySelector)> {
    let Some(asked) = controller.annotations().get(GENERATE) else {
        return vec![];
    };
    let asked_for =
        |kind: KeyKind| asked == "true" || asked.split(',').any(|word| word.trim() == kind.word());
    let slurm = controller
        .spec
        .slurm_key_ref
        .iter()
        .map(|key| (KeyKind::Slurm, key));
    let jwt = controller.spec.jwt_key().map(|key| (KeyKind::Jwt, key));
    slurm
        .chain(jwt)
        .filter(|(kind, key)| asked_for(*kind) && !key.name.is_empty() && !key.key.is_empty())
        .map(|(kind, key)| (kind, key.clone()))
        .collect()
}

/// Builds the Secret for one key. It has no owner: it outlives the cluster, because the state that it belongs to does.
pub fn build_secret(
    controller: &Controller,
    kind: KeyKind,
    reference: &SecretKeySelector,
    random: [u8; 32],
) -> Value {
    let mut annotations: BTreeMap<String, String> = controller
        .annotations()
        .get(GENERATE_ANNOTATIONS)
        .and_then(|text| serde_json::from_str::<BTreeMap<String, BTreeMap<String, String>>>(text).ok())
        .and_then(|mut all| all.remove(kind.word()))
        .unwrap_or_default();
    annotations.insert(annotation::GENERATED_KEY.to_owned(), "true".to_owned());
    json!({
        "metadata": {
            "name": reference.name,
            "namespace": controller.namespace().unwrap_or_default(),
            "labels": { label::MANAGED_BY: MANAGER },
            "annotations": annotations,
        },
        "type": "Opaque",
        "stringData": { &reference.key: printable(kind.length(), random) },
    })
}

/// Builds the Secret with a generated password. It has no owner: it outlives the cluster, because its volumes do. It has the
/// label for mariadb-operator with every database, because a cluster keeps its password when it changes to another.
pub fn build_password<K: ResourceExt>(owner: &K, name: &str, key: &str, random: [u8; 32]) -> Value {
    json!({
        "metadata": {
            "name": name,
            "namespace": owner.namespace().unwrap_or_default(),
            "labels": { label::MANAGED_BY: MANAGER, label::MARIADB_WATCH: "" },
            "annotations": { annotation::GENERATED_KEY: "true" },
        },
        "type": "Opaque",
        "stringData": { key: printable(32, random) },
    })
}

/// Generates a key of letters, digits, `-` and `_`, which survives every way of copying it. 1,024 of them carry far
/// more than 256 bits.
fn printable(length: usize, seed: [u8; 32]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    // StdRng is a cryptographic generator; the seed comes from the operating system.
    let mut random = StdRng::from_seed(seed);
    let length = length.max(43);
    (0..length)
        .filter_map(|_| ALPHABET.get(usize::from(random.random::<u8>() & 63)))
        .map(|&letter| char::from(letter))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn controller(generate: Option<&str>) -> Controller {
        let mut controller = Controller::default();
        controller.metadata.namespace = Some("ns".into());
        controller.metadata.annotations =
            generate.map(|value| BTreeMap::from([(GENERATE.to_owned(), value.to_owned())]));
        let key = |name: &str, key: &str| SecretKeySelector {
            name: name.into(),
            key: key.into(),
            optional: None,
        };
        controller.spec.slurm_key_ref = Some(key("auth-slurm", "slurm.key"));
        controller.spec.jwt_key_ref = Some(key("auth-jwt", "jwt.key"));
        controller
    }

    #[test]
    fn keys_are_made_only_when_asked_for() {
        let kinds = |generate| {
            wanted(&controller(generate))
                .into_iter()
                .map(|(kind, _)| kind)
                .collect::<Vec<_>>()
        };
        assert_eq!(kinds(None), []);
        assert_eq!(kinds(Some("false")), []);
        assert_eq!(kinds(Some("true")), [KeyKind::Slurm, KeyKind::Jwt]);
        assert_eq!(kinds(Some("jwtKey")), [KeyKind::Jwt]);
    }

    #[test]
    fn a_controller_without_slurm_key_is_named() {
        let mut controller = controller(None);
        controller.metadata.name = Some("slurm".into());
        controller.spec.slurm_key_ref = None;
        let problem = of_controller(&controller, None).unwrap_err();
        assert_eq!(problem.message, "Controller slurm has no slurmKeyRef: set it");
    }

    #[test]
    fn a_key_that_munged_would_refuse_is_named() {
        let reference = controller(None).spec.slurm_key_ref.unwrap();
        let check = |auth, length| check_length(auth, &vec![b'x'; length], &reference);
        assert!(check(AuthType::Slurm, 1).is_ok());
        assert!(check(AuthType::Munge, 32).is_ok());
        assert_eq!(
            check(AuthType::Munge, 31).unwrap_err().message,
            "key \"slurm.key\" of Secret auth-slurm has 31 bytes, but munged requires at least 32"
        );
    }

    #[test]
    fn a_key_has_no_owner_and_two_keys_differ() {
        let controller = controller(Some("true"));
        let reference = controller.spec.slurm_key_ref.clone().unwrap();
        let one = build_secret(&controller, KeyKind::Slurm, &reference, [1; 32]);
        let two = build_secret(&controller, KeyKind::Slurm, &reference, [2; 32]);
        assert_eq!(one.pointer("/metadata/ownerReferences"), None);
        let text = |secret: &Value| {
            secret
                .pointer("/stringData/slurm.key")
                .unwrap()
                .as_str()
                .unwrap()
                .to_owned()
        };
        assert_eq!(text(&one).len(), 1_024);
        assert_ne!(text(&one), text(&two));
    }
}
