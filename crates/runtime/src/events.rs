//! Events that tell a person something new.
//!
//! The same sentence about the same object is sent once and then not again for a while, however often a reconcile
//! comes to the same conclusion. Sending never delays or fails a reconcile.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client, Resource,
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{metrics::Metrics, run::chain};

const QUIET: Duration = Duration::from_mins(30);
const BUFFER: usize = 1_024;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Said {
    uid: String,
    reason: &'static str,
    note: String,
}

/// Sends events; clone freely.
#[derive(Debug, Clone)]
pub struct Events {
    outgoing: mpsc::Sender<(Event, ObjectReference)>,
    said: std::sync::Arc<Mutex<HashMap<Said, Instant>>>,
    metrics: Metrics,
}

impl Events {
    /// One per process: the recorder behind it counts repeats.
    pub fn start(
        client: Client,
        controller: &str,
        instance: &str,
        metrics: Metrics,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let reporter = Reporter {
            controller: controller.to_owned(),
            instance: Some(instance.to_owned()),
        };
        let recorder = Recorder::new(client, reporter);
        let (outgoing, mut incoming) = mpsc::channel::<(Event, ObjectReference)>(BUFFER);
        tasks.spawn(async move {
            loop {
                let next = tokio::select! {
                    next = incoming.recv() => next,
                    () = stop.cancelled() => return,
                };
                let Some((event, reference)) = next else { return };
                if let Err(error) = recorder.publish(&event, &reference).await {
                    tracing::warn!(
                        reason = event.reason,
                        error = chain(&error),
                        "cannot send an event"
                    );
                }
            }
        });
        Self {
            outgoing,
            said: std::sync::Arc::default(),
            metrics,
        }
    }

    pub fn normal<K: Resource<DynamicType = ()>>(&self, about: &K, reason: &'static str, note: String) {
        self.send(about, EventType::Normal, reason, note);
    }

    pub fn warning<K: Resource<DynamicType = ()>>(&self, about: &K, reason: &'static str, note: String) {
        self.send(about, EventType::Warning, reason, note);
    }

    fn send<K: Resource<DynamicType = ()>>(
        &self,
        about: &K,
        type_: EventType,
        reason: &'static str,
        note: String,
    ) {
        let reference = about.object_ref(&());
        let said = Said {
            uid: reference.uid.clone().unwrap_or_default(),
            reason,
            note: note.clone(),
        };
        if !self.is_news(said, Instant::now()) {
            self.metrics.events_suppressed.inc();
            return;
        }
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(truncated(note)),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        if self.outgoing.try_send((event, reference)).is_err() {
            self.metrics.events_suppressed.inc();
        }
    }

    fn is_news(&self, said: Said, now: Instant) -> bool {
        let mut known = self.said.lock();
        if known.len() >= BUFFER {
            known.retain(|_, at| now.duration_since(*at) < QUIET);
        }
        match known.get(&said) {
            Some(at) if now.duration_since(*at) < QUIET => false,
            _ => {
                known.insert(said, now);
                true
            }
        }
    }
}

/// The API server refuses notes of more than 1,024 bytes.
fn truncated(mut note: String) -> String {
    const LONGEST: usize = 1_020;
    if note.len() > LONGEST {
        let end = (0..=LONGEST)
            .rev()
            .find(|&end| note.is_char_boundary(end))
            .unwrap_or(0);
        note.truncate(end);
        note.push('…');
    }
    note
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_note_is_cut_between_characters() {
        let note = truncated("ä".repeat(1_000));
        assert!(note.len() <= 1_024 && note.ends_with('…'));
    }

    #[tokio::test]
    async fn the_same_sentence_is_said_once_in_a_while() {
        let (outgoing, _incoming) = mpsc::channel(8);
        let events = Events {
            outgoing,
            said: std::sync::Arc::default(),
            metrics: Metrics::default(),
        };
        let said = |note: &str| Said {
            uid: "u".into(),
            reason: "R",
            note: note.into(),
        };
        let now = Instant::now();
        assert!(events.is_news(said("a"), now));
        assert!(!events.is_news(said("a"), now + QUIET / 2));
        assert!(events.is_news(said("b"), now));
        assert!(events.is_news(said("a"), now + QUIET));
    }
}
