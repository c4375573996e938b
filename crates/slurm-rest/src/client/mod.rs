//! The client: how it is made, and which version it speaks with its server.

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

/// Who we are to Slurm.
#[derive(Clone)]
pub enum Credentials {
    /// Tokens are signed as they are needed.
    Signer(Arc<Signer>),
    /// A token that somebody else made.
    Token(SecretString),
}

/// How long each kind of call may take, repetitions included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// One object. slurmrestd itself waits 10 s for a controller that is gone.
    pub read: Duration,
    /// A list.
    pub list: Duration,
    /// A change.
    pub write: Duration,
    /// How long to wait for a new key after the known ones were refused.
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

/// Bytes of one job in an answer, as slurmrestd writes it (measured: 8 kB, a node has 2.6 kB).
const BYTES_PER_JOB: usize = 8 << 10;
/// The longest list that is read: this many jobs, or 100,000 nodes. Slurm itself keeps 10,000 jobs unless `MaxJobCount` says
/// otherwise.
const MOST_JOBS: usize = 32 << 10;
/// Most jobs that are read whatever their size: room for a longer list where [`Options::max_answer`] is raised.
pub(crate) const MOST_LISTED_JOBS: usize = 4 * MOST_JOBS;
/// The longest list in bytes.
pub const MAX_LIST: usize = MOST_JOBS * BYTES_PER_JOB;
/// The longest answer about one object, or of the server about itself, in bytes.
pub const MAX_OBJECT: usize = 16 << 20;

/// Told of every request that goes out, repetitions included: for metrics.
#[derive(Clone)]
pub struct OnCall(Arc<dyn Fn(Kind) + Send + Sync>);

impl OnCall {
    /// Calls this with the kind of each request.
    pub fn new(tell: impl Fn(Kind) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    /// A request of this kind goes out.
    pub fn tell(&self, kind: Kind) {
        (self.0)(kind);
    }
}

impl fmt::Debug for OnCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnCall")
    }
}

/// How a client is made.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where slurmrestd listens: `http://host:6820`.
    pub endpoint: Url,
    /// Who we are.
    pub credentials: Credentials,
    /// How long calls may take.
    pub deadlines: Deadlines,
    /// The newest version to speak.
    pub newest: Version,
    /// The longest list that is read, in bytes; answers about one object end at [`MAX_OBJECT`] or here.
    pub max_answer: usize,
    /// Who counts the requests.
    pub on_call: Option<OnCall>,
}

impl Options {
    /// Options with the usual deadlines.
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

/// A client of one slurmrestd, or of several behind one address. Clones share everything.
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
    /// Set when an answer came from another release than the one that was asked what it serves.
    stale: AtomicBool,
    negotiation: Mutex<()>,
    on_call: Option<OnCall>,
}

impl Client {
    /// A client; nothing is asked yet.
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
            return Err(unusable("not an address to call".into()));
        }
        // The proxies of the environment are for the world outside, not for the cluster's own services. A redirect would
        // send the token wherever the answer says.
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

    /// What the server offers: asked once, and again after an upgrade or downgrade was noticed.
    pub async fn served(&self) -> Result<Arc<Served>, Error> {
        let limit = self.inner.deadlines.read;
        let served = tokio::time::timeout(limit, self.served_now()).await;
        served.unwrap_or(Err(Error::Timeout { after: limit }))
    }

    /// Whether a node's place in the topology can be changed, as far as is known without asking. From v0.0.43 on.
    pub fn places_nodes(&self) -> bool {
        let served = self.inner.served.load();
        served
            .as_ref()
            .is_none_or(|served| served.version >= Version::V43)
    }

    /// Forgets what the server offers, so that the next call asks anew.
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
        tracing::debug!(version = %served.version, release = %served.release, "agreed on a version");
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

/// An error with its causes: reqwest's own text leaves out what matters.
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
