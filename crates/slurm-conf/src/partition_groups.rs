//! The groups that partitions refer to. slurmctld looks up their members through NSS on its own host. A group that does not exist
//! there has no members: nobody can use the partition, and only the slurmctld log shows the reason.

use std::collections::{BTreeMap, BTreeSet};

use crate::syntax::Document;

/// The groups in `AllowGroups`, each with the partitions that list it. `ALL` is not a group.
pub fn named(document: &Document) -> BTreeMap<String, BTreeSet<String>> {
    let mut groups: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for partition in document.all("PartitionName") {
        let list = partition.attribute("AllowGroups").unwrap_or_default();
        let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
        for group in names.filter(|name| !name.eq_ignore_ascii_case("ALL")) {
            let partitions = groups.entry(group.to_owned()).or_default();
            partitions.insert(partition.head.value.clone());
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::catalogue::File;
    use crate::syntax;

    #[rstest]
    #[case::none("PartitionName=all Nodes=ALL\n", "")]
    #[case::everybody("PartitionName=all AllowGroups=all\n", "")]
    #[case::some(
        "PartitionName=a AllowGroups=x,y\nPartitionName=b allowgroups=y\n",
        "x:a y:a,b"
    )]
    #[case::accounts_are_no_groups("PartitionName=a AllowAccounts=x\n", "")]
    fn groups_are_found_with_their_partitions(#[case] text: &str, #[case] expected: &str) {
        let (document, _) = syntax::read(File::Slurm, text, &BTreeMap::new());
        let shown = |(group, partitions): (String, BTreeSet<String>)| {
            let partitions: Vec<String> = partitions.into_iter().collect();
            format!("{group}:{}", partitions.join(","))
        };
        let found: Vec<String> = named(&document).into_iter().map(shown).collect();
        assert_eq!(found.join(" "), expected);
    }
}
