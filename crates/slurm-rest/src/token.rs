//! JWTs for Slurm: signed with the cluster's key (HS256), renewed before they expire, and reissued as soon as the key
//! changes. Keys and tokens never reach a log, an error or `Debug`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::{ArcSwap, ArcSwapOption};
use jiff::{SignedDuration, Timestamp};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use secrecy::{ExposeSecret as _, SecretSlice, SecretString};
use serde::Serialize;
use tokio::sync::watch;

use crate::error::Error;

/// A source of the current time.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

#[derive(Serialize)]
struct Claims<'a> {
    iat: i64,
    exp: i64,
    sun: &'a str,
}

/// Signs one token for a Slurm user.
pub fn sign(
    user: &str,
    key: &SecretSlice<u8>,
    issued: Timestamp,
    lifetime: SignedDuration,
) -> Result<SecretString, Error> {
    if key.expose_secret().is_empty() {
        return Err(Error::Signing {
            message: "the key is empty".into(),
        });
    }
    let expires = issued.as_second().saturating_add(lifetime.as_secs());
    let claims = Claims {
        iat: issued.as_second(),
        exp: expires,
        sun: user,
    };
    let key = EncodingKey::from_secret(key.expose_secret());
    jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &key)
        .map(Into::into)
        .map_err(|error| Error::Signing {
            message: error.to_string(),
        })
}

/// Signs tokens for one user, with a key that can be replaced during calls.
///
/// During a rotation slurmctld may read the new key file earlier or later than we do. The previous key is therefore
/// kept, and the key that Slurm accepted last is used first.
pub struct Signer {
    user: String,
    lifetime: SignedDuration,
    clock: Clock,
    ring: ArcSwap<Ring>,
    rotations: watch::Sender<u64>,
}

/// The newest key and the previous one.
struct Ring {
    keys: Vec<Arc<Slot>>,
    accepted: AtomicUsize,
}

/// A key and the last token signed with it.
struct Slot {
    key: SecretSlice<u8>,
    token: ArcSwapOption<Signed>,
}

struct Signed {
    token: SecretString,
    renew_at: Timestamp,
}

/// A token, and the index of its key.
pub(crate) struct Issued {
    pub(crate) token: SecretString,
    at: usize,
}

impl Signer {
    /// Creates a signer with one key. Tokens are renewed when a third of `lifetime` is left.
    pub fn new(
        user: impl Into<String>,
        key: SecretSlice<u8>,
        lifetime: SignedDuration,
        clock: Clock,
    ) -> Self {
        Self {
            user: user.into(),
            lifetime,
            clock,
            ring: ArcSwap::from_pointee(Ring::new(vec![Slot::new(key)])),
            rotations: watch::Sender::new(0),
        }
    }

    /// Starts using a new key and keeps the previous one as an alternative. The same key again changes nothing.
    pub fn rotate(&self, key: SecretSlice<u8>) {
        let ring = self.ring.load();
        let newest = ring.keys.first();
        if newest.is_some_and(|slot| slot.key.expose_secret() == key.expose_secret()) {
            return;
        }
        let keys = std::iter::once(Slot::new(key)).chain(newest.cloned()).collect();
        self.ring.store(Arc::new(Ring::new(keys)));
        self.rotations.send_modify(|count| *count += 1);
    }

    /// Returns a token that is valid for at least another third of its lifetime.
    pub fn token(&self) -> Result<SecretString, Error> {
        self.issue(None).map(|issued| issued.token)
    }

    /// Returns a token of the key that was accepted last, or of the other key if `refused` was just rejected. After
    /// both were rejected it returns the first again; the caller limits the attempts.
    pub(crate) fn issue(&self, refused: Option<&Issued>) -> Result<Issued, Error> {
        let ring = self.ring.load();
        let at = match refused {
            None => ring.accepted.load(Ordering::Relaxed),
            Some(refused) => (refused.at + 1) % ring.keys.len().max(1),
        };
        let slot = ring.keys.get(at).or_else(|| ring.keys.first());
        let Some(slot) = slot else {
            return Err(Error::Signing {
                message: "no key available".into(),
            });
        };
        Ok(Issued {
            token: slot.token(&self.user, (self.clock)(), self.lifetime)?,
            at,
        })
    }

    /// Remembers which key Slurm accepts.
    pub(crate) fn accept(&self, issued: &Issued) {
        let ring = self.ring.load();
        if issued.at < ring.keys.len() {
            ring.accepted.store(issued.at, Ordering::Relaxed);
        }
    }

    /// Returns the number of keys to try.
    pub(crate) fn keys(&self) -> usize {
        self.ring.load().keys.len()
    }

