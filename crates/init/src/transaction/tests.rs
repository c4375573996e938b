use super::*;
use crate::files::tests::files;

fn conf(text: &str) -> Files {
    files(&[("slurm.conf", text)])
}

fn try_out(text: &str) -> Vec<Step> {
    vec![Step::Install(conf(text)), Step::Hangup]
}

fn start(text: &str) -> Vec<Step> {
    vec![Step::Install(conf(text)), Step::Start]
}

fn running(text: &str) -> Transaction {
    let (mut transaction, steps) = Transaction::begin(conf(text), None);
    assert_eq!(steps, start(text));
    assert_eq!(transaction.in_charge(), []);
    transaction.kept();
    transaction
}

/// A change that is being tried.
fn trying(old: &str, new: &str) -> Transaction {
    let mut transaction = running(old);
    transaction.mounted(conf(new));
    assert_eq!(transaction.in_charge(), try_out(new));
    transaction
}

/// Returns the verdict, the message, and the active and the last good files.
fn state(transaction: &Transaction) -> (Verdict, String, Option<Files>, Option<Files>) {
    let report = transaction.report();
    assert_eq!(report.candidate, transaction.mounted.hash());
    let hash = |files: &Option<Files>| files.as_ref().map(Files::hash).unwrap_or_default();
    assert_eq!(
        (&report.active, &report.last_good),
        (&hash(&transaction.active), &hash(&transaction.last_good))
    );
    (
        report.verdict,
        report.message,
        transaction.active.clone(),
        transaction.last_good.clone(),
    )
}

fn expect(transaction: &Transaction, verdict: Verdict, message: &str, active: &str, kept: &str) {
    assert_eq!(
        state(transaction),
        (verdict, message.to_owned(), Some(conf(active)), Some(conf(kept)))
    );
}

#[test]
fn the_first_start_keeps_what_worked_once_it_serves() {
    let (mut transaction, steps) = Transaction::begin(conf("1"), None);
    assert_eq!(steps, start("1"));
    assert!(transaction.needs_role());
    assert_eq!(transaction.to_keep(), None, "it may still die of it");
    assert_eq!(transaction.report().verdict, Verdict::Pending);
    assert_eq!(transaction.in_charge(), []);
    assert_eq!(transaction.to_keep(), Some(&conf("1")));
    transaction.kept();
    assert_eq!(transaction.to_keep(), None);
    assert!(!transaction.needs_role());
    expect(&transaction, Verdict::Applied, "", "1", "1");
}

#[test]
fn what_could_not_be_kept_is_not_reported_as_kept() {
    let (mut transaction, _) = Transaction::begin(conf("1"), None);
    transaction.in_charge();
    assert_eq!(transaction.report().last_good, "");
}

#[test]
fn a_first_start_that_fails_gives_up() {
    let (mut transaction, _) = Transaction::begin(conf("bad"), None);
    assert_eq!(transaction.ended("fatal: no"), None);
}

#[test]
fn a_start_with_what_is_kept_has_nothing_to_fall_back_to() {
    let (mut transaction, _) = Transaction::begin(conf("1"), Some(conf("1")));
    assert_eq!(transaction.ended("fatal: no"), None);
}

#[test]
fn a_start_with_bad_files_falls_back_tries_them_once_more_and_says_so() {
    let (mut transaction, _) = Transaction::begin(conf("bad"), Some(conf("1")));
    assert_eq!(transaction.ended("fatal: no"), Some(start("1")));
    assert_eq!(transaction.report().verdict, Verdict::Refused);
    assert_eq!(transaction.in_charge(), try_out("bad"));
    assert_eq!(transaction.refused("fatal: still no"), [Step::Install(conf("1"))]);
    expect(&transaction, Verdict::Refused, "fatal: still no", "1", "1");
    assert!(!transaction.needs_role());
    assert_eq!(transaction.to_keep(), None);
}

#[test]
fn a_start_that_failed_for_another_reason_is_made_good() {
    let (mut transaction, _) = Transaction::begin(conf("2"), Some(conf("1")));
    transaction.ended("fatal: cannot resolve");
    transaction.in_charge();
    transaction.taken();
    assert_eq!(transaction.to_keep(), Some(&conf("2")));
    expect(&transaction, Verdict::Applied, "", "2", "1");
}

