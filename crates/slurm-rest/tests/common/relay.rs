//! A proxy for slurmrestd that cuts connections on demand: it forwards complete requests to the real daemon, and as
//! much of the responses as the test allows.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Where a response is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Before its first byte.
    Start,
    /// In the middle of its headers.
    Head,
    /// In the middle of its body.
    Body,
    /// Before its last byte.
    End,
}

#[derive(Debug, Default)]
struct State {
    /// The first line of every request that was forwarded.
    seen: Vec<String>,
    /// The prefix of requests whose responses are cut, where, and how many times.
    plan: Option<(String, Cut, usize)>,
}

/// A proxy in front of slurmrestd, which lives as long as its runtime.
#[derive(Debug, Clone)]
pub struct Relay {
    /// Its address.
    pub url: String,
    state: Arc<Mutex<State>>,
}

impl Relay {
    /// Starts a proxy for this address in the calling thread's network.
    pub async fn start(to: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let relay = Self {
            url: format!("http://{}", listener.local_addr()?),
            state: Arc::default(),
        };
        let (to, state) = (to.to_owned(), Arc::clone(&relay.state));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (to, state) = (to.clone(), Arc::clone(&state));
                tokio::spawn(async move {
                    if let Err(error) = carry(client, &to, &state).await {
                        eprintln!("relay: {error:#}");
                    }
                });
            }
        });
        Ok(relay)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts the next responses to requests whose first line starts with `line`.
    pub fn cut(&self, line: &str, at: Cut, times: usize) {
        self.state().plan = Some((line.to_owned(), at, times));
    }

    /// Returns the number of forwarded requests whose first line starts with `line`.
    pub fn count(&self, line: &str) -> usize {
        let state = self.state();
        state.seen.iter().filter(|seen| seen.starts_with(line)).count()
    }
}

impl State {
    /// Records a request and returns where to cut its response, if at all.
    fn note(&mut self, line: String) -> Option<Cut> {
        let cut = match &mut self.plan {
            Some((prefix, at, left)) if *left > 0 && line.starts_with(&**prefix) => {
                *left -= 1;
                Some(*at)
            }
            _ => None,
        };
        self.seen.push(line);
        cut
    }
}

/// Forwards the requests and responses of one connection until one side closes it or a response is cut.
async fn carry(mut client: TcpStream, to: &str, state: &Mutex<State>) -> Result<()> {
    let mut server = TcpStream::connect(to).await.context("connect")?;
    while let Some((request, _)) = message(&mut client).await.context("a request")? {
        let line = String::from_utf8_lossy(request.split(|byte| *byte == b'\r').next().unwrap_or_default());
        let cut = state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .note(line.into_owned());
        server.write_all(&request).await.context("to slurmrestd")?;
        let Some((answer, head)) = message(&mut server).await.context("an answer")? else {
            return Ok(());
        };
        let length = match cut {
            None => answer.len(),
            Some(Cut::Start) => 0,
            Some(Cut::Head) => head / 2,
            Some(Cut::Body) => head + (answer.len() - head) / 2,
            Some(Cut::End) => answer.len() - 1,
        };
        let part = answer.get(..length).unwrap_or_default();
        client.write_all(part).await.context("to the client")?;
        if cut.is_some() {
            return Ok(());
        }
    }
    Ok(())
}

/// Reads one complete message and returns it with the length of its head; `None` if the other side closed the
/// connection.
async fn message(stream: &mut TcpStream) -> Result<Option<(Vec<u8>, usize)>> {
    let mut bytes = Vec::new();
    let mut wanted = None;
    while wanted.is_none_or(|(_, whole)| bytes.len() < whole) {
        if stream.read_buf(&mut bytes).await? == 0 {
            if bytes.is_empty() {
                return Ok(None);
            }
            bail!("ended after {} bytes", bytes.len());
        }
        wanted = wanted.or_else(|| length(&bytes));
    }
    Ok(wanted.map(|(head, _)| (bytes, head)))
}

/// Returns the length of a message's head and of the message, once the head is complete.
fn length(bytes: &[u8]) -> Option<(usize, usize)> {
    let head = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(bytes.get(..head)?).to_ascii_lowercase();
    let body = text
        .lines()
        .find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok())
        .unwrap_or(0);
    Some((head, head + body))
}
