//! The maintenance window of a scheduled update, which is a Slurm reservation: compares the desired reservation with
//! the existing one. Pure.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use keelson_api::{NodeSet, nodeset::UpdateStrategyType, well_known::slurm};
use slurm_rest::{
    Hostlist,
    reservation::{Reservation, ReservationUpdate},
};

use super::facts::Observed;

/// Running jobs do not prevent the window from opening; the drain waits for them.
const FLAGS: [&str; 2] = ["MAINT", "IGNORE_JOBS"];
/// Opens a window immediately if its start time has passed. Slurm does not list this flag.
const FORCE_START: &str = "FORCE_START";
/// With one of these flags, Slurm itself moves the window to the next period.
const RECURRING: [&str; 5] = ["HOURLY", "DAILY", "WEEKLY", "WEEKDAY", "WEEKEND"];

/// The desired maintenance window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    pub name: String,
    pub start: Timestamp,
    pub duration: SignedDuration,
    pub flags: BTreeSet<String>,
    /// Names of the nodes in Slurm.
    pub nodes: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Write(Box<ReservationUpdate>),
    Delete,
}

/// The result of the comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comparison {
    pub change: Option<Change>,
    /// Whether the reservation exists after the change.
    pub exists: bool,
    pub message: String,
}

/// Returns true if this NodeSet uses a maintenance window.
pub fn is_scheduled(nodeset: &NodeSet) -> bool {
    nodeset.spec.update_type() == UpdateStrategyType::ScheduledUpdate
        && nodeset.metadata.deletion_timestamp.is_none()
}

/// Returns the desired window, with the workers that Slurm knows. An error names the invalid field.
pub fn window(nodeset: &NodeSet, observed: &Observed) -> Result<Window, String> {
    let scheduled = nodeset.spec.scheduled_update();
    let start = scheduled
        .start_time
        .as_ref()
        .ok_or("updateStrategy.scheduledUpdate.startTime is not set")?
        .parse()
        .map_err(|error| format!("updateStrategy.scheduledUpdate.startTime: {error}"))?;
    let duration = scheduled
        .duration
        .parse()
        .map_err(|error| format!("updateStrategy.scheduledUpdate.duration: {error}"))?;
    let flags = FLAGS
        .iter()
        .map(|flag| (*flag).to_owned())
        .chain(scheduled.flags.iter().flatten().map(|flag| flag.to_uppercase()))
        .collect();
    let nodes = observed
        .pods
        .iter()
        .filter(|pod| observed.slurm.node(&pod.node).is_some())
        .map(|pod| pod.node.0.clone())
        .collect();
    Ok(Window {
        name: nodeset.reservation_name(),
        start,
        duration: SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX),
        flags,
        nodes,
    })
}

/// Compares the desired window with the existing reservation. `None` means that no window is desired.
pub fn compare(window: Option<&Window>, live: Option<&Reservation>, now: Timestamp) -> Comparison {
    let Some(window) = window else {
        return Comparison {
            change: live.map(|_| Change::Delete),
            exists: false,
            message: String::new(),
        };
    };
    let Some(live) = live else {
        return absent(window, now);
    };
    let start = live.start_time.unwrap_or(window.start);
    let end = live.end_time.unwrap_or(start);
    let active = start <= now && now < end;
    let nodes: BTreeSet<String> = live
        .nodes
        .parse::<Hostlist>()
        .map(|list| list.names().collect())
        .unwrap_or_default();
    let nodes_differ = !window.nodes.is_empty() && nodes != window.nodes;
    let recurs = window.flags.iter().any(|flag| RECURRING.contains(&flag.as_str()));
    let shown = |flag: &String| flag == FORCE_START || live.flags.iter().any(|known| known == flag);
    // Slurm keeps start times in whole seconds and durations in whole minutes.
    let start_differs = !recurs && start.as_second() != window.start.as_second();
    let duration_differs = end.duration_since(start).as_mins() != window.duration.as_mins();
    let shape_differs = start_differs || duration_differs || !window.flags.iter().all(shown);
    let update = if active {
        // While the window is open, only its nodes may change.
        nodes_differ.then(|| ReservationUpdate {
            name: window.name.clone(),
            nodes: hostlist(&window.nodes),
            ..ReservationUpdate::default()
        })
    } else {
        (nodes_differ || shape_differs).then(|| {
            let mut update = whole(window);
            if recurs {
                update.start_time = None;
            }
            update
        })
    };
    Comparison {
        change: update.map(|update| Change::Write(Box::new(update))),
        exists: true,
        message: if active {
            format!("the maintenance window is open until {end}")
        } else {
            format!(
                "the maintenance window opens at {}",
                if recurs { start } else { window.start }
            )
        },
    }
}

