//! Decides when to create a CA or a serving certificate. Pure: the time and the stored state are arguments.
//!
//! The order of the steps keeps admission working while the CA is replaced: the new CA is first announced beside the old
//! one, it signs the serving certificate only when the API server trusts both, and the old CA is removed when nothing that
//! it signed can still be valid.

use jiff::{SignedDuration, Timestamp};

/// Lifetimes of certificates. A CA outlives many serving certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lifetimes {
    /// Lifetime of a CA.
    pub authority: SignedDuration,
    /// Lifetime of a serving certificate.
    pub serving: SignedDuration,
    /// How long the API servers may take to load a new CA from the webhook configurations.
    pub settle: SignedDuration,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self {
            authority: SignedDuration::from_hours(24 * 365 * 5),
            serving: SignedDuration::from_hours(24 * 90),
            settle: SignedDuration::from_secs(30),
        }
    }
}

/// The validity period of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    pub from: Timestamp,
    pub until: Timestamp,
}

impl Validity {
    fn is_over(&self, now: Timestamp) -> bool {
        now >= self.until
    }

    /// When to renew the certificate: after two thirds of its lifetime.
    fn due(&self) -> Timestamp {
        let third = self.until.duration_since(self.from) / 3;
        earlier(self.until, third)
    }
}

/// The state of the Secret, as needed to decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The trusted CAs, the newest first.
    pub authorities: Vec<Validity>,
    pub serving: Validity,
    /// Whether the newest CA signed the serving certificate.
    pub signed_by_newest: bool,
    /// Whether the serving certificate has all DNS names of the server.
    pub names_match: bool,
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing valid is stored: create a CA and a certificate.
    Make,
    /// Add a new CA to the existing ones; keep serving the current certificate.
    Announce,
    /// Issue a serving certificate signed by the newest CA.
    Issue,
    /// Remove all CAs but the newest.
    Forget,
    /// Do nothing; check again by this time.
    Wait { until: Timestamp },
}

/// Decides the next step. `announced` is when the newest CA was first seen in every webhook configuration.
pub fn plan(
    stored: Option<&Stored>,
    announced: Option<Timestamp>,
    now: Timestamp,
    lifetimes: &Lifetimes,
) -> Step {
    let Some(stored) = stored else {
        return Step::Make;
    };
    let Some(newest) = stored.authorities.first() else {
        return Step::Make;
    };
    if newest.is_over(now) {
        return Step::Make;
    }
    let useless = stored.serving.is_over(now) || !stored.names_match;
    let settled = announced.map(|since| later(since, lifetimes.settle));
    let replace = useless || !stored.signed_by_newest || stored.serving.due() <= now;
    if replace && (useless || settled.is_some_and(|at| at <= now)) {
        return Step::Issue;
    }
    let forgettable = later(newest.from, lifetimes.serving);
    let several = stored.authorities.len() > 1;
    if several && stored.signed_by_newest && forgettable <= now {
        return Step::Forget;
    }
    // Do not announce a second CA before the first is in use.
    if newest.due() <= now && stored.signed_by_newest {
        return Step::Announce;
    }
    let mut until = newest.due().min(stored.serving.due());
    if replace {
        // Before the CA is announced, its announcement ends the wait, not the timer.
        until = settled.unwrap_or_else(|| later(now, lifetimes.settle));
    } else if several {
        until = until.min(forgettable);
    }
    Step::Wait { until }
}