#[test]
fn a_fallback_that_fails_too_gives_up() {
    let (mut transaction, _) = Transaction::begin(conf("bad"), Some(conf("1")));
    transaction.ended("fatal: no");
    assert_eq!(transaction.ended("fatal: still no"), None);
}

#[test]
fn files_with_a_flaw_are_never_tried() {
    let (flawed, why) = (
        files(&[("slurm.conf", "Include a")]),
        "slurm.conf includes a, which is not there",
    );
    let mut transaction = running("1");
    transaction.mounted(flawed.clone());
    assert_eq!(transaction.in_charge(), []);
    expect(&transaction, Verdict::Refused, why, "1", "1");
    let (mut transaction, steps) = Transaction::begin(flawed.clone(), Some(conf("1")));
    assert_eq!(steps, start("1"));
    assert_eq!(transaction.in_charge(), []);
    expect(&transaction, Verdict::Refused, why, "1", "1");
    // Without a fallback, slurmctld decides itself.
    let (_, steps) = Transaction::begin(flawed.clone(), None);
    assert_eq!(steps, [Step::Install(flawed), Step::Start]);
}

#[test]
fn a_good_change_is_tried_and_kept() {
    let mut transaction = trying("1", "2");
    expect(&transaction, Verdict::Pending, "", "1", "1");
    transaction.taken();
    assert_eq!(transaction.to_keep(), Some(&conf("2")));
    transaction.kept();
    expect(&transaction, Verdict::Applied, "", "2", "2");
}

#[test]
fn a_bad_change_is_taken_back_and_not_tried_again() {
    let mut transaction = trying("1", "bad");
    assert_eq!(transaction.refused("fatal: bad"), [Step::Install(conf("1"))]);
    transaction.mounted(conf("bad"));
    assert!(!transaction.needs_role());
    assert_eq!(transaction.in_charge(), []);
    expect(&transaction, Verdict::Refused, "fatal: bad", "1", "1");
    // Reverting the change is enough.
    transaction.mounted(conf("1"));
    assert!(transaction.needs_role());
    assert_eq!(transaction.in_charge(), []);
    expect(&transaction, Verdict::Applied, "", "1", "1");
}

#[test]
fn a_refused_change_is_tried_again_when_somebody_asks() {
    let mut transaction = trying("1", "bad");
    transaction.refused("fatal: bad");
    transaction.again();
    assert!(transaction.needs_role());
    assert_eq!(transaction.in_charge(), try_out("bad"));
    let mut transaction = running("1");
    transaction.again();
    assert_eq!(transaction.in_charge(), [], "nothing was refused");
}

#[test]
fn a_change_in_the_middle_of_another_waits_its_turn() {
    let mut transaction = trying("1", "2");
    transaction.mounted(conf("3"));
    assert!(!transaction.needs_role());
    assert_eq!(transaction.in_charge(), []);
    transaction.taken();
    expect(&transaction, Verdict::Pending, "", "2", "1");
    assert_eq!(transaction.in_charge(), try_out("3"));
}

#[test]
fn a_refusal_is_not_held_against_files_that_came_later() {
    let mut transaction = trying("1", "bad");
    transaction.mounted(conf("3"));
    assert_eq!(transaction.refused("fatal: bad"), [Step::Install(conf("1"))]);
    expect(&transaction, Verdict::Pending, "", "1", "1");
    assert_eq!(transaction.in_charge(), try_out("3"));
}

#[test]
fn a_change_that_was_taken_back_while_it_was_tried_is_taken_back() {
    let mut transaction = trying("1", "2");
    transaction.mounted(conf("1"));
    transaction.taken();
    assert_eq!(transaction.in_charge(), try_out("1"));
}

#[test]
fn a_change_during_the_start_is_tried_afterwards() {
    let (mut transaction, _) = Transaction::begin(conf("1"), None);
    transaction.mounted(conf("2"));
    assert_eq!(transaction.in_charge(), try_out("2"));
    assert_eq!(transaction.to_keep(), Some(&conf("1")));
}

#[test]
fn answers_that_nobody_waits_for_change_nothing() {
    let mut transaction = running("1");
    transaction.taken();
    assert_eq!(transaction.refused("fatal: not ours"), []);
    expect(&transaction, Verdict::Applied, "", "1", "1");
    // slurmctld reports ready before it has read its partitions.
    let (mut transaction, _) = Transaction::begin(conf("bad"), Some(conf("1")));
    transaction.taken();
    assert_eq!(transaction.ended("fatal: no"), Some(start("1")));
}

