//! Sends one request: deadline, retries, version negotiation and token selection.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{Response, StatusCode};
use secrecy::{ExposeSecret as _, SecretString};
use url::Url;

use super::{Client, Credentials, MAX_OBJECT, Reply, Request, chain};
use crate::endpoint::{Endpoint, Kind};
use crate::error::{Complaint, Error, Peer};
use crate::response::{Body, Missing, decode};
use crate::verdict::{Verdict, classify};
use crate::version::Served;

const TOKEN_HEADER: &str = "X-SLURM-USER-TOKEN";

/// Why one attempt failed.
pub(super) enum Failure {
    /// The server does not know the path: it now runs another release, and the request had no effect.
    UnknownPath,
    TokenRefused(String),
    /// The list may be complete if it is requested without `update_time`.
    WithoutPartitions(Error),
    Final(Error),
}

impl From<Verdict> for Failure {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::TokenRefused(message) => Self::TokenRefused(message),
            Verdict::WithoutPartitions(error) => Self::WithoutPartitions(error),
            Verdict::Failed(error) => Self::Final(error),
        }
    }
}

impl Client {
    /// Executes a request within its deadline.
    pub(crate) async fn execute<B: Body>(&self, ask: Request<'_>) -> Result<Reply<B>, Error> {
        let limit = self.inner.deadlines.of(ask.call.kind);
        let mut last = None;
        let replied = tokio::time::timeout(limit, self.persist(&ask, &mut last)).await;
        // The last error says more than a timeout.
        replied.unwrap_or_else(|_| Err(last.unwrap_or(Error::Timeout { after: limit })))
    }

    /// Retries a read while Slurm is unreachable.
    async fn persist<B: Body>(&self, ask: &Request<'_>, last: &mut Option<Error>) -> Result<Reply<B>, Error> {
        let mut pauses = ExponentialBuilder::new()
            .with_min_delay(Duration::from_millis(100))
            .with_max_delay(Duration::from_secs(2))
            .with_max_times(4)
            .with_jitter()
            .build();
        loop {
            let error = match self.negotiated(ask).await {
                Err(error) if ask.call.kind.may_repeat() && error.is_transient() => error,
                settled => return settled,
            };
            let Some(pause) = pauses.next() else {
                return Err(error);
            };
            tracing::debug!(call = ask.call.path, %error, "retrying after a delay");
            *last = Some(error);
            tokio::time::sleep(pause).await;
        }
    }

    /// Sends with the negotiated version; negotiates again if the server does not know the path.
    async fn negotiated<B: Body>(&self, ask: &Request<'_>) -> Result<Reply<B>, Error> {
        let served = self.served_now().await?;
        match self.attempt(&served, ask).await {
            Err(Failure::UnknownPath) => {
                self.renegotiate();
                let served = self.served_now().await?;
                let attempt = self.attempt(&served, ask).await;
                attempt.map_err(|failure| final_error(failure, ask.call.path, Some(&served)))
            }
            Err(Failure::WithoutPartitions(_)) if ask.is_conditional() => {
                let attempt = self.attempt(&served, &ask.unconditional()).await;
                attempt.map_err(|failure| final_error(failure, ask.call.path, Some(&served)))
            }
            settled => settled.map_err(|failure| final_error(failure, ask.call.path, Some(&served))),
        }
    }

    async fn attempt<B: Body>(&self, served: &Served, ask: &Request<'_>) -> Result<Reply<B>, Failure> {
        if !served.offers(ask.call) {
            return Err(Failure::Final(unsupported(ask.call.path, served)));
        }
        let url = ask
            .url(&self.inner.endpoint, &served.version.to_string())
            .map_err(Failure::Final)?;
        self.authorised(ask, &url, |status, bytes| {
            // Only a conditional request or a write can be answered with "not modified".
            if status == StatusCode::NOT_MODIFIED && (ask.is_conditional() || !ask.call.kind.may_repeat()) {
                return Ok(Reply::NotModified);
            }
            if !bytes.trim_ascii_start().starts_with(b"{") {
                return Err(plain_failure(ask.call, status));
            }
            let answer = decode::<B>(ask.call, &bytes).map_err(Failure::Final)?;
            if !answer.release.is_empty() && answer.release != served.release {
                self.renegotiate();
            }
            // Quote only Slurm's own messages: text from another server must not reach a condition or a log.
            let errors = match answer.release.as_str() {
                "" => without_words(&answer.errors),
                _ => answer.errors.clone(),
            };
            classify(ask.call, status, &errors, &ask.missing)?;
            answer.require(ask.call, &ask.missing).map_err(Failure::Final)?;
            Ok(Reply::Body {
                body: answer.body,
                warnings: answer.warnings,
            })
        })
        .await
    }

