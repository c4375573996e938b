//! Names for secret contents: HMAC-SHA256 (RFC 2104) in hexadecimal. Without the key, the content cannot be recovered from its
//! name by guessing a password or a weak key.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

const BLOCK: usize = 64;

/// Returns the name of a content under a key. `what` is the type of the content, so that equal contents of different types get
/// different names.
pub fn keyed(key: &[u8], what: &str, content: &[u8]) -> String {
    hex(hmac(key, &[what.as_bytes(), &[0], content]))
}

/// Returns the name of a configuration. The hash covers each file, in the order of names, as its name, a zero byte, its length
/// in 8 bytes, and its content. The operator and the first process in the pods compare these names.
pub fn of_files<'a>(files: impl IntoIterator<Item = (&'a String, &'a Vec<u8>)>) -> String {
    let mut hasher = Sha256::new();
    for (name, content) in files {
        hasher.update(name);
        hasher.update([0]);
        hasher.update(u64::try_from(content.len()).unwrap_or(u64::MAX).to_le_bytes());
        hasher.update(content);
    }
    hex(hasher.finalize().into())
}

fn hex(bytes: [u8; 32]) -> String {
    bytes.iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut block = [0; BLOCK];
    let hashed;
    let key = if key.len() > BLOCK {
        hashed = Sha256::digest(key);
        hashed.as_slice()
    } else {
        key
    };
    for (slot, byte) in block.iter_mut().zip(key) {
        *slot = *byte;
    }
    let padded = |with: u8| block.map(|byte| byte ^ with);
    let mut inner = Sha256::new();
    inner.update(padded(0x36));
    for part in parts {
        inner.update(part);
    }
    let mut outer = Sha256::new();
    outer.update(padded(0x5c));
    outer.update(inner.finalize());
    outer.finalize().into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rstest::rstest;

    use super::*;

    /// RFC 4231, test cases 1, 2 and 6.
    #[rstest]
    #[case(&[0x0b; 20], b"Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7")]
    #[case(
        b"Jefe",
        b"what do ya want for nothing?",
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    )]
    #[case(&[0xaa; 131], b"Test Using Larger Than Block-Size Key - Hash Key First", "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54")]
    fn the_known_answers(#[case] key: &[u8], #[case] data: &[u8], #[case] expected: &str) {
        assert_eq!(hex(hmac(key, &[data])), expected);
    }

    #[test]
    fn key_content_and_sort_make_the_name() {
        let name = keyed(b"k", "jwt.key", b"content");
        assert_ne!(name, keyed(b"l", "jwt.key", b"content"));
        assert_ne!(name, keyed(b"k", "slurm.key", b"content"));
        assert_ne!(name, keyed(b"k", "jwt.key", b"contents"));
        assert_eq!(name.len(), 64);
    }

    #[test]
    fn the_name_of_files_covers_names_lengths_and_contents() {
        let files = BTreeMap::from([("a".to_owned(), b"x".to_vec()), ("b".to_owned(), vec![])]);
        // printf 'a\0\1\0\0\0\0\0\0\0xb\0\0\0\0\0\0\0\0\0' | sha256sum
        assert_eq!(
            of_files(&files),
            "ec83637240ceaafb16aca0c8ad9b3f18a826061b82504648c7df65ef63e6eb06"
        );
    }
}
