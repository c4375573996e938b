//! How a slurmctld that stood in hands back to one that comes before it on the list and has returned.
//!
//! Slurm's own way loses jobs: the one that returns asks for control, the stand-in waits half a minute for itself, answers
//! before it has saved its state, and replaces the files while the other reads them. So the one that returns does not start
//! while the stand-in is at work. It leaves a note beside the shared state; the stand-in's `init` ends its slurmctld, which
//! saves everything, takes the note away, and starts it anew as a standby.
//!
//! Who is at work is read from slurmctld's heartbeat file. Nothing is concluded from its time of day, as clocks differ:
//! a heart that beats changes the file. It stops beating before it has saved everything, so from then on the stand-in's
//! `init` makes the note grow.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::files::Files;
use crate::role;

const NOTE: &str = "hand-back";

/// What stands in the heartbeat file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Beat {
    time: u64,
    /// The place on the list of the one in charge.
    place: u64,
}

/// The shared directory, and our place among those that share it.
#[derive(Debug)]
pub struct HandBack {
    state: PathBuf,
    place: u64,
    /// A heart that has not beaten for this long has stopped.
    still: Duration,
}

impl HandBack {
    /// Nothing where slurmctld is alone.
    pub fn of(conf: &Files) -> Option<Self> {
        let hosts = conf.parameters("SlurmctldHost");
        let place = role::place(&hosts)?;
        let timeout = conf.parameters("SlurmctldTimeout").pop();
        let timeout = timeout.and_then(|text| text.parse().ok()).unwrap_or(120_u64);
        // It beats four times in SlurmctldTimeout, and at least every 30 seconds.
        let beat = (timeout / 4).clamp(1, 30);
        (hosts.len() > 1).then_some(Self {
            state: PathBuf::from(conf.parameters("StateSaveLocation").pop()?),
            place: u64::try_from(place).ok()?,
            still: Duration::from_secs(2 * beat + 1),
        })
    }

    /// Whether somebody may be at work who has to hand back to us; to be asked again until not.
    pub fn must_wait(&self, since: &mut Option<Waiting>) -> bool {
        let beat = beat(&self.state.join("heartbeat")).filter(|beat| beat.place > self.place);
        let asked = since.is_some();
        let Some(beat) = beat else {
            self.forget(asked);
            return false;
        };
        let sign = (beat, self.length());
        let waiting = since.get_or_insert_with(|| Waiting::since(sign));
        if waiting.sign != sign {
            *waiting = Waiting::since(sign);
        }
        let answered = asked && !self.is_asked();
        if answered || waiting.at.elapsed() > self.still {
            self.forget(asked);
            return false;
        }
        if !asked {
            println!(
                "init: slurmctld {} is in charge: it is asked to hand back",
                beat.place
            );
            if let Err(error) = self.ask() {
                eprintln!("init: cannot ask for it in {}: {error}", self.note().display());
            }
        }
        true
    }

    fn ask(&self) -> std::io::Result<()> {
        fs::create_dir_all(self.state.join(".keelson"))?;
        fs::write(self.note(), "")
    }

    fn note(&self) -> PathBuf {
        self.state.join(".keelson").join(NOTE)
    }

    fn forget(&self, asked: bool) {
        if asked {
            let _ = fs::remove_file(self.note());
        }
    }

    /// Whether the one in charge is asked to hand back. The first on the list never is.
    pub fn is_asked(&self) -> bool {
        self.note().exists()
    }

    /// Our slurmctld is ending and may not have saved everything: whoever waits for us must go on waiting.
    pub fn not_yet(&self) {
        let note = fs::OpenOptions::new().append(true).open(self.note());
        if let Err(error) = note.and_then(|mut note| note.write_all(b".")) {
            // Nobody asked, if there is none.
            if error.kind() != std::io::ErrorKind::NotFound {
                eprintln!("init: cannot write {}: {error}", self.note().display());
            }
        }
    }

    fn length(&self) -> u64 {
        fs::metadata(self.note()).map_or(0, |note| note.len())
    }

    /// We are not at work any more.
    pub fn done(&self) {
        let _ = fs::remove_file(self.note());
    }

    /// Whether there is somebody to hand back to.
    pub fn is_backup(&self) -> bool {
        self.place > 0
    }
}

/// The last sign of life: the heart's beat and the length of the note. And since when.
#[derive(Debug)]
pub struct Waiting {
    sign: (Beat, u64),
    at: Instant,
}

impl Waiting {
    fn since(sign: (Beat, u64)) -> Self {
        Self {
            sign,
            at: Instant::now(),
        }
    }
}

fn beat(file: &Path) -> Option<Beat> {
    let bytes = fs::read(file).ok()?;
    let number = |at: usize| Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    Some(Beat {
        time: number(0)?,
        place: number(8)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hand_back(state: &Path, place: u64) -> HandBack {
        HandBack {
            state: state.to_owned(),
            place,
            still: Duration::from_millis(200),
        }
    }

    fn beats(state: &Path, time: u64, place: u64) {
        let bytes = [time.to_be_bytes(), place.to_be_bytes()].concat();
        fs::write(state.join("heartbeat"), bytes).unwrap();
    }

    #[test]
    fn nobody_waits_for_oneself_or_for_one_that_never_was() {
        let state = tempfile::tempdir().unwrap();
        let first = hand_back(state.path(), 0);
        assert!(!first.must_wait(&mut None));
        beats(state.path(), 1, 0);
        assert!(!first.must_wait(&mut None));
        assert!(!hand_back(state.path(), 1).must_wait(&mut None));
        assert!(!first.is_asked());
    }

    #[test]
    fn the_one_at_work_is_asked_and_waited_for() {
        let state = tempfile::tempdir().unwrap();
        let (first, second) = (hand_back(state.path(), 0), hand_back(state.path(), 1));
        let mut waiting = None;
        beats(state.path(), 1, 1);
        assert!(first.must_wait(&mut waiting));
        assert!(second.is_asked());
        // As long as its heart beats.
        for time in 2..6 {
            std::thread::sleep(Duration::from_millis(100));
            beats(state.path(), time, 1);
            assert!(first.must_wait(&mut waiting));
        }
        second.done();
        assert!(!first.must_wait(&mut waiting));
        assert!(!second.is_asked());
    }

    #[test]
    fn one_that_is_saving_is_waited_for_although_its_heart_stands_still() {
        let state = tempfile::tempdir().unwrap();
        let (first, second) = (hand_back(state.path(), 0), hand_back(state.path(), 1));
        second.not_yet();
        assert!(!second.is_asked(), "nobody asked");
        let mut waiting = None;
        beats(state.path(), 1, 1);
        assert!(first.must_wait(&mut waiting));
        for _ in 0..4 {
            std::thread::sleep(Duration::from_millis(100));
            second.not_yet();
            assert!(first.must_wait(&mut waiting));
        }
        second.done();
        assert!(!first.must_wait(&mut waiting));
    }

    #[test]
    fn a_heart_that_stands_still_is_not_waited_for() {
        let state = tempfile::tempdir().unwrap();
        let first = hand_back(state.path(), 0);
        let mut waiting = None;
        beats(state.path(), 1, 1);
        assert!(first.must_wait(&mut waiting));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!first.must_wait(&mut waiting));
        assert!(!first.is_asked(), "no note is left for later");
    }
}
