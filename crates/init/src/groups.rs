//! Whether slurmctld finds the groups that its partitions name.
//!
//! It does not refuse a partition whose group it does not know: the partition has no members, nobody may use it, and only
//! the log says why. So the same lookup is made beside it, by `getent`, since this program has no NSS of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use slurm_conf::catalogue::File;
use slurm_conf::{partition_groups, syntax};

use crate::files::Files;
use crate::process::find;

/// How often groups are looked up when nothing has changed here: a directory service may have others by now.
const PERIOD: Duration = Duration::from_secs(30);

/// Seconds that a lookup may take.
const PATIENCE: &str = "10";

/// A group of every image. It is asked for last, so that an answer without it is not a whole one.
const LAST: &str = "root";

/// Groups, each with the partitions that name it.
pub type Named = BTreeMap<String, BTreeSet<String>>;

/// What is told of groups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// How many groups partitions name.
    pub named: usize,
    /// Those that are not found.
    pub unknown: Named,
}

/// Looks groups up in threads of its own: a lookup may wait for a directory service.
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
    /// Looks the groups of these files up once more if it is time, or if users have changed.
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
            // It may have read what was there before: asked again as soon as it has ended.
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
                // Without a whole answer, what was known before still holds.
                if let Ok(Some(unknown)) = found.map(|found| unknown(&named, &found)) {
                    for group in unknown
                        .keys()
                        .filter(|group| !answer.unknown.contains_key(*group))
                    {
                        eprintln!(
                            "init: slurmctld does not know the group {group:?} that a partition allows"
                        );
                    }
                    answer.unknown = unknown;
                }
            }
        });
    }

    /// Has the next look ask again.
    pub fn forget(&mut self) {
        self.asked = None;
    }

    /// What is known.
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
    let text = texts.get("slurm.conf").cloned().unwrap_or_default();
    let (document, _) = syntax::read(File::Slurm, &text, &texts);
    partition_groups::named(&document)
}

/// What NSS has of these groups. The exit status is the reaping thread's to take, so only the words count.
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
    // It holds the pipe's other end, and reading would not end.
    drop(command);
    std::io::read_to_string(output)
}

/// The groups that are not in an answer; nothing where the answer is not whole.
fn unknown(named: &Named, answer: &str) -> Option<Named> {
    let lines: Vec<Vec<&str>> = answer.lines().map(|line| line.split(':').collect()).collect();
    let whole = lines.last().is_some_and(|line| line.first() == Some(&LAST));
    // Slurm takes a number for a group, too.
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
