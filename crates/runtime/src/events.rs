//! Events that tell a person something new.
//!
//! A sentence about an object is told at once. When a reconcile comes to the same conclusion again, or the same thing
//! happens once more, the Event that told of it gets a count and a later time, as those of Kubernetes itself do, and that
//! less and less often (`series`). Sending never delays or fails a reconcile.

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
    event_series::{EventState, Ledger, Message},
    metrics::Metrics,
    run::chain,
};

const BUFFER: usize = 1_024;

/// Something to tell: of which object, whether Normal or Warning, and when.
type Sentence = (Message, ObjectReference, &'static str, Timestamp);

/// Sends events; clone freely.
#[derive(Debug, Clone)]
pub struct Events {
    outgoing: mpsc::Sender<Sentence>,
    clock: Clock,
    metrics: Metrics,
}

impl Events {
    /// One per process: it counts what is said again.
    pub fn start(
        client: Client,
        controller: &str,
        instance: &str,
        (clock, metrics): (Clock, Metrics),
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let teller = Teller {
            client,
            controller: controller.to_owned(),
            instance: instance.to_owned(),
        };
        let (outgoing, incoming) = mpsc::channel(BUFFER);
        tasks.spawn(async move {
            tokio::select! {
                () = teller.run(incoming) => {}
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
        let said = Message {
            uid: about.uid.clone().unwrap_or_default(),
            reason,
            note: truncated(note),
        };
        if self
            .outgoing
            .try_send((said, about, kind, self.clock.now()))
            .is_err()
        {
            self.metrics.events_dropped.inc();
        }
    }
}

/// Has the API server know what is said.
struct Teller {
    client: Client,
    controller: String,
    instance: String,
}

impl Teller {
    async fn run(self, mut incoming: mpsc::Receiver<Sentence>) {
        let mut ledger = Ledger::default();
        loop {
            let wakes = async {
                match ledger.wakes() {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                heard = incoming.recv() => {
                    let Some((said, about, kind, at)) = heard else { return };
                    ledger.record(said, about, kind, at);
                }
                () = wakes => {}
            }
            for (said, telling) in ledger.due() {
                match self.tell(&said, &telling).await {
                    Ok(event) => ledger.published_as(&said, event),
                    Err(error) => {
                        tracing::warn!(
                            reason = said.reason,
                            error = chain(&error),
                            "cannot send an event"
                        );
                    }
                }
            }
        }
    }

    /// The name of the Event that tells of it now.
    async fn tell(&self, said: &Message, telling: &EventState) -> Result<String, kube::Error> {
        let namespace = telling.about.namespace.as_deref().unwrap_or("default");
        let events: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        if let Some(name) = &telling.event {
            let series = json!({ "count": telling.count, "lastObservedTime": MicroTime(telling.last) });
            let patch = Patch::Merge(json!({ "series": series }));
            match events.patch(name, &PatchParams::default(), &patch).await {
                Ok(_) => return Ok(name.clone()),
                // The API server keeps events for an hour.
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        let event = self.build(said, telling);
        events.create(&PostParams::default(), &event).await?;
        Ok(event.metadata.name.unwrap_or_default())
    }

    fn build(&self, said: &Message, telling: &EventState) -> Event {
        let about = telling.about.clone();
        let object = about.name.as_deref().unwrap_or(&self.controller);
        Event {
            metadata: ObjectMeta {
                // As Kubernetes' own are called.
                name: Some(format!("{object}.{:x}", telling.last.as_nanosecond())),
                namespace: about.namespace.clone(),
                ..ObjectMeta::default()
            },
            action: Some("Reconcile".to_owned()),
            reason: Some(said.reason.to_owned()),
            note: Some(said.note.clone()),
            type_: Some(telling.kind.to_owned()),
            event_time: Some(MicroTime(telling.last)),
            reporting_controller: Some(self.controller.clone()),
            reporting_instance: Some(self.instance.clone()),
            regarding: Some(about),
            ..Event::default()
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
}
