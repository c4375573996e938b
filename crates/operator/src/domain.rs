//! The DNS domain of the Kubernetes cluster.

const DEFAULT: &str = "cluster.local";

/// Reads the domain from a pod's `resolv.conf`: the first search domain that starts with `svc.`, without that prefix.
pub fn cluster_domain(resolv_conf: &str) -> String {
    resolv_conf
        .lines()
        .filter_map(|line| line.trim().strip_prefix("search"))
        .flat_map(str::split_whitespace)
        .find_map(|domain| domain.strip_prefix("svc."))
        .map(|domain| domain.trim_end_matches('.'))
        .filter(|domain| !domain.is_empty())
        .unwrap_or(DEFAULT)
        .to_owned()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("", "cluster.local")]
    #[case(
        "search ns.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.0.0.1",
        "cluster.local"
    )]
    #[case("search ns.svc.lab.example svc.lab.example lab.example", "lab.example")]
    #[case("search svc.lab.example.", "lab.example")]
    #[case("search example.com", "cluster.local")]
    #[case("search svc.", "cluster.local")]
    fn the_domain_is_what_follows_svc(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(cluster_domain(text), expected);
    }
}
