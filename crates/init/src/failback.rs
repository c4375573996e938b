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

/// The file is replaced by removing it and linking a new one, so that it can be missed once. It counts as absent when it
/// was missed in this many looks in a row.
const ABSENT_LOOKS: u32 = 3;

/// What stands in the heartbeat file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Beat {
    time: u64,
    /// The place on the list of the one in charge.
    place: u64,
}

/// What one look at the heartbeat file found.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Heart {
    Beats(Beat),
    /// Something else than a heartbeat.
    Garbled(Vec<u8>),
    Absent,
    /// Why it could not be read. This says nothing about who is in charge.
    Unreadable(String),
}

/// What one look at the note found: its length, or nothing if there is none.
type Note = Option<u64>;

/// The shared directory, and our place among those that share it.
#[derive(Debug)]
pub struct Failback {
    state: PathBuf,
    place: u64,
    /// A heart that has not beaten for this long has stopped.
    still: Duration,
}

impl Failback {
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
    pub fn must_wait(&self, wait: &mut Wait) -> bool {
        let file = self.state.join("heartbeat");
        let heart = look(&file);
        match wait.decide(&heart, self.read_note(), self.place, self.still, Instant::now()) {
            Turn::Start => {
                self.forget(wait.asked);
                return false;
            }
            Turn::Wait => {}
            Turn::Ask => match self.ask() {
                Ok(()) => {
                    println!("init: another slurmctld is in charge: asked it to hand back");
                    wait.asked = true;
                }
                Err(error) => wait.complain(format!(
                    "cannot ask the slurmctld in charge to hand back: cannot write {}: {error}",
                    self.note().display()
                )),
            },
        }
        if let Heart::Unreadable(error) = heart {
            wait.complain(format!(
                "waiting until {} can be read, because it says whether another slurmctld is in charge: {error}",
                file.display()
            ));
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

    fn read_note(&self) -> Note {
        match fs::metadata(self.note()) {
            Ok(note) => Some(note.len()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            // Only a note that is gone means that it was answered.
            Err(_) => Some(0),
        }
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

/// What to do after a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// Nobody is in charge, or whoever was has handed back.
    Start,
    Wait,
    /// Wait, and ask the one in charge to hand back.
    Ask,
}

/// What earlier looks found.
#[derive(Debug, Default)]
pub struct Wait {
    /// The last sign of life, and when it was first seen.
    last: Option<(Sign, Instant)>,
    /// Whether our note was written.
    asked: bool,
    /// How many looks in a row found no heartbeat file.
    absent: u32,
    /// What was last printed to standard error.
    complaint: String,
}

/// A heart that beats changes the file, and one that is saving its state makes the note grow.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sign {
    heart: Heart,
    /// The note's length.
    note: u64,
}

impl Wait {
    /// Only a file that is absent for good, a heart that has stopped or an answered note let us start; a read error never
    /// does.
    fn decide(&mut self, heart: &Heart, note: Note, place: u64, still: Duration, now: Instant) -> Turn {
        self.absent = match heart {
            Heart::Absent => self.absent.saturating_add(1),
            Heart::Beats(_) | Heart::Garbled(_) | Heart::Unreadable(_) => 0,
        };
        let heart = match heart {
            Heart::Unreadable(_) => return Turn::Wait,
            Heart::Beats(beat) if beat.place <= place => return Turn::Start,
            Heart::Beats(_) | Heart::Garbled(_) => heart.clone(),
            Heart::Absent => match &self.last {
                // Somebody was at work: without a file, its heart has not beaten since.
                Some((sign, _)) => sign.heart.clone(),
                None if self.absent < ABSENT_LOOKS => return Turn::Wait,
                None => return Turn::Start,
            },
        };
        if self.asked && note.is_none() {
            return Turn::Start;
        }
        let note = note.unwrap_or_default();
        let sign = Sign { heart, note };
        match &self.last {
            Some((last, since)) if *last == sign => {
                if now.duration_since(*since) > still {
                    return Turn::Start;
                }
            }
            Some(_) | None => self.last = Some((sign, now)),
        }
        if self.asked { Turn::Wait } else { Turn::Ask }
    }

    /// Prints it, unless that was done at the last look.
    fn complain(&mut self, complaint: String) {
        if complaint != self.complaint {
            eprintln!("init: {complaint}");
            self.complaint = complaint;
        }
    }
}

fn look(file: &Path) -> Heart {
    match fs::read(file) {
        Ok(bytes) => beat(&bytes).map_or(Heart::Garbled(bytes), Heart::Beats),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Heart::Absent,
        Err(error) => Heart::Unreadable(error.to_string()),
    }
}

fn beat(bytes: &[u8]) -> Option<Beat> {
    let number = |at: usize| Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    Some(Beat {
        time: number(0)?,
        place: number(8)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failback(state: &Path, place: u64) -> Failback {
        Failback {
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
        let first = failback(state.path(), 0);
        let mut waiting = Wait::default();
        for _ in 1..ABSENT_LOOKS {
            assert!(first.must_wait(&mut waiting));
        }
        assert!(!first.must_wait(&mut waiting));
        beats(state.path(), 1, 0);
        assert!(!first.must_wait(&mut Wait::default()));
        assert!(!failback(state.path(), 1).must_wait(&mut Wait::default()));
        assert!(!first.is_asked());
    }

    /// The file is a directory, which stands for every error of a read but one.
    #[test]
    fn a_heartbeat_that_cannot_be_read_is_waited_for() {
        let state = tempfile::tempdir().unwrap();
        let heartbeat = state.path().join("heartbeat");
        let first = failback(state.path(), 0);
        fs::create_dir(&heartbeat).unwrap();
        let mut waiting = Wait::default();
        for _ in 0..4 {
            std::thread::sleep(Duration::from_millis(100));
            assert!(first.must_wait(&mut waiting));
        }
        fs::remove_dir(&heartbeat).unwrap();
        beats(state.path(), 1, 1);
        assert!(first.must_wait(&mut waiting));
        assert!(first.is_asked());
    }

    const STILL: Duration = Duration::from_secs(10);
    const SECOND: Duration = Duration::from_secs(1);

    /// What the one at place 0 does at one look a second.
    fn turns(looks: impl IntoIterator<Item = (Heart, Note)>) -> Vec<Turn> {
        let mut wait = Wait::default();
        let mut now = Instant::now();
        let mut turn = |(heart, note): (Heart, Note)| {
            now += SECOND;
            let turn = wait.decide(&heart, note, 0, STILL, now);
            wait.asked |= turn == Turn::Ask;
            turn
        };
        looks.into_iter().map(&mut turn).collect()
    }

    fn beating(time: u64) -> Heart {
        Heart::Beats(Beat { time, place: 1 })
    }

    fn unreadable() -> Heart {
        Heart::Unreadable("stale file handle".to_owned())
    }

    #[test]
    fn one_missed_look_is_no_absence() {
        use Turn::{Ask, Start, Wait};
        let looks = [
            Heart::Absent,
            beating(1),
            Heart::Absent,
            Heart::Absent,
            beating(2),
        ];
        let looks = looks.map(|heart| (heart, Some(0)));
        assert_eq!(turns(looks), [Wait, Ask, Wait, Wait, Wait]);
        let looks = [
            Heart::Absent,
            unreadable(),
            Heart::Absent,
            Heart::Absent,
            Heart::Absent,
        ];
        let looks = looks.map(|heart| (heart, None));
        assert_eq!(turns(looks), [Wait, Wait, Wait, Wait, Start]);
    }

    #[test]
    fn a_read_error_never_ends_the_wait() {
        let looks = std::iter::repeat_n((unreadable(), None), 100);
        assert_eq!(turns(looks), [Turn::Wait; 100]);
        // Not even after somebody was asked, with a note that seems to be gone.
        let looks = [(beating(1), Some(0)), (unreadable(), None), (beating(2), Some(0))];
        assert_eq!(turns(looks), [Turn::Ask, Turn::Wait, Turn::Wait]);
    }

    #[test]
    fn what_is_no_heartbeat_is_waited_for_while_it_changes() {
        let looks = (0..30).map(|i| (Heart::Garbled(vec![i.min(15)]), Some(0)));
        let turns = turns(looks);
        assert_eq!(turns.iter().position(|turn| *turn == Turn::Start), Some(26));
    }

    /// Otherwise a note that could not be written would look like one that was answered.
    #[test]
    fn nobody_has_answered_what_was_not_asked() {
        let mut wait = Wait::default();
        let now = Instant::now();
        for _ in 0..3 {
            assert_eq!(wait.decide(&beating(1), None, 0, STILL, now), Turn::Ask);
        }
        wait.asked = true;
        assert_eq!(wait.decide(&beating(1), None, 0, STILL, now), Turn::Start);
    }

    #[test]
    fn the_one_at_work_is_asked_and_waited_for() {
        let state = tempfile::tempdir().unwrap();
        let (first, second) = (failback(state.path(), 0), failback(state.path(), 1));
        let mut waiting = Wait::default();
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
        let (first, second) = (failback(state.path(), 0), failback(state.path(), 1));
        second.not_yet();
        assert!(!second.is_asked(), "nobody asked");
        let mut waiting = Wait::default();
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
        let first = failback(state.path(), 0);
        let mut waiting = Wait::default();
        beats(state.path(), 1, 1);
        assert!(first.must_wait(&mut waiting));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!first.must_wait(&mut waiting));
        assert!(!first.is_asked(), "no note is left for later");
    }
}
