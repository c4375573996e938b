//! Slurm's JSON Web Tokens: HS256 with the unmodified bytes of the key. Does not read the clock: times are arguments.

use jiff::Timestamp;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, errors::Error};
use keelson_api::well_known::slurm::TOKEN_ISSUER;
use serde::{Deserialize, Serialize};

/// Claims of a token. Slurm reads `exp` and `sun`; the rest is for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    #[serde(default)]
    pub jti: String,
    #[serde(default)]
    pub iss: String,
    pub iat: i64,
    #[serde(default)]
    pub nbf: i64,
    pub exp: i64,
    /// The Slurm user whom the token authenticates.
    pub sun: String,
}

impl Claims {
    /// Returns claims for `user` from `now` on. `random` becomes the token's id.
    pub fn new(user: &str, now: Timestamp, lifetime_secs: i64, random: u128) -> Self {
        let now = now.as_second();
        Self {
            jti: uuid(random),
            iss: TOKEN_ISSUER.to_owned(),
            iat: now,
            nbf: now,
            exp: now.saturating_add(lifetime_secs),
            sun: user.to_owned(),
        }
    }

    pub fn lifetime_secs(&self) -> i64 {
        self.exp.saturating_sub(self.iat)
    }

    pub fn issued_at(&self) -> Timestamp {
        Timestamp::from_second(self.iat).unwrap_or(Timestamp::MAX)
    }

    pub fn expires_at(&self) -> Timestamp {
        Timestamp::from_second(self.exp).unwrap_or(Timestamp::MAX)
    }
}

pub fn sign(claims: &Claims, key: &[u8]) -> Result<String, Error> {
    let header = Header::new(Algorithm::HS256);
    jsonwebtoken::encode(&header, claims, &EncodingKey::from_secret(key))
}

/// Returns the claims if the token was signed with this key. The caller checks the expiry.
pub fn verify(token: &str, key: &[u8]) -> Result<Claims, Error> {
    let mut validation = Validation::new(Algorithm::HS256);
    validation.validate_exp = false;
    validation.validate_aud = false;
    jsonwebtoken::decode::<Claims>(token, &DecodingKey::from_secret(key), &validation).map(|data| data.claims)
}

/// Formats a UUID, version 4.
fn uuid(random: u128) -> String {
    let id = (random & !(0xf << 76) | (0x4 << 76)) & !(0x3 << 62) | (0x2 << 62);
    let hex = format!("{id:032x}");
    let mut text = String::with_capacity(36);
    for (at, digit) in hex.chars().enumerate() {
        if [8, 12, 16, 20].contains(&at) {
            text.push('-');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims() -> Claims {
        Claims::new("anna", Timestamp::from_second(1_000).unwrap(), 900, 0)
    }

    #[test]
    fn a_token_carries_what_slurm_and_people_read() {
        let token = sign(&claims(), b"key").unwrap();
        let read = verify(&token, b"key").unwrap();
        assert_eq!(read, claims());
        assert_eq!((read.sun.as_str(), read.iss.as_str()), ("anna", "slurm-operator"));
        assert_eq!((read.iat, read.nbf, read.exp), (1_000, 1_000, 1_900));
    }

    #[test]
    fn the_keys_bytes_count_line_end_included() {
        let token = sign(&claims(), b"key\n").unwrap();
        assert!(verify(&token, b"key\n").is_ok());
        assert!(verify(&token, b"key").is_err());
    }

    #[test]
    fn a_token_that_names_no_user_or_another_algorithm_is_none_of_ours() {
        let unsigned = "eyJhbGciOiJub25lIn0.eyJleHAiOjEsImlhdCI6MCwic3VuIjoicm9vdCJ9.";
        for text in ["", "not a token", unsigned] {
            assert!(verify(text, b"key").is_err(), "{text:?}");
        }
        let header = Header::new(Algorithm::HS256);
        let nobody = jsonwebtoken::encode(
            &header,
            &serde_json::json!({ "iat": 0, "exp": 1 }),
            &EncodingKey::from_secret(b"key"),
        );
        assert!(verify(&nobody.unwrap(), b"key").is_err());
    }

    #[test]
    fn ids_have_the_form_of_a_uuid() {
        assert_eq!(uuid(0), "00000000-0000-4000-8000-000000000000");
        assert_eq!(uuid(u128::MAX), "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }
}