fn later(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

fn earlier(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.checked_sub(by).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn at(hours: i64) -> Timestamp {
        Timestamp::from_second(hours * 3600).unwrap()
    }

    fn valid(from: i64, until: i64) -> Validity {
        Validity {
            from: at(from),
            until: at(until),
        }
    }

    fn lifetimes() -> Lifetimes {
        Lifetimes {
            authority: SignedDuration::from_hours(900),
            serving: SignedDuration::from_hours(90),
            settle: SignedDuration::from_hours(1),
        }
    }

    fn stored(authorities: &[(i64, i64)], serving: (i64, i64), signed_by_newest: bool) -> Stored {
        Stored {
            authorities: authorities
                .iter()
                .map(|&(from, until)| valid(from, until))
                .collect(),
            serving: valid(serving.0, serving.1),
            signed_by_newest,
            names_match: true,
        }
    }

    #[rstest]
    #[case::nothing_there(None, None, 0, Step::Make)]
    #[case::authority_over(Some(stored(&[(0, 900)], (850, 899), true)), Some(0), 900, Step::Make)]
    #[case::all_well(Some(stored(&[(0, 900)], (0, 90), true)), Some(0), 1, Step::Wait { until: at(60) })]
    #[case::serving_due(Some(stored(&[(0, 900)], (0, 90), true)), Some(0), 60, Step::Issue)]
    #[case::serving_due_but_not_yet_trusted(
        Some(stored(&[(0, 900)], (0, 90), true)), None, 60, Step::Wait { until: at(61) }
    )]
    #[case::serving_over_is_replaced_at_once(Some(stored(&[(0, 900)], (0, 90), true)), None, 90, Step::Issue)]
    #[case::authority_due(Some(stored(&[(0, 900)], (590, 680), true)), Some(0), 600, Step::Announce)]
    #[case::announced_just_now(
        Some(stored(&[(600, 1500), (0, 900)], (590, 680), false)), Some(600), 600, Step::Wait { until: at(601) }
    )]
    #[case::announced_long_enough(
        Some(stored(&[(600, 1500), (0, 900)], (590, 680), false)), Some(600), 601, Step::Issue
    )]
    #[case::the_old_authority_stays_while_what_it_signed_may_be_in_use(
        Some(stored(&[(600, 1500), (0, 900)], (601, 691), true)), Some(600), 620, Step::Wait { until: at(661) }
    )]
    #[case::and_goes_then(
        Some(stored(&[(600, 1500), (0, 900)], (661, 751), true)), Some(600), 690, Step::Forget
    )]
    fn steps(
        #[case] stored: Option<Stored>,
        #[case] announced: Option<i64>,
        #[case] now: i64,
        #[case] step: Step,
    ) {
        assert_eq!(
            plan(stored.as_ref(), announced.map(at), at(now), &lifetimes()),
            step
        );
    }

    #[test]
    fn other_names_are_certified_at_once() {
        let mut stored = stored(&[(0, 900)], (0, 90), true);
        stored.names_match = false;
        assert_eq!(plan(Some(&stored), None, at(1), &lifetimes()), Step::Issue);
    }

    /// The certificate that a replica serves and the CAs that the API servers trust, updated by the plan.
    #[derive(Debug)]
    struct World {
        authorities: Vec<(u32, Validity)>,
        serving: (u32, Validity),
        announced: Option<Timestamp>,
    }

    proptest! {
        /// For any time between two checks, the serving certificate is signed by a CA that was trusted for the whole
        /// settling time before, unless everything had expired.
        #[test]
        fn what_is_served_is_trusted(jumps in prop::collection::vec(1_i64..120, 1..200)) {
            let lifetimes = lifetimes();
            let fresh = |id, now: i64| (id, valid(now, now + 900));
            let mut now = 0;
            let mut next = 1;
            let mut world = World { authorities: vec![fresh(0, 0)], serving: (0, valid(0, 90)), announced: Some(at(0)) };
            for jump in jumps {
                now += jump;
                // Multiple steps may follow at one time.
                for _ in 0..4 {
                    let stored = Stored {
                        authorities: world.authorities.iter().map(|(_, validity)| *validity).collect(),
                        serving: world.serving.1,
                        signed_by_newest: world.authorities[0].0 == world.serving.0,
                        names_match: true,
                    };
                    let lapsed = world.serving.1.is_over(at(now)) || world.authorities[0].1.is_over(at(now));
                    match plan(Some(&stored), world.announced, at(now), &lifetimes) {
                        Step::Make => {
                            prop_assert!(lapsed);
                            world = World { authorities: vec![fresh(next, now)], serving: (next, valid(now, now + 90)), announced: Some(at(now)) };
                            next += 1;
                        }
                        Step::Announce => {
                            world.authorities.insert(0, fresh(next, now));
                            next += 1;
                            world.announced = Some(at(now));
                        }
                        Step::Issue => {
                            let settled = world.announced.is_some_and(|since| later(since, lifetimes.settle) <= at(now));
                            prop_assert!(settled || lapsed);
                            world.serving = (world.authorities[0].0, valid(now, now + 90));
                        }
                        Step::Forget => world.authorities.truncate(1),
                        Step::Wait { until } => {
                            prop_assert!(until > at(now), "a wait that is over: {until} at hour {now}");
                            break;
                        }
                    }
                    prop_assert!(world.authorities.iter().any(|(id, _)| *id == world.serving.0));
                    prop_assert!(world.authorities.len() <= 2, "authorities pile up");
                }
            }
        }
    }
}
