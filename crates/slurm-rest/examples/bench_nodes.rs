//! Measures how long a list of 10,000 nodes takes to decode, and how much memory it needs in addition to its body.
//!
//! `bench_nodes [FILE] [--check]`: FILE is a response to `GET /nodes/`; without it the list comes from a real slurmctld
//! (`KEELSON_TEST_SLURM_ROOT_2605`). `--check` fails when a budget is exceeded.
#![allow(clippy::print_stdout, reason = "it reports to a person")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::{Duration, Instant};
use std::{env, fs};

use anyhow::{Context as _, Result, ensure};
use common::slurm_daemons::{REST_URL, Release, Setup, Slurm};
use common::{FIRST_KEY, inside, signer};
use secrecy::ExposeSecret as _;
use slurm_rest::Version;
use slurm_rest::node::decode_nodes;

const NODES: u32 = 10_000;
const ROUNDS: usize = 15;
const TIME_BUDGET: Duration = Duration::from_millis(150);
const MEMORY_BUDGET_MIB: f64 = 15.0;

fn main() -> Result<()> {
    let (flags, files): (Vec<String>, Vec<String>) =
        env::args().skip(1).partition(|word| word.starts_with("--"));
    let body = match files.first() {
        Some(file) => fs::read(file).with_context(|| format!("read {file}"))?,
        None => take_list()?,
    };
    // Memory is measured in the first round, because only then the heap has not grown yet.
    reset_peak()?;
    let before = status("VmRSS:")?;
    let list = decode_nodes(&body)?;
    let (kept, peak) = (status("VmRSS:")? - before, status("VmHWM:")? - before);
    let nodes = list.items.len();
    drop(list);

    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let list = decode_nodes(&body)?;
        times.push(began.elapsed());
        drop(list);
    }
    times.sort();
    let median = times.get(ROUNDS / 2).copied().unwrap_or_default();
    #[expect(clippy::cast_precision_loss, reason = "megabytes are shown")]
    let megabytes = body.len() as f64 / 1e6;
    println!("nodes               {nodes}");
    println!("body                {megabytes:.1} MB");
    println!("decode, median      {:.1} ms", median.as_secs_f64() * 1e3);
    println!(
        "decode, best        {:.1} ms",
        times.first().copied().unwrap_or_default().as_secs_f64() * 1e3
    );
    println!("kept beyond body    {kept:.1} MiB");
    println!("peak beyond body    {peak:.1} MiB");
    if flags.iter().any(|flag| flag == "--check") {
        ensure!(median <= TIME_BUDGET, "over the budget of {TIME_BUDGET:?}");
        ensure!(
            peak <= MEMORY_BUDGET_MIB,
            "over the budget of {MEMORY_BUDGET_MIB} MiB"
        );
    }
    Ok(())
}

/// Returns a list like that of a busy cluster, with features, GRES, reasons and comments.
fn take_list() -> Result<Vec<u8>> {
    let setup = Setup {
        extra_conf: "GresTypes=accel\n".into(),
        ..Setup::default()
    };
    let slurm = Slurm::start(Release::V2605, &setup)?.context("no root file system with Slurm 26.05")?;
    let names = format!("NodeName=worker-[0-{}]", NODES - 1);
    let words = [
        "CPUs=128",
        "RealMemory=2000000",
        "Gres=accel:h200:8",
        "Feature=ext,gpu,h200,zone-a",
        "State=EXTERNAL",
    ];
    slurm.run(&[&["scontrol", "create", &names], &words[..]].concat())?;
    let update = |from: u32, to: u32, words: &[&str]| {
        let names = format!("NodeName=worker-[{from}-{to}]");
        slurm
            .run(&[&["scontrol", "update", &names], words].concat())
            .map(drop)
    };
    update(
        0,
        NODES / 2,
        &["Comment={\"namespace\":\"slurm\",\"podName\":\"slurm-worker-gpu\"}"],
    )?;
    update(
        0,
        NODES / 10,
        &["State=DRAIN", "Reason=keelson: rollout of revision 7f9c"],
    )?;

    let (send, receive) = std::sync::mpsc::channel();
    inside(&slurm, move || async move {
        let client = reqwest::Client::builder().no_proxy().build()?;
        let answer = client
            .get(format!("{REST_URL}/slurm/{}/nodes/", Version::V45))
            .header("X-SLURM-USER-TOKEN", signer(FIRST_KEY).token()?.expose_secret())
            .send()
            .await?;
        Ok(send.send(answer.bytes().await?.to_vec())?)
    })?;
    receive.recv().context("no list")
}

/// Returns a value of /proc/self/status in MiB.
fn status(name: &str) -> Result<f64> {
    let text = fs::read_to_string("/proc/self/status")?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .with_context(|| format!("no {name}"))?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}

fn reset_peak() -> Result<()> {
    fs::write("/proc/self/clear_refs", "5").context("reset the peak")
}
