//! Writes to Kubernetes, skipped when they would change nothing.
//!
//! Child objects are built from scratch and written by server-side apply. An annotation stores a hash of the applied
//! object, which detects fields that we no longer send; comparing the sent fields with the live object detects edits by
//! others. The API server may normalize a value (`1000m` becomes `1`), so the result of our last apply is remembered and
//! such a field does not look edited.

use std::{collections::HashMap, fmt, marker::PhantomData, sync::Arc, time::Duration};

use keelson_api::well_known::annotation::APPLIED_HASH;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy},
    core::NamespaceResourceScope,
};
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::{Key, field_managers, metrics::Metrics, ownership};

const CALL_LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{verb} of {kind} {object} failed")]
    Call {
        verb: &'static str,
        kind: String,
        object: Key,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("{verb} of {kind} {object} timed out after {CALL_LIMIT:?}")]
    Timeout {
        verb: &'static str,
        kind: String,
        object: Key,
    },
    #[error(
        "{kind} {object} already exists and is not managed by this operator: delete or rename it, or rename the \
         object that needs this name"
    )]
    Foreign { kind: String, object: Key },
    #[error("{kind} {object} belongs to {owner}: rename one of the objects that need this name")]
    Owned {
        kind: String,
        object: Key,
        owner: Box<str>,
    },
    #[error("failed to serialize {kind} {object}")]
    Encode {
        kind: String,
        object: Key,
        #[source]
        source: serde_json::Error,
    },
}

impl Error {
    /// Returns the API server's response, if there was one.
    pub fn status(&self) -> Option<&kube::core::Status> {
        match self {
            Self::Call { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            _ => None,
        }
    }

    pub fn is_not_found(&self) -> bool {
        self.status().is_some_and(kube::core::Status::is_not_found)
    }

    pub fn is_conflict(&self) -> bool {
        self.status().is_some_and(kube::core::Status::is_conflict)
    }

    pub fn is_already_exists(&self) -> bool {
        self.status().is_some_and(kube::core::Status::is_already_exists)
    }
}

/// A complete desired object, in the form in which it is sent.
#[derive(Clone)]
pub struct Desired<K> {
    pub value: Value,
    kind: PhantomData<fn() -> K>,
}

impl<K> fmt::Debug for Desired<K> {
    /// Omits the content of Secrets, because debug output ends up in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.value.clone();
        if value.get("kind").and_then(Value::as_str) == Some("Secret") {
            for field in ["data", "stringData"] {
                if let Some(content) = value.get_mut(field) {
                    *content = json!("(redacted)");
                }
            }
        }
        f.debug_tuple("Desired").field(&value).finish()
    }
}

impl<K: Resource<DynamicType = ()>> Desired<K> {
    /// Takes the body of an object and sets `apiVersion` and `kind`.
    pub fn new(mut value: Value) -> Self {
        if let Value::Object(fields) = &mut value {
            fields.insert("apiVersion".into(), json!(K::api_version(&())));
            fields.insert("kind".into(), json!(K::kind(&())));
        }
        Self {
            value,
            kind: PhantomData,
        }
    }

    /// Reports whether the object was last written by an apply of this value.
    pub fn is_applied_to(&self, live: &impl ResourceExt) -> bool {
        live.annotations().get(APPLIED_HASH) == Some(&hash(&self.value))
    }

    /// Returns the fields of `live` that differ from this value, as paths. The server may have added others.
    pub fn edited_fields<L: Serialize>(&self, live: &L) -> Vec<String> {
        let mut edited = Vec::new();
        if let Ok(live) = serde_json::to_value(live) {
            differences("", &live, &self.value, &mut edited);
        }
        edited
    }

