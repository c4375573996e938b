//! The planner of NodeSets with 10,000 workers: milliseconds, and instructions, which do not depend on how busy the machine
//! is and so show a regression.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use testbed::cache::Cache;
use testbed::progress::Progress;

use super::Options;
use crate::workspace;

const CASES: &str = "nodeset::plan::tests::large::";
/// How often a test plans.
const PLANS: &str = "KEELSON_BENCH_PLANS";
const MILLISECONDS: f64 = 20.0;
/// How much more than recorded is accepted: a new compiler changes the count a little.
const GROWTH: f64 = 1.05;

pub fn run(options: &Options) -> Result<()> {
    let progress = Progress::new(options.verbose);
    let cache = Cache::open()?;
    testbed::host::ensure_packages(&progress, &cache.root().join("logs/apt.log"), &["valgrind"])?;
    let tests = progress.step(
        "building the planner's tests (a few minutes the first time)",
        |_| test_program(&cache),
    )?;
    let recorded_in = workspace::root()?.join("docs/benchmarks/plan.json");
    let recorded: Value = fs::read_to_string(&recorded_in)
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default();
    let mut measured = BTreeMap::new();
    let mut exceeded = Vec::new();
    println!("{:55}  {:>6}  {:>14}", "10,000 workers", "ms", "instructions");
    for case in cases(&tests)? {
        let milliseconds = milliseconds(&tests, &case)?;
        let instructions = instructions(&tests, &case)?;
        let name = case.trim_start_matches(CASES).replace('_', " ");
        println!("{name:55}  {milliseconds:6.1}  {instructions:14}");
        let before = recorded
            .pointer(&format!("/{name}/instructions"))
            .and_then(Value::as_u64);
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        if before.is_some_and(|before| instructions as f64 > before as f64 * GROWTH) {
            exceeded.push(format!(
                "{name}: {instructions} instructions, {} recorded",
                before.unwrap_or(0)
            ));
        }
        if milliseconds > MILLISECONDS {
            exceeded.push(format!("{name}: {milliseconds:.1} ms, at most {MILLISECONDS}"));
        }
        measured.insert(
            name,
            json!({ "milliseconds": milliseconds, "instructions": instructions }),
        );
    }
    if !options.check {
        let text = serde_json::to_string_pretty(&measured)?;
        fs::write(&recorded_in, text + "\n")
            .with_context(|| format!("failed to write {}", recorded_in.display()))?;
        return Ok(());
    }
    ensure!(exceeded.is_empty(), "over budget: {}", exceeded.join("; "));
    Ok(())
}

/// Builds the unit tests of the operator as a release build, and returns the program.
fn test_program(cache: &Cache) -> Result<PathBuf> {
    let output = workspace::cargo()?
        .args([
            "test",
            "--release",
            "--locked",
            "--package",
            "keelson-operator",
            "--lib",
            "--no-run",
        ])
        .args(["--message-format", "json", "--target-dir"])
        .arg(cache.root().join("cargo/bench"))
        .output()?;
    ensure!(
        output.status.success(),
        "failed to build the tests of the operator: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let messages = String::from_utf8(output.stdout)?;
    let mut programs = messages.lines().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        Some(PathBuf::from(message.get("executable")?.as_str()?))
    });
    programs.next_back().context("cargo built no test program")
}

fn cases(tests: &Path) -> Result<Vec<String>> {
    let listed = text(Command::new(tests).args(["--list", CASES]))?;
    let cases: Vec<String> = listed
        .lines()
        .filter_map(|line| line.strip_suffix(": test").map(str::to_owned))
        .collect();
    ensure!(!cases.is_empty(), "the operator has no tests in {CASES}");
    Ok(cases)
}

fn milliseconds(tests: &Path, case: &str) -> Result<f64> {
    let printed = text(
        Command::new(tests)
            .args(["--exact", case, "--nocapture"])
            .env(PLANS, "10"),
    )?;
    let value = printed.lines().find_map(|line| line.split_once("milliseconds: "));
    let (_, value) = value.with_context(|| format!("{case} printed no time"))?;
    Ok(value.trim().parse()?)
}

/// Counts the instructions of one plan: the difference between a test that plans twice and one that plans once.
fn instructions(tests: &Path, case: &str) -> Result<u64> {
    let [one, two] = ["1", "2"].map(|plans| instructions_of_test(tests, case, plans));
    Ok(two?.saturating_sub(one?))
}

fn instructions_of_test(tests: &Path, case: &str, plans: &str) -> Result<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(tests)
        .args(["--exact", case])
        .env(PLANS, plans)
        .output()
        .context("failed to start valgrind")?;
    let printed = String::from_utf8_lossy(&output.stderr);
    let counted = printed.lines().find_map(|line| line.split_once("Collected : "));
    match counted {
        Some((_, count)) if output.status.success() => Ok(count.trim().parse()?),
        _ => bail!("callgrind failed: {printed}"),
    }
}

fn text(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    ensure!(
        output.status.success(),
        "{command:?} failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}
