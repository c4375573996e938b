//! Sends Kubernetes Events.
//!
//! A new message is sent immediately. A repeated message updates the count and time of its Event (`series`), as
//! Kubernetes components do, at growing intervals. Sending never delays or fails a reconcile.
//!
//! We do not use kube's `Recorder` (as of kube-runtime 5.0), for four reasons. It takes two messages with the same reason
//! for repetitions, and then shows only the first. It writes to the API server for every repetition. The caller waits for
//! the write and has to handle its errors. And it does not shorten a note that the API server would reject.

use jiff::Timestamp;
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client, Resource,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::{sync::mpsc, time::sleep_until};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    clock::Clock,
    event_series::{EventLog, EventState, Message},
    metrics::Metrics,
    run::chain,
};

const BUFFER: usize = 1_024;

/// A message to send, with its object, its type (Normal or Warning) and its time.
#[derive(Debug)]
struct Outgoing {
    message: Message,
    about: ObjectReference,
    kind: &'static str,
    at: Timestamp,
}

/// Sends events; clone freely.
#[derive(Debug, Clone)]
pub struct Events {
    outgoing: mpsc::Sender<Outgoing>,
    clock: Clock,
    metrics: Metrics,
}

impl Events {
    /// Starts sending. A process must start only one, because it counts repeated messages.
    pub fn start(
        client: Client,
        controller: &str,
        instance: &str,
        (clock, metrics): (Clock, Metrics),
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let publisher = Publisher {
            client,
            controller: controller.to_owned(),
            instance: instance.to_owned(),
        };
        let (outgoing, incoming) = mpsc::channel(BUFFER);
        tasks.spawn(async move {
            tokio::select! {
                () = publisher.run(incoming) => {}
                () = stop.cancelled() => {}
            }
        });
        Self {
            outgoing,
            clock,
            metrics,
        }
    }

    pub fn normal<K: Resource<DynamicType = ()>>(&self, about: &K, reason: &'static str, note: String) {
        self.send(about, "Normal", reason, note);
    }

    pub fn warning<K: Resource<DynamicType = ()>>(&self, about: &K, reason: &'static str, note: String) {
        self.send(about, "Warning", reason, note);
    }

    fn send<K: Resource<DynamicType = ()>>(
        &self,
        about: &K,
        kind: &'static str,
        reason: &'static str,
        note: String,
    ) {
        let about = about.object_ref(&());
        let message = Message {
            uid: about.uid.clone().unwrap_or_default(),
            reason,
            note: truncated(note),
        };
        let outgoing = Outgoing {
            message,
            about,
            kind,
            at: self.clock.now(),
        };
        if self.outgoing.try_send(outgoing).is_err() {
            self.metrics.events_dropped.inc();
        }
    }
}

/// Writes the Events to the API server.
struct Publisher {
    client: Client,
    controller: String,
    instance: String,
}

impl Publisher {
    async fn run(self, mut incoming: mpsc::Receiver<Outgoing>) {
        let mut log = EventLog::default();
        loop {
            let due = async {
                match log.next_due() {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                received = incoming.recv() => {
                    let Some(Outgoing { message, about, kind, at }) = received else { return };
                    log.record(message, about, kind, at);
                }
                () = due => {}
            }
            for (message, state) in log.due() {
                match self.publish(&message, &state).await {
                    Ok(event) => log.published_as(&message, event),
                    Err(error) => {
                        tracing::warn!(
                            reason = message.reason,
                            error = chain(&error),
                            "failed to send an event"
                        );
                    }
                }
            }
        }
    }

    /// Updates or creates the Event of a message and returns its name.
    async fn publish(&self, message: &Message, state: &EventState) -> Result<String, kube::Error> {
        let namespace = state.about.namespace.as_deref().unwrap_or("default");
        let events: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        if let Some(name) = &state.event {
            let series = json!({ "count": state.count, "lastObservedTime": MicroTime(state.last) });
            let patch = Patch::Merge(json!({ "series": series }));
            match events.patch(name, &PatchParams::default(), &patch).await {
                Ok(_) => return Ok(name.clone()),
                // The API server keeps events for an hour.
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        let event = self.build(message, state);
        events.create(&PostParams::default(), &event).await?;
        Ok(event.metadata.name.unwrap_or_default())
    }

    fn build(&self, message: &Message, state: &EventState) -> Event {
        let about = state.about.clone();
        let object = about.name.as_deref().unwrap_or(&self.controller);
        Event {
            metadata: ObjectMeta {
                // Kubernetes components name their Events the same way.
                name: Some(format!("{object}.{:x}", state.last.as_nanosecond())),
                namespace: about.namespace.clone(),
                ..ObjectMeta::default()
            },
            action: Some("Reconcile".to_owned()),
            reason: Some(message.reason.to_owned()),
            note: Some(message.note.clone()),
            type_: Some(state.kind.to_owned()),
            event_time: Some(MicroTime(state.last)),
            reporting_controller: Some(self.controller.clone()),
            reporting_instance: Some(self.instance.clone()),
            regarding: Some(about),
            ..Event::default()
        }
    }
}

/// Truncates a note: the API server rejects more than 1,024 bytes.
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
}
