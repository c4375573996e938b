//! What a person sees while long work goes on: a spinner with the elapsed time on a terminal, plain lines elsewhere.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

/// Shows steps, one after the other.
#[derive(Debug, Clone)]
pub struct Progress {
    terminal: bool,
    verbose: bool,
}

impl Progress {
    /// Looks at standard error to see whether a person is watching.
    pub fn new(verbose: bool) -> Self {
        // A spinner would overwrite what verbose output prints.
        Self {
            terminal: std::io::stderr().is_terminal() && !verbose,
            verbose,
        }
    }

    /// Plain lines even on a terminal: for steps beside something else that writes there.
    pub fn lines() -> Self {
        Self {
            terminal: false,
            verbose: false,
        }
    }

    /// Whether details are wanted.
    pub fn verbose(&self) -> bool {
        self.verbose
    }

    /// Runs one step and shows how long it took.
    pub fn step<T>(&self, title: &str, work: impl FnOnce(&Step) -> Result<T>) -> Result<T> {
        let step = Step::begin(self.clone(), title);
        let result = work(&step);
        step.end(result.is_ok());
        result
    }

    /// A line of its own between steps.
    pub fn line(&self, text: &str) {
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}

/// A step that is under way.
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

    /// Says what the step is doing right now.
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