#[test]
fn a_standby_takes_only_what_was_accepted() {
    let (mut transaction, _) = Transaction::begin(conf("1"), Some(conf("1")));
    assert_eq!(transaction.standby(Some(conf("1"))), []);
    expect(&transaction, Verdict::Applied, "", "1", "1");
    transaction.mounted(conf("2"));
    assert_eq!(transaction.standby(Some(conf("1"))), []);
    expect(&transaction, Verdict::Pending, "", "1", "1");
    assert_eq!(transaction.standby(Some(conf("2"))), try_out("2"));
    // A standby sends no response, so there is none to wait for.
    assert!(!transaction.is_trying());
    expect(&transaction, Verdict::Applied, "", "2", "2");
    assert_eq!(transaction.to_keep(), None);
}

#[test]
fn a_standby_that_started_with_something_else_goes_back_to_what_was_accepted() {
    let (mut transaction, _) = Transaction::begin(conf("bad"), Some(conf("1")));
    assert_eq!(transaction.standby(Some(conf("1"))), try_out("1"));
    expect(&transaction, Verdict::Pending, "", "1", "1");
    assert_eq!(transaction.to_keep(), None);
    assert_eq!(transaction.standby(Some(conf("1"))), []);
}

#[test]
fn a_standby_before_anything_was_accepted_waits() {
    let (mut transaction, _) = Transaction::begin(conf("1"), None);
    assert_eq!(transaction.standby(None), []);
    assert!(transaction.needs_role());
    assert_eq!(transaction.report().verdict, Verdict::Pending);
    assert_eq!(transaction.standby(Some(conf("1"))), []);
    expect(&transaction, Verdict::Applied, "", "1", "1");
}

/// A standby that has taken over and tries a change.
fn standing_in(old: &str, new: &str) -> Transaction {
    let (mut transaction, _) = Transaction::begin(conf(old), Some(conf(old)));
    transaction.standby(Some(conf(old)));
    transaction.mounted(conf(new));
    transaction.standby(Some(conf(old)));
    assert_eq!(transaction.standing_in(), [Step::Hangup], "with what it has");
    assert!(transaction.is_trying());
    assert_eq!(transaction.standing_in(), []);
    transaction.taken();
    assert_eq!(transaction.standing_in(), try_out(new));
    transaction
}

#[test]
fn a_stand_in_rehearses_before_every_attempt() {
    let mut transaction = standing_in("1", "bad");
    assert_eq!(transaction.refused("fatal: bad"), [Step::Install(conf("1"))]);
    transaction.mounted(conf("3"));
    assert_eq!(transaction.standing_in(), [Step::Hangup]);
    transaction.taken();
    expect(&transaction, Verdict::Pending, "", "1", "1");
    assert_eq!(transaction.standing_in(), try_out("3"));
    transaction.taken();
    transaction.mounted(conf("4"));
    assert_eq!(transaction.standing_in(), [Step::Hangup]);
}

#[test]
fn a_stand_in_with_nothing_to_try_does_not_rehearse() {
    let (mut transaction, _) = Transaction::begin(conf("1"), None);
    assert_eq!(transaction.standing_in(), []);
    transaction.mounted(files(&[]));
    assert_eq!(transaction.standing_in(), []);
    assert_eq!(transaction.report().verdict, Verdict::Refused);
}

#[test]
fn a_rehearsal_that_fails_is_not_repeated() {
    let (mut transaction, _) = Transaction::begin(conf("1"), None);
    transaction.standing_in();
    transaction.mounted(conf("2"));
    assert_eq!(transaction.standing_in(), [Step::Hangup]);
    assert_eq!(transaction.refused("fatal: odd"), [Step::Install(conf("1"))]);
    assert_eq!(transaction.standing_in(), []);
    assert_eq!(transaction.report().message, "fatal: odd");
}

#[test]
fn whoever_comes_to_be_in_charge_tries() {
    let mut transaction = standing_in("1", "2");
    transaction.taken();
    assert_eq!(transaction.to_keep(), Some(&conf("2")));
    transaction.kept();
    // As a standby again, it follows the accepted files.
    transaction.mounted(conf("3"));
    assert_eq!(transaction.standby(Some(conf("4"))), try_out("4"));
    assert_eq!(transaction.to_keep(), None);
}