    pub fn key(&self) -> Key {
        let text = |pointer| {
            self.value
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        Key::new(text("/metadata/namespace"), text("/metadata/name"))
    }
}

/// The result of an apply.
#[derive(Debug)]
pub enum Applied<K> {
    Unchanged,
    Created(K),
    Changed(K),
}

impl<K> Applied<K> {
    /// Returns the object as stored by the server, if it was written.
    pub fn written(self) -> Option<K> {
        match self {
            Self::Unchanged => None,
            Self::Created(object) | Self::Changed(object) => Some(object),
        }
    }
}

/// How long a [`Memo`] is kept after its last use. Objects are compared more often than this as long as they exist; what
/// is forgotten too early costs one write.
const MEMO_LIFETIME: Duration = Duration::from_hours(24);

/// Hashes of an object that the API server stored in a different form than was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Memo {
    desired: String,
    stored: String,
    used: Instant,
}

/// The memos by UID.
#[derive(Debug, Default)]
struct Memos(HashMap<String, Memo>);

impl Memos {
    /// Adds a memo and drops those of objects that are gone: the garbage collector deletes most of them.
    fn insert(&mut self, uid: String, memo: Memo) {
        self.0
            .retain(|_, known| memo.used.duration_since(known.used) < MEMO_LIFETIME);
        self.0.insert(uid, memo);
    }

    fn remove(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    /// Reports whether the object is stored as the API server stored it after the apply with this hash.
    fn matches(&mut self, uid: &str, desired: &str, stored: &str, now: Instant) -> bool {
        let Some(memo) = self.0.get_mut(uid) else {
            return false;
        };
        memo.used = now;
        memo.desired == desired && memo.stored == stored
    }
}

/// Writes objects as one field manager.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    manager: &'static str,
    metrics: Metrics,
    memos: Arc<Mutex<Memos>>,
    /// An additional owner of every applied object that has owners.
    anchor: Option<Value>,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("manager", &self.manager)
            .finish_non_exhaustive()
    }
}

impl Writer {
    pub fn new(client: Client, manager: &'static str, metrics: Metrics) -> Self {
        Self {
            client,
            manager,
            metrics,
            memos: Arc::default(),
            anchor: None,
        }
    }

    /// Returns a writer that adds `anchor` to the owners of every applied object that has owners.
    #[must_use]
    pub fn anchored(&self, anchor: Option<Value>) -> Self {
        Self {
            anchor,
            ..self.clone()
        }
    }

    fn with_anchor<K>(&self, desired: &Desired<K>) -> Value {
        let mut value = desired.value.clone();
        let owners = value.pointer_mut("/metadata/ownerReferences");
        if let (Some(Value::Array(owners)), Some(anchor)) = (owners, &self.anchor) {
            owners.push(anchor.clone());
        }
        value
    }

    fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Applies the object, unless `live` already matches it or is being deleted.
    pub async fn apply<K>(&self, desired: &Desired<K>, live: Option<&K>) -> Result<Applied<K>, Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + Serialize + DeserializeOwned + fmt::Debug,
    {
        let key = desired.key();
        // Hash without the anchor: `Desired::is_applied_to` compares with an object that has none.
        let hash = hash(&desired.value);
        let desired = Desired::<K>::new(self.with_anchor(desired));
        if let Some(live) = live {
            if live.meta().deletion_timestamp.is_some() {
                return Ok(Applied::Unchanged);
            }
            let stored = encode::<K>(live, &key)?;
            if self.is_current(live, &stored, &desired.value, &hash) {
                return Ok(Applied::Unchanged);
            }
        }
        if !live.is_some_and(|live| ownership::is_marked(live.meta())) {
            self.claim(&desired).await?;
        }
        let mut body = desired.value.clone();
        if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
            let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
            if let Some(annotations) = annotations.as_object_mut() {
                annotations.insert(APPLIED_HASH.into(), json!(hash));
            }
        }
        let params = PatchParams::apply(self.manager).force();
        let api = self.api::<K>(&key.namespace);
        let patch = Patch::Apply(&body);
        let written: K = self
            .call::<K, _>("apply", &key, api.patch(&key.name, &params, &patch))
            .await?;
        if let Some(uid) = written.uid() {
            let stored = encode::<K>(&written, &key)?;
            let mut memos = self.memos.lock();
            if contains(&stored, &desired.value) {
                memos.remove(&uid);
            } else {
                let memo = Memo {
                    stored: self::hash(&project(&desired.value, &stored)),
                    desired: hash,
                    used: Instant::now(),
                };
                memos.insert(uid, memo);
            }
        }
        tracing::info!(kind = %K::kind(&()), object = %key, created = live.is_none(), "applied");
        Ok(if live.is_none() {
            Applied::Created(written)
        } else {
            Applied::Changed(written)
        })
    }

    /// Checks that an object without our annotation does not exist or is ours by another sign. Moves the fields of the
    /// previous operator to our field manager, so that the apply removes those that we do not send.
    async fn claim<K>(&self, desired: &Desired<K>) -> Result<(), Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + DeserializeOwned + fmt::Debug,
    {
        let key = &desired.key();
        let api = self.api::<K>(&key.namespace);
        // Caches keep no managed fields, and may not know an object yet.
        let Some(live) = self
            .call::<K, _>("get", key, api.get_metadata_opt(&key.name))
            .await?
        else {
            return Ok(());
        };
        if !ownership::is_ours(&live.metadata, &desired.value, self.manager) {
            return Err(Error::Foreign {
                kind: K::kind(&()).into_owned(),
                object: key.clone(),
            });
        }
        let Some(entries) = field_managers::migrated(live.managed_fields(), self.manager) else {
            return Ok(());
        };
        let patch = json!({ "metadata": {
            "managedFields": entries,
            "resourceVersion": live.resource_version(),
        } });
        let params = PatchParams {
            field_manager: Some(self.manager.to_owned()),
            ..PatchParams::default()
        };
        self.call::<K, _>(
            "adopt",
            key,
            api.patch_metadata(&key.name, &params, &Patch::Merge(&patch)),
        )
        .await?;
        tracing::info!(kind = %K::kind(&()), object = %key, "adopted");
        Ok(())
    }

    fn is_current<K: ResourceExt>(&self, live: &K, stored: &Value, desired: &Value, hash: &str) -> bool {
        if live.annotations().get(APPLIED_HASH).map(String::as_str) != Some(hash) {
            return false;
        }
        if contains(stored, desired) {
            return true;
        }
        let stored = self::hash(&project(desired, stored));
        live.uid()
            .is_some_and(|uid| self.memos.lock().matches(&uid, hash, &stored, Instant::now()))
    }

    /// Applies the status unless it is unchanged. The whole status belongs to this manager.
    pub async fn apply_status<K>(
        &self,
        live: &K,
        live_status: &Value,
        status: &Value,
    ) -> Result<Option<K>, Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + DeserializeOwned + fmt::Debug,
    {
        if live_status == status {
            return Ok(None);
        }
        let key = Key::of(live);
        let body = json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            "metadata": { "name": key.name, "namespace": key.namespace, "uid": live.uid() },
            "status": status,
        });
        let params = PatchParams::apply(self.manager).force();
        let api = self.api::<K>(&key.namespace);
        let patch = Patch::Apply(&body);
        match self
            .call::<K, _>("apply status", &key, api.patch_status(&key.name, &params, &patch))
            .await
        {
            Ok(written) => Ok(Some(written)),
            // The object is gone, or a successor has its name: nothing to report to.
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates an object; fails if the name is taken.
    pub async fn create<K>(&self, desired: &Desired<K>) -> Result<K, Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + Serialize + DeserializeOwned + fmt::Debug,
    {
        let key = desired.key();
        let object: K = serde_json::from_value(desired.value.clone()).map_err(|source| Error::Encode {
            kind: K::kind(&()).into_owned(),
            object: key.clone(),
            source,
        })?;
        let params = PostParams {
            field_manager: Some(self.manager.to_owned()),
            ..PostParams::default()
        };
        let api = self.api::<K>(&key.namespace);
        self.call::<K, _>("create", &key, api.create(&params, &object))
            .await
    }

    /// Changes an object by merge patch, only if it still has the same UID.
    pub async fn merge<K>(&self, object: &K, patch: Value) -> Result<K, Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + DeserializeOwned + fmt::Debug,
    {
        let key = Key::of(object);
        let patch = with_uid(patch, object);
        let params = PatchParams {
            field_manager: Some(self.manager.to_owned()),
            ..PatchParams::default()
        };
        let api = self.api::<K>(&key.namespace);
        self.call::<K, _>(
            "patch",
            &key,
            api.patch(&key.name, &params, &Patch::Merge(&patch)),
        )
        .await
    }

    /// Changes the status by strategic merge patch, which merges lists by their keys: other writers' entries stay.
    pub async fn patch_status<K>(&self, object: &K, patch: Value) -> Result<K, Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + DeserializeOwned + fmt::Debug,
    {
        let key = Key::of(object);
        let patch = with_uid(patch, object);
        let params = PatchParams {
            field_manager: Some(self.manager.to_owned()),
            ..PatchParams::default()
        };
        let api = self.api::<K>(&key.namespace);
        self.call::<K, _>(
            "patch status",
            &key,
            api.patch_status(&key.name, &params, &Patch::Strategic(&patch)),
        )
        .await
    }

    /// Adds or removes a finalizer if necessary. Fails when the object has changed since it was read: other writers
    /// change the list of finalizers too.
    pub async fn finalizer<K>(&self, object: &K, name: &str, wanted: bool) -> Result<Option<K>, Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + DeserializeOwned + fmt::Debug,
    {
        let mut finalizers = object.finalizers().to_vec();
        if finalizers.iter().any(|known| known == name) == wanted {
            return Ok(None);
        }
        // The server accepts no new finalizer on an object that is being deleted.
        if wanted && object.meta().deletion_timestamp.is_some() {
            return Ok(None);
        }
        finalizers.retain(|known| known != name);
        if wanted {
            finalizers.push(name.to_owned());
        }
        let patch = json!({ "metadata": {
            "finalizers": finalizers,
            "resourceVersion": object.resource_version(),
        } });
        match self.merge(object, patch).await {
            Ok(written) => Ok(Some(written)),
            // Without the finalizer the object must not get children, so only a removal ignores that it is gone.
            Err(error) if error.is_not_found() && !wanted => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes the object only as it was read. Returns `Ok(false)` if it is gone, or was replaced or changed since.
    pub async fn delete<K>(&self, object: &K) -> Result<bool, Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + DeserializeOwned + fmt::Debug,
    {
        let key = Key::of(object);
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: object.uid(),
                resource_version: object.resource_version(),
            }),
            propagation_policy: Some(PropagationPolicy::Background),
            ..DeleteParams::default()
        };
        let api = self.api::<K>(&key.namespace);
        match self
            .call::<K, _>("delete", &key, api.delete(&key.name, &params))
            .await
        {
            Ok(_) => {
                if let Some(uid) = object.uid() {
                    self.memos.lock().remove(&uid);
                }
                tracing::info!(kind = %K::kind(&()), object = %key, "deleted");
                Ok(true)
            }
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn call<K, T>(
        &self,
        verb: &'static str,
        key: &Key,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Error>
    where
        K: Resource<DynamicType = ()>,
    {
        let kind = K::kind(&()).into_owned();
        let answer = tokio::time::timeout(CALL_LIMIT, call).await;
        self.metrics.wrote(&kind, verb, matches!(answer, Ok(Ok(_))));
        match answer {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(source)) => Err(Error::Call {
                verb,
                kind,
                object: key.clone(),
                source: Box::new(source),
            }),
            Err(_) => Err(Error::Timeout {
                verb,
                kind,
                object: key.clone(),
            }),
        }
    }
}

fn with_uid<K: ResourceExt>(mut patch: Value, object: &K) -> Value {
    if let (Value::Object(fields), Some(uid)) = (&mut patch, object.uid()) {
        let metadata = fields.entry("metadata").or_insert_with(|| json!({}));
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.insert("uid".into(), json!(uid));
        }
    }
    patch
}

