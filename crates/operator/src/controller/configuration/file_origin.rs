//! Explains which of the user's files a refusal is about: slurmctld names files, users look for ConfigMaps. Pure.

use std::collections::BTreeMap;

use super::choose::Chosen;
use crate::wording;

/// Maximum number of files that are named.
const SHOWN: usize = 3;

/// Adds the ConfigMaps of the user's files that slurmctld's error names. If it names none of them, the files that have
/// changed since slurmctld accepted a configuration are listed.
pub fn explained(words: &str, chosen: &Chosen) -> String {
    let Chosen {
        origins,
        configuration,
        in_use,
        ..
    } = chosen;
    let named: Vec<_> = origins.iter().filter(|(file, _)| names(words, file)).collect();
    if !named.is_empty() {
        return format!("{words} ({})", listed(&named));
    }
    let Some(in_use) = in_use else {
        return words.to_owned();
    };
    let is_new = |file: &str| configuration.files.get(file) != in_use.files.get(file);
    let changed: Vec<_> = origins.iter().filter(|(file, _)| is_new(file)).collect();
    if changed.is_empty() {
        return words.to_owned();
    }
    format!("{words} (recently changed: {})", listed(&changed))
}

fn listed(files: &[(&String, &String)]) -> String {
    let sources = files
        .iter()
        .map(|(file, map)| format!("{file} is from ConfigMap {map}"));
    wording::listed(sources, SHOWN)
}

/// Reports whether a text names this file, with or without a directory, and not a file whose name only contains it.
fn names(text: &str, file: &str) -> bool {
    let of_a_name = |letter: char| letter.is_alphanumeric() || "-_.".contains(letter);
    text.match_indices(file).any(|(at, _)| {
        let (before, after) = (text.get(..at), text.get(at + file.len()..));
        let before = before.and_then(|before| before.chars().next_back());
        // A full stop may end the sentence.
        let mut after = after.unwrap_or_default().chars();
        let goes_on = match after.next() {
            Some('.') => after.next().is_some_and(of_a_name),
            Some(letter) => of_a_name(letter),
            None => false,
        };
        !before.is_some_and(of_a_name) && !goes_on
    })
}

/// Files from the user's ConfigMaps: the name of each, and its ConfigMap.
pub type Origins = BTreeMap<String, String>;

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::controller::{build::Configuration, build::Rendered, configuration::choose};

    fn chosen(files: &[(&str, &str)], in_use: &[(&str, &str)]) -> Chosen {
        let configuration = |files: &[(&str, &str)]| Configuration {
            files: files
                .iter()
                .map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec()))
                .collect(),
            ..Configuration::default()
        };
        let mut chosen = choose::plain(Rendered {
            files: BTreeMap::new(),
            findings: vec![],
        });
        chosen.origins = files
            .iter()
            .map(|(name, _)| ((*name).to_owned(), format!("of-{name}")))
            .collect();
        chosen.configuration = configuration(files);
        chosen.in_use = Some(configuration(in_use));
        chosen
    }

    #[rstest]
    #[case::named(
        "error: Parse error in file /etc/slurm/gres.conf line 3: \"Foo\"",
        " (gres.conf is from ConfigMap of-gres.conf)"
    )]
    #[case::at_the_end(
        "fatal: cannot read gres.conf.",
        " (gres.conf is from ConfigMap of-gres.conf)"
    )]
    #[case::another_file(
        "error: my-gres.conf line 3",
        " (recently changed: mpi.conf is from ConfigMap of-mpi.conf)"
    )]
    #[case::none("fatal: no", " (recently changed: mpi.conf is from ConfigMap of-mpi.conf)")]
    fn the_config_map_of_a_bad_file_is_named(#[case] words: &str, #[case] expected: &str) {
        let before = [("gres.conf", "a"), ("mpi.conf", "a")];
        let now = [("gres.conf", "a"), ("mpi.conf", "b")];
        assert_eq!(
            explained(words, &chosen(&now, &before)),
            format!("{words}{expected}")
        );
    }

    #[test]
    fn what_is_not_in_a_users_file_is_left_as_it_is() {
        let files = [("gres.conf", "a")];
        assert_eq!(explained("fatal: no", &chosen(&files, &files)), "fatal: no");
    }
}
