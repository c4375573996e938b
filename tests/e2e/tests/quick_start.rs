//! Runs every command of the quick start and of the pages that build on it, on a separate cluster without the operator
//! and without Slurm.

use anyhow::{Context, Result, ensure};
use e2e::pages::{Block, Place, Reader, blocks};
use e2e::{run, xtask};
use testbed::Cluster;

const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src");

/// The pages after the quick start, in a possible reading order. Each leaves the cluster in a state that the next can
/// use.
const PAGES: [&str; 8] = [
    "tutorials/testbed.md",
    "how-to/troubleshooting.md",
    "how-to/accounting-day-one.md",
    "how-to/partitions.md",
    "how-to/prolog-epilog.md",
    "reference/what-restarts.md",
    "how-to/backup.md",
    "how-to/upgrade.md",
];

/// A cluster that is deleted with the test.
struct Own(String);

impl Own {
    fn start() -> Result<Self> {
        let own = Self(format!("pages-{}", std::process::id()));
        let mut up = xtask()?;
        up.args(["up", "--no-slurm", "--nodes=2", "--name", &own.0]);
        if std::env::var_os("KEELSON_TEST_QUICK").is_some() {
            up.arg("--quick");
        }
        run(&mut up)?;
        Ok(own)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = xtask().and_then(|mut xtask| run(xtask.args(["down", "--name", &self.0])));
    }
}

fn read(page: &'static str) -> Result<Vec<Block>> {
    let text = std::fs::read_to_string(format!("{DOCS}/{page}")).context(page)?;
    blocks(&text).context(page)
}

#[test]
fn every_command_of_the_quick_start_and_of_the_pages_after_it_works() -> Result<()> {
    let quick_start = read("tutorials/quick-start.md")?;
    for block in &quick_start {
        ensure!(
            block.place.is_some(),
            "quick-start.md, line {}: a command that no test runs",
            block.line
        );
    }
    // The commands that remove the cluster run last, after all pages.
    let end = quick_start
        .iter()
        .position(|block| block.code.contains("helm uninstall"))
        .context("the quick start has no end")?;
    let (day, evening) = quick_start.split_at(end);

    let own = Own::start()?;
    let reader = Reader::of(&Cluster::open(&own.0)?, &own.0, &xtask()?)?;
    let printed = reader.run(day).context("quick-start.md")?;
    for expected in ["cpu-0", "cpu-1", "cpu-2", "COMPLETED"] {
        ensure!(printed.contains(expected), "no {expected} in {printed}");
    }

    let mut failures = Vec::new();
    for page in PAGES {
        let marked = read(page)?;
        ensure!(
            marked.iter().any(|block| block.place == Some(Place::Here)),
            "{page}: no command is marked"
        );
        let begun = std::time::Instant::now();
        if let Err(error) = reader.run(&marked) {
            failures.push(format!("{page}: {error:#}"));
        }
        println!("{page}: {:.0} s", begun.elapsed().as_secs_f32());
    }
    reader.run(evening).context("quick-start.md, its end")?;
    reader
        .run(&read("how-to/uninstall.md")?)
        .context("how-to/uninstall.md")?;
    ensure!(failures.is_empty(), "{}", failures.join("\n\n"));
    Ok(())
}