fn absent(window: &Window, now: Timestamp) -> Comparison {
    let may_start = window.start > now || window.flags.contains(FORCE_START);
    let (change, message) = if window.nodes.is_empty() {
        (None, "no worker has registered with Slurm yet".to_owned())
    } else if may_start {
        let message = format!("the maintenance window opens at {}", window.start);
        (Some(Change::Write(Box::new(whole(window)))), message)
    } else {
        let message = format!(
            "the reservation does not exist, and its start time {} has passed; set a later updateStrategy.scheduledUpdate.startTime",
            window.start
        );
        (None, message)
    };
    Comparison {
        exists: change.is_some(),
        change,
        message,
    }
}

fn whole(window: &Window) -> ReservationUpdate {
    ReservationUpdate {
        name: window.name.clone(),
        start_time: Some(window.start),
        duration: Some(window.duration),
        nodes: hostlist(&window.nodes),
        users: vec![slurm::USER.to_owned()],
        flags: window.flags.iter().cloned().collect(),
        ..ReservationUpdate::default()
    }
}

fn hostlist(nodes: &BTreeSet<String>) -> Hostlist {
    Hostlist::from_names(nodes.iter().map(String::as_str)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;
    use slurm_rest::Words;

    use super::*;

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + 60 * minute).unwrap()
    }

    fn wanted() -> Window {
        Window {
            name: "SlurmOperatorMaint-cpu".into(),
            start: at(10),
            duration: SignedDuration::from_mins(30),
            flags: FLAGS.map(str::to_owned).into(),
            nodes: ["cpu-0".to_owned(), "cpu-1".to_owned()].into(),
        }
    }

    fn live() -> Reservation {
        Reservation {
            name: "SlurmOperatorMaint-cpu".into(),
            nodes: "cpu-[0-1]".into(),
            partition: "".into(),
            users: ["slurm"].into_iter().collect::<Words>(),
            accounts: Words::default(),
            flags: ["MAINT", "IGNORE_JOBS", "SPEC_NODES"]
                .into_iter()
                .collect::<Words>(),
            start_time: Some(at(10)),
            end_time: Some(at(40)),
        }
    }

    fn written(comparison: Comparison) -> ReservationUpdate {
        match comparison.change {
            Some(Change::Write(update)) => *update,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_window_to_come_is_made_and_one_that_stands_is_left_alone() {
        let update = written(compare(Some(&wanted()), None, at(0)));
        assert_eq!(update.start_time, Some(at(10)));
        assert_eq!(update.nodes.to_string(), "cpu-[0-1]");
        assert_eq!(update.flags, ["IGNORE_JOBS", "MAINT"]);
        let stands = compare(Some(&wanted()), Some(&live()), at(0));
        assert_eq!((stands.change, stands.exists), (None, true));
    }

    #[test]
    fn a_window_whose_time_is_over_is_made_only_when_forced() {
        let over = compare(Some(&wanted()), None, at(11));
        assert_eq!((over.change, over.exists), (None, false));
        assert!(over.message.contains("startTime"));
        let mut forced = wanted();
        forced.flags.insert(FORCE_START.into());
        written(compare(Some(&forced), None, at(11)));
        assert_eq!(
            compare(Some(&forced), Some(&live()), at(0)).change,
            None,
            "Slurm does not show it"
        );
    }

    #[test]
    fn what_the_user_changes_before_it_opens_is_carried_over() {
        let mut later = wanted();
        later.start = at(20);
        assert_eq!(
            written(compare(Some(&later), Some(&live()), at(0))).start_time,
            Some(at(20))
        );
        let mut longer = wanted();
        longer.duration = SignedDuration::from_mins(60);
        written(compare(Some(&longer), Some(&live()), at(0)));
        let mut flagged = wanted();
        flagged.flags.insert("FLEX".into());
        written(compare(Some(&flagged), Some(&live()), at(0)));
    }

    #[test]
    fn while_it_is_open_only_its_nodes_change() {
        let mut later = wanted();
        later.start = at(50);
        assert_eq!(compare(Some(&later), Some(&live()), at(11)).change, None);
        later.nodes.insert("cpu-2".into());
        let update = written(compare(Some(&later), Some(&live()), at(11)));
        assert_eq!(update.nodes.to_string(), "cpu-[0-2]");
        assert_eq!(update.start_time, None);
    }

    #[test]
    fn a_recurring_window_keeps_the_start_that_slurm_gave_it() {
        let mut daily = wanted();
        daily.flags.insert("DAILY".into());
        let mut moved = live();
        moved.flags = ["MAINT", "IGNORE_JOBS", "DAILY"].into_iter().collect();
        moved.start_time = Some(at(10 + 24 * 60));
        moved.end_time = Some(at(40 + 24 * 60));
        assert_eq!(compare(Some(&daily), Some(&moved), at(100)).change, None);
    }

    #[test]
    fn a_window_that_nobody_wants_goes() {
        assert_eq!(compare(None, Some(&live()), at(0)).change, Some(Change::Delete));
        assert_eq!(compare(None, None, at(0)).change, None);
    }
}
