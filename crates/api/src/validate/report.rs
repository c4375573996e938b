//! Errors and warnings.

use std::fmt;

use crate::validate::path::Path;

/// An error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The field.
    pub path: Path,
    /// The problem, with the value if that helps.
    pub problem: String,
    /// What to write instead.
    pub remedy: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.path, self.problem, self.remedy)
    }
}

/// A warning about a value that is valid but probably unintended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The field.
    pub path: Path,
    /// The consequence.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.text)
    }
}

/// The result of a validation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Errors, which reject the object.
    pub violations: Vec<Violation>,
    /// Warnings, which do not.
    pub warnings: Vec<Warning>,
}

impl Report {
    /// Whether the object may be stored.
    pub fn is_valid(&self) -> bool {
        self.violations.is_empty()
    }

    /// Adds the errors and warnings of another report.
    pub fn extend(&mut self, other: Self) {
        self.violations.extend(other.violations);
        self.warnings.extend(other.warnings);
    }

    /// Adds an error.
    pub fn refuse(&mut self, path: &Path, problem: impl Into<String>, remedy: impl Into<String>) {
        self.violations.push(Violation {
            path: path.clone(),
            problem: problem.into(),
            remedy: remedy.into(),
        });
    }

    /// Adds a warning.
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
