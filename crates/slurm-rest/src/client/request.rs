//! Requests and replies.

use std::fmt::Write as _;

use jiff::Timestamp;
use serde::Serialize;
use url::Url;

use crate::endpoint::Endpoint;
use crate::error::{Complaint, Error};
use crate::response::Missing;

const UPDATE_TIME: &str = "update_time";

/// A request, independent of the server's address.
#[derive(Clone)]
pub(crate) struct Request<'a> {
    pub(super) call: &'a Endpoint,
    pub(super) parameter: Option<&'a str>,
    pub(super) query: Vec<(&'static str, String)>,
    pub(super) body: Option<Vec<u8>>,
    pub(super) missing: Missing<'a>,
}

impl<'a> Request<'a> {
    pub(crate) fn new(call: &'a Endpoint) -> Self {
        Self {
            call,
            parameter: None,
            query: Vec::new(),
            body: None,
            missing: Missing::NONE,
        }
    }

    /// Sets the path parameter.
    pub(crate) fn about(mut self, name: &'a str) -> Self {
        self.parameter = Some(name);
        self
    }

    pub(crate) fn query(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.query.push((key, value.into()));
        self
    }

    pub(crate) fn body(mut self, body: &impl Serialize) -> Result<Self, Error> {
        let bytes = serde_json::to_vec(body).map_err(|error| Error::Request {
            what: self.call.path.to_owned(),
            message: error.to_string(),
        })?;
        self.body = Some(bytes);
        Ok(self)
    }

    /// Requests a list only if it has changed since the given time.
    pub(crate) fn since(self, instant: Timestamp) -> Self {
        // The only format that every version accepts.
        self.query(UPDATE_TIME, format!("uts{}", instant.as_second()))
    }

    pub(super) fn is_conditional(&self) -> bool {
        self.query.iter().any(|(key, _)| *key == UPDATE_TIME)
    }

    /// Returns the same request without `update_time`.
    pub(super) fn unconditional(&self) -> Self {
        let mut ask = self.clone();
        ask.query.retain(|(key, _)| *key != UPDATE_TIME);
        ask
    }

    /// Sets how Slurm reports an unknown object.
    pub(crate) fn missing(mut self, missing: Missing<'a>) -> Self {
        self.missing = missing;
        self
    }

    /// Returns the URL of this request.
    pub(crate) fn url(&self, endpoint: &Url, version: &str) -> Result<Url, Error> {
        let mut path = endpoint.path().trim_end_matches('/').to_owned();
        for segment in self.call.path.split('/').skip(1) {
            path.push('/');
            match (segment, self.parameter) {
                ("{version}", _) => path.push_str(version),
                // An empty name would turn a call for one object into a call for all.
                (name, Some("" | "." | "..")) if name.starts_with('{') => {
                    let message = "the name is empty or a relative path".to_owned();
                    return Err(Error::Request {
                        what: self.call.path.to_owned(),
                        message,
                    });
                }
                (name, Some(parameter)) if name.starts_with('{') => {
                    path.push_str(&percent_encoded(parameter));
                }
                (segment, _) => path.push_str(segment),
            }
        }
        let mut url = endpoint.clone();
        url.set_path(&path);
        if !self.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&self.query);
        }
        Ok(url)
    }
}

/// Encodes all but unreserved characters, because slurmrestd does not accept a path with brackets.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// A successful response.
#[derive(Debug)]
pub(crate) enum Reply<B> {
    /// Nothing has changed, or there was nothing to change.
    NotModified,
    /// A response without errors.
    Body { body: B, warnings: Vec<Complaint> },
}
