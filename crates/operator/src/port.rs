//! Port numbers in specs, which are integers there. Pure.

use crate::problem::Problem;

/// Returns the port as Slurm's files have it. `what` is the field in the message.
pub fn number(what: &str, port: i32) -> Result<u16, Problem> {
    u16::try_from(port)
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| Problem::invalid(format!("{what} is {port}, which is not a valid port")))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(6819, Some(6819))]
    #[case(0, None)]
    #[case(-1, None)]
    #[case(65_536, None)]
    fn a_port_is_positive_and_fits(#[case] port: i32, #[case] expected: Option<u16>) {
        assert_eq!(number("storageConfig.port", port).ok(), expected);
    }
}
