//! Progress output for long work: a spinner with the elapsed time on a terminal, plain lines otherwise.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

/// Shows a sequence of steps.
#[derive(Debug, Clone)]
pub struct Progress {
    terminal: bool,
    verbose: bool,
}

impl Progress {
    /// Selects the output style depending on whether standard error is a terminal.
    pub fn new(verbose: bool) -> Self {
        // A spinner would overwrite verbose output.
        Self {
            terminal: std::io::stderr().is_terminal() && !verbose,
            verbose,
        }
    }

    /// Plain lines even on a terminal, for steps that run while other output is written there.
    pub fn lines() -> Self {
        Self {
            terminal: false,
            verbose: false,
        }
    }

    /// Whether verbose output is enabled.
    pub fn verbose(&self) -> bool {
        self.verbose
    }

    /// Runs one step and shows its duration.
    pub fn step<T>(&self, title: &str, work: impl FnOnce(&Step) -> Result<T>) -> Result<T> {
        let step = Step::begin(self.clone(), title);
        let result = work(&step);
        step.end(result.is_ok());
        result
    }

    /// Prints a separate line between steps.
    pub fn line(&self, text: &str) {
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}

/// A running step.
#[derive(Debug)]
pub struct Step {
    progress: Progress,
    title: String,
    begun: Instant,
    spinner: Option<ProgressBar>,
}

impl Step {
    fn begin(progress: Progress, title: &str) -> Self {
        let spinner = progress.terminal.then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
                bar.set_style(style);
            }
            bar.set_message(title.to_owned());
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        if spinner.is_none() {
            progress.line(&format!("  .. {title}"));
        }
        Self {
            progress,
            title: title.to_owned(),
            begun: Instant::now(),
            spinner,
        }
    }

    /// Shows the current activity of the step.
    pub fn note(&self, text: &str) {
        match &self.spinner {
            Some(bar) => bar.set_message(format!("{}: {text}", self.title)),
            None if self.progress.verbose => self.progress.line(&format!("     {text}")),
            None => {}
        }
    }

    fn end(self, good: bool) {
        if let Some(bar) = &self.spinner {
            bar.finish_and_clear();
        }
        let mark = if good { "ok" } else { "!!" };
        self.progress.line(&format!(
            "  {mark} {} ({:.1} s)",
            self.title,
            self.begun.elapsed().as_secs_f64()
        ));
    }
}
