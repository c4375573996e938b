//! Tests every leaf of Slinky's values with one helm. The tables show that all helm versions render the same.

use chart_tests::slinky::Leaves;
use chart_tests::{helms, repository};
use rstest::rstest;

#[rstest]
#[case("slurm")]
#[case("slurm-operator")]
fn every_value_of_slinky_has_the_effect_that_it_has_there(#[case] chart: &str) -> anyhow::Result<()> {
    let leaves = Leaves::read(&repository().join(format!("tests/charts/slinky/{chart}.yaml")))?;
    let Some(helm) = helms().into_iter().next() else {
        anyhow::bail!("no helm is given");
    };
    let failures = leaves.run(&helm);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}
