//! What was said of which object, how often, and when to tell of it again. Pure.

use std::{collections::HashMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use tokio::time::Instant;

/// A sentence that comes again is told of after this long, and then after pauses twice as long each.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_mins(30);
/// One that was not heard for so long has come to its end: should it come again, it is news.
const OVER: Duration = Duration::from_mins(10);

/// A sentence about an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Message {
    pub uid: String,
    pub reason: &'static str,
    pub note: String,
}

/// What one Event tells.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct EventState {
    pub about: ObjectReference,
    /// Normal or Warning.
    pub kind: &'static str,
    /// How often it was heard, and when last.
    pub count: i32,
    pub last: Timestamp,
    /// The Event that tells of it, where there is one.
    pub event: Option<String>,
}

#[derive(Debug)]
struct Series {
    telling: EventState,
    told: i32,
    heard: Instant,
    next: Instant,
    pause: Duration,
}

/// All that was said of late.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    series: HashMap<Message, Series>,
}

impl Ledger {
    pub fn record(&mut self, said: Message, about: ObjectReference, kind: &'static str, last: Timestamp) {
        let now = Instant::now();
        let series = self.series.entry(said).or_insert_with(|| Series {
            telling: EventState {
                about,
                kind,
                count: 0,
                last,
                event: None,
            },
            told: 0,
            heard: now,
            next: now,
            pause: FIRST_PAUSE,
        });
        series.telling.count = series.telling.count.saturating_add(1);
        series.telling.last = last;
        series.heard = now;
    }

    /// When there is something to tell or to forget.
    pub fn wakes(&self) -> Option<Instant> {
        self.series.values().map(Series::wakes).min()
    }

    /// What is to be told now. What has come to its end is forgotten.
    pub fn due(&mut self) -> Vec<(Message, EventState)> {
        let now = Instant::now();
        self.series
            .retain(|_, series| series.is_untold() || series.wakes() > now);
        let due = self.series.iter_mut().filter(|(_, series)| series.wakes() <= now);
        due.map(|(said, series)| {
            series.told = series.telling.count;
            series.next = now + series.pause;
            series.pause = (series.pause * 2).min(LONGEST_PAUSE);
            (said.clone(), series.telling.clone())
        })
        .collect()
    }

    /// The Event that tells of it from now on. One that was made anew starts to count anew.
    pub fn published_as(&mut self, said: &Message, event: String) {
        if let Some(series) = self.series.get_mut(said) {
            let telling = &mut series.telling;
            if telling.event.as_ref().is_some_and(|known| *known != event) {
                telling.count -= series.told - 1;
                series.told = 1;
            }
            telling.event = Some(event);
        }
    }
}

impl Series {
    fn is_untold(&self) -> bool {
        self.telling.count > self.told
    }

    fn wakes(&self) -> Instant {
        if self.is_untold() {
            self.next
        } else {
            self.heard + OVER
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn say(ledger: &mut Ledger, note: &str) -> Message {
        let said = Message {
            uid: "u".into(),
            reason: "R",
            note: note.into(),
        };
        ledger.record(
            said.clone(),
            ObjectReference::default(),
            "Normal",
            Timestamp::UNIX_EPOCH,
        );
        said
    }

    fn counts(due: &[(Message, EventState)]) -> Vec<i32> {
        due.iter().map(|(_, telling)| telling.count).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_new_is_told_at_once_and_what_comes_again_less_and_less_often() {
        let mut ledger = Ledger::default();
        let mut told = vec![];
        for second in 0..60 {
            say(&mut ledger, "a");
            told.extend(ledger.due().iter().map(|(_, telling)| (second, telling.count)));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(told, [(0, 1), (5, 6), (15, 16), (35, 36)]);
        say(&mut ledger, "b");
        assert_eq!(counts(&ledger.due()), [1], "another sentence does not wait");
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_time_is_told_even_if_it_never_comes_again() {
        let mut ledger = Ledger::default();
        say(&mut ledger, "a");
        ledger.due();
        say(&mut ledger, "a");
        assert_eq!(ledger.due(), []);
        tokio::time::sleep_until(ledger.wakes().unwrap()).await;
        assert_eq!(counts(&ledger.due()), [2]);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_long_silence_it_is_news_again() {
        let mut ledger = Ledger::default();
        let said = say(&mut ledger, "a");
        ledger.due();
        ledger.published_as(&said, "event".into());
        tokio::time::sleep_until(ledger.wakes().unwrap()).await;
        assert_eq!(ledger.due(), []);
        assert_eq!(ledger.wakes(), None, "nothing is remembered");
        say(&mut ledger, "a");
        let due = ledger.due();
        assert_eq!((due[0].1.count, &due[0].1.event), (1, &None));
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_was_made_anew_counts_anew() {
        let mut ledger = Ledger::default();
        let said = say(&mut ledger, "a");
        ledger.due();
        ledger.published_as(&said, "first".into());
        for _ in 0..3 {
            say(&mut ledger, "a");
        }
        tokio::time::advance(FIRST_PAUSE).await;
        assert_eq!(counts(&ledger.due()), [4]);
        say(&mut ledger, "a");
        ledger.published_as(&said, "second".into());
        tokio::time::advance(FIRST_PAUSE * 2).await;
        assert_eq!(counts(&ledger.due()), [2]);
    }
}
