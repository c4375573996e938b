//! What a daemon's log says about its configuration.

/// How much of a line is looked at; the rest is only passed on.
const LONGEST: usize = 4096;

/// How many errors are told along with the end that they led to.
const ERRORS: usize = 3;

/// Something that matters to whoever started the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// Why it ends, with the errors that came right before: `fatal: Unable to process configuration file` alone does not
    /// help anybody.
    Fatal(String),
    /// An error that it can live with, or not.
    Error(String),
    /// It goes on with the configuration that it had.
    Resumed,
}

/// Reads a log piece by piece.
#[derive(Debug, Default)]
pub struct Log {
    line: Vec<u8>,
    errors: Vec<String>,
}

impl Log {
    /// What the lines say that end in this piece.
    pub fn read(&mut self, piece: &[u8]) -> Vec<Said> {
        let mut said = Vec::new();
        for &byte in piece {
            if byte != b'\n' {
                if self.line.len() < LONGEST {
                    self.line.push(byte);
                }
                continue;
            }
            let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned();
            said.extend(self.understand(&line));
        }
        said
    }

    fn understand(&mut self, line: &str) -> Option<Said> {
        let text = message(line);
        if text.starts_with("error: ") {
            self.errors.push(text.to_owned());
            return Some(Said::Error(text.to_owned()));
        }
        let errors = std::mem::take(&mut self.errors);
        if text.starts_with("fatal: ") {
            let last = errors.into_iter().rev().take(ERRORS).rev();
            let whole: Vec<String> = [text.to_owned()].into_iter().chain(last).collect();
            return Some(Said::Fatal(whole.join("; ")));
        }
        (text == "Resuming operation, reconfigure failed.").then_some(Said::Resumed)
    }
}

/// A line without what is before its message: times and thread names in brackets, and the daemon's name.
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

    fn read(text: &str) -> Vec<Said> {
        Log::default().read(text.as_bytes())
    }

    #[rstest]
    #[case::with_a_time("[2026-11-15T18:16:29.146] fatal: Invalid node names in partition x\n")]
    #[case::with_a_name("slurmctld: fatal: Invalid node names in partition x\n")]
    #[case::with_a_thread("[2026-11-15T18:16:29.146] [12 main] fatal: Invalid node names in partition x\r\n")]
    fn knows_an_end(#[case] text: &str) {
        assert_eq!(
            read(text),
            [Said::Fatal("fatal: Invalid node names in partition x".to_owned())]
        );
    }

    #[test]
    fn tells_what_led_to_the_end() {
        let said = read(
            "[t] error: Configured MailProg is invalid\n[t] slurmctld started\n[t] error: Parsing error at unrecognized key: X\n\
             [t] error: Parse error in file slurm.conf line 9\n[t] fatal: Unable to process configuration file\n",
        );
        let expected = "fatal: Unable to process configuration file; error: Parsing error at unrecognized key: X; \
                        error: Parse error in file slurm.conf line 9";
        assert_eq!(said.last(), Some(&Said::Fatal(expected.to_owned())));
    }

    #[test]
    fn tells_only_the_last_errors() {
        let errors: Vec<String> = (0..9).map(|n| format!("error: {n}\n")).collect();
        let said = read(&format!("{}fatal: x\n", errors.concat()));
        assert_eq!(
            said.last(),
            Some(&Said::Fatal("fatal: x; error: 6; error: 7; error: 8".to_owned()))
        );
    }

    #[rstest]
    #[case::a_job_name("[t] _slurm_rpc_submit_batch_job: JobId=1 name=fatal: x\n")]
    #[case::a_quote("[t] job says: Resuming operation, reconfigure failed.\n")]
    #[case::no_end_yet("[t] fatal: x")]
    #[case::empty("\n[]\n[\n")]
    fn is_not_taken_in(#[case] text: &str) {
        assert_eq!(read(text), []);
    }

    #[test]
    fn knows_that_the_daemon_goes_on() {
        assert_eq!(
            read("[t] Resuming operation, reconfigure failed.\n"),
            [Said::Resumed]
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
        let said = log.read(b"\nerror: y\n");
        assert!(matches!(said.first(), Some(Said::Fatal(text)) if text.len() < LONGEST));
        assert_eq!(said.last(), Some(&Said::Error("error: y".to_owned())));
    }
}
