//! Failback: a stand-in slurmctld hands control back to a preferred one (earlier in `SlurmctldHost`) that has returned.
//!
//! Slurm's own failback loses jobs: the returning slurmctld requests control, the stand-in waits for itself for 30 seconds,
//! answers before it has saved its state, and replaces the files while the other reads them. Therefore the returning
//! slurmctld does not start while the stand-in is active. Its `init` writes a note next to the shared state; the stand-in's
//! `init` stops its slurmctld, which saves its state, removes the note, and starts slurmctld again as a standby.
//!
//! The heartbeat file of slurmctld shows which one is active. Clocks differ, so its timestamp is not used: an active
//! slurmctld changes the file. The heartbeat stops before the state is saved, so from then on the stand-in's `init` appends
//! to the note.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::files::Files;
use crate::role;

const NOTE: &str = "hand-back";

/// slurmctld replaces the file by removing it and linking a new one, so one check may miss it. It counts as absent when
/// this many checks in a row found none.
const ABSENT_LOOKS: u32 = 3;

/// The content of the heartbeat file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Beat {
    time: u64,
    /// The active slurmctld's position on the list.
    place: u64,
}

/// The result of one check of the heartbeat file.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Heart {
    Beats(Beat),
    /// Not a heartbeat.
    Garbled(Vec<u8>),
    Absent,
    /// Why it could not be read. This does not tell which slurmctld is active.
    Unreadable(String),
}

/// The result of one check of the note: its length, or `None` if it does not exist.
type Note = Option<u64>;

/// The shared state directory, and our position on the list of those that share it.
#[derive(Debug)]
pub struct Failback {
    state: PathBuf,
    place: u64,
    /// A heartbeat that has not changed for this long has stopped.
    still: Duration,
}

impl Failback {
    /// Returns `None` for a single slurmctld.
    pub fn of(conf: &Files) -> Option<Self> {
        let hosts = conf.parameters("SlurmctldHost");
        let place = role::place(&hosts)?;
        let timeout = conf.parameters("SlurmctldTimeout").pop();
        let timeout = timeout.and_then(|text| text.parse().ok()).unwrap_or(120_u64);
        // The heartbeat changes four times per SlurmctldTimeout, and at least every 30 seconds.
        let beat = (timeout / 4).clamp(1, 30);
        (hosts.len() > 1).then_some(Self {
            state: PathBuf::from(conf.parameters("StateSaveLocation").pop()?),
            place: u64::try_from(place).ok()?,
            still: Duration::from_secs(2 * beat + 1),
        })
    }

    /// Reports whether a slurmctld may be active that must hand back to us. Call it again until it returns false.
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
                    println!("init: another slurmctld is active: asked it to hand back control");
                    wait.asked = true;
                }
                Err(error) => wait.complain(format!(
                    "failed to ask the active slurmctld to hand back control: failed to write {}: {error}",
                    self.note().display()
                )),
            },
        }
        if let Heart::Unreadable(error) = heart {
            wait.complain(format!(
                "waiting for {} to be readable, to tell whether another slurmctld is active: {error}",
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

    /// Reports whether the active slurmctld is asked to hand back. The first on the list never is.
    pub fn is_asked(&self) -> bool {
        self.note().exists()
    }

    /// Tells the slurmctld that waits for us to keep waiting: ours is stopping and may not have saved its state.
    pub fn not_yet(&self) {
        let note = fs::OpenOptions::new().append(true).open(self.note());
        if let Err(error) = note.and_then(|mut note| note.write_all(b".")) {
            // Without a note, none is waiting.
            if error.kind() != std::io::ErrorKind::NotFound {
                eprintln!("init: failed to write {}: {error}", self.note().display());
            }
        }
    }

    fn read_note(&self) -> Note {
        match fs::metadata(self.note()) {
            Ok(note) => Some(note.len()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            // Only a removed note means that control was handed back.
            Err(_) => Some(0),
        }
    }

    /// Removes the note, because our slurmctld has stopped.
    pub fn done(&self) {
        let _ = fs::remove_file(self.note());
    }

    /// Reports whether another slurmctld precedes us on the list.
    pub fn is_backup(&self) -> bool {
        self.place > 0
    }
}

/// What to do after a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// No slurmctld is active, or the active one has handed back control.
    Start,
    Wait,
    /// Wait, and ask the active slurmctld to hand back.
    Ask,
}

/// The results of earlier checks.
#[derive(Debug, Default)]
pub struct Wait {
    /// The last sign of life, and when it was first seen.
    last: Option<(Sign, Instant)>,
    /// Whether our note was written.
    asked: bool,
    /// How many checks in a row found no heartbeat file.
    absent: u32,
    /// What was last printed to standard error.
    complaint: String,
}

/// A running slurmctld changes the heartbeat file; while it saves its state, its `init` makes the note grow.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sign {
    heart: Heart,
    /// The note's length.
    note: u64,
}

impl Wait {
    /// Decides after a check. We may start only if the heartbeat is ours or that of a preferred slurmctld, has stopped
    /// or is absent for good, or if the note was removed; never after a read error.
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
                // A slurmctld was active: without a file, its heartbeat has not changed since.
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

    /// Prints it, unless it was the last one printed.
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

    /// The file is a directory, as an example of read errors other than a missing file.
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

    /// Returns the decisions at position 0, with one check per second.
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
        // Not even after a request whose note seems to be gone.
        let looks = [(beating(1), Some(0)), (unreadable(), None), (beating(2), Some(0))];
        assert_eq!(turns(looks), [Turn::Ask, Turn::Wait, Turn::Wait]);
    }

    #[test]
    fn what_is_no_heartbeat_is_waited_for_while_it_changes() {
        let looks = (0..30).map(|i| (Heart::Garbled(vec![i.min(15)]), Some(0)));
        let turns = turns(looks);
        assert_eq!(turns.iter().position(|turn| *turn == Turn::Start), Some(26));
    }

    /// Otherwise a note that could not be written would look like a removed one.
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
        // As long as the heartbeat changes.
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
