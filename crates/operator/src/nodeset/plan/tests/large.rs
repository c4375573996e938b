//! Plans for ten thousand workers. `cargo xtask bench plan` runs these tests to measure the time of a plan and to count its
//! instructions.

use std::time::Instant;

use super::*;

const WORKERS: u32 = 10_000;

/// Plans as often as the benchmark asks for, and prints the shortest time for it.
fn measured(observed: &Observed) -> Plan {
    let times = std::env::var("KEELSON_BENCH_PLANS").map_or(1, |times| times.parse().unwrap());
    let mut best = f64::INFINITY;
    let mut plan = Plan::default();
    for _ in 0..times {
        let begun = Instant::now();
        plan = super::super::plan(observed);
        best = best.min(begun.elapsed().as_secs_f64());
    }
    println!("milliseconds: {:.2}", best * 1e3);
    plan
}

/// Returns a NodeSet with ten thousand workers in this state.
fn fleet(replicas: u32, words: &str) -> Observed {
    let states: Vec<&str> = (0..WORKERS).map(|_| words).collect();
    let mut pods: Vec<PodFacts> = (0..WORKERS).map(pod).collect();
    for pod in &mut pods {
        let shown = ("SlurmNodeStateIdle".to_owned(), (String::new(), Some(at(-600))));
        pod.conditions.extend([shown]);
    }
    observed(set(replicas), pods, slurm(&states))
}

fn count(plan: &Plan, kind: fn(&Step) -> bool) -> usize {
    plan.steps.iter().filter(|step| kind(step)).count()
}

#[test]
fn a_converged_fleet_plans_nothing() {
    let plan = measured(&fleet(WORKERS, "IDLE"));
    assert_eq!((plan.steps, plan.waits), (vec![], vec![]));
}

#[test]
fn a_fleet_that_is_scaled_to_zero_is_drained_at_once() {
    let plan = measured(&fleet(0, "IDLE"));
    assert_eq!(count(&plan, |step| matches!(step, Step::Intend { .. })), 10_000);
    assert_eq!(count(&plan, |step| matches!(step, Step::Drain { .. })), 10_000);
}

#[test]
fn a_drained_fleet_is_removed_at_once() {
    let mut observed = fleet(0, "IDLE+DRAIN");
    for pod in &mut observed.pods {
        pod.intent = Some(Intent {
            cause: Cause::ScaleIn,
            since: at(-10),
        });
    }
    let plan = measured(&observed);
    assert_eq!(count(&plan, |step| matches!(step, Step::Retire { .. })), 10_000);
}

#[test]
fn a_fleet_of_an_old_revision_is_updated_within_the_budget() {
    let mut observed = fleet(WORKERS, "IDLE");
    for pod in &mut observed.pods {
        pod.revision = "old".into();
    }
    observed.set.strategy = Strategy::Rolling {
        max_unavailable: 100,
        partition: 0,
    };
    let plan = measured(&observed);
    assert_eq!(count(&plan, |step| matches!(step, Step::Drain { .. })), 100);
}
