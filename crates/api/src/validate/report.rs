//! What was found: refusals and warnings.

use std::fmt;

use crate::validate::path::Path;

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Where.
    pub path: Path,
    /// What is wrong, with the value where that helps.
    pub problem: String,
    /// What to write instead.
    pub remedy: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.path, self.problem, self.remedy)
    }
}

/// Something that is legal but probably not meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Where.
    pub path: Path,
    /// What will happen.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.text)
    }
}

/// Everything that was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Reasons to refuse.
    pub violations: Vec<Violation>,
    /// Things to tell.
    pub warnings: Vec<Warning>,
}

impl Report {
    /// Whether the object may be stored.
    pub fn is_valid(&self) -> bool {
        self.violations.is_empty()
    }

    /// Adds what another check found.
    pub fn extend(&mut self, other: Self) {
        self.violations.extend(other.violations);
        self.warnings.extend(other.warnings);
    }

    /// Adds a reason to refuse.
    pub fn refuse(&mut self, path: &Path, problem: impl Into<String>, remedy: impl Into<String>) {
        self.violations.push(Violation {
            path: path.clone(),
            problem: problem.into(),
            remedy: remedy.into(),
        });
    }

    /// Adds something to tell.
    pub fn warn(&mut self, path: &Path, text: impl Into<String>) {
        self.warnings.push(Warning {
            path: path.clone(),
            text: text.into(),
        });
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, violation) in self.violations.iter().enumerate() {
            let separator = if position == 0 { "" } else { "\n" };
            write!(f, "{separator}{violation}")?;
        }
        Ok(())
    }
}
