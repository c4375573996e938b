//! Settings derived from the number of nodes. The steps are wide, so that a cluster that grows a little keeps its
//! file.
//!
//! Ports are not derived: if slurmctld moved to other ports, clients with the old configuration could no longer reach it. A
//! cluster keeps the port that it was created with, whatever its size.

/// The minimum `MaxNodeCount`.
const LEAST: u32 = 1_024;

/// The number of nodes that slurmctld reserves space for: the next power of two above four times the number of
/// nodes, at least 1,024 and at most the limit of Slurm.
///
/// `nodes` is the number of nodes requested by node sets plus the number of other nodes in Slurm.
pub fn max_node_count(nodes: u32) -> u32 {
    const MOST: u32 = 65_536;
    nodes
        .saturating_mul(4)
        .saturating_add(1)
        .checked_next_power_of_two()
        .unwrap_or(MOST)
        .clamp(LEAST, MOST)
}

/// The maximum number of nodes for which this `MaxNodeCount` is chosen; 0 for the minimum `MaxNodeCount`.
pub fn nodes_of(max_node_count: u32) -> u32 {
    if max_node_count > LEAST {
        max_node_count.saturating_sub(1) / 4
    } else {
        0
    }
}

/// Timeouts and fan-out for a number of nodes; empty if the Slurm defaults are suitable.
///
/// `MessageTimeout` covers a round trip through the tree of slurmds, `EioTimeout` the end of a wide step, and
/// `TCPTimeout` a burst of connections. `TreeWidth` limits the tree to three hops.
/// `UnkillableStepTimeout` is not set: Slurm derives it from `MessageTimeout` (five times its value).
pub fn timeouts(nodes: u32) -> &'static [(&'static str, &'static str)] {
    match max_node_count(nodes) {
        ..=4_096 => &[],
        4_097..=16_384 => &[
            ("MessageTimeout", "30"),
            ("TCPTimeout", "5"),
            ("EioTimeout", "120"),
        ],
        _ => &[
            ("MessageTimeout", "60"),
            ("TCPTimeout", "10"),
            ("EioTimeout", "180"),
            ("TreeWidth", "32"),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(0, 1_024)]
    #[case(255, 1_024)]
    #[case(256, 2_048)]
    #[case(5_000, 32_768)]
    #[case(20_000, 65_536)]
    #[case(u32::MAX, 65_536)]
    fn room_is_a_power_of_two_above_four_times_the_nodes(#[case] nodes: u32, #[case] room: u32) {
        assert_eq!(max_node_count(nodes), room);
    }

    #[test]
    fn small_clusters_keep_slurms_own_timeouts() {
        assert!(timeouts(1_000).is_empty());
        assert_ne!(timeouts(5_000), timeouts(1_000));
    }

    #[test]
    fn room_that_is_there_stays() {
        assert_eq!(nodes_of(max_node_count(3)), 0);
        for nodes in [300, 5_000, 16_000] {
            let room = max_node_count(nodes);
            assert_eq!(max_node_count(nodes_of(room)), room);
        }
    }
}