#[test]
fn a_crash_later_on_ends_the_container() {
    assert_eq!(running("1").ended("fatal: disk"), None);
    assert_eq!(trying("1", "2").ended("fatal: disk"), None);
}

#[test]
fn a_changed_key_is_taken_with_the_files_in_use() {
    let mut transaction = running("1");
    assert!(!transaction.needs_role());
    transaction.rekey();
    assert!(transaction.needs_role() && transaction.is_rekeying());
    assert_eq!(transaction.in_charge(), try_out("1"));
    assert!(transaction.is_rekeying(), "it has not answered");
    assert_eq!(transaction.in_charge(), [], "once is enough");
    transaction.taken();
    assert!(!transaction.is_rekeying());
    expect(&transaction, Verdict::Applied, "", "1", "1");
}

#[test]
fn a_changed_key_does_not_bring_back_what_was_refused() {
    let mut transaction = trying("1", "bad");
    transaction.refused("fatal: no");
    transaction.rekey();
    assert_eq!(transaction.in_charge(), try_out("1"));
    transaction.taken();
    expect(&transaction, Verdict::Refused, "fatal: no", "1", "1");
}

#[test]
fn a_key_that_comes_with_new_files_is_taken_with_them() {
    let mut transaction = running("1");
    transaction.mounted(conf("2"));
    transaction.rekey();
    assert_eq!(transaction.in_charge(), try_out("2"));
    transaction.taken();
    assert!(!transaction.needs_role());
    expect(&transaction, Verdict::Applied, "", "2", "1");
}

#[test]
fn a_key_that_comes_in_the_middle_of_a_change_is_next() {
    let mut transaction = trying("1", "2");
    transaction.rekey();
    assert_eq!(transaction.in_charge(), []);
    transaction.taken();
    assert_eq!(transaction.in_charge(), try_out("2"));
}

#[test]
fn a_key_that_is_refused_is_told() {
    let mut transaction = running("1");
    transaction.rekey();
    transaction.in_charge();
    transaction.refused("fatal: key");
    expect(&transaction, Verdict::Refused, "fatal: key", "1", "1");
}

#[test]
fn a_standby_takes_a_changed_key_by_itself() {
    let mut transaction = running("1");
    transaction.rekey();
    assert_eq!(transaction.standby(Some(conf("1"))), try_out("1"));
    assert_eq!(transaction.standby(Some(conf("1"))), []);
    assert!(!transaction.is_rekeying());
}

#[test]
fn other_users_have_the_daemon_read_again_what_it_has() {
    let mut transaction = running("1");
    transaction.users();
    assert!(transaction.needs_role());
    assert_eq!(transaction.in_charge(), try_out("1"));
    assert!(!transaction.is_rekeying(), "no key has changed");
    assert_eq!(transaction.in_charge(), [], "once is enough");
    transaction.taken();
    assert!(!transaction.needs_role());
    expect(&transaction, Verdict::Applied, "", "1", "1");
}

#[test]
fn users_that_come_with_bad_files_are_taken_without_them() {
    let mut transaction = running("1");
    transaction.mounted(conf("bad"));
    transaction.users();
    assert_eq!(transaction.in_charge(), try_out("bad"));
    transaction.refused("fatal: no");
    assert_eq!(transaction.in_charge(), try_out("1"));
    transaction.taken();
    assert_eq!(transaction.in_charge(), []);
    expect(&transaction, Verdict::Refused, "fatal: no", "1", "1");
}

#[test]
fn users_and_a_key_are_taken_together() {
    let mut transaction = running("1");
    transaction.users();
    transaction.rekey();
    assert_eq!(transaction.in_charge(), try_out("1"));
    assert!(transaction.is_rekeying());
    transaction.taken();
    assert!(!transaction.needs_role() && !transaction.is_rekeying());
}

#[test]
fn a_standby_looks_users_up_by_itself() {
    let mut transaction = running("1");
    transaction.users();
    assert_eq!(transaction.standby(Some(conf("1"))), try_out("1"));
    assert_eq!(transaction.standby(Some(conf("1"))), []);
}
