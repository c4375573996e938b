//! Checks that the groups of `AllowGroups` exist.
//!
//! slurmctld accepts a partition with an unknown group: the partition has no members, nobody can use it, and only the log
//! says why. `init` therefore does the same lookup with `getent`, since this static binary has no NSS.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use slurm_conf::catalogue::File;
use slurm_conf::container::file::SLURM_CONF;
use slurm_conf::{partition_groups, syntax};

use crate::files::Files;
use crate::process::find;

/// How often groups are looked up without a local change, because a directory service may have changed.
const PERIOD: Duration = Duration::from_secs(30);

/// Timeout of a lookup in seconds.
const PATIENCE: &str = "10";

/// A group of every image. It is looked up last, so that output without it is recognized as incomplete.
const LAST: &str = "root";

/// Groups, each with the partitions that allow it.
pub type Named = BTreeMap<String, BTreeSet<String>>;

/// The groups in the status report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// How many groups the partitions allow.
    pub named: usize,
    /// The groups that were not found.
    pub unknown: Named,
}

/// Looks up groups in its own threads, because a lookup may wait for a directory service.
#[derive(Debug, Default)]
pub struct Groups {
    named: Named,
    asked: Option<Instant>,
    answer: Arc<Mutex<Lookup>>,
}

#[derive(Debug, Default)]
struct Lookup {
    under_way: bool,
    unknown: Named,
}

impl Groups {
    /// Looks up the groups of these files if the last lookup is too old or if users have changed.
    pub fn look(&mut self, files: &Files, users_changed: bool) {
        let is_due = self.asked.is_none_or(|asked| asked.elapsed() > PERIOD);
        if !is_due && !users_changed {
            return;
        }
        self.named = named(files);
        let Ok(mut answer) = self.answer.lock() else {
            return;
        };
        if answer.under_way {
            // The running lookup may have read the old state: repeat it as soon as it has ended.
            self.asked = None;
            return;
        }
        self.asked = Some(Instant::now());
        if self.named.is_empty() {
            answer.unknown.clear();
            return;
        }
        answer.under_way = true;
        drop(answer);
        let (answer, named) = (Arc::clone(&self.answer), self.named.clone());
        thread::spawn(move || {
            let found = ask(&named);
            if let Ok(mut answer) = answer.lock() {
                answer.under_way = false;
                // If the output is incomplete, the previous result stays.
                if let Ok(Some(unknown)) = found.map(|found| unknown(&named, &found)) {
                    for group in unknown
                        .keys()
                        .filter(|group| !answer.unknown.contains_key(*group))
                    {
                        eprintln!("init: group {group:?}, which a partition allows, was not found");
                    }
                    answer.unknown = unknown;
                }
            }
        });
    }

    /// Makes the next call of [`Self::look`] repeat the lookup.
    pub fn forget(&mut self) {
        self.asked = None;
    }

    /// Returns the latest result.
    pub fn report(&self) -> Report {
        let unknown = self.answer.lock().map(|answer| answer.unknown.clone());
        Report {
            named: self.named.len(),
            unknown: unknown.unwrap_or_default(),
        }
    }
}

fn named(files: &Files) -> Named {
    let texts = files.texts();
    let text = texts.get(SLURM_CONF).cloned().unwrap_or_default();
    let (document, _) = syntax::read(File::Slurm, &text, &texts);
    partition_groups::named(&document)
}

/// Returns the NSS entries of these groups. The reaping thread collects the exit status, so only the text is used.
fn ask(named: &Named) -> std::io::Result<String> {
    let (output, input) = std::io::pipe()?;
    let mut command = Command::new(find("timeout"));
    command
        .arg(PATIENCE)
        .arg(find("getent"))
        .arg("group")
        .args(named.keys())
        .arg(LAST)
        .stdin(Stdio::null())
        .stdout(input)
        .stderr(Stdio::null())
        .spawn()?;
    // The command has the other end of the pipe open, so reading would not end.
    drop(command);
    std::io::read_to_string(output)
}

/// Returns the groups that are missing in the output, or `None` if the output is incomplete.
fn unknown(named: &Named, answer: &str) -> Option<Named> {
    let lines: Vec<Vec<&str>> = answer.lines().map(|line| line.split(':').collect()).collect();
    let whole = lines.last().is_some_and(|line| line.first() == Some(&LAST));
    // Slurm also accepts a GID.
    let is_found = |group: &str| {
        lines
            .iter()
            .any(|line| line.first() == Some(&group) || line.get(2) == Some(&group))
    };
    whole.then(|| {
        let missing = named.iter().filter(|(group, _)| !is_found(group));
        missing
            .map(|(group, partitions)| (group.clone(), partitions.clone()))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::files::tests::files;

    #[rstest]
    #[case::all_found("research:*:3000:ada\n77:x:77:\nroot:x:0:\n", Some(vec![]))]
    #[case::by_number("research:*:3000:ada\nlab:x:77:\nroot:x:0:\n", Some(vec![]))]
    #[case::one_missing("research:*:3000:ada\nroot:x:0:\n", Some(vec!["77"]))]
    #[case::none("root:x:0:\n", Some(vec!["77", "research"]))]
    #[case::cut_short("research:*:3000:ada\n", None)]
    #[case::silent("", None)]
    fn only_a_whole_answer_counts(#[case] answer: &str, #[case] expected: Option<Vec<&str>>) {
        let partitions = BTreeSet::from(["p".to_owned()]);
        let named = ["research", "77"].map(|group| (group.to_owned(), partitions.clone()));
        let found = unknown(&Named::from(named), answer);
        let found = found
            .as_ref()
            .map(|found| found.keys().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(found, expected);
    }

    #[test]
    fn groups_of_included_files_count() {
        let files = files(&[
            ("slurm.conf", "Include parts.conf\n"),
            ("parts.conf", "PartitionName=p AllowGroups=g\n"),
        ]);
        assert_eq!(named(&files).len(), 1);
    }
}
