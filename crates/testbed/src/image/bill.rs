//! The bill of materials of an image: every Debian package and every crate in it, as `CycloneDX`. Pure.

use serde_json::{Value, json};

use super::packages::Package;

/// A crate linked into one of our programs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Crate {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The checksum of its archive in the lock file; our own crates have none.
    pub sha256: Option<String>,
}

/// The bill of materials of an image.
pub(super) fn of_image(name: &str, digest: &str, packages: &[Package], crates: &[Crate]) -> Value {
    let (repository, version) = name.rsplit_once(':').unwrap_or((name, "latest"));
    let debian = packages.iter().map(|package| {
        let Package {
            name,
            version,
            architecture,
            sha256,
            ..
        } = package;
        let (escaped_name, escaped_version) = (escaped(name), escaped(version));
        json!({
            "type": "library", "name": name, "version": version,
            "purl": format!("pkg:deb/debian/{escaped_name}@{escaped_version}?arch={architecture}"),
            "hashes": [{ "alg": "SHA-256", "content": sha256 }],
        })
    });
    let rust = crates.iter().map(|part| {
        let mut component = json!({
            "type": "library", "name": part.name, "version": part.version,
            "purl": format!("pkg:cargo/{}@{}", escaped(&part.name), escaped(&part.version)),
        });
        if let (Some(sha256), Some(fields)) = (&part.sha256, component.as_object_mut()) {
            fields.insert("hashes".into(), json!([{ "alg": "SHA-256", "content": sha256 }]));
        }
        component
    });
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": { "component": {
            "type": "container", "name": repository, "version": version,
            "purl": format!("pkg:oci/{}@{}", repository.rsplit('/').next().unwrap_or(repository), escaped(digest)),
        } },
        "components": debian.chain(rust).collect::<Vec<_>>(),
    })
}

/// A part of a package URL.
fn escaped(text: &str) -> String {
    text.chars()
        .map(|letter| match letter {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '-' | '_' | '~' => letter.to_string(),
            other => format!("%{:02X}", u32::from(other)),
        })
        .collect()
}

/// The crates in the output of `cargo tree` (`name v1.2.3 …` on each line), with their hashes from `Cargo.lock`.
pub fn crates(tree: &str, lock: &str) -> Vec<Crate> {
    let mut hashes = std::collections::BTreeMap::new();
    for block in lock.split("[[package]]") {
        let field = |name: &str| {
            let start = format!("{name} = \"");
            block
                .lines()
                .find_map(|line| line.strip_prefix(&start)?.strip_suffix('"'))
        };
        if let (Some(name), Some(version), Some(sha256)) =
            (field("name"), field("version"), field("checksum"))
        {
            hashes.insert((name, version), sha256);
        }
    }
    let mut crates: Vec<Crate> = tree
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
            Some(Crate {
                name: name.to_owned(),
                version: version.to_owned(),
                sha256: hashes.get(&(name, version)).map(|&sha256| sha256.to_owned()),
            })
        })
        .collect();
    crates.sort();
    crates.dedup();
    crates
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "[[package]]\nname = \"serde\"\nversion = \"1.0.0\"\nchecksum = \"abc\"\n\n\
                        [[package]]\nname = \"keelson\"\nversion = \"0.1.0\"\n";

    #[test]
    fn crates_are_named_once_with_the_hash_that_is_locked() {
        let tree = "keelson v0.1.0 (/src)\nserde v1.0.0\n\nserde v1.0.0 (*)\n";
        let part = |name: &str, version: &str, sha256: Option<&str>| Crate {
            name: name.into(),
            version: version.into(),
            sha256: sha256.map(str::to_owned),
        };
        assert_eq!(
            crates(tree, LOCK),
            [
                part("keelson", "0.1.0", None),
                part("serde", "1.0.0", Some("abc"))
            ]
        );
    }

    #[test]
    fn every_part_has_a_package_url() {
        let package = Package {
            name: "libstdc++6".into(),
            version: "1:16.2".into(),
            architecture: "amd64".into(),
            size: 1,
            sha256: "def".into(),
            path: String::new(),
        };
        let bill = of_image(
            "localhost/keelson/slurm-operator:0.1.0",
            "sha256:1",
            &[package],
            &crates("serde v1.0.0", LOCK),
        );
        let urls: Vec<&str> = bill["components"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|part| part["purl"].as_str())
            .collect();
        assert_eq!(
            urls,
            [
                "pkg:deb/debian/libstdc%2B%2B6@1%3A16.2?arch=amd64",
                "pkg:cargo/serde@1.0.0"
            ]
        );
        assert_eq!(bill["components"][1]["hashes"][0]["content"], "abc");
    }
}
