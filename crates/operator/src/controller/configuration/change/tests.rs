use pretty_assertions::assert_eq;
use rstest::rstest;

use super::*;

const BASE: &str = "ClusterName=c\nSlurmctldHost=a\nNodeSet=w Feature=w\n";
const WITH: &str = "PartitionName=w Nodes=w MaxTime=10\n";

fn step(old: &str, new: &str) -> Step {
    between(&format!("{BASE}{old}"), &format!("{BASE}{new}")).unwrap()
}

fn between(old: &str, new: &str) -> Option<Step> {
    let configuration = |text: &str| Configuration {
        files: BTreeMap::from([("slurm.conf".to_owned(), text.as_bytes().to_vec())]),
        ..Configuration::default()
    };
    Step::between(&configuration(old), &configuration(new))
}

fn usage(partitions: &[(&str, bool)], jobs: &[(u64, &str)]) -> Usage {
    Usage {
        partitions: partitions
            .iter()
            .map(|(name, takes)| ((*name).to_owned(), *takes))
            .collect(),
        jobs: jobs
            .iter()
            .map(|(id, name)| (*id, BTreeSet::from([(*name).to_owned()])))
            .collect(),
        gres: None,
    }
}

fn kept(decision: &Decision) -> Vec<String> {
    match decision {
        Decision::Publish { retained, .. } => retained
            .iter()
            .map(|s| format!("{}={}", s.head.key, s.head.value))
            .collect(),
        Decision::Hold(problem) => panic!("{problem:?}"),
    }
}

#[rstest]
#[case::no_answer(None, true)]
#[case::takes_jobs(Some(usage(&[("w", true)], &[])), true)]
#[case::closed_with_a_job(Some(usage(&[("w", false)], &[(7, "w")])), true)]
#[case::closed_and_empty(Some(usage(&[("w", false)], &[(7, "other")])), false)]
#[case::unknown_to_slurm(Some(usage(&[("other", true)], &[])), false)]
fn a_partition_leaves_when_it_is_closed_and_empty(#[case] usage: Option<Usage>, #[case] stays: bool) {
    let decision = step(WITH, "").decide(usage.as_ref());
    let expected: &[&str] = if stays {
        &["NodeSet=w", "PartitionName=w"]
    } else {
        &[]
    };
    assert_eq!(kept(&decision), expected);
}

#[test]
fn an_ordinary_change_asks_nobody() {
    let step = step("SchedulerParameters=a\n", "SchedulerParameters=b\n");
    assert!(!step.needs_usage());
    let decision = step.decide(None);
    assert_eq!(
        decision,
        Decision::Publish {
            retained: vec![],
            restart: false,
            waiting: vec![]
        }
    );
}

#[test]
fn what_a_cluster_does_not_survive_is_held() {
    let renamed = BASE.replace("ClusterName=c", "ClusterName=d");
    let step = between(BASE, &renamed).unwrap();
    let Decision::Hold(problem) = step.decide(Some(&Usage::default())) else {
        panic!("published")
    };
    assert!(problem.message.contains("ClusterName"), "{}", problem.message);
}

/// slurmctld may have the second, and certainly had the first.
#[test]
fn a_change_spares_the_jobs_of_each_configuration_that_slurmctld_may_have() {
    let with_jobs = usage(&[("w", true)], &[(7, "w")]);
    let kept_by_both = decide(&[Some(step(WITH, "")), Some(step(WITH, ""))], Some(&with_jobs));
    assert_eq!(kept(&kept_by_both), ["NodeSet=w", "PartitionName=w"]);

    let restarts = step("AuthInfo=a\n", "AuthInfo=b\n");
    for (steps, expected) in [
        ([Some(restarts.clone()), None], true),
        ([None, Some(restarts)], false),
    ] {
        let Decision::Publish { restart, .. } = decide(&steps, None) else {
            panic!("held")
        };
        assert_eq!(restart, expected);
    }
}

#[test]
fn no_difference_is_no_step() {
    assert_eq!(between(BASE, BASE), None);
    let unreadable = format!("{BASE}no pair\n");
    assert_eq!(between(&unreadable, &unreadable), None);
}

#[rstest]
#[case::published("no pair\n", "", "the published configuration cannot be parsed: line 4")]
#[case::published_with_an_include(
    "Include more.conf\n",
    "",
    "the published configuration cannot be parsed: more.conf line 1"
)]
#[case::candidate("", "no pair\n", "the new configuration cannot be parsed: line 4")]
fn what_cannot_be_read_counts_as_the_most_dangerous_change(
    #[case] old: &str,
    #[case] new: &str,
    #[case] why: &str,
) {
    let with = |text: &str| Configuration {
        files: BTreeMap::from([
            ("slurm.conf".to_owned(), format!("{BASE}{text}").into_bytes()),
            ("more.conf".to_owned(), b"no pair\n".to_vec()),
        ]),
        ..Configuration::default()
    };
    let step = Step::between(&with(old), &with(new)).unwrap();
    let what = step.needs_empty_cluster(None).unwrap();
    assert!(what.contains(why), "{what}");
    let empty = usage(&[("w", true)], &[]);
    let restarts = Decision::Publish {
        retained: vec![],
        restart: true,
        waiting: vec![],
    };
    assert_eq!(step.decide(Some(&empty)), restarts);
}

#[test]
fn a_published_configuration_without_slurm_conf_cannot_be_read() {
    let candidate = Configuration {
        files: BTreeMap::from([("slurm.conf".to_owned(), BASE.as_bytes().to_vec())]),
        ..Configuration::default()
    };
    let step = Step::between(&Configuration::default(), &candidate).unwrap();
    assert!(step.needs_empty_cluster(None).is_some());
}

