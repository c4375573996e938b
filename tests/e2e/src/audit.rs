//! What the API server was asked for, by its audit log.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::cluster;

/// The operator, as the charts install it.
pub const OPERATOR: &str = "system:serviceaccount:slurm-operator:slurm-operator";

/// A place in the log.
#[derive(Debug, Clone, Copy)]
pub struct Mark(u64);

/// One request.
#[derive(Debug, Clone)]
pub struct Call {
    /// Who asked.
    pub user: String,
    /// What for: `get`, `create`, …
    pub verb: String,
    /// The resource with its subresource, such as `pods/binding`.
    pub resource: String,
    /// Where.
    pub namespace: String,
    /// Of what name.
    pub name: String,
}

impl Call {
    /// Whether it changes something, if it is granted.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch")
    }
}

/// The end of the log as of now.
pub fn mark() -> Result<Mark> {
    Ok(Mark(
        std::fs::metadata(cluster()?.layout().log("audit"))
            .context("no audit log")?
            .len(),
    ))
}

/// What was asked since.
pub fn since(mark: Mark) -> Result<Vec<Call>> {
    let mut log = File::open(cluster()?.layout().log("audit"))?;
    ensure!(
        log.metadata()?.len() >= mark.0,
        "the audit log was rotated meanwhile"
    );
    log.seek(SeekFrom::Start(mark.0))?;
    let mut text = String::new();
    log.read_to_string(&mut text)?;
    // The last line may still be on its way.
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
