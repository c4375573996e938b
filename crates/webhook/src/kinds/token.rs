//! Token: the Secret that it writes to must be nobody else's.

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
    /// Nothing is named after it but a Secret, whose name is judged by itself.
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
                    format!(
                        "the token would take the place of the key that signs it, {key:?} of Secret {secret:?}"
                    ),
                    "name another Secret",
                );
            } else {
                warn(
                    report,
                    &path,
                    format!(
                        "Secret {secret:?} holds the signing key too; whoever may read the token may sign any"
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
                    "Token {:?} writes to {key:?} of Secret {secret:?} too",
                    other.name_any()
                ),
                "name another Secret or another key",
            );
        }
    }

    fn on_delete(&self, _: &NamespaceSnapshot) -> Vec<String> {
        vec![format!(
            "copies of Token {} that somebody has taken stay valid until they expire",
            self.name_any()
        )]
    }
}