fn encode<K: Resource<DynamicType = ()> + Serialize>(object: &K, key: &Key) -> Result<Value, Error> {
    serde_json::to_value(object).map_err(|source| Error::Encode {
        kind: K::kind(&()).into_owned(),
        object: key.clone(),
        source,
    })
}

/// Returns a short hash of the value; keys are sorted, as `serde_json` keeps them.
pub fn hash(value: &Value) -> String {
    let digest = Sha256::digest(value.to_string().as_bytes());
    digest
        .iter()
        .take(16)
        .fold(String::with_capacity(32), |mut text, byte| {
            use fmt::Write as _;
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// Reports whether `live` has every wanted value; the server may have added others.
fn contains(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => wanted.iter().all(|(name, wanted)| {
            live.get(name)
                .map_or_else(|| is_empty(wanted), |live| contains(live, wanted))
        }),
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len()
                && live
                    .iter()
                    .zip(wanted)
                    .all(|(live, wanted)| contains(live, wanted))
        }
        _ => live == wanted,
    }
}

/// Adds the paths of wanted values that `live` does not have.
fn differences(path: &str, live: &Value, wanted: &Value, found: &mut Vec<String>) {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => {
            for (name, wanted) in wanted {
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                match live.get(name) {
                    Some(live) => differences(&path, live, wanted, found),
                    None if is_empty(wanted) => {}
                    None => found.push(path),
                }
            }
        }
        (live, wanted) if contains(live, wanted) => {}
        _ => found.push(path.to_owned()),
    }
}