    /// Returns a receiver of future rotations.
    pub(crate) fn rotations(&self) -> watch::Receiver<u64> {
        self.rotations.subscribe()
    }
}

impl Ring {
    fn new(keys: Vec<Arc<Slot>>) -> Self {
        Self {
            keys,
            accepted: AtomicUsize::new(0),
        }
    }
}

impl Slot {
    fn new(key: SecretSlice<u8>) -> Arc<Self> {
        Arc::new(Self {
            key,
            token: ArcSwapOption::empty(),
        })
    }

    fn token(&self, user: &str, now: Timestamp, lifetime: SignedDuration) -> Result<SecretString, Error> {
        if let Some(signed) = self.token.load().as_ref().filter(|signed| now < signed.renew_at) {
            return Ok(signed.token.clone());
        }
        let token = sign(user, &self.key, now, lifetime)?;
        let renew_at = now.checked_add(lifetime / 3 * 2).unwrap_or(now);
        self.token.store(Some(Arc::new(Signed {
            token: token.clone(),
            renew_at,
        })));
        Ok(token)
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer")
            .field("user", &self.user)
            .field("lifetime", &self.lifetime)
            .field("keys", &self.keys())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicI64;

    fn key(text: &str) -> SecretSlice<u8> {
        text.as_bytes().to_vec().into()
    }

    fn signer(now: &Arc<AtomicI64>) -> Signer {
        let now = Arc::clone(now);
        let clock: Clock = Arc::new(move || Timestamp::from_second(now.load(Ordering::Relaxed)).unwrap());
        Signer::new("slurm", key("first"), SignedDuration::from_mins(15), clock)
    }

    #[test]
    fn a_token_is_what_slurm_expects() {
        let token = sign(
            "bob",
            &key("k"),
            Timestamp::from_second(1_000).unwrap(),
            SignedDuration::from_secs(60),
        );
        let validation = {
            let mut validation = jsonwebtoken::Validation::new(Algorithm::HS256);
            validation.validate_exp = false;
            validation
        };
        let decoded = jsonwebtoken::decode::<serde_json::Value>(
            token.unwrap().expose_secret(),
            &jsonwebtoken::DecodingKey::from_secret(b"k"),
            &validation,
        );
        assert_eq!(
            decoded.unwrap().claims,
            serde_json::json!({"iat": 1_000, "exp": 1_060, "sun": "bob"})
        );
    }

    #[test]
    fn an_empty_key_signs_nothing() {
        let token = sign(
            "bob",
            &key(""),
            Timestamp::UNIX_EPOCH,
            SignedDuration::from_secs(60),
        );
        assert!(matches!(token, Err(Error::Signing { .. })), "{token:?}");
    }

    #[test]
    fn a_token_is_kept_until_a_third_of_its_life_is_left() {
        let now = Arc::new(AtomicI64::new(1_000_000));
        let signer = signer(&now);
        let first = signer.token().unwrap();
        now.fetch_add(599, Ordering::Relaxed);
        assert_eq!(signer.token().unwrap().expose_secret(), first.expose_secret());
        now.fetch_add(1, Ordering::Relaxed);
        assert_ne!(signer.token().unwrap().expose_secret(), first.expose_secret());
    }

    #[test]
    fn after_a_rotation_the_new_key_is_first_and_the_old_one_second() {
        let signer = signer(&Arc::new(AtomicI64::new(1_000_000)));
        let old = signer.token().unwrap();
        signer.rotate(key("second"));
        assert_eq!(signer.keys(), 2);
        let new = signer.issue(None).unwrap();
        assert_ne!(new.token.expose_secret(), old.expose_secret());
        let other = signer.issue(Some(&new)).unwrap();
        assert_eq!(other.token.expose_secret(), old.expose_secret());
        signer.accept(&other);
        assert_eq!(signer.token().unwrap().expose_secret(), old.expose_secret());
    }

    #[test]
    fn only_two_keys_are_kept_and_the_same_key_is_no_rotation() {
        let signer = signer(&Arc::new(AtomicI64::new(1_000_000)));
        signer.rotate(key("first"));
        assert_eq!(signer.keys(), 1);
        signer.rotate(key("second"));
        signer.rotate(key("third"));
        assert_eq!(signer.keys(), 2);
    }

    #[test]
    fn debug_shows_no_secret() {
        let signer = signer(&Arc::new(AtomicI64::new(1_000_000)));
        let token = signer.token().unwrap();
        let shown = format!("{signer:?} {token:?}");
        assert!(
            !shown.contains("first") && !shown.contains(token.expose_secret()),
            "{shown}"
        );
    }
}
