use super::*;
use crate::syntax::parse;
use pretty_assertions::assert_eq;
use rstest::rstest;

fn classify(file: File, old: &str, new: &str) -> Class {
    let read = |text: &str| parse(file, text, &BTreeMap::new()).unwrap();
    change_class(file, &read(old), &read(new)).class()
}

fn restart(daemons: &[Daemon]) -> Class {
    Class::restart(daemons)
}

fn empty(what: &[MustBeEmpty], daemons: &[Daemon]) -> Class {
    Class::KillsJobs {
        must_be_empty: what.iter().cloned().collect(),
        restart: daemons.iter().copied().collect(),
    }
}

const CLUSTER: MustBeEmpty = MustBeEmpty::Cluster;

fn partition(name: &str) -> MustBeEmpty {
    MustBeEmpty::Partition(name.into())
}

fn gres(name: &str) -> MustBeEmpty {
    MustBeEmpty::Gres(name.into())
}

fn nodes(names: &str) -> MustBeEmpty {
    MustBeEmpty::Nodes(names.into())
}

use Daemon::{Sackd, Slurmctld, Slurmd, Slurmdbd, Slurmrestd};

#[rstest]
#[case::same("MailProg=a", "mailprog=a", Class::None)]
#[case::comment_quotes_order("A=1\nMailProg=a # x", "MailProg=\"a\"\nA=1", Class::None)]
#[case::order_of_partitions(
    "PartitionName=a\nPartitionName=b",
    "PartitionName=b\nPartitionName=a",
    Class::None
)]
#[case::last_counts("MailProg=b\nMailProg=a", "MailProg=a", Class::None)]
#[case::plain("MailProg=a", "MailProg=b", Class::Reconfigure)]
#[case::added("", "MaxNodeCount=2048", Class::Reconfigure)]
#[case::prolog("Prolog=a", "Prolog=a\nProlog=b", Class::Reconfigure)]
#[case::unknown("", "BrandNewThing=1", restart(&[Slurmctld, Slurmrestd, Slurmd, Sackd]))]
#[case::port("SlurmctldPort=6817", "SlurmctldPort=6818", restart(&[Slurmctld, Slurmrestd, Slurmd, Sackd]))]
#[case::token("AuthAltParameters=a", "AuthAltParameters=b", restart(&[Slurmctld, Slurmrestd]))]
#[case::backup("SlurmctldHost=a", "SlurmctldHost=a\nSlurmctldHost=b", restart(&[Slurmrestd]))]
#[case::another_primary(
    "SlurmctldHost=a\nSlurmctldHost=b",
    "SlurmctldHost=b\nSlurmctldHost=a",
    restart(&[Slurmrestd])
)]
#[case::name("ClusterName=a", "ClusterName=b", Class::Forbidden {
    why: "the saved state and the accounting records belong to the old name" })]
