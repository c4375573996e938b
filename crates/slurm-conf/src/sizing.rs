//! Settings that follow from the number of nodes. A cluster that grows a little keeps its file: every step
//! here is wide.
//!
//! Ports do not follow: a slurmctld that moves to other ports cuts off every client that does not know of it yet, so a
//! cluster keeps the port that it was made with, whatever it grows to.

/// Room that every slurmctld gets.
const LEAST: u32 = 1_024;

/// The number of nodes that slurmctld makes room for: the next power of two above four times the nodes,
/// at least 1,024, at most what Slurm can hold.
///
/// `nodes` is the sum of what node sets ask for and of the nodes that Slurm knows beyond them.
pub fn max_node_count(nodes: u32) -> u32 {
    const MOST: u32 = 65_536;
    nodes
        .saturating_mul(4)
        .saturating_add(1)
        .checked_next_power_of_two()
        .unwrap_or(MOST)
        .clamp(LEAST, MOST)
}

/// The most nodes for which this `MaxNodeCount` was chosen; none if it is the least that is chosen at all.
pub fn nodes_of(max_node_count: u32) -> u32 {
    if max_node_count > LEAST {
        max_node_count.saturating_sub(1) / 4
    } else {
        0
    }
}

/// Timeouts and fan-out for a number of nodes; nothing where Slurm's own defaults fit.
///
/// `MessageTimeout` covers a round trip through the tree of slurmds, `EioTimeout` the end of a wide step,
/// `TCPTimeout` a burst of connections, `TreeWidth` keeps the tree at three hops.
/// `UnkillableStepTimeout` follows `MessageTimeout` by Slurm's own rule (five times) and is left to it.
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
