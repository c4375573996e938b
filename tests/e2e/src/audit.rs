//! Reads requests from the API server's audit log.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::cluster;

/// The user name of the operator that the chart installs.
pub const OPERATOR: &str = "system:serviceaccount:slurm-operator:slurm-operator";

/// A position in the log.
#[derive(Debug, Clone, Copy)]
pub struct Mark(u64);

/// One request.
#[derive(Debug, Clone)]
pub struct Call {
    /// The user name.
    pub user: String,
    /// The verb: `get`, `create`, …
    pub verb: String,
    /// The resource with its subresource, such as `pods/binding`.
    pub resource: String,
    /// The namespace of the object. Empty for cluster-wide objects.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
}

impl Call {
    /// Returns whether the request writes.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch")
    }
}

/// Returns the current end of the log.
pub fn mark() -> Result<Mark> {
    Ok(Mark(
        std::fs::metadata(cluster()?.layout().log("audit"))
            .context("no audit log")?
            .len(),
    ))
}

/// Returns the requests since the mark.
pub fn since(mark: Mark) -> Result<Vec<Call>> {
    let mut log = File::open(cluster()?.layout().log("audit"))?;
    ensure!(
        log.metadata()?.len() >= mark.0,
        "the audit log was rotated meanwhile"
    );
    log.seek(SeekFrom::Start(mark.0))?;
    let mut text = String::new();
    log.read_to_string(&mut text)?;
    // The last line may be incomplete.
    let whole = text
        .rfind('\n')
        .map_or("", |end| text.get(..end).unwrap_or_default());
    whole.lines().map(read).collect()
}

fn read(line: &str) -> Result<Call> {
    let entry: Value = serde_json::from_str(line).with_context(|| format!("no audit entry: {line}"))?;
    let text = |path: &str| {
        entry
            .pointer(path)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let (resource, sub) = (text("/objectRef/resource"), text("/objectRef/subresource"));
    Ok(Call {
        user: text("/user/username"),
        verb: text("/verb"),
        resource: if sub.is_empty() {
            resource
        } else {
            format!("{resource}/{sub}")
        },
        namespace: text("/objectRef/namespace"),
        name: text("/objectRef/name"),
    })
}
