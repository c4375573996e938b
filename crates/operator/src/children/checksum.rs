//! Checksums in Slinky's form, so that an adopted pod template with the same content has the same annotations.

use std::{collections::BTreeMap, fmt::Write as _};

use k8s_openapi::ByteString;
use sha2::{Digest, Sha256};

/// Returns the SHA-256 in hexadecimal.
pub fn of_bytes(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Returns the checksum of the values in key order; empty for an empty map.
pub fn of_texts(data: &BTreeMap<String, String>) -> String {
    of_values(data.values().map(String::as_bytes))
}

/// Like [`of_texts`], for the content of a Secret.
pub fn of_secret(data: &BTreeMap<String, ByteString>) -> String {
    of_values(data.values().map(|value| value.0.as_slice()))
}

fn of_values<'a>(values: impl Iterator<Item = &'a [u8]>) -> String {
    let mut hasher = Sha256::new();
    let mut empty = true;
    for value in values {
        empty = false;
        hasher.update(value);
    }
    if empty {
        String::new()
    } else {
        hex(&hasher.finalize())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_concatenated_in_the_order_of_their_keys() {
        let data = BTreeMap::from([("b".to_owned(), "2".to_owned()), ("a".to_owned(), "1".to_owned())]);
        assert_eq!(of_texts(&data), of_bytes(b"12"));
    }

    #[test]
    fn an_empty_map_has_no_checksum() {
        assert_eq!(of_texts(&BTreeMap::new()), "");
    }
}
