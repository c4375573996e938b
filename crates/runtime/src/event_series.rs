//! Deduplication of events: counts repeated messages per object and decides when to update the Event. Pure.

use std::{collections::HashMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use tokio::time::Instant;

/// A repeated message is sent after this long; the interval doubles with each update.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_mins(30);
/// A series ends when its message has not been repeated for this long; the next one is sent as a new Event.
const OVER: Duration = Duration::from_mins(10);

/// A message about an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Message {
    pub uid: String,
    pub reason: &'static str,
    pub note: String,
}

/// The content of one Event.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct EventState {
    pub about: ObjectReference,
    /// Normal or Warning.
    pub kind: &'static str,
    /// How often the message was recorded, and when last.
    pub count: i32,
    pub last: Timestamp,
    /// Name of the published Event, if any.
    pub event: Option<String>,
}

#[derive(Debug)]
struct Series {
    state: EventState,
    published_count: i32,
    last_seen: Instant,
    next: Instant,
    pause: Duration,
}

/// The recent messages.
#[derive(Debug, Default)]
pub(crate) struct EventLog {
    series: HashMap<Message, Series>,
}

impl EventLog {
    pub fn record(&mut self, message: Message, about: ObjectReference, kind: &'static str, last: Timestamp) {
        let now = Instant::now();
        let series = self.series.entry(message).or_insert_with(|| Series {
            state: EventState {
                about,
                kind,
                count: 0,
                last,
                event: None,
            },
            published_count: 0,
            last_seen: now,
            next: now,
            pause: FIRST_PAUSE,
        });
        series.state.count = series.state.count.saturating_add(1);
        series.state.last = last;
        series.last_seen = now;
    }

    /// Returns when [`EventLog::due`] has a message to send or a series to drop.
    pub fn next_due(&self) -> Option<Instant> {
        self.series.values().map(Series::next_due).min()
    }

    /// Returns the messages to send now, and drops the series that have ended.
    pub fn due(&mut self) -> Vec<(Message, EventState)> {
        let now = Instant::now();
        self.series
            .retain(|_, series| series.is_unpublished() || series.next_due() > now);
        let due = self
            .series
            .iter_mut()
            .filter(|(_, series)| series.next_due() <= now);
        due.map(|(message, series)| {
            series.published_count = series.state.count;
            series.next = now + series.pause;
            series.pause = (series.pause * 2).min(LONGEST_PAUSE);
            (message.clone(), series.state.clone())
        })
        .collect()
    }

    /// Records the name of the message's Event. The count of a recreated Event starts again at one.
    pub fn published_as(&mut self, message: &Message, event: String) {
        if let Some(series) = self.series.get_mut(message) {
            let state = &mut series.state;
            if state.event.as_ref().is_some_and(|known| *known != event) {
                state.count -= series.published_count - 1;
                series.published_count = 1;
            }
            state.event = Some(event);
        }
    }
}

impl Series {
    fn is_unpublished(&self) -> bool {
        self.state.count > self.published_count
    }

    fn next_due(&self) -> Instant {
        if self.is_unpublished() {
            self.next
        } else {
            self.last_seen + OVER
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(log: &mut EventLog, note: &str) -> Message {
        let message = Message {
            uid: "u".into(),
            reason: "R",
            note: note.into(),
        };
        log.record(
            message.clone(),
            ObjectReference::default(),
            "Normal",
            Timestamp::UNIX_EPOCH,
        );
        message
    }

    fn counts(due: &[(Message, EventState)]) -> Vec<i32> {
        due.iter().map(|(_, state)| state.count).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_message_is_sent_at_once_and_a_repeated_one_less_and_less_often() {
        let mut log = EventLog::default();
        let mut sent = vec![];
        for second in 0..60 {
            record(&mut log, "a");
            sent.extend(log.due().iter().map(|(_, state)| (second, state.count)));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(sent, [(0, 1), (5, 6), (15, 16), (35, 36)]);
        record(&mut log, "b");
        assert_eq!(counts(&log.due()), [1], "another message does not wait");
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_repetition_is_sent_even_if_no_other_follows() {
        let mut log = EventLog::default();
        record(&mut log, "a");
        log.due();
        record(&mut log, "a");
        assert_eq!(log.due(), []);
        tokio::time::sleep_until(log.next_due().unwrap()).await;
        assert_eq!(counts(&log.due()), [2]);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_long_pause_a_message_starts_a_new_series() {
        let mut log = EventLog::default();
        let message = record(&mut log, "a");
        log.due();
        log.published_as(&message, "event".into());
        tokio::time::sleep_until(log.next_due().unwrap()).await;
        assert_eq!(log.due(), []);
        assert_eq!(log.next_due(), None, "nothing is remembered");
        record(&mut log, "a");
        let due = log.due();
        assert_eq!((due[0].1.count, &due[0].1.event), (1, &None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_recreated_event_is_counted_from_one() {
        let mut log = EventLog::default();
        let message = record(&mut log, "a");
        log.due();
        log.published_as(&message, "first".into());
        for _ in 0..3 {
            record(&mut log, "a");
        }
        tokio::time::advance(FIRST_PAUSE).await;
        assert_eq!(counts(&log.due()), [4]);
        record(&mut log, "a");
        log.published_as(&message, "second".into());
        tokio::time::advance(FIRST_PAUSE * 2).await;
        assert_eq!(counts(&log.due()), [2]);
    }
}
