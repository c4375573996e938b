//! Running other programs. Their output is written to a log file that error messages refer to.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The number of trailing log lines that an error quotes.
const QUOTED_LINES: usize = 12;

/// Runs a program to completion and appends its output to `log`.
pub fn run(command: &mut Command, log: &Path) -> Result<()> {
    if let Some(directory) = log.parent() {
        fs::create_dir_all(directory).with_context(|| format!("failed to create {}", directory.display()))?;
    }
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("failed to write {}", log.display()))?;
    // Quote only the output of this program, not the earlier content of the log.
    let before = file.metadata()?.len();
    let status = command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .status()
        .with_context(|| format!("failed to start {}", name(command)))?;
    if !status.success() {
        bail!(
            "{} failed ({status}); its output is in {}:\n{}",
            name(command),
            log.display(),
            tail_since(log, before)
        );
    }
    Ok(())
}

/// Runs a program and returns its standard output. Errors quote its standard error.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("failed to start {}", name(command)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} failed ({}): {}", name(command), output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a program succeeds; its output is discarded.
pub fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The last lines of a log.
pub fn tail(log: &Path) -> String {
    tail_since(log, 0)
}

/// The last lines of a log after a given offset.
fn tail_since(log: &Path, before: u64) -> String {
    let content = fs::read(log).unwrap_or_default();
    let before = usize::try_from(before).unwrap_or(usize::MAX);
    let text = String::from_utf8_lossy(content.get(before..).unwrap_or_default());
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(QUOTED_LINES);
    let last: Vec<String> = lines
        .iter()
        .skip(from)
        .map(|line| format!("    {line}"))
        .collect();
    last.join(
        "
",
    )
}

fn name(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(
        command
            .get_args()
            .take(4)
            .map(|word| word.to_string_lossy().into_owned()),
    );
    let more = if command.get_args().len() > 4 { " …" } else { "" };
    format!("`{}{more}`", words.join(" "))
}
