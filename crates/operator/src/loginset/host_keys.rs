//! SSH host keys: made once and kept, so that users are not warned of a changed host.

use keelson_api::well_known::file;
use ssh_key::{
    Algorithm, EcdsaCurve, LineEnding, PrivateKey,
    private::{KeypairData, RsaKeypair},
    rand_core::OsRng,
};

/// OpenSSH's own choice for new RSA keys.
const RSA_BITS: usize = 3_072;

/// Files by name: the private halves and the public ones.
pub type Files = Vec<(String, String)>;

/// Takes seconds of computing: not for an async task.
pub fn generate(comment: &str) -> Result<Files, ssh_key::Error> {
    let [rsa, ecdsa, ed25519] = file::SSH_HOST_KEYS;
    let keys = [
        (
            rsa,
            PrivateKey::new(
                KeypairData::Rsa(RsaKeypair::random(&mut OsRng, RSA_BITS)?),
                comment,
            )?,
        ),
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
