//! The client: construction and API version negotiation.

mod request;
mod send;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use secrecy::SecretString;
use tokio::sync::Mutex;
use url::Url;

pub(crate) use request::{Reply, Request};
pub(crate) use send::unsupported;
use send::{Failure, final_error, plain_failure};

use crate::endpoint::{Kind, OPENAPI};
use crate::error::Error;
use crate::response::unreadable;
use crate::token::Signer;
use crate::version::{Document, Served, Version};

/// The credentials sent to Slurm.
#[derive(Clone)]
pub enum Credentials {
    /// Signs tokens when they are needed.
    Signer(Arc<Signer>),
    /// A token that was created elsewhere.
    Token(SecretString),
}

/// The deadline of each kind of call, including retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// One object. slurmrestd itself waits 10 s for an unreachable slurmctld.
    pub read: Duration,
    /// A list.
    pub list: Duration,
    /// A change.
    pub write: Duration,
    /// How long to wait for a new key after all known keys were rejected.
    pub key_grace: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            read: Duration::from_secs(20),
            list: Duration::from_mins(1),
            write: Duration::from_secs(30),
            key_grace: Duration::from_secs(2),
        }
    }
}

impl Deadlines {
    fn of(&self, kind: Kind) -> Duration {
        match kind {
            Kind::Read => self.read,
            Kind::List => self.list,
            Kind::Write => self.write,
        }
    }
}

/// The size of one job in a response (measured: 8 kB, a node has 2.6 kB).
const BYTES_PER_JOB: usize = 8 << 10;
/// The limit of a list: this many jobs, or 100,000 nodes. Slurm itself keeps 10,000 jobs unless `MaxJobCount` is set.
const MOST_JOBS: usize = 32 << 10;
/// The limit of jobs regardless of their size, which leaves room for a larger [`Options::max_answer`].
pub(crate) const MOST_LISTED_JOBS: usize = 4 * MOST_JOBS;
/// The size limit of a list in bytes.
pub const MAX_LIST: usize = MOST_JOBS * BYTES_PER_JOB;
/// The size limit of a response about one object, and of the server's API document, in bytes.
pub const MAX_OBJECT: usize = 16 << 20;

/// A callback for every request sent, including retries, for metrics.
#[derive(Clone)]
pub struct OnCall(Arc<dyn Fn(Kind) + Send + Sync>);

impl OnCall {
    /// Calls this with the kind of each request.
    pub fn new(tell: impl Fn(Kind) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    /// Reports a request of this kind.
    pub fn tell(&self, kind: Kind) {
        (self.0)(kind);
    }
}

impl fmt::Debug for OnCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnCall")
    }
}

/// The options of a client.
#[derive(Debug, Clone)]
pub struct Options {
    /// The address of slurmrestd: `http://host:6820`.
    pub endpoint: Url,
    /// The credentials to send.
    pub credentials: Credentials,
    /// The deadlines of calls.
    pub deadlines: Deadlines,
    /// The newest API version to use.
    pub newest: Version,
    /// The size limit of a list in bytes; responses about one object are limited to this or [`MAX_OBJECT`].
    pub max_answer: usize,
    /// Called for every request.
    pub on_call: Option<OnCall>,
}

impl Options {
    /// Returns options with the default deadlines.
    pub fn new(endpoint: Url, credentials: Credentials) -> Self {
        Self {
            endpoint,
            credentials,
            deadlines: Deadlines::default(),
            newest: Version::V45,
            max_answer: MAX_LIST,
            on_call: None,
        }
    }
}

/// A client of one slurmrestd, or of several behind one address. Clones share all state.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    http: reqwest::Client,
    endpoint: Url,
    credentials: Credentials,
    deadlines: Deadlines,
    newest: Version,
    max_answer: usize,
    served: ArcSwapOption<Served>,
    /// Set when a response came from another release than the negotiated one.
    stale: AtomicBool,
    negotiation: Mutex<()>,
    on_call: Option<OnCall>,
}

impl Client {
    /// Creates a client without connecting.
    pub fn new(options: Options) -> Result<Self, Error> {
        let Options {
            endpoint,
            credentials,
            deadlines,
            newest,
            max_answer,
            on_call,
        } = options;
        let unusable = |message: String| Error::Request {
            what: endpoint.to_string(),
            message,
        };
        if endpoint.cannot_be_a_base() {
            return Err(unusable("not a base URL".into()));
        }
        // Proxies from the environment are for addresses outside the cluster. A redirect would send the token to an
        // arbitrary server.
        let http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(5))
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| unusable(chain(&error)))?;
        let inner = Inner {
            http,
            endpoint,
            credentials,
            deadlines,
            newest,
            max_answer,
            served: ArcSwapOption::empty(),
            stale: AtomicBool::new(false),
            negotiation: Mutex::new(()),
            on_call,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Returns the negotiated version and its calls. Cached until the server is upgraded or downgraded.
    pub async fn served(&self) -> Result<Arc<Served>, Error> {
        let limit = self.inner.deadlines.read;
        let served = tokio::time::timeout(limit, self.served_now()).await;
        served.unwrap_or(Err(Error::Timeout { after: limit }))
    }

    /// Reports whether a node's topology can be changed, which requires v0.0.43; true before a version is negotiated.
    pub fn places_nodes(&self) -> bool {
        let served = self.inner.served.load();
        served
            .as_ref()
            .is_none_or(|served| served.version >= Version::V43)
    }

    /// Makes the next call negotiate the version again.
    pub fn renegotiate(&self) {
        self.inner.stale.store(true, Ordering::Relaxed);
    }

    async fn served_now(&self) -> Result<Arc<Served>, Error> {
        let stale = || self.inner.stale.load(Ordering::Relaxed);
        if let Some(served) = self.inner.served.load_full().filter(|_| !stale()) {
            return Ok(served);
        }
        let _one_at_a_time = self.inner.negotiation.lock().await;
        if let Some(served) = self.inner.served.load_full().filter(|_| !stale()) {
            return Ok(served);
        }
        let document = self.read_document().await?;
        let unsupported = || Error::Unsupported {
            call: format!(
                "any version up to {} (served: {})",
                self.inner.newest,
                document.versions().join(", ")
            ),
            version: None,
        };
        let served = Arc::new(document.agree(self.inner.newest).ok_or_else(unsupported)?);
        tracing::debug!(version = %served.version, release = %served.release, "negotiated an API version");
        self.inner.served.store(Some(Arc::clone(&served)));
        self.inner.stale.store(false, Ordering::Relaxed);
        Ok(served)
    }

    async fn read_document(&self) -> Result<Document, Error> {
        let ask = Request::new(&OPENAPI);
        let url = ask.url(&self.inner.endpoint, "")?;
        let read = self.authorised(&ask, &url, |status, bytes| match status.as_u16() {
            200 => serde_json::from_slice(&bytes).map_err(|error| {
                Failure::Final(Error::Protocol {
                    call: OPENAPI.path.to_owned(),
                    message: unreadable(&error),
                })
            }),
            _ => Err(plain_failure(&OPENAPI, status)),
        });
        read.await
            .map_err(|failure| final_error(failure, OPENAPI.path, None))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("endpoint", &self.inner.endpoint.as_str())
            .field(
                "served",
                &self.inner.served.load().as_ref().map(|served| served.version),
            )
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signer(signer) => f.debug_tuple("Signer").field(signer).finish(),
            Self::Token(_) => f.write_str("Token"),
        }
    }
}

/// Formats an error with its causes, because reqwest's own text omits them.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
