//! The reconcile loop of a controller.
//!
//! A reconcile that panics, hangs or fails affects only its object: it is counted and retried with backoff, while other
//! objects continue.

use std::{
    error::Error as StdError,
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::{Key, Queue, metrics::ControllerLabels, metrics::Metrics};

/// Timeout of a reconcile; a hung call must not block a worker forever.
const RECONCILE_LIMIT: Duration = Duration::from_mins(3);
/// The cooldown is the CPU time of the last reconcile multiplied by this, up to `LONGEST_REST`: a reconcile of
/// thousands of workers is expensive, and each worker causes several triggers.
const REST_FACTOR: u32 = 9;
const LONGEST_REST: Duration = Duration::from_secs(1);

/// When to reconcile again although nothing changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Requeue {
    /// The next change will trigger it.
    #[default]
    OnChange,
    After(Duration),
}

impl Requeue {
    /// Returns a requeue that happens no later than `delay`.
    #[must_use]
    pub fn or_within(self, delay: Option<Duration>) -> Self {
        match (self, delay) {
            (_, None) => self,
            (Self::OnChange, Some(delay)) => Self::After(delay),
            (Self::After(other), Some(delay)) => Self::After(other.min(delay)),
        }
    }
}

/// What the loop needs to know about a failed reconcile.
pub trait ReconcileError: StdError + Send + Sync + 'static {
    /// The event and condition reason, in CamelCase.
    fn reason(&self) -> &'static str;
}

/// The reconcile loop of one controller.
#[derive(Debug, Clone)]
pub struct Loop {
    pub controller: &'static str,
    pub concurrency: usize,
    pub metrics: Metrics,
    /// Once cancelled, no new reconcile starts; [`Loop::run`] waits for running ones.
    pub stop: CancellationToken,
}

impl Loop {
    /// Runs until stopped. `reconcile` gets the key of a due object, which may no longer exist.
    pub async fn run<F, Fut, E>(self, queue: Arc<Queue<Key>>, reconcile: F)
    where
        F: Fn(Key) -> Fut,
        Fut: Future<Output = Result<Requeue, E>> + Send + 'static,
        E: ReconcileError,
    {
        let mut running = JoinSet::new();
        loop {
            let depth = i64::try_from(queue.len()).unwrap_or(i64::MAX);
            self.metrics
                .queue_depth
                .get_or_create(&ControllerLabels {
                    controller: self.controller,
                })
                .set(depth);
            if running.len() >= self.concurrency.max(1) {
                running.join_next().await;
                continue;
            }
            let key = tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                key = queue.next() => key,
                Some(_) = running.join_next(), if !running.is_empty() => continue,
            };
            let span = tracing::info_span!("reconcile", controller = self.controller, object = %key);
            let work = tokio::spawn(timed(reconcile(key.clone())).instrument(span.clone()));
            let (queue, this) = (Arc::clone(&queue), self.clone());
            running.spawn(async move { this.finish(&queue, &key, work).await }.instrument(span));
        }
        while running.join_next().await.is_some() {}
    }

    async fn finish<E: ReconcileError>(
        &self,
        queue: &Queue<Key>,
        key: &Key,
        mut work: tokio::task::JoinHandle<(Result<Requeue, E>, Duration)>,
    ) {
        let started = Instant::now();
        let outcome = match tokio::time::timeout(RECONCILE_LIMIT, &mut work).await {
            Ok(Ok((Ok(requeue), busy))) => {
                let after = match requeue {
                    Requeue::OnChange => None,
                    Requeue::After(delay) => Some(delay),
                };
                queue.finish(key, after, rest(busy));
                "ok"
            }
            Ok(Ok((Err(error), _))) => {
                let delay = queue.fail(key, rand::random());
                tracing::warn!(
                    reason = error.reason(),
                    error = chain(&error),
                    ?delay,
                    "reconcile failed"
                );
                "error"
            }
            Ok(Err(join)) => {
                let delay = queue.fail(key, rand::random());
                tracing::error!(error = %join, ?delay, "reconcile panicked");
                "panic"
            }
            Err(_) => {
                work.abort();
                let delay = queue.fail(key, rand::random());
                tracing::error!(limit = ?RECONCILE_LIMIT, ?delay, "reconcile timed out");
                "timeout"
            }
        };
        self.metrics
            .reconciled(self.controller, outcome, started.elapsed());
    }
}

fn rest(busy: Duration) -> Duration {
    busy.saturating_mul(REST_FACTOR).min(LONGEST_REST)
}

/// Returns the output of the work and the time spent in its polls, which excludes the time that it waited.
async fn timed<F: Future>(work: F) -> (F::Output, Duration) {
    let mut work = pin!(work);
    let mut busy = Duration::ZERO;
    let output = poll_fn(|context| {
        let began = std::time::Instant::now();
        let polled = work.as_mut().poll(context);
        busy += began.elapsed();
        polled
    })
    .await;
    (output, busy)
}

