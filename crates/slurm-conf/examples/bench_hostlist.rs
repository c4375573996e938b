//! Measures how long it takes to compress 100,000 names to a host list and to expand it. `--check` fails when the
//! budget is exceeded.
#![allow(clippy::print_stdout, reason = "it reports to a person")]

use std::time::{Duration, Instant};

use slurm_conf::hostlist::Hostlist;

const NAMES: u32 = 100_000;
const BUDGET: Duration = Duration::from_millis(50);

fn main() -> anyhow::Result<()> {
    // Names in an unfavorable order, with gaps.
    let names: Vec<String> = (0..NAMES)
        .map(|n| format!("worker-{}", (u64::from(n) * 7_919) % 200_003))
        .collect();
    let began = Instant::now();
    let list = Hostlist::from_names(&names)?.to_string();
    let compressed = began.elapsed();
    let began = Instant::now();
    let count = list.parse::<Hostlist>()?.names().count();
    let expanded = began.elapsed();
    println!("names     {count}");
    println!("compress  {:.1} ms", compressed.as_secs_f64() * 1e3);
    println!("expand    {:.1} ms", expanded.as_secs_f64() * 1e3);
    if std::env::args().any(|word| word == "--check") {
        anyhow::ensure!(
            compressed <= BUDGET && expanded <= BUDGET,
            "over the budget of {BUDGET:?}"
        );
    }
    Ok(())
}