/// Comments in another encoding must not hide a change of an included file.
#[test]
fn a_change_in_an_included_file_that_is_not_utf_8_is_seen() {
    let with = |select: &str| {
        let included = [b"# gr\xfcn\n".as_slice(), select.as_bytes()].concat();
        let conf = format!("{BASE}Include more.conf\n");
        Configuration {
            files: BTreeMap::from([
                ("slurm.conf".to_owned(), conf.into_bytes()),
                ("more.conf".to_owned(), included),
            ]),
            ..Configuration::default()
        }
    };
    let step = Step::between(
        &with("SelectType=select/linear\n"),
        &with("SelectType=select/cons_tres\n"),
    );
    assert!(step.unwrap().needs_usage());
}

fn with_gres(slurm_conf: &str, gres_conf: &str) -> Configuration {
    let files = [
        ("slurm.conf", format!("{BASE}{slurm_conf}")),
        ("gres.conf", gres_conf.to_owned()),
    ];
    Configuration {
        files: files
            .into_iter()
            .map(|(name, text)| (name.to_owned(), text.into_bytes()))
            .collect(),
        ..Configuration::default()
    }
}

/// Slurm's answer: these nodes have a resource and may run jobs.
fn nodes_with(resource: &str, nodes: &[&str]) -> Usage {
    let resources = || BTreeSet::from([resource.to_owned()]);
    Usage {
        gres: Some(
            nodes
                .iter()
                .map(|name| ((*name).to_owned(), resources()))
                .collect(),
        ),
        ..Usage::default()
    }
}

#[rstest]
#[case::other_devices("NodeName=g-[0-1] Name=gpu File=/dev/nvidia[0-3]", &["g-0"], Some("gres.conf for g-0"))]
#[case::a_new_set("NodeName=g-[0-1] Name=gpu File=/dev/nvidia[0-1]\nNodeName=h-[0-9] AutoDetect=nvidia", &["g-0", "g-1"], None)]
#[case::more_nodes("NodeName=g-[0-7] Name=gpu File=/dev/nvidia[0-1]", &["g-0", "g-1"], None)]
#[case::a_set_that_is_gone("", &["other-0"], None)]
#[case::drained_nodes("", &[], None)]
#[case::a_set_that_is_still_there("", &["g-1", "other-0"], Some("gres.conf for g-1"))]
#[case::unparsable("NodeName=g-[0-1] Name=gpu File=/dev/nvidia[0-1]\nno pair", &["g-0"], Some("gres.conf (line 2"))]
fn gres_conf_costs_the_jobs_of_nodes_whose_devices_change(
    #[case] new: &str,
    #[case] nodes: &[&str],
    #[case] expected: Option<&str>,
) {
    let old = with_gres("", "NodeName=g-[0-1] Name=gpu File=/dev/nvidia[0-1]");
    let step = Step::between(&old, &with_gres("", new)).unwrap();
    assert!(step.needs_usage() && step.needs_gres());
    let usage = nodes_with("gpu", nodes);
    let found = step.needs_empty_cluster(Some(&usage));
    match expected {
        None => assert_eq!(found, None),
        Some(expected) => assert!(
            found.as_ref().is_some_and(|what| what.starts_with(expected)),
            "{found:?}"
        ),
    }
    let unknown = step.needs_empty_cluster(None);
    assert!(
        unknown.is_some_and(|what| what.starts_with("gres.conf")),
        "Slurm does not say which nodes exist"
    );
    let applied = Decision::Publish {
        retained: vec![],
        restart: false,
        waiting: vec![],
    };
    assert_eq!(step.decide(Some(&usage)), applied, "once the cluster is empty");
}

#[rstest]
#[case::comment("# two GPUs\nNodeName=g-0 AutoDetect=nvidia\nNodeName=h-0 AutoDetect=nvml\n")]
#[case::order("NodeName=h-0 AutoDetect=nvml\nNodeName=g-0 AutoDetect=nvidia\n")]
fn a_gres_conf_that_says_the_same_is_no_step(#[case] new: &str) {
    let old = "NodeName=g-0 AutoDetect=nvidia\nNodeName=h-0 AutoDetect=nvml\n";
    assert_eq!(Step::between(&with_gres("", old), &with_gres("", new)), None);
}

#[test]
fn an_unparsable_gres_conf_that_stays_holds_nothing_up() {
    let conf = |text| with_gres(text, "no pair");
    let step = Step::between(&conf("MinJobAge=1\n"), &conf("MinJobAge=2\n")).unwrap();
    assert!(!step.needs_usage());
    assert_eq!(step.needs_empty_cluster(None), None);
}

#[rstest]
#[case::not_asked(Some(Usage::default()), true)]
#[case::no_answer(None, true)]
#[case::nodes_that_have_it(Some(nodes_with("gpu", &["g-0"])), true)]
#[case::nodes_that_have_another(Some(nodes_with("licence", &["g-0"])), false)]
fn a_type_of_resource_goes_when_no_node_has_it(#[case] usage: Option<Usage>, #[case] waits: bool) {
    let step = step("GresTypes=gpu,licence\n", "GresTypes=licence\n");
    assert!(step.needs_gres());
    let expected = waits.then(|| "GresTypes".to_owned());
    assert_eq!(step.needs_empty_cluster(usage.as_ref()), expected);
}