/// Formats an error and its causes in one line, without repetitions.
pub fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = String::new();
    let mut cause = Some(error);
    while let Some(error) = cause {
        let answer = answer(error);
        let part = answer.map_or_else(|| error.to_string(), str::to_owned);
        if text.is_empty() {
            text = part;
        } else if !text.contains(&part) {
            text = format!("{text}: {part}");
        }
        cause = error.source().filter(|_| answer.is_none());
    }
    text
}

/// Returns the human-readable message of the API server's response.
fn answer<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a str> {
    let boxed = error.downcast_ref::<Box<kube::Error>>().map(AsRef::as_ref);
    match boxed.or_else(|| error.downcast_ref())? {
        kube::Error::Api(status) => Some(status.message.as_str()).filter(|message| !message.is_empty()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use parking_lot::Mutex;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("it went wrong")]
    struct Wrong;

    impl ReconcileError for Wrong {
        fn reason(&self) -> &'static str {
            "Wrong"
        }
    }

    fn the_loop(stop: &CancellationToken, concurrency: usize) -> Loop {
        Loop {
            controller: "test",
            concurrency,
            metrics: Metrics::default(),
            stop: stop.clone(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_others_is_no_work() {
        let hour = Duration::from_hours(1);
        let (output, busy) = timed(async {
            tokio::time::sleep(hour).await;
            let began = std::time::Instant::now();
            while began.elapsed() < Duration::from_millis(2) {}
            7
        })
        .await;
        assert_eq!(output, 7);
        assert!(busy >= Duration::from_millis(2));
        assert!(busy < hour, "{busy:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_is_retried_and_does_not_stop_the_others() {
        let (queue, stop) = (Arc::new(Queue::default()), CancellationToken::new());
        let seen = Arc::new(Mutex::new(Vec::new()));
        queue.add(Key::new("ns", "bad"));
        queue.add(Key::new("ns", "good"));
        let (log, end) = (Arc::clone(&seen), stop.clone());
        the_loop(&stop, 1)
            .run(queue, move |key| {
                let (log, end) = (Arc::clone(&log), end.clone());
                async move {
                    log.lock().push(key.name.clone());
                    let bad = log.lock().iter().filter(|name| *name == "bad").count();
                    assert!(key.name != "bad" || bad >= 3, "on purpose");
                    if bad == 3 {
                        end.cancel();
                    }
                    Ok::<_, Wrong>(Requeue::OnChange)
                }
            })
            .await;
        assert_eq!(*seen.lock(), ["bad", "good", "bad", "bad"]);
    }

    #[tokio::test(start_paused = true)]
    async fn never_more_at_once_than_allowed_and_a_stop_waits_for_what_runs() {
        let (queue, stop) = (Arc::new(Queue::default()), CancellationToken::new());
        for i in 0..10 {
            queue.add(Key::new("ns", i.to_string()));
        }
        let (now, most, done) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicUsize::new(0)),
        );
        let end = stop.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(2_500)).await;
            end.cancel();
        });
        let (n, m, d) = (Arc::clone(&now), Arc::clone(&most), Arc::clone(&done));
        the_loop(&stop, 3)
            .run(queue, move |_| {
                let (n, m, d) = (Arc::clone(&n), Arc::clone(&m), Arc::clone(&d));
                async move {
                    m.fetch_max(n.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    n.fetch_sub(1, Ordering::SeqCst);
                    d.fetch_add(1, Ordering::SeqCst);
                    Ok::<_, Wrong>(Requeue::OnChange)
                }
            })
            .await;
        assert_eq!(most.load(Ordering::SeqCst), 3);
        assert_eq!(done.load(Ordering::SeqCst), 9);
    }

    #[test]
    fn the_api_servers_answer_is_told_in_its_words_alone() {
        let status = kube::core::Status::failure("pods is forbidden", "Forbidden");
        let error = crate::apply::Error::Call {
            verb: "create",
            kind: "Pod".into(),
            object: Key::new("ns", "a"),
            source: Box::new(kube::Error::Api(Box::new(status))),
        };
        assert_eq!(chain(&error), "create of Pod ns/a failed: pods is forbidden");
    }

    #[tokio::test(start_paused = true)]
    async fn a_hung_reconcile_is_stopped_and_retried() {
        let (queue, stop) = (Arc::new(Queue::default()), CancellationToken::new());
        queue.add(Key::new("ns", "a"));
        let runs = Arc::new(AtomicUsize::new(0));
        let (count, end) = (Arc::clone(&runs), stop.clone());
        the_loop(&stop, 1)
            .run(queue, move |_| {
                let run = count.fetch_add(1, Ordering::SeqCst);
                let end = end.clone();
                async move {
                    if run == 0 {
                        std::future::pending::<()>().await;
                    }
                    end.cancel();
                    Ok::<_, Wrong>(Requeue::OnChange)
                }
            })
            .await;
        assert_eq!(runs.load(Ordering::SeqCst), 2);
    }
}
