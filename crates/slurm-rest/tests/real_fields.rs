//! Tests that every call and field that the client uses exists in the server's API document, in every version.

mod common;

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use common::slurm_daemons::{REST_URL, Release, Setup, Slurm};
use common::{FIRST_KEY, inside, signer};
use pretty_assertions::assert_eq;
use rstest::rstest;
use secrecy::ExposeSecret as _;
use serde_json::Value;
use slurm_rest::endpoint::Endpoint;
use slurm_rest::{Version, fields};

use Version::{V41, V42, V43, V44, V45};

const SLURMDBD_CONF: &str = "DbdHost=n0\nSlurmUser=slurm\nLogFile=/dev/stdout\nAuthType=auth/slurm\n\
    AuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key=/etc/slurm/jwt.key\nAuthInfo=use_client_ids\n\
    StorageType=accounting_storage/mysql\nStorageHost=127.0.0.1\nStorageUser=slurm\nStoragePass=secret\n";

/// Fields that older versions lack, with their first version. Every other field must exist.
const SINCE: [(&str, Version); 4] = [
    ("nodes[].topology", V43),
    ("topology_str", V43),
    ("status[].step_id", V42),
    ("status[].error", V42),
];
fn expected(path: &str, version: Version) -> bool {
    SINCE
        .iter()
        .all(|(prefix, since)| !path.starts_with(prefix) || version >= *since)
}

/// Returns the calls that a release lacks in a version.
fn lacks(release: Release, version: Version) -> BTreeSet<&'static str> {
    let mut missing = BTreeSet::new();
    if version < V45 {
        missing.insert("JOBS_REQUEUE");
    }
    if version < V43 {
        missing.insert("RESERVATION_UPDATE");
    }
    if release == Release::V2411 {
        missing.insert("RESERVATION_DELETE");
    }
    missing
}

#[rstest]
#[case(Release::V2411, &[V41, V42])]
#[case(Release::V2605, &[V42, V43, V44, V45])]
fn every_name_exists(#[case] release: Release, #[case] versions: &[Version]) -> Result<()> {
    let setup = Setup {
        slurmdbd_conf: Some(SLURMDBD_CONF.into()),
        database_password: "secret".into(),
        ..Setup::default()
    };
    let Some(slurm) = Slurm::start(release, &setup)? else {
        return Ok(());
    };
    inside(&slurm, || async {
        let token = signer(FIRST_KEY).token()?;
        let document: Value = reqwest::Client::new()
            .get(format!("{REST_URL}/openapi/v3"))
            .header("X-SLURM-USER-TOKEN", token.expose_secret())
            .send()
            .await?
            .json()
            .await?;
        for version in versions {
            check(&document, release, *version)?;
        }
        Ok(())
    })
}

fn check(document: &Value, release: Release, version: Version) -> Result<()> {
    let missing: BTreeSet<&str> = slurm_rest::endpoint::ALL
        .iter()
        .filter(|(_, call)| operation(document, call, version).is_none())
        .map(|(name, _)| *name)
        .collect();
    assert_eq!(
        missing,
        lacks(release, version),
        "calls that {version} of {release:?} lacks"
    );

    let mut wrong = Vec::new();
    for (call, paths) in fields::read() {
        let Some(operation) = operation(document, &call, version) else {
            continue;
        };
        let schema = at(
            operation,
            &["responses", "200", "content", "application/json", "schema"],
        )
        .with_context(|| format!("{} has no answer", call.path))?;
        for path in paths {
            let found = find(document, schema, &path);
            if found != expected(&path, version) {
                wrong.push(format!(
                    "{version} {} {}: {path} is {}",
                    call.method,
                    call.path,
                    there(found)
                ));
            }
        }
    }
    for (call, body) in fields::written() {
        let Some(operation) = operation(document, &call, version) else {
            continue;
        };
        let schema = at(
            operation,
            &["requestBody", "content", "application/json", "schema"],
        )
        .with_context(|| format!("{} takes no body", call.path))?;
        let mut paths = BTreeSet::new();
        leaves(&body, "", &mut paths);
        for path in paths {
            let found = find(document, schema, &path);
            if found != expected(&path, version) {
                wrong.push(format!(
                    "{version} {} {}: {path} is {}",
                    call.method,
                    call.path,
                    there(found)
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{release:?}:\n{}", wrong.join("\n"));
    Ok(())
}

fn there(found: bool) -> &'static str {
    if found {
        "there, and was not expected"
    } else {
        "not there"
    }
}

fn operation<'a>(document: &'a Value, call: &Endpoint, version: Version) -> Option<&'a Value> {
    let path = call.path.replace("{version}", &version.to_string());
    document
        .get("paths")?
        .get(&path)?
        .get(call.method.as_str().to_lowercase())
}

fn at<'a>(value: &'a Value, keys: &[&str]) -> Option<&'a Value> {
    keys.iter().try_fold(value, |value, key| value.get(key))
}

fn resolve<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema
        .get("$ref")
        .and_then(Value::as_str)
        .and_then(|name| name.strip_prefix("#/components/schemas/"))
    {
        Some(name) => {
            at(document, &["components", "schemas", name]).map_or(schema, |found| resolve(document, found))
        }
        None => schema,
    }
}

/// Reports whether a path such as `nodes[].name` exists. A leaf may be any type, such as `{set, infinite, number}`.
fn find(document: &Value, schema: &Value, path: &str) -> bool {
    let mut schema = resolve(document, schema);
    for part in path.split('.') {
        let (name, list) = part.strip_suffix("[]").map_or((part, false), |name| (name, true));
        let Some(next) = schema
            .get("properties")
            .and_then(|properties| properties.get(name))
        else {
            return false;
        };
        schema = resolve(document, next);
        if list {
            let Some(items) = schema.get("items") else {
                return false;
            };
            schema = resolve(document, items);
        }
    }
    true
}

/// Returns the paths of a body. `{set, infinite, number}` is one value.
fn leaves(body: &Value, path: &str, found: &mut BTreeSet<String>) {
    match body {
        Value::Object(object) if !object.contains_key("infinite") && !object.is_empty() => {
            for (key, value) in object {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                leaves(value, &path, found);
            }
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            for item in items {
                leaves(item, &format!("{path}[]"), found);
            }
        }
        _ => {
            found.insert(path.to_owned());
        }
    }
}
