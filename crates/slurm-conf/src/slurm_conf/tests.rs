use super::*;
use crate::merge::FindingKind;
use insta::assert_snapshot;
use pretty_assertions::assert_eq;
use proptest::prelude::*;
use rstest::rstest;

fn small() -> SlurmConf {
    SlurmConf {
        cluster_name: "slurm_slurm".into(),
        hosts: vec![host(0)],
        slurmctld_port: 6817,
        slurmd_port: 6818,
        service_address: Some("slurm-controller.slurm".into()),
        nodesets: vec![NodeSet {
            name: "slinky".into(),
            feature: "slinky".into(),
            partition: None,
        }],
        nodes: 1,
        ..SlurmConf::default()
    }
}

fn host(ordinal: usize) -> ControllerHost {
    let name = format!("slurm-controller-{ordinal}");
    ControllerHost {
        address: Some(format!("{name}.slurm-controller-internal.slurm")),
        name,
    }
}

fn full() -> SlurmConf {
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    SlurmConf {
        hosts: vec![host(0), host(1)],
        jwks: true,
        accounting: Some(AccountingHost {
            host: "slurm-accounting".into(),
            port: 6819,
            backup_host: Some("slurm-accounting-b".into()),
        }),
        metrics: true,
        scripts: Scripts {
            prolog: names(&["20-b.sh", "10-a.sh"]),
            epilog: names(&["e.sh"]),
            prolog_slurmctld: names(&["p.sh"]),
            epilog_slurmctld: names(&["q.sh"]),
        },
        nodesets: vec![
            NodeSet {
                name: "gpu".into(),
                feature: "gpu".into(),
                partition: Some(Partition {
                    config: "Default=YES MaxTime=\"1-0\" state=UP".into(),
                    leaving: true,
                }),
            },
            NodeSet {
                name: "cpu".into(),
                feature: "cpu".into(),
                partition: Some(Partition::default()),
            },
        ],
        nodes: 5_000,
        retained: vec![
            Statement::new("NodeSet", "old").with("Feature", "old"),
            Statement::new("PartitionName", "old")
                .with("Nodes", "old")
                .with("State", "UP"),
            Statement::new("PartitionName", "cpu").with("Nodes", "cpu"),
        ],
        extra_conf: "\
authaltparameters=disable_token_creation,JWT_key=/etc/slurm/jwt.key,UserClaimField=Preferred_Name
SlurmctldParameters=Idle_On_Node_Suspend,enable_configless
MaxNodeCount=9000
SchedulerParameters=bf_continue,defer
MailProg=/bin/First
MailProg=/bin/Second
Prolog=/opt/site/prolog
PartitionName=DEFAULT MaxTime=60
PartitionName=DEFAULT State=UP
PartitionName=all Nodes=ALL
"
        .into(),
        ..small()
    }
}

#[test]
fn the_smallest_cluster() {
    let rendered = render(&small()).unwrap();
    assert_eq!(rendered.findings, []);
    assert_snapshot!(rendered.text);
}

#[test]
fn a_cluster_with_everything() {
    let rendered = render(&full()).unwrap();
    assert_snapshot!(rendered.text);
    let findings: Vec<_> = rendered.findings.iter().map(ToString::to_string).collect();
    assert_eq!(
        findings,
        ["line 5: MailProg is ignored because line 6 takes precedence"]
    );
}

#[test]
fn a_cluster_with_munge() {
    let conf = SlurmConf {
        auth: AuthType::Munge,
        extra_conf: "AuthInfo=ttl=60\nAuthType=auth/slurm\n".into(),
        ..small()
    };
    let rendered = render(&conf).unwrap();
    let is_auth = |line: &&str| line.starts_with("Auth") || line.starts_with("Cred");
    let lines: Vec<&str> = rendered.text.lines().filter(is_auth).collect();
    assert_eq!(
        lines,
        [
            "AuthType=auth/munge",
            "CredType=cred/munge",
            "AuthAltTypes=auth/jwt",
            "AuthAltParameters=jwt_key=/etc/slurm/jwt.key",
            "AuthInfo=ttl=60"
        ]
    );
    assert_eq!(
        rendered
            .findings
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
        ["line 2: AuthType is ignored because the operator requires AuthType=auth/munge"]
    );
}

#[test]
fn a_cluster_that_runs_elsewhere() {
    let conf = ExternalSlurmConf {
        cluster_name: "big".into(),
        host: "ctl.example.org".into(),
        port: 7000,
        auth: AuthType::default(),
        accounting: None,
        extra_conf: String::new(),
    };
    assert_snapshot!(render_external(&conf).unwrap().text);
}

#[rstest]
#[case(
    "SlurmctldPort=7000",
    "line 1: SlurmctldPort is ignored because the operator requires SlurmctldPort=6817"
)]
#[case(
    "\nauthtype=auth/munge",
    "line 2: authtype is ignored because the operator requires AuthType=auth/slurm"
)]
#[case(
    "SlurmctldHost=evil(1.2.3.4)",
    "line 1: SlurmctldHost is ignored because the operator manages the controllers with SlurmctldHost"
)]
#[case(
    "AuthAltParameters=jwt_key=/tmp/mine",
    "line 1: AuthAltParameters is ignored because the operator requires jwt_key=/etc/slurm/jwt.key"
)]
#[case(
    "NodeSet=slinky Feature=other",
    "line 1: NodeSet=slinky is ignored because the operator writes a NodeSet with that name"
)]
fn a_conflict_keeps_what_the_operator_needs_and_is_reported(#[case] extra: &str, #[case] finding: &str) {
    let without = render(&small()).unwrap().text;
    let rendered = render(&SlurmConf {
        extra_conf: extra.into(),
        ..small()
    })
    .unwrap();
    assert_eq!(rendered.text, without);
    assert_eq!(
        rendered
            .findings
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
        [finding]
    );
}

