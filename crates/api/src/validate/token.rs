//! Rules for Tokens.

use std::time::Duration;

use crate::token::{Token, TokenSpec};
use crate::validate::path::Path;
use crate::validate::report::Report;
use crate::validate::{Validate, references, text};
use crate::well_known::slurm::TOKEN_LIFETIME_MAX_SECS;

impl Validate for Token {
    fn check(&self, report: &mut Report) {
        let spec = Path::spec();
        let TokenSpec {
            jwt_key_ref,
            jwt_hs256_key_ref,
            username,
            lifetime,
            refresh: _,
            secret_ref,
        } = &self.spec;
        if self.spec.jwt_key().is_none() {
            report.refuse(
                &spec.field("jwtKeyRef"),
                "must be set",
                "set the Secret and the key that hold the JWT signing key",
            );
        }
        references::jwt_keys(jwt_key_ref.as_ref(), jwt_hs256_key_ref.as_ref(), report);
        if username.is_empty() {
            report.refuse(
                &spec.field("username"),
                "is empty",
                "set the Slurm user of the token",
            );
        } else {
            text::word(&spec.field("username"), username, report);
        }
        if let Some(lifetime) = lifetime {
            lifetime_bounds(&spec.field("lifetime"), lifetime, report);
        }
        match secret_ref {
            Some(selector) => references::secret_key(&spec.field("secretRef"), selector, report),
            None if !username.is_empty() && !text::is_dns_subdomain(&self.secret_name()) => report.refuse(
                &spec.field("secretRef"),
                format!(
                    "is not set, and the default {:?} is not a valid Secret name",
                    self.secret_name()
                ),
                "set the Secret and the key to write the token to",
            ),
            None => {}
        }
    }

    fn check_change(&self, old: &Self, report: &mut Report) {
        references::unchanged(
            &Path::spec().field("jwtKeyRef"),
            &old.spec.jwt_key(),
            &self.spec.jwt_key(),
            "the token in use is signed with that key",
            report,
        );
    }
}

fn lifetime_bounds(path: &Path, lifetime: &crate::scalars::GoDuration, report: &mut Report) {
    text::duration(path, lifetime, Duration::from_secs(1), report);
    let Ok(parsed) = lifetime.parse() else { return };
    if i64::try_from(parsed.as_secs()).is_ok_and(|secs| secs > TOKEN_LIFETIME_MAX_SECS) {
        report.warn(
            path,
            format!("Slurm supports at most {TOKEN_LIFETIME_MAX_SECS}s; the operator uses this maximum"),
        );
    } else if (Duration::from_secs(1)..Duration::from_mins(1)).contains(&parsed) {
        report.warn(
            path,
            "a token that is valid for less than a minute is hard to use",
        );
    }
}
