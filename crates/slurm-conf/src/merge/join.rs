//! Merges the operator's settings and the user's text into one file, in which every parameter that Slurm reads
//! once occurs once. Nothing is dropped silently: each ignored line of the user's text is reported as a
//! finding.

use std::collections::{BTreeMap, BTreeSet};

use super::{Error, Finding, FindingKind, Rendered};
use crate::catalogue::{File, Shape};
use crate::syntax::{Document, Origin, Pair, Statement};

/// How a parameter set by the operator is merged with the user's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    /// The operator's value is kept.
    Required,
    /// The user's value takes precedence.
    Default,
    /// A comma-separated list: the operator's options, followed by the user's options.
    Options,
}

/// A part of the file that the operator writes, in order.
#[derive(Debug, Clone)]
pub(crate) enum Piece {
    Title(&'static str),
    Parameter {
        key: &'static str,
        value: String,
        hold: Hold,
    },
    Record(Statement),
}

impl Piece {
    pub(crate) fn required(key: &'static str, value: impl Into<String>) -> Self {
        Self::Parameter {
            key,
            value: value.into(),
            hold: Hold::Required,
        }
    }

    pub(crate) fn default(key: &'static str, value: impl Into<String>) -> Self {
        Self::Parameter {
            key,
            value: value.into(),
            hold: Hold::Default,
        }
    }

    pub(crate) fn options(key: &'static str, value: impl Into<String>) -> Self {
        Self::Parameter {
            key,
            value: value.into(),
            hold: Hold::Options,
        }
    }
}

/// A parameter that the user may not set, and the reason.
pub(crate) type Refusal = (&'static str, &'static str);

/// Merges the operator's parts with the user's document.
pub(crate) fn merge(
    file: File,
    pieces: Vec<Piece>,
    user: &Document,
    refusals: &[Refusal],
) -> Result<Rendered, Error> {
    let mut merge = Merge {
        lines: Vec::new(),
        findings: Vec::new(),
    };
    merge.header(user);

    let mut singles = merge.singles(file, user, refusals);
    let names = record_names(file, &pieces)?;
    for piece in pieces {
        match piece {
            Piece::Title(title) => merge.title(title),
            Piece::Record(statement) => merge.line(&statement)?,
            Piece::Parameter { key, value, hold } => {
                let theirs = singles.remove(&key.to_ascii_lowercase());
                let value = merge.settle(key, value, hold, theirs);
                merge.line(&Statement::new(key, value))?;
            }
        }
    }
    merge.rest(file, user, &singles, &names, refusals)?;
    merge.findings.sort_by(|a, b| a.origin.cmp(&b.origin));
    let mut text = merge.lines.join("\n");
    text.push('\n');
    Ok(Rendered {
        text,
        findings: merge.findings,
    })
}

/// The operator's records by name and key. Slurm exits if one of them occurs twice.
fn record_names(file: File, pieces: &[Piece]) -> Result<BTreeSet<(String, String)>, Error> {
    let mut names = BTreeSet::new();
    for piece in pieces {
        let Piece::Record(Statement {
            head: Pair { key, value },
            ..
        }) = piece
        else {
            continue;
        };
        let identity = (value.clone(), key.to_ascii_lowercase());
        if must_be_unique(file, &identity) && names.contains(&identity) {
            return Err(Error::Twice {
                key: key.clone(),
                name: value.clone(),
            });
        }
        names.insert(identity);
    }
    Ok(names)
}

fn refusal_of(refusals: &[Refusal], key: &str) -> Option<&'static str> {
    refusals
        .iter()
        .find(|(refused, _)| refused.eq_ignore_ascii_case(key))
        .map(|(_, why)| *why)
}

struct Merge {
    lines: Vec<String>,
    findings: Vec<Finding>,
}

impl Merge {
    fn header(&mut self, user: &Document) {
        self.lines
            .push("# Written by the operator: edits of this file are lost.".into());
        // First in the file, so that the following lines override files whose contents are unknown.
        self.lines.extend(
            user.includes
                .iter()
                .map(|(_, target)| format!("Include {target}")),
        );
    }

    fn title(&mut self, title: &str) {
        self.lines.push("#".into());
        self.lines.push(format!("### {title} ###"));
    }

    fn line(&mut self, statement: &Statement) -> Result<(), Error> {
        let line = statement.encode().map_err(|source| Error::Value {
            field: statement.head.key.clone(),
            source,
        })?;
        self.lines.push(line);
        Ok(())
    }

    fn find(&mut self, statement: &Statement, kind: FindingKind) {
        if let Some(origin) = statement.origin.clone() {
            self.findings.push(Finding {
                origin,
                key: statement.head.key.clone(),
                kind,
            });
        }
    }

