//! Volumes and mounts.

use keelson_api::references::{ConfigMapKeySelector, SecretKeySelector};
use serde_json::{Value, json};

/// File modes in octal.
pub const OWNER_ONLY: i32 = 0o600;
pub const READABLE: i32 = 0o644;

pub fn memory(name: &str) -> Value {
    json!({ "name": name, "emptyDir": { "medium": "Memory" } })
}

pub fn scratch(name: &str) -> Value {
    json!({ "name": name, "emptyDir": {} })
}

pub fn claim(name: &str, claim: &str) -> Value {
    json!({ "name": name, "persistentVolumeClaim": { "claimName": claim } })
}

pub fn projected(name: &str, default_mode: i32, sources: &[Value]) -> Value {
    json!({ "name": name, "projected": { "defaultMode": default_mode, "sources": sources } })
}

pub fn config_map(name: &str) -> Value {
    json!({ "configMap": { "name": name } })
}

/// Projects one key of a ConfigMap as the file `path`.
pub fn config_map_key(name: &str, key: &str, path: &str, mode: Option<i32>) -> Value {
    json!({ "configMap": { "name": name, "items": [item(key, path, mode)] } })
}

/// Projects one key of a Secret as the file `path`.
pub fn secret_key(reference: &SecretKeySelector, path: &str, mode: Option<i32>) -> Value {
    json!({ "secret": { "name": reference.name, "items": [item(&reference.key, path, mode)] } })
}

/// Projects some keys of a Secret, each as a file named after its key.
pub fn secret_keys(name: &str, keys: &[(String, i32)]) -> Value {
    let items: Vec<Value> = keys
        .iter()
        .map(|(key, mode)| item(key, key, Some(*mode)))
        .collect();
    json!({ "secret": { "name": name, "items": items } })
}

/// Projects the key set for tokens that others sign.
pub fn jwks(reference: &ConfigMapKeySelector, path: &str) -> Value {
    config_map_key(&reference.name, &reference.key, path, None)
}

fn item(key: &str, path: &str, mode: Option<i32>) -> Value {
    match mode {
        Some(mode) => json!({ "key": key, "path": path, "mode": mode }),
        None => json!({ "key": key, "path": path }),
    }
}

pub fn mount(volume: &str, path: &str) -> Value {
    json!({ "name": volume, "mountPath": path })
}

pub fn read_only(volume: &str, path: &str) -> Value {
    json!({ "name": volume, "mountPath": path, "readOnly": true })
}

/// Mounts one file of a volume at `directory/file`.
pub fn file(volume: &str, directory: &str, file: &str) -> Value {
    json!({ "name": volume, "mountPath": format!("{directory}/{file}"), "subPath": file, "readOnly": true })
}
