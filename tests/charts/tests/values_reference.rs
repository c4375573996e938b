//! Checks that the values reference in the book matches the charts' values.yaml. `KEELSON_BLESS=1` rewrites it.

use chart_tests::{repository, values};
use rstest::rstest;

#[rstest]
#[case("nodesets")]
#[case("slurm")]
#[case("slurm-cluster")]
#[case("slurm-operator")]
fn the_values_reference_is_made_from_the_comments(#[case] chart: &str) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(repository().join("charts").join(chart).join("values.yaml"))?;
    let wanted = values::reference(chart, &text)?;
    let page = repository().join(format!("docs/src/reference/values-{chart}.md"));
    if std::env::var_os("KEELSON_BLESS").is_some() {
        std::fs::write(&page, &wanted)?;
    }
    let stored = std::fs::read_to_string(&page).unwrap_or_default();
    assert!(
        stored == wanted,
        "{} is out of date: run the tests with KEELSON_BLESS=1",
        page.display()
    );
    Ok(())
}