    /// Sends with a token that Slurm accepts. If the first key's token is rejected it tries the other key, then the
    /// first one again, because Slurm may have changed its key in between, and then a new key if one arrives in time. A
    /// rejected token means that the request had no effect, so writes may be repeated as well.
    pub(super) async fn authorised<T>(
        &self,
        ask: &Request<'_>,
        url: &Url,
        read: impl Fn(StatusCode, Vec<u8>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let signer = match &self.inner.credentials {
            Credentials::Token(token) => {
                let (status, bytes) = self.transmit(ask, url, token).await?;
                return read(status, bytes);
            }
            Credentials::Signer(signer) => signer,
        };
        let mut rotations = signer.rotations();
        let mut waited = false;
        let mut refused = 0;
        let mut issued = signer.issue(None).map_err(Failure::Final)?;
        loop {
            let (status, bytes) = self.transmit(ask, url, &issued.token).await?;
            let message = match read(status, bytes) {
                Err(Failure::TokenRefused(message)) => message,
                settled => {
                    signer.accept(&issued);
                    return settled;
                }
            };
            refused += 1;
            if refused < 2 * signer.keys() - 1 {
                issued = signer.issue(Some(&issued)).map_err(Failure::Final)?;
                continue;
            }
            let grace = self.inner.deadlines.key_grace;
            if waited || tokio::time::timeout(grace, rotations.changed()).await.is_err() {
                return Err(Failure::TokenRefused(message));
            }
            waited = true;
            refused = 0;
            issued = signer.issue(None).map_err(Failure::Final)?;
        }
    }

    async fn transmit(
        &self,
        ask: &Request<'_>,
        url: &Url,
        token: &SecretString,
    ) -> Result<(StatusCode, Vec<u8>), Failure> {
        let mut header = HeaderValue::from_str(token.expose_secret()).map_err(|_| {
            Failure::Final(Error::Signing {
                message: "the token is not a valid header value".into(),
            })
        })?;
        header.set_sensitive(true);
        let mut request = self
            .inner
            .http
            .request(ask.call.method.clone(), url.clone())
            .header(TOKEN_HEADER, header);
        if let Some(body) = &ask.body {
            request = request
                .header(CONTENT_TYPE, "application/json")
                .body(body.clone());
        }
        if let Some(on_call) = &self.inner.on_call {
            on_call.tell(ask.call.kind);
        }
        let lost = |error: reqwest::Error| {
            let message = chain(&error.without_url());
            Failure::Final(Error::Unreachable {
                daemon: Peer::Slurmrestd,
                message,
            })
        };
        let response = request.send().await.map_err(lost)?;
        let status = response.status();
        let bytes = self
            .read_body(ask.call, response)
            .await
            .map_err(|error| match error {
                BodyError::Lost(error) => lost(error),
                BodyError::TooLong(error) => Failure::Final(error),
            })?;
        Ok((status, bytes))
    }

    /// Reads a body into one buffer: lists are tens of megabytes, so a second copy would be expensive.
    async fn read_body(&self, call: &Endpoint, mut response: Response) -> Result<Vec<u8>, BodyError> {
        let most = match call.kind {
            Kind::List => self.inner.max_answer,
            Kind::Read | Kind::Write => self.inner.max_answer.min(MAX_OBJECT),
        };
        let too_long = || {
            let message = format!("longer than {most} bytes");
            BodyError::TooLong(Error::Protocol {
                call: call.path.to_owned(),
                message,
            })
        };
        let announced = usize::try_from(response.content_length().unwrap_or(0)).unwrap_or(usize::MAX);
        if announced > most {
            return Err(too_long());
        }
        // The announced length may be wrong.
        let mut bytes = Vec::with_capacity(announced.min(MAX_OBJECT));
        while let Some(chunk) = response.chunk().await.map_err(BodyError::Lost)? {
            if bytes.len().saturating_add(chunk.len()) > most {
                return Err(too_long());
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }
}

enum BodyError {
    Lost(reqwest::Error),
    TooLong(Error),
}

/// Classifies a response that is not JSON: slurmrestd failed before it asked Slurm, or the server is not slurmrestd.
/// Its text is not quoted.
pub(super) fn plain_failure(call: &Endpoint, status: StatusCode) -> Failure {
    if status == StatusCode::NOT_FOUND {
        return Failure::UnknownPath;
    }
    match classify(call, status, &[], &Missing::NONE) {
        Ok(()) | Err(Verdict::Failed(Error::Protocol { .. })) => {
            let why = if status.is_redirection() {
                "redirects are not followed"
            } else {
                "not JSON"
            };
            Failure::Final(Error::Protocol {
                call: call.path.to_owned(),
                message: format!("status {status}: {why}"),
            })
        }
        Err(verdict) => verdict.into(),
    }
}

/// Returns the errors with their numbers only.
fn without_words(complaints: &[Complaint]) -> Vec<Complaint> {
    let number = |complaint: &Complaint| Complaint {
        number: complaint.number,
        description: format!("error {}", complaint.number),
        ..Complaint::default()
    };
    complaints.iter().map(number).collect()
}

pub(super) fn final_error(failure: Failure, call: &str, served: Option<&Served>) -> Error {
    match failure {
        Failure::Final(error) | Failure::WithoutPartitions(error) => error,
        Failure::TokenRefused(message) => Error::Unauthorised { message },
        Failure::UnknownPath => Error::Unsupported {
            call: call.to_owned(),
            version: served.map(|s| s.version.to_string()),
        },
    }
}

pub(crate) fn unsupported(what: &str, served: &Served) -> Error {
    Error::Unsupported {
        call: what.to_owned(),
        version: Some(served.version.to_string()),
    }
}
