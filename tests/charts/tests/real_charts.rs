//! Runs every table in `charts/tests` with every configured helm.

use std::path::PathBuf;

use chart_tests::{Table, helms};
use rstest::rstest;

#[rstest]
fn charts_render_as_their_tables_say(
    #[files("../../charts/tests/*.yaml")] table: PathBuf,
) -> anyhow::Result<()> {
    let cases = Table::read(&table)?;
    for helm in helms() {
        let failures = cases.run(&helm);
        assert!(
            failures.is_empty(),
            "with {}:\n{}",
            helm.display(),
            failures.join("\n")
        );
    }
    Ok(())
}