/// The server drops empty maps and lists.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// Returns the live values of the fields that `wanted` has.
fn project(wanted: &Value, live: &Value) -> Value {
    match (wanted, live) {
        (Value::Object(wanted), Value::Object(live)) => wanted
            .iter()
            .map(|(name, wanted)| {
                (
                    name.clone(),
                    project(wanted, live.get(name).unwrap_or(&Value::Null)),
                )
            })
            .collect(),
        (Value::Array(wanted), Value::Array(live)) if wanted.len() == live.len() => wanted
            .iter()
            .zip(live)
            .map(|(wanted, live)| project(wanted, live))
            .collect(),
        _ => live.clone(),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::defaults_added(json!({"a": 1, "b": {"c": 2, "d": 3}}), json!({"b": {"c": 2}}), true)]
    #[case::edited(json!({"a": 1}), json!({"a": 2}), false)]
    #[case::missing(json!({}), json!({"a": 2}), false)]
    #[case::empty_map_dropped(json!({}), json!({"a": {}}), true)]
    #[case::list_items_defaulted(json!({"l": [{"n": "x", "p": "TCP"}]}), json!({"l": [{"n": "x"}]}), true)]
    #[case::list_grew(json!({"l": [{"n": "x"}, {"n": "y"}]}), json!({"l": [{"n": "x"}]}), false)]
    #[case::false_is_not_absent(json!({}), json!({"a": false}), false)]
    fn the_live_object_is_compared_only_where_we_have_a_say(
        #[case] live: Value,
        #[case] wanted: Value,
        #[case] expected: bool,
    ) {
        assert_eq!(contains(&live, &wanted), expected);
    }

    #[test]
    fn a_value_that_the_server_rewrites_is_an_edit_only_when_it_changes_again() {
        let wanted = json!({"cpu": "1000m", "x": 1});
        let stored = json!({"cpu": "1", "x": 1, "status": "other"});
        assert!(!contains(&stored, &wanted));
        let remembered = project(&wanted, &stored);
        assert_eq!(
            project(&wanted, &json!({"cpu": "1", "x": 1, "status": "new"})),
            remembered
        );
        assert_ne!(project(&wanted, &json!({"cpu": "2", "x": 1})), remembered);
    }

    #[test]
    fn memos_of_objects_that_are_gone_are_dropped() {
        let start = Instant::now();
        let memo = |used| Memo {
            desired: "d".into(),
            stored: "s".into(),
            used,
        };
        let mut memos = Memos::default();
        memos.insert("gone".into(), memo(start));
        memos.insert("kept".into(), memo(start));
        let later = start + MEMO_LIFETIME / 2;
        assert!(memos.matches("kept", "d", "s", later));
        assert!(!memos.matches("kept", "d", "edited", later));
        memos.insert("new".into(), memo(start + MEMO_LIFETIME));
        let mut left: Vec<_> = memos.0.into_keys().collect();
        left.sort();
        assert_eq!(left, ["kept", "new"]);
    }

    #[test]
    fn what_is_debugged_shows_no_secret() {
        let secret = json!({ "metadata": { "name": "s" }, "data": { "k": "aHVudGVyMg==" }, "stringData": { "k": "hunter2" } });
        let text = format!("{:?}", Desired::<Secret>::new(secret));
        assert!(text.contains("\"name\": String(\"s\")"), "{text}");
        assert!(
            !text.contains("hunter2") && !text.contains("aHVudGVyMg"),
            "{text}"
        );
        let map = json!({ "data": { "k": "v" } });
        assert!(format!("{:?}", Desired::<ConfigMap>::new(map)).contains('v'));
    }

    /// A fake API server with this object, or none; also returns the log of request methods.
    fn fake_server(metadata: Option<Value>) -> (Writer, Arc<Mutex<Vec<String>>>) {
        use axum::{body::Body, http};
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            log.lock().push(request.method().to_string());
            let (status, body) = match (request.method(), &metadata) {
                (&http::Method::GET, None) => (
                    404,
                    json!({ "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound" }),
                ),
                (_, metadata) => (
                    200,
                    json!({ "apiVersion": "v1", "kind": "Service",
                    "metadata": metadata.clone().unwrap_or_else(|| json!({ "name": "grafana", "namespace": "ns" })) }),
                ),
            };
            async move {
                let response = http::Response::builder()
                    .status(status)
                    .body(Body::from(body.to_string()));
                Ok::<_, std::convert::Infallible>(response.unwrap())
            }
        });
        let writer = Writer::new(
            Client::new(service, "ns"),
            "slurm-operator/loginset",
            Metrics::default(),
        );
        (writer, asked)
    }

    #[rstest]
    #[case::free(None, &["GET", "PATCH"])]
    #[case::somebody_elses(Some(json!({ "name": "grafana", "namespace": "ns" })), &[])]
    #[case::our_owner(Some(json!({ "name": "grafana", "namespace": "ns",
        "ownerReferences": [{ "apiVersion": "slinky.slurm.net/v1beta1", "kind": "LoginSet", "name": "g", "uid": "u" }] })),
        &["GET", "PATCH"])]
    #[case::our_mark(Some(json!({ "name": "grafana", "namespace": "ns", "annotations": { APPLIED_HASH: "older" } })),
        &["PATCH"])]
    #[tokio::test]
    async fn an_object_that_is_not_ours_is_left_alone(
        #[case] metadata: Option<Value>,
        #[case] writes: &[&str],
    ) {
        let desired = Desired::<Service>::new(json!({ "metadata": { "name": "grafana", "namespace": "ns",
            "ownerReferences": [{ "apiVersion": "slinky.slurm.net/v1beta1", "kind": "LoginSet", "name": "g", "uid": "u" }] } }));
        let object =
            |metadata: &Value| serde_json::from_value::<Service>(json!({ "metadata": metadata })).unwrap();
        let known = metadata.as_ref().map(object);
        let (writer, asked) = fake_server(metadata);
        // Also without the live object, because the cache may not know it yet.
        let all = if known.as_ref().is_some_and(|known| known.annotations().is_empty()) {
            vec![None, known.as_ref()]
        } else {
            vec![known.as_ref()]
        };
        for live in all {
            asked.lock().clear();
            let applied = writer.apply(&desired, live).await;
            if writes.is_empty() {
                let text = applied.unwrap_err().to_string();
                assert!(
                    text.starts_with("Service ns/grafana already exists and is not managed by this operator"),
                    "{text}"
                );
                assert_eq!(*asked.lock(), ["GET"]);
            } else {
                applied.unwrap();
                assert_eq!(*asked.lock(), writes);
            }
        }
    }

    #[test]
    fn the_hash_does_not_depend_on_the_order_of_keys() {
        let one: Value = serde_json::from_str(r#"{"a":1,"b":2}"#).unwrap();
        let two: Value = serde_json::from_str(r#"{"b":2,"a":1}"#).unwrap();
        assert_eq!(hash(&one), hash(&two));
    }
}
