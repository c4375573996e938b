//! Helpers for tests: a client inside the network of a cluster of real daemons.
#![allow(dead_code, reason = "every test uses another part of it")]

#[path = "../../../testbed/src/slurm_daemons/mod.rs"]
pub mod slurm_daemons;

pub mod relay;

use std::fs::File;
use std::future::Future;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use jiff::{SignedDuration, Timestamp};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use slurm_rest::token::{Clock, Signer};
use slurm_rest::{Client, Credentials, Deadlines, Options, Version};

use slurm_daemons::{REST_URL, Slurm};

/// The initial key of every test cluster.
pub const FIRST_KEY: &[u8] = b"the first jwt key, which is long enough for HS256";

#[expect(clippy::disallowed_methods, reason = "the daemons live by the real clock")]
pub fn clock() -> Clock {
    Arc::new(Timestamp::now)
}

pub fn signer(key: &[u8]) -> Arc<Signer> {
    Arc::new(Signer::new(
        "slurm",
        key.to_vec().into(),
        SignedDuration::from_mins(10),
        clock(),
    ))
}

pub fn options(signer: &Arc<Signer>, newest: Version) -> Result<Options> {
    let options = Options::new(REST_URL.parse()?, Credentials::Signer(Arc::clone(signer)));
    Ok(Options { newest, ..options })
}

pub fn client(newest: Version) -> Result<Client> {
    Ok(Client::new(options(&signer(FIRST_KEY), newest)?)?)
}

/// Returns a client for a user without permissions.
pub fn client_of_nobody() -> Result<Client> {
    let key = FIRST_KEY.to_vec().into();
    let signer = Signer::new("nobody", key, SignedDuration::from_mins(10), clock());
    Ok(Client::new(options(&Arc::new(signer), Version::V45)?)?)
}

pub fn impatient(signer: &Arc<Signer>, limit: Duration) -> Result<Client> {
    let deadlines = Deadlines {
        read: limit,
        list: limit,
        write: limit,
        ..Deadlines::default()
    };
    Ok(Client::new(Options {
        deadlines,
        ..options(signer, Version::V45)?
    })?)
}

/// Runs the future on a new thread in the cluster's network namespace.
pub fn inside<F: Future<Output = Result<()>>>(slurm: &Slurm, work: impl FnOnce() -> F + Send) -> Result<()> {
    std::thread::scope(|scope| {
        let worker = scope.spawn(move || -> Result<()> {
            let network = File::open(slurm.network())?;
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?
                .block_on(work())
        });
        match worker.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Like [`inside`], for tests that stop and start the daemons.
pub fn inside_with<F: Future<Output = Result<()>>>(
    slurm: Slurm,
    work: impl FnOnce(Arc<Mutex<Slurm>>) -> F + Send + 'static,
) -> Result<()> {
    let network = File::open(slurm.network())?;
    let worker = std::thread::spawn(move || -> Result<()> {
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(work(Arc::new(Mutex::new(slurm))))
    });
    match worker.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Changes the daemons without blocking the calls in progress.
pub async fn meanwhile(
    slurm: &Arc<Mutex<Slurm>>,
    change: impl FnOnce(&mut Slurm) -> Result<()> + Send + 'static,
) -> Result<()> {
    let slurm = Arc::clone(slurm);
    tokio::task::spawn_blocking(move || {
        let mut slurm = slurm.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut slurm)
    })
    .await?
}

/// Waits until the condition is true.
pub async fn eventually<F: Future<Output = Result<bool>>>(
    what: &str,
    mut holds: impl FnMut() -> F,
) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match holds().await {
            Ok(true) => return Ok(()),
            Ok(false) if Instant::now() > deadline => bail!("not within 30 s: {what}"),
            Err(error) if Instant::now() > deadline => {
                return Err(error).context(format!("not within 30 s: {what}"));
            }
            Ok(false) | Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}