#[case::select("SelectType=a", "", empty(&[CLUSTER], &[Slurmctld, Slurmrestd, Slurmd, Sackd]))]
#[case::gres_type_added("GresTypes=licence", "GresTypes=licence,gpu", Class::Reconfigure)]
#[case::first_gres_type("", "GresTypes=gpu", Class::Reconfigure)]
#[case::gres_types_in_another_order("GresTypes=gpu,mps", "GresTypes=MPS,gpu", Class::Reconfigure)]
#[case::gres_type_removed(
    "GresTypes=gpu,mps,licence",
    "GresTypes=licence",
    empty(&[gres("gpu"), gres("mps")], &[])
)]
#[case::all_gres_types_removed("GresTypes=gpu", "", empty(&[gres("gpu")], &[]))]
#[case::partition_added("", "PartitionName=a Nodes=ALL", Class::Reconfigure)]
#[case::partition_changed("PartitionName=a MaxTime=1", "PartitionName=a MaxTime=2", Class::Reconfigure)]
#[case::partition_removed("PartitionName=a", "", empty(&[partition("a")], &[]))]
#[case::partition_renamed("PartitionName=a", "PartitionName=A", empty(&[partition("a")], &[]))]
#[case::nodeset_removed("NodeSet=a Feature=a", "", empty(&[MustBeEmpty::NodeSet("a".into())], &[]))]
#[case::node_removed("NodeName=n[1-2]", "", empty(&[nodes("n[1-2]")], &[]))]
#[case::nodes_added("NodeName=n[1-2] CPUs=2", "NodeName=n[1-4] CPUs=2", Class::Reconfigure)]
#[case::nodes_cut_otherwise(
    "NodeName=n[1-3] CPUs=2",
    "NodeName=n[2-3] CPUs=2\nNodeName=n1 CPUs=2",
    Class::None
)]
#[case::some_nodes_removed("NodeName=n[1-4]", "NodeName=n[1,3]\nNodeName=m1", empty(&[nodes("n[2,4]")], &[]))]
#[case::some_nodes_reshaped(
    "NodeName=n[1-3] CPUs=1",
    "NodeName=n[1-2] CPUs=1\nNodeName=n3 CPUs=2",
    empty(&[nodes("n3")], &[Slurmd])
)]
#[case::removed_and_reshaped(
    "NodeName=n[1-3] CPUs=1",
    "NodeName=n[2-3] CPUs=2",
    empty(&[nodes("n1"), nodes("n[2-3]")], &[Slurmd])
)]
#[case::node_port("NodeName=n Port=1", "NodeName=n Port=2", restart(&[Slurmctld, Slurmd]))]
#[case::ports_assigned_again(
    "NodeName=n[1-2] Port=[7001-7002]",
    "NodeName=n[1,3],n2 Port=[7001-7002]",
    restart(&[Slurmctld, Slurmd])
)]
#[case::no_list_of_nodes("NodeName=n[1- CPUs=1", "NodeName=n[1- CPUs=2", empty(&[nodes("n[1-")], &[Slurmd]))]
#[case::nodeset_grows("NodeSet=a Nodes=n[1-2]", "NodeSet=a Nodes=n[1-4]", Class::Reconfigure)]
#[case::nodeset_shrinks("NodeSet=a Nodes=n[1-2]", "NodeSet=a Nodes=n1", empty(&[MustBeEmpty::NodeSet("a".into())], &[]))]
#[case::nodeset_of_other_nodes(
    "NodeSet=a Nodes=n1 Feature=f",
    "NodeSet=a Nodes=n[1-2] Feature=g",
    empty(&[MustBeEmpty::NodeSet("a".into())], &[])
)]
#[case::node_weight("NodeName=n Weight=1", "NodeName=n Weight=2", Class::Reconfigure)]
#[case::node_cpus("NodeName=n CPUs=1", "NodeName=n CPUs=2", empty(&[nodes("n")], &[Slurmd]))]
#[case::default_partition(
    "PartitionName=DEFAULT MaxTime=1",
    "PartitionName=DEFAULT MaxTime=2",
    Class::Reconfigure
)]
#[case::default_partition_behind(
    "PartitionName=DEFAULT MaxTime=1\nPartitionName=a",
    "PartitionName=a\nPartitionName=DEFAULT MaxTime=1",
    Class::Reconfigure
)]
#[case::default_partition_written_out(
    "PartitionName=DEFAULT MaxTime=1\nPartitionName=DEFAULT State=UP\nPartitionName=a",
    "PartitionName=DEFAULT MaxTime=1\nPartitionName=DEFAULT State=UP\nPartitionName=a State=UP MaxTime=1",
    Class::None
)]
#[case::default_node_behind(
    "NodeName=DEFAULT CPUs=2\nNodeName=n",
    "NodeName=n\nNodeName=DEFAULT CPUs=2",
    empty(&[nodes("n")], &[Slurmd])
)]
#[case::node_cores_kept("NodeName=n CpuSpecList=0", "NodeName=n CpuSpecList=1", empty(&[nodes("n")], &[Slurmd]))]
#[case::down("", "DownNodes=n State=DOWN", empty(&[nodes("n")], &[]))]
#[case::drain("", "DownNodes=n State=DRAIN", Class::Reconfigure)]
#[case::include("", "Include other.conf", restart(&[Slurmctld, Slurmrestd, Slurmd, Sackd]))]
fn slurm_conf(#[case] old: &str, #[case] new: &str, #[case] class: Class) {
    assert_eq!(classify(File::Slurm, old, new), class);
}

