//! Token: its Secret key must not be used by another object.

use keelson_api::{
    Token,
    validate::{Path, Report},
};
use kube::ResourceExt as _;

use crate::{
    namespace_snapshot::NamespaceSnapshot,
    validate::{Rules, refuse, warn},
};

impl Rules for Token {
    const KIND: &'static str = "token";
    /// Only a Secret is named after it, and the name of the Secret is checked elsewhere.
    const NAME_MAX: Option<usize> = None;

    fn services(&self) -> Vec<String> {
        Vec::new()
    }

    fn beside(&self, snapshot: &NamespaceSnapshot, report: &mut Report) {
        let path = Path::spec().field("secretRef");
        let (secret, key) = (self.secret_name(), self.secret_key());
        if let Some(signing) = self.spec.jwt_key().filter(|signing| signing.name == secret) {
            if signing.key == key {
                refuse(
                    report,
                    &path,
                    format!("the token would overwrite the key that signs it, {key:?} of Secret {secret:?}"),
                    "use another Secret",
                );
            } else {
                warn(
                    report,
                    &path,
                    format!(
                        "Secret {secret:?} also holds the signing key; anyone who can read the token can sign new ones"
                    ),
                );
            }
        }
        let other = snapshot.tokens.iter().find(|other| {
            other.name_any() != self.name_any() && other.secret_name() == secret && other.secret_key() == key
        });
        if let Some(other) = other {
            refuse(
                report,
                &path,
                format!(
                    "Token {:?} already writes to {key:?} of Secret {secret:?}",
                    other.name_any()
                ),
                "use another Secret or another key",
            );
        }
    }

    fn on_delete(&self, _: &NamespaceSnapshot) -> Vec<String> {
        vec![format!(
            "existing copies of Token {} remain valid until they expire",
            self.name_any()
        )]
    }
}