#[test]
fn repeating_what_the_operator_writes_is_no_conflict() {
    let extra_conf = "SlurmctldPort=6817\nAuthType=auth/slurm\nAuthInfo=use_client_ids\n".into();
    let rendered = render(&SlurmConf {
        extra_conf,
        ..small()
    })
    .unwrap();
    assert_eq!(rendered, render(&small()).unwrap());
}

#[test]
fn with_backups_there_is_no_address_that_hides_them() {
    let conf = SlurmConf {
        hosts: vec![host(0), host(1)],
        extra_conf: "SlurmctldAddr=vip".into(),
        ..small()
    };
    let rendered = render(&conf).unwrap();
    assert!(!rendered.text.contains("SlurmctldAddr"));
    assert!(matches!(rendered.findings[0].kind, FindingKind::Refused { .. }));
}

#[test]
fn two_partitions_of_one_name_are_refused_because_slurmctld_would_end() {
    let conf = SlurmConf {
        extra_conf: "PartitionName=a Nodes=ALL\n\npartitionname=a\n".into(),
        ..small()
    };
    assert_eq!(
        render(&conf).unwrap_err().to_string(),
        "line 3: partitionname=a repeats line 1"
    );
}

#[test]
fn a_partition_config_is_about_its_own_partition() {
    let partition = Some(Partition {
        config: "Default=YES PartitionName=other".into(),
        leaving: false,
    });
    let nodesets = vec![NodeSet {
        name: "x".into(),
        feature: "x".into(),
        partition,
    }];
    let error = render(&SlurmConf { nodesets, ..small() }).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the partition config of x: PartitionName is not allowed here"
    );
}

#[test]
fn two_node_sets_of_one_name_and_no_controller_are_refused() {
    let nodesets = [small().nodesets, small().nodesets].concat();
    let error = render(&SlurmConf { nodesets, ..small() }).unwrap_err();
    assert_eq!(error.to_string(), "NodeSet=slinky is defined twice");
    render(&SlurmConf {
        hosts: Vec::new(),
        ..small()
    })
    .unwrap_err();
}

#[rstest]
#[case(
    "default",
    true,
    Some("the partition name is \"default\", which Slurm interprets as the defaults of all partitions")
)]
#[case(
    "DEFAULT",
    true,
    Some("the partition name is \"DEFAULT\", which Slurm interprets as the defaults of all partitions")
)]
#[case("default", false, None)]
#[case(
    "all",
    false,
    Some("the node set name is \"all\", which Slurm interprets as all nodes")
)]
#[case("defaults", true, None)]
fn a_word_that_slurm_reads_as_something_else_is_no_name(
    #[case] name: &str,
    #[case] partition: bool,
    #[case] refusal: Option<&str>,
) {
    let nodesets = vec![NodeSet {
        name: name.into(),
        feature: name.into(),
        partition: partition.then(Partition::default),
    }];
    let refused = render(&SlurmConf { nodesets, ..small() }).err();
    let refused = refused.map(|error| error.to_string());
    assert_eq!(refused.as_deref(), refusal);
}

#[rstest]
#[case(SlurmConf { cluster_name: "a\nSlurmUser=root".into(), ..small() })]
#[case(SlurmConf { cluster_name: "a b".into(), ..small() })]
#[case(SlurmConf { service_address: Some("x SlurmUser=root".into()), ..small() })]
#[case(SlurmConf { scripts: Scripts { prolog: ["a\nb".to_owned()].into(), ..Scripts::default() }, ..small() })]
#[case(SlurmConf {
    nodesets: vec![NodeSet {
        name: "x".into(),
        feature: "x".into(),
        partition: Some(Partition { config: "Default=YES\nSlurmUser=root".into(), leaving: false }),
    }],
    ..small()
})]
fn a_string_that_would_add_a_line_is_refused(#[case] conf: SlurmConf) {
    render(&conf).unwrap_err();
}

proptest! {
    #[test]
    fn every_single_parameter_stands_once_whatever_the_user_writes(
        lines in proptest::collection::vec(
            ("(ClusterName|slurmuser|MailProg|mailprog|AuthInfo|SlurmctldParameters|TreeWidth|MaxNodeCount)",
             "[A-Za-z0-9_/=,]{1,12}"), 0..12)
    ) {
        let lines: Vec<_> = lines.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let extra_conf = lines.join("
");
        let rendered = render(&SlurmConf { extra_conf, ..small() }).unwrap();
        let document = parse(File::Slurm, &rendered.text, &BTreeMap::new()).unwrap();
        let mut seen = BTreeSet::new();
        for statement in &document.statements {
            if File::Slurm.shape(&statement.head.key) == crate::catalogue::Shape::Single {
                prop_assert!(seen.insert(statement.head.key.to_ascii_lowercase()), "{} occurs twice", statement.head.key);
            }
        }
        prop_assert_eq!(document.get("ClusterName"), Some("slurm_slurm"));
        prop_assert_eq!(document.get("SlurmUser"), Some("slurm"));
    }
}
