//! SSH host keys, created once and kept, so that users get no warning about a changed host key.

use aws_lc_rs::encoding::{AsDer as _, Pkcs8V1Der};
use aws_lc_rs::rsa::{KeyPair, KeySize};
use keelson_api::well_known::file;
use pkcs8::der::Decode as _;
use ssh_key::{
    Algorithm, EcdsaCurve, LineEnding, Mpint, PrivateKey,
    private::{KeypairData, RsaKeypair, RsaPrivateKey},
    public::RsaPublicKey,
    rand_core::OsRng,
};

/// OpenSSH's own size for new RSA keys.
const RSA_SIZE: KeySize = KeySize::Rsa3072;

/// Private and public keys: file names and contents.
pub type Files = Vec<(String, String)>;

/// Reason why key generation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to generate an RSA key")]
    Rsa(#[from] aws_lc_rs::error::Unspecified),
    #[error("failed to parse an RSA key")]
    Der(#[from] pkcs8::der::Error),
    #[error(transparent)]
    Ssh(#[from] ssh_key::Error),
}

/// Takes a large part of a second of CPU time, so it must not run in an async task.
pub fn generate(comment: &str) -> Result<Files, Error> {
    let [rsa, ecdsa, ed25519] = file::SSH_HOST_KEYS;
    let keys = [
        (rsa, PrivateKey::new(KeypairData::Rsa(rsa_keypair()?), comment)?),
        (
            ecdsa,
            PrivateKey::random(
                &mut OsRng,
                Algorithm::Ecdsa {
                    curve: EcdsaCurve::NistP256,
                },
            )?,
        ),
        (ed25519, PrivateKey::random(&mut OsRng, Algorithm::Ed25519)?),
    ];
    let mut files = Files::new();
    for (name, mut key) in keys {
        key.set_comment(comment);
        files.push((name.to_owned(), key.to_openssh(LineEnding::LF)?.to_string()));
        files.push((
            format!("{name}.pub"),
            format!("{}\n", key.public_key().to_openssh()?),
        ));
    }
    Ok(files)
}

/// Uses the library that does our TLS: finding primes in pure Rust takes nine times as long, seconds of CPU time.
fn rsa_keypair() -> Result<RsaKeypair, Error> {
    let der: Pkcs8V1Der<'static> = KeyPair::generate(RSA_SIZE)?.as_der()?;
    let outer = pkcs8::PrivateKeyInfo::from_der(der.as_ref())?;
    let key = pkcs1::RsaPrivateKey::from_der(outer.private_key)?;
    let number = |uint: pkcs1::UintRef<'_>| Mpint::from_positive_bytes(uint.as_bytes());
    Ok(RsaKeypair {
        public: RsaPublicKey {
            e: number(key.public_exponent)?,
            n: number(key.modulus)?,
        },
        private: RsaPrivateKey {
            d: number(key.private_exponent)?,
            iqmp: number(key.coefficient)?,
            p: number(key.prime1)?,
            q: number(key.prime2)?,
        },
    })
}
