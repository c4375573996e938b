//! Finds configuration errors in a daemon's log.

/// How much of a line is examined; the rest is only copied.
const LONGEST: usize = 4096;

/// How many preceding errors are reported with a fatal error.
const ERRORS: usize = 3;

/// A log line that `init` acts on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogLine {
    /// A fatal error with the errors right before it: `fatal: Unable to process configuration file` alone is no help.
    Fatal(String),
    /// An error, which may or may not be fatal.
    Error(String),
    /// The daemon continues with the configuration that it had.
    Resumed,
}

/// Reads a log piece by piece.
#[derive(Debug, Default)]
pub struct Log {
    line: Vec<u8>,
    errors: Vec<String>,
}

impl Log {
    /// Returns the relevant lines that end in this piece.
    pub fn read(&mut self, piece: &[u8]) -> Vec<LogLine> {
        let mut lines = Vec::new();
        for &byte in piece {
            if byte != b'\n' {
                if self.line.len() < LONGEST {
                    self.line.push(byte);
                }
                continue;
            }
            let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned();
            lines.extend(self.relevant(&line));
        }
        lines
    }

    fn relevant(&mut self, line: &str) -> Option<LogLine> {
        let text = message(line);
        if text.starts_with("error: ") {
            self.errors.push(text.to_owned());
            return Some(LogLine::Error(text.to_owned()));
        }
        let errors = std::mem::take(&mut self.errors);
        if text.starts_with("fatal: ") {
            let last = errors.into_iter().rev().take(ERRORS).rev();
            let whole: Vec<String> = [text.to_owned()].into_iter().chain(last).collect();
            return Some(LogLine::Fatal(whole.join("; ")));
        }
        (text == "Resuming operation, reconfigure failed.").then_some(LogLine::Resumed)
    }
}

/// Returns the message of a line, without times and thread names in brackets and without the daemon's name.
fn message(mut line: &str) -> &str {
    line = line.trim();
    while let Some((_, rest)) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        line = rest.trim_start();
    }
    line.strip_prefix("slurmctld: ").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn read(text: &str) -> Vec<LogLine> {
        Log::default().read(text.as_bytes())
    }

    #[rstest]
    #[case::with_a_time("[2026-11-15T18:16:29.146] fatal: Invalid node names in partition x\n")]
    #[case::with_a_name("slurmctld: fatal: Invalid node names in partition x\n")]
    #[case::with_a_thread("[2026-11-15T18:16:29.146] [12 main] fatal: Invalid node names in partition x\r\n")]
    fn a_fatal_error_is_recognized(#[case] text: &str) {
        assert_eq!(
            read(text),
            [LogLine::Fatal(
                "fatal: Invalid node names in partition x".to_owned()
            )]
        );
    }

    #[test]
    fn a_fatal_error_includes_the_errors_before_it() {
        let lines = read(
            "[t] error: Configured MailProg is invalid\n[t] slurmctld started\n[t] error: Parsing error at unrecognized key: X\n\
             [t] error: Parse error in file slurm.conf line 9\n[t] fatal: Unable to process configuration file\n",
        );
        let expected = "fatal: Unable to process configuration file; error: Parsing error at unrecognized key: X; \
                        error: Parse error in file slurm.conf line 9";
        assert_eq!(lines.last(), Some(&LogLine::Fatal(expected.to_owned())));
    }

    #[test]
    fn only_the_last_errors_are_included() {
        let errors: Vec<String> = (0..9).map(|n| format!("error: {n}\n")).collect();
        let lines = read(&format!("{}fatal: x\n", errors.concat()));
        assert_eq!(
            lines.last(),
            Some(&LogLine::Fatal(
                "fatal: x; error: 6; error: 7; error: 8".to_owned()
            ))
        );
    }

    #[rstest]
    #[case::a_job_name("[t] _slurm_rpc_submit_batch_job: JobId=1 name=fatal: x\n")]
    #[case::a_quote("[t] job says: Resuming operation, reconfigure failed.\n")]
    #[case::no_end_yet("[t] fatal: x")]
    #[case::empty("\n[]\n[\n")]
    fn similar_lines_are_ignored(#[case] text: &str) {
        assert_eq!(read(text), []);
    }

    #[test]
    fn a_rejected_reconfiguration_is_recognized() {
        assert_eq!(
            read("[t] Resuming operation, reconfigure failed.\n"),
            [LogLine::Resumed]
        );
    }

    #[test]
    fn a_line_may_come_in_pieces_and_be_longer_than_any_buffer() {
        let mut log = Log::default();
        assert_eq!(log.read(b"[t] fat"), []);
        assert_eq!(log.read(b"al: x"), []);
        for _ in 0..100 {
            assert_eq!(log.read(&[b'x'; 1000]), []);
        }
        let lines = log.read(b"\nerror: y\n");
        assert!(matches!(lines.first(), Some(LogLine::Fatal(text)) if text.len() < LONGEST));
        assert_eq!(lines.last(), Some(&LogLine::Error("error: y".to_owned())));
    }
}