#[test]
fn the_severest_class_counts_and_gathers_the_others_of_its_kind() {
    let old = "PartitionName=a\nPartitionName=b\nSlurmdPort=1\nMailProg=x";
    assert_eq!(
        classify(File::Slurm, old, "SlurmdPort=2"),
        empty(&[partition("a"), partition("b")], &[Slurmctld, Slurmd])
    );
}

#[rstest]
#[case(File::Slurmdbd, "StoragePass=a", "StoragePass=b", restart(&[Slurmdbd]))]
#[case(File::Slurmdbd, "StorageHost=a\nStoragePort=1", "StorageHost=b\nStoragePort=2", restart(&[Slurmdbd]))]
#[case(File::Slurmdbd, "StorageLoc=a", "StorageLoc=b", Class::Forbidden {
    why: "the accounting records would stay behind" })]
#[case(File::Cgroup, "CgroupPlugin=a", "CgroupPlugin=b", restart(&[Slurmd]))]
#[case(File::Cgroup, "ConstrainCores=yes", "ConstrainCores=no", Class::Reconfigure)]
#[case(File::Gres, "Name=gpu File=/a", "Name=gpu File=/b", empty(&[CLUSTER], &[Slurmd]))]
#[case(File::Gres, "", "NodeName=n1 Name=gpu File=/b", empty(&[nodes("n1")], &[Slurmd]))]
fn other_files(#[case] file: File, #[case] old: &str, #[case] new: &str, #[case] class: Class) {
    assert_eq!(classify(file, old, new), class);
}

const GPUS: &str = "NodeName=gpu-[0-1] AutoDetect=nvidia\nNodeName=gpu-2 Name=gpu File=/dev/nvidia[0-1]\n";

