//! Leader election with a Lease, compatible with client-go.
//!
//! A Lease has expired when it has not *changed* for a lease duration, measured locally; timestamps written by other
//! machines are never compared with our clock. Losing the Lease is final: the process must exit, because work in progress
//! cannot be undone.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use tokio::time::{Instant, sleep, timeout};

use crate::{Clock, run::chain};

/// Durations of the election; the defaults are those of client-go.
#[derive(Debug, Clone, Copy)]
pub struct Timings {
    pub lease: Duration,
    /// A leader that could not renew for this long has lost the Lease.
    pub renew_deadline: Duration,
    pub retry: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}

/// One candidate for one Lease.
pub struct Election {
    api: Api<Lease>,
    name: String,
    identity: String,
    timings: Timings,
    clock: Clock,
    /// The Lease as last seen and when that version was first seen.
    observed: Option<(Lease, Instant)>,
}

impl std::fmt::Debug for Election {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Election")
            .field("name", &self.name)
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Create,
    /// Already ours.
    Renew,
    /// Free, released or expired.
    Take,
    Wait,
}

fn decide(
    lease: Option<&LeaseSpec>,
    me: &str,
    unchanged_for: Duration,
    lease_duration: Duration,
) -> Decision {
    let Some(spec) = lease else {
        return Decision::Create;
    };
    match spec.holder_identity.as_deref() {
        Some(holder) if holder == me => Decision::Renew,
        None | Some("") => Decision::Take,
        Some(_) => {
            let lasts = spec
                .lease_duration_seconds
                .and_then(|seconds| u64::try_from(seconds).ok())
                .map_or(lease_duration, Duration::from_secs);
            if unchanged_for >= lasts {
                Decision::Take
            } else {
                Decision::Wait
            }
        }
    }
}

impl Election {
    pub fn new(
        client: Client,
        namespace: &str,
        name: &str,
        identity: &str,
        timings: Timings,
        clock: Clock,
    ) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            name: name.to_owned(),
            identity: identity.to_owned(),
            timings,
            clock,
            observed: None,
        }
    }

    /// Resolves when this candidate leads.
    pub async fn acquire(&mut self) {
        loop {
            match timeout(self.timings.renew_deadline, self.attempt()).await {
                Ok(Ok(true)) => return,
                Ok(Ok(false)) => {}
                Ok(Err(error)) => {
                    tracing::warn!(
                        lease = self.name,
                        error = chain(&error),
                        "failed to acquire the lease"
                    );
                }
                Err(_) => tracing::warn!(lease = self.name, "timed out acquiring the lease"),
            }
            sleep(self.timings.retry).await;
        }
    }

    /// Renews the Lease; resolves when leadership is lost.
    pub async fn keep(&mut self) {
        let mut renewed = Instant::now();
        loop {
            sleep(self.timings.retry).await;
            let left = self.timings.renew_deadline.saturating_sub(renewed.elapsed());
            match timeout(left, self.attempt()).await {
                Ok(Ok(true)) => renewed = Instant::now(),
                Ok(Ok(false)) => {
                    tracing::error!(lease = self.name, "lost the lease to another replica");
                    return;
                }
                Ok(Err(error)) => {
                    tracing::warn!(
                        lease = self.name,
                        error = chain(&error),
                        "failed to renew the lease"
                    );
                }
                Err(_) => {}
            }
            if renewed.elapsed() >= self.timings.renew_deadline {
                tracing::error!(lease = self.name, "failed to renew the lease in time");
                return;
            }
        }
    }

    /// Releases the Lease, so that another replica need not wait for it to expire.
    pub async fn release(&mut self) {
        let Some((lease, _)) = &self.observed else { return };
        let mut lease = lease.clone();
        let Some(spec) = lease
            .spec
            .as_mut()
            .filter(|s| s.holder_identity.as_deref() == Some(&self.identity))
        else {
            return;
        };
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        let params = PostParams::default();
        let replace = self.api.replace(&self.name, &params, &lease);
        match timeout(self.timings.retry, replace).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(
                lease = self.name,
                error = chain(&error),
                "failed to release the lease"
            ),
            Err(_) => tracing::warn!(lease = self.name, "timed out releasing the lease"),
        }
    }

    async fn attempt(&mut self) -> Result<bool, kube::Error> {
        let live = self.api.get_opt(&self.name).await?;
        let unchanged_for = self.observe(live.as_ref());
        let spec = live.as_ref().and_then(|lease| lease.spec.as_ref());
        let decision = match (&live, spec) {
            (Some(_), None) => Decision::Take,
            _ => decide(spec, &self.identity, unchanged_for, self.timings.lease),
        };
        let written = match decision {
            Decision::Wait => return Ok(false),
            Decision::Create => {
                self.api
                    .create(&PostParams::default(), &self.lease_after(None, true))
                    .await
            }
            Decision::Renew => {
                self.api
                    .replace(&self.name, &PostParams::default(), &self.lease_after(live, false))
                    .await
            }
            Decision::Take => {
                self.api
                    .replace(&self.name, &PostParams::default(), &self.lease_after(live, true))
                    .await
            }
        };
        match written {
            Ok(lease) => {
                self.observed = Some((lease, Instant::now()));
                Ok(true)
            }
            // Another candidate was faster, or our own earlier write did arrive: the next attempt reads the Lease.
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => {
                Ok(self.leads())
            }
            Err(error) => Err(error),
        }
    }

    fn leads(&self) -> bool {
        self.observed.as_ref().is_some_and(|(lease, seen)| {
            seen.elapsed() < self.timings.renew_deadline
                && lease
                    .spec
                    .as_ref()
                    .and_then(|spec| spec.holder_identity.as_deref())
                    == Some(&self.identity)
        })
    }

    fn observe(&mut self, live: Option<&Lease>) -> Duration {
        let Some(live) = live else {
            self.observed = None;
            return Duration::ZERO;
        };
        match &self.observed {
            Some((known, since)) if known.metadata.resource_version == live.metadata.resource_version => {
                since.elapsed()
            }
            _ => {
                self.observed = Some((live.clone(), Instant::now()));
                Duration::ZERO
            }
        }
    }

    fn lease_after(&self, live: Option<Lease>, taken: bool) -> Lease {
        let mut lease = live.unwrap_or_else(|| Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                ..ObjectMeta::default()
            },
            spec: None,
        });
        let before = lease.spec.take().unwrap_or_default();
        lease.spec = Some(held(
            before,
            &self.identity,
            self.timings.lease,
            MicroTime(self.clock.now()),
            taken,
        ));
        lease
    }
}