    /// The user's single parameters, the last of each.
    fn singles<'a>(
        &mut self,
        file: File,
        user: &'a Document,
        refusals: &[Refusal],
    ) -> BTreeMap<String, &'a Statement> {
        let mut singles: BTreeMap<String, &Statement> = BTreeMap::new();
        for statement in &user.statements {
            if file.shape(&statement.head.key) != Shape::Single {
                continue;
            }
            if let Some(why) = refusal_of(refusals, &statement.head.key) {
                self.find(statement, FindingKind::Refused { why });
                continue;
            }
            let earlier = singles.insert(statement.head.key.to_ascii_lowercase(), statement);
            if let (Some(earlier), Some(by)) = (earlier, statement.origin.clone()) {
                self.find(earlier, FindingKind::Superseded { by });
            }
        }
        singles
    }

    /// The merged value of a parameter that the operator writes.
    fn settle(&mut self, key: &'static str, ours: String, hold: Hold, theirs: Option<&Statement>) -> String {
        let Some(theirs) = theirs else { return ours };
        match hold {
            Hold::Default => theirs.head.value.clone(),
            Hold::Required => {
                if theirs.head.value != ours {
                    self.find(
                        theirs,
                        FindingKind::Required {
                            ours: format!("{key}={ours}"),
                        },
                    );
                }
                ours
            }
            Hold::Options => {
                let (value, refused) = join_options(&ours, &theirs.head.value);
                for ours in refused {
                    self.find(theirs, FindingKind::Required { ours });
                }
                value
            }
        }
    }

    /// The parameters that only the user sets: single parameters, then repeated ones and records, in the user's order.
    fn rest(
        &mut self,
        file: File,
        user: &Document,
        singles: &BTreeMap<String, &Statement>,
        taken: &BTreeSet<(String, String)>,
        refusals: &[Refusal],
    ) -> Result<(), Error> {
        let mut seen: BTreeMap<(String, String), Origin> = BTreeMap::new();
        let mut kept = Vec::new();
        for statement in &user.statements {
            let Pair { key, value } = &statement.head;
            if file.shape(key) == Shape::Single {
                // A superseded line has the same key as the effective one, but is a different statement.
                let counts = singles.get(&key.to_ascii_lowercase());
                kept.extend(counts.copied().filter(|counts| std::ptr::eq(*counts, statement)));
                continue;
            }
            let identity = (value.clone(), key.to_ascii_lowercase());
            if let Some(why) = refusal_of(refusals, key) {
                self.find(statement, FindingKind::Refused { why });
            } else if file == File::Slurm && taken.contains(&identity) {
                self.find(statement, FindingKind::NameTaken { name: value.clone() });
            } else {
                if let Some(first) = seen.get(&identity)
                    && let Some(second) = statement.origin.clone()
                    && must_be_unique(file, &identity)
                {
                    let (key, name, first) = (key.clone(), value.clone(), first.clone());
                    return Err(Error::Repeated {
                        key,
                        name,
                        first,
                        second,
                    });
                }
                seen.extend(statement.origin.clone().map(|origin| (identity, origin)));
                kept.push(statement);
            }
        }
        if !kept.is_empty() {
            self.title("EXTRA CONFIG");
        }
        kept.into_iter().try_for_each(|statement| self.line(statement))
    }
}

/// slurmctld exits with "duplicate entry" for these; `DEFAULT` records may occur several times.
fn must_be_unique(file: File, (name, key): &(String, String)) -> bool {
    file == File::Slurm
        && matches!(key.as_str(), "partitionname" | "nodeset" | "nodename")
        && !name.eq_ignore_ascii_case("DEFAULT")
}

/// Joins two comma-separated option lists: the operator's options unchanged, then the user's other options in
/// their original case. Also returns the operator's options that the user's text contradicts.
fn join_options(ours: &str, theirs: &str) -> (String, Vec<String>) {
    let name_of = |option: &str| {
        option
            .split('=')
            .next()
            .unwrap_or_default()
            .trim()
            .to_ascii_lowercase()
    };
    let split = |list: &str| {
        list.split(',')
            .map(|o| o.trim().to_owned())
            .filter(|o| !o.is_empty())
            .collect::<Vec<_>>()
    };
    let mut joined = split(ours);
    let mut refused = Vec::new();
    for option in split(theirs) {
        match joined.iter().find(|o| name_of(o) == name_of(&option)) {
            None => joined.push(option),
            Some(ours) if ours.eq_ignore_ascii_case(&option) => {}
            Some(ours) => refused.push(ours.clone()),
        }
    }
    (joined.join(","), refused)
}