#[rstest]
#[case::comments_and_order(
    "# two machines\nNodeName=gpu-2 name=GPU File=/dev/nvidia[0-1] # old\nNodeName=gpu-[0-1] autodetect=NVIDIA\n",
    ""
)]
#[case::nodes_that_do_not_exist_yet(
    "NodeName=gpu-[0-1] AutoDetect=nvidia\nNodeName=gpu-[2-3] Name=gpu File=/dev/nvidia[0-1]\nNodeName=new-[0-65535] AutoDetect=nvml\n",
    ""
)]
#[case::cut_otherwise(
    "NodeName=gpu-1 AutoDetect=nvidia\nNodeName=gpu-0,gpu-7 AutoDetect=nvidia\nNodeName=gpu-2 Name=gpu File=/dev/nvidia[0-1]\n",
    ""
)]
#[case::one_node_left_out(
    "NodeName=gpu-0 AutoDetect=nvidia\nNodeName=gpu-2 Name=gpu File=/dev/nvidia[0-1]\n",
    "gpu-1"
)]
#[case::another_count(
    "NodeName=gpu-[0-1] AutoDetect=nvidia\nNodeName=gpu-2 Name=gpu File=/dev/nvidia[0-3]\n",
    "gpu-2"
)]
#[case::another_detection(
    "NodeName=gpu-[0-1] AutoDetect=nvml\nNodeName=gpu-2 Name=gpu File=/dev/nvidia[0-1]\n",
    "gpu-[0-1]"
)]
#[case::a_default_that_two_do_not_use(
    "AutoDetect=rsmi\nNodeName=gpu-[0-1] AutoDetect=nvidia\nNodeName=gpu-2 Name=gpu File=/dev/nvidia[0-1]\n",
    "gpu-2,cpu-0"
)]
#[case::a_device_of_every_node(
    "NodeName=gpu-[0-1] AutoDetect=nvidia\nNodeName=gpu-2 Name=gpu File=/dev/nvidia[0-1]\nName=licence Count=2\n",
    "cpu-0,gpu-[0-2]"
)]
#[case::a_range_that_slurm_refuses(
    "NodeName=gpu-[0-99999] AutoDetect=nvidia\nNodeName=gpu-2 Name=gpu File=/dev/nvidia[0-1]\n",
    "gpu-[0-1]"
)]
#[case::files_that_are_unknown_here(
    "Include /etc/more.conf\nNodeName=gpu-[0-1] AutoDetect=nvidia\nNodeName=gpu-2 Name=gpu File=/dev/nvidia[0-1]\n",
    "cpu-0,gpu-[0-2]"
)]
#[case::nothing("", "gpu-[0-2]")]
fn gres_conf_matters_to_the_nodes_that_exist(#[case] new: &str, #[case] affected: &str) {
    let read = |text: &str| parse(File::Gres, text, &BTreeMap::new()).unwrap();
    let names = ["cpu-0", "gpu-0", "gpu-1", "gpu-2"];
    let class = gres_change(&read(GPUS), &read(new), names).class();
    if affected.is_empty() {
        assert_eq!(class, Class::Reconfigure);
    } else {
        let list: crate::hostlist::Hostlist = affected.parse().unwrap();
        let names = crate::hostlist::compress(list.names()).unwrap();
        assert_eq!(class, empty(&[nodes(&names)], &[Slurmd]));
    }
}

/// The position of a device in the file is its number, which running jobs hold.
#[rstest]
#[case::of_one_resource(
    "NodeName=n Name=gpu File=/b\nNodeName=n Name=gpu File=/a\nNodeName=n Name=mps Count=1",
    true
)]
#[case::of_several(
    "NodeName=n Name=mps Count=1\nNodeName=n Name=gpu File=/a\nNodeName=n Name=gpu File=/b",
    false
)]
fn devices_of_a_node_keep_their_order(#[case] new: &str, #[case] matters: bool) {
    let old = "NodeName=n Name=gpu File=/a\nNodeName=n Name=gpu File=/b\nNodeName=n Name=mps Count=1";
    let read = |text: &str| parse(File::Gres, text, &BTreeMap::new()).unwrap();
    let class = gres_change(&read(old), &read(new), ["n"]).class();
    assert_eq!(matches!(class, Class::KillsJobs { .. }), matters, "{class:?}");
}

#[test]
fn an_unchanged_gres_conf_changes_nothing() {
    let read = |text: &str| parse(File::Gres, text, &BTreeMap::new()).unwrap();
    assert_eq!(
        gres_change(&read(GPUS), &read(GPUS), ["gpu-0"]),
        ChangeSet::default()
    );
}

#[test]
fn more_nodes_than_slurm_knows_are_compared_line_by_line() {
    let lines = |cpus: u32| -> String {
        let lines = (0..17).map(|block| format!("NodeName=b{block}-[0-65535] CPUs={cpus}"));
        lines.collect::<Vec<_>>().join("\n")
    };
    let changed = classify(File::Slurm, &lines(1), &lines(2));
    assert!(matches!(changed, Class::KillsJobs { must_be_empty, .. } if must_be_empty.len() == 1));
}

#[test]
fn a_change_never_carries_a_secret() {
    let read = |text: &str| parse(File::Slurmdbd, text, &BTreeMap::new()).unwrap();
    let changes = change_class(
        File::Slurmdbd,
        &read("StoragePass=hunter2"),
        &read("StoragePass=hunter3"),
    );
    assert!(!format!("{changes:?}").contains("hunter"));
}
