//! Decides when an authority or a serving certificate is made. Pure: the clock and what is stored are arguments.
//!
//! The order keeps every admission answered while an authority is replaced: the new one is announced beside the old
//! one first, only when the API server trusts both does it sign what is served, and the old one goes when nothing that
//! it signed can still be valid.

use jiff::{SignedDuration, Timestamp};

/// How long things live. An authority outlives many serving certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lifetimes {
    /// Of an authority.
    pub authority: SignedDuration,
    /// Of a serving certificate.
    pub serving: SignedDuration,
    /// How long the API servers get to learn of a new authority, after the webhook configurations carry it.
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

/// When a certificate is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    pub from: Timestamp,
    pub until: Timestamp,
}

impl Validity {
    fn is_over(&self, now: Timestamp) -> bool {
        now >= self.until
    }

    /// The instant at which a successor should be made: two thirds of the way.
    fn due(&self) -> Timestamp {
        let third = self.until.duration_since(self.from) / 3;
        earlier(self.until, third)
    }
}

/// What the Secret holds, as far as decisions need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The authorities that are to be trusted, the newest first.
    pub authorities: Vec<Validity>,
    pub serving: Validity,
    /// Whether the newest authority signed the serving certificate.
    pub signed_by_newest: bool,
    /// Whether the serving certificate has all the names that it is called by.
    pub names_match: bool,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing usable is there: make an authority and a certificate.
    Make,
    /// Put a new authority beside the ones that are there; go on serving what is served.
    Announce,
    /// Make a serving certificate by the newest authority.
    Issue,
    /// Stop trusting all authorities but the newest.
    Forget,
    /// Nothing; look again then at the latest.
    Wait { until: Timestamp },
}

/// The next step. `announced` is when the newest authority was first seen in every webhook configuration.
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
    // A second authority is not announced while the first waits to be used.
    if newest.due() <= now && stored.signed_by_newest {
        return Step::Announce;
    }
    let mut until = newest.due().min(stored.serving.due());
    if replace {
        // Before it is announced, that news is what ends the wait, not the clock.
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

    /// What a replica serves and what the API servers trust, moved on by the plan.
    #[derive(Debug)]
    struct World {
        authorities: Vec<(u32, Validity)>,
        serving: (u32, Validity),
        announced: Option<Timestamp>,
    }

    proptest! {
        /// However the clock jumps between two looks, what is served is signed by an authority that was trusted for
        /// the whole settling time before, unless everything had run out.
        #[test]
        fn what_is_served_is_trusted(jumps in prop::collection::vec(1_i64..120, 1..200)) {
            let lifetimes = lifetimes();
            let fresh = |id, now: i64| (id, valid(now, now + 900));
            let mut now = 0;
            let mut next = 1;
            let mut world = World { authorities: vec![fresh(0, 0)], serving: (0, valid(0, 90)), announced: Some(at(0)) };
            for jump in jumps {
                now += jump;
                // Several steps may follow at one instant.
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
