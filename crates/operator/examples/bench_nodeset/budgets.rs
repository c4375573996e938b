//! The limits that `--check` and `--counts` enforce.

use crate::report::{Measure, Size};

/// The operator deletes this many Slurm nodes in one call.
const BATCH: usize = 32;

/// Returns the budgets that a full run exceeds.
pub fn all(size: &Size) -> Vec<String> {
    // Budgets were set for 2,000 workers or for 5,000. Below that they stay the same, and above they grow with the number.
    let from = |workers: f64| (size.workers as f64 / workers).max(1.0);
    let mut budgets = vec![
        (Measure::ReadyRatio, 1.3),
        (Measure::PodWrites, 2.1),
        (Measure::SlurmWrites, 2.0),
        (Measure::Cpu, 15.0 * from(5000.0)),
        (Measure::AwaitedMax, 2.0),
        (Measure::Cordon, 2.0),
        (Measure::CordonWrites, 5.0),
        (Measure::ScaleIn, 10.0 * from(2000.0)),
        (Measure::ScaleInWrites, scale_in_writes(size.workers)),
        (Measure::RestWrites, 0.0),
        (Measure::RestSlurmWrites, 0.0),
    ];
    match size.workers {
        ..=2000 => budgets.push((Measure::PeakMemory, 48.0)),
        2001..=5000 => budgets.push((Measure::PeakMemory, 64.0)),
        _ => {}
    }
    exceeded(size, &budgets)
}

/// Returns the budgets that the counts of calls exceed.
///
/// Writes have a number for each worker: in scale-out the pod and its conditions; in scale-in the decision, the end of the
/// protection from eviction, the deletion, and conditions if Slurm shows the drain before its jobs are listed. Reads of Slurm
/// are paced by time, up to one list and 128 single nodes a second, so their limits only show that reads for each worker do
/// not grow with the number of workers.
pub fn counts(size: &Size) -> Vec<String> {
    let workers = size.workers as f64;
    let budgets = [
        (Measure::PodWrites, 2.1),
        (Measure::SlurmReads, 0.75 * workers),
        (Measure::SlurmWrites, 2.0),
        (Measure::CordonWrites, 5.0),
        (Measure::ScaleInPodWrites, 4.1),
        (Measure::ScaleInReads, 20.0 * workers),
        (Measure::ScaleInWrites, scale_in_writes(size.workers)),
        (Measure::RestWrites, 0.0),
        (Measure::RestSlurmWrites, 0.0),
    ];
    exceeded(size, &budgets)
}

/// One call drains all, and one deletes each batch. Workers that are drained later make two more batches.
fn scale_in_writes(workers: usize) -> f64 {
    (1 + workers.div_ceil(BATCH) + 2) as f64
}

/// A missing figure exceeds its budget: the step that it is for did not end.
fn exceeded(size: &Size, budgets: &[(Measure, f64)]) -> Vec<String> {
    budgets
        .iter()
        .filter_map(|&(measure, budget)| {
            let found = size.get(measure);
            if found.is_some_and(|found| found <= budget) {
                return None;
            }
            let (_, title, _) = measure.describe();
            let found = found.map_or_else(|| "not measured".to_owned(), |found| format!("{found:.2}"));
            Some(format!(
                "{} workers: {title}: {found}, at most {budget:.2}",
                size.workers
            ))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_at_their_limits_are_accepted() {
        let mut size = Size::new(200);
        for (measure, value) in [
            (Measure::PodWrites, 2.1),
            (Measure::SlurmReads, 150.0),
            (Measure::SlurmWrites, 2.0),
            (Measure::CordonWrites, 5.0),
            (Measure::ScaleInPodWrites, 4.1),
            (Measure::ScaleInReads, 4000.0),
            (Measure::ScaleInWrites, 10.0),
            (Measure::RestWrites, 0.0),
            (Measure::RestSlurmWrites, 0.0),
        ] {
            size.set(measure, value);
        }
        assert_eq!(counts(&size), [""; 0]);
        size.set(Measure::RestWrites, 1.0);
        assert_eq!(counts(&size).len(), 1);
    }

    #[test]
    fn a_missing_figure_exceeds_its_budget() {
        assert_eq!(counts(&Size::new(200)).len(), 9);
    }

    #[test]
    fn budgets_grow_beyond_the_size_that_they_were_set_for() {
        let over = |workers, measure: Measure, value| {
            let mut size = Size::new(workers);
            size.set(measure, value);
            let (_, title, _) = measure.describe();
            all(&size).iter().any(|line| line.contains(title))
        };
        assert!(over(500, Measure::ScaleIn, 10.1));
        assert!(over(2000, Measure::ScaleIn, 10.1));
        assert!(!over(5000, Measure::ScaleIn, 25.0));
        assert!(over(2000, Measure::PeakMemory, 48.1));
        assert!(!over(5000, Measure::PeakMemory, 64.0));
        assert!(over(5000, Measure::Cpu, 15.1));
        assert!(!over(10_000, Measure::Cpu, 30.0));
    }
}