fn held(before: LeaseSpec, me: &str, lasts: Duration, now: MicroTime, taken: bool) -> LeaseSpec {
    let changed_hands = before
        .holder_identity
        .as_deref()
        .is_some_and(|holder| holder != me);
    LeaseSpec {
        acquire_time: if taken {
            Some(now.clone())
        } else {
            before.acquire_time
        },
        holder_identity: Some(me.to_owned()),
        lease_duration_seconds: i32::try_from(lasts.as_secs()).ok(),
        lease_transitions: Some(before.lease_transitions.unwrap_or(0) + i32::from(changed_hands)),
        renew_time: Some(now),
        ..LeaseSpec::default()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn held_by(holder: Option<&str>) -> LeaseSpec {
        LeaseSpec {
            holder_identity: holder.map(str::to_owned),
            lease_duration_seconds: Some(15),
            ..LeaseSpec::default()
        }
    }

    #[rstest]
    #[case::no_lease(None, 0, Decision::Create)]
    #[case::mine(Some(held_by(Some("me"))), 0, Decision::Renew)]
    #[case::mine_even_if_old(Some(held_by(Some("me"))), 60, Decision::Renew)]
    #[case::released(Some(held_by(Some(""))), 0, Decision::Take)]
    #[case::nobody(Some(held_by(None)), 0, Decision::Take)]
    #[case::another_alive(Some(held_by(Some("you"))), 14, Decision::Wait)]
    #[case::another_expired(Some(held_by(Some("you"))), 15, Decision::Take)]
    fn who_leads(#[case] lease: Option<LeaseSpec>, #[case] unchanged: u64, #[case] expected: Decision) {
        let unchanged = Duration::from_secs(unchanged);
        assert_eq!(
            decide(lease.as_ref(), "me", unchanged, Duration::from_secs(15)),
            expected
        );
    }

    #[test]
    fn a_renewal_keeps_the_time_of_acquisition_and_counts_no_transition() {
        let at = |second| MicroTime(jiff::Timestamp::from_second(second).unwrap());
        let lasts = Duration::from_secs(15);
        let taken = held(held_by(Some("you")), "me", lasts, at(1), true);
        assert_eq!(taken.lease_transitions, Some(1));
        let renewed = held(taken, "me", lasts, at(2), false);
        assert_eq!(renewed.lease_transitions, Some(1));
        assert_eq!(
            (renewed.acquire_time, renewed.renew_time),
            (Some(at(1)), Some(at(2)))
        );
    }
}
