use pretty_assertions::assert_eq;
use rstest::rstest;
use slurm_conf::hostlist::Hostlist;

use super::*;
use crate::slurmcluster::children::{
    Around, Children, children,
    tests::{built, cluster},
};

fn with_gpus(fields: &Value) -> Value {
    let mut set = json!({ "gpu": { "resource": "nvidia.com/gpu", "count": 8, "type": "h200" } });
    set.as_object_mut()
        .unwrap()
        .extend(fields.as_object().cloned().unwrap());
    json!({ "nodeSets": { "cpu": {}, "gpu": set } })
}

/// Slurm skips a line whose host list it cannot parse, and the nodes would have no GPUs.
#[rstest]
#[case::plain(json!({}), "gpu-7")]
#[case::padded(json!({ "ordinalPadding": 3 }), "gpu-007")]
#[case::with_a_hostname(json!({ "template": { "spec": { "hostname": "dgx" } } }), "dgx7")]
#[case::with_a_hostname_that_ends_with_a_digit(json!({ "template": { "spec": { "hostname": "dgx1-" } } }), "dgx1-7")]
#[case::named_after_the_nodeset(json!({ "template": { "spec": { "hostname": null } } }), "slurm-worker-gpu-7")]
#[case::too_much_padding_to_be_valid(json!({ "ordinalPadding": 100_000 }), "gpu-7")]
fn slurm_finds_the_gpus_of_each_worker(#[case] fields: Value, #[case] node: &str) {
    let children = built(with_gpus(&fields));
    let text = &children.config_files["gres.conf"];
    let document = syntax::parse(File::Gres, text, &BTreeMap::new()).unwrap();
    let list: Hostlist = document.statements[0].head.value.parse().unwrap();
    assert!(list.contains(node), "{text}");
    assert!(!list.contains("cpu-0") && !list.contains("gpu-a-0"));
}

/// What a cluster runs with after these children were applied.
fn running(children: &Children, old_workers: &[&str]) -> Around {
    let extra_conf = children.controller.spec["extraConf"].as_str().unwrap();
    Around {
        running: Running {
            extra_conf: extra_conf.to_owned(),
            gres_conf: children
                .config_files
                .get("gres.conf")
                .cloned()
                .unwrap_or_default(),
            old_workers: old_workers.iter().map(|name| (*name).to_owned()).collect(),
        },
        ..Around::default()
    }
}

#[rstest]
#[case::set(json!({ "nodeSets": { "cpu": {} } }))]
#[case::gpu(json!({ "nodeSets": { "cpu": {}, "gpu": {} } }))]
fn removed_gpus_stay_in_gres_conf_while_old_workers_run(#[case] after: Value) {
    let before = built(with_gpus(&json!({})));
    let after = |old_workers: &[&str]| {
        let around = running(&before, old_workers);
        children(&cluster(after.clone()), &around).unwrap_or_else(|report| panic!("{report}"))
    };
    let draining = after(&["gpu-"]);
    assert_eq!(draining.config_files, before.config_files);
    assert_eq!(
        draining.controller.spec["extraConf"],
        before.controller.spec["extraConf"]
    );
    assert_eq!(
        draining.controller.spec["configFileRefs"],
        before.controller.spec["configFileRefs"]
    );
    let gone = after(&[]);
    assert_eq!(gone.config_files, BTreeMap::new());
    assert_eq!(gone.controller.spec.get("configFileRefs"), None);
    assert_eq!(
        gone.controller.spec["extraConf"],
        before.controller.spec["extraConf"]
    );
    assert_eq!(
        after(&["cpu-"]).config_files,
        BTreeMap::new(),
        "another set is replaced"
    );
}

#[test]
fn a_set_has_one_line_in_gres_conf() {
    let before = running(&built(with_gpus(&json!({}))), &["gpu-"]);
    let detected = |by: &str| {
        let gpu = json!({ "resource": "nvidia.com/gpu", "count": 8, "autoDetect": by });
        let children = children(
            &cluster(json!({ "nodeSets": { "gpu": { "gpu": gpu } } })),
            &before,
        )
        .unwrap();
        children.config_files.get("gres.conf").cloned()
    };
    assert_eq!(
        detected("nvml").unwrap(),
        "NodeName=gpu-[0-65535] AutoDetect=nvml\n"
    );
    assert_eq!(detected("off"), None, "gres.conf is the user's now");
}

#[test]
fn what_the_user_records_is_kept_when_gpus_go() {
    let before = running(&built(with_gpus(&json!({}))), &[]);
    let spec =
        json!({ "controller": { "extraConf": "GresTypes=licence\nAccountingStorageTRES=gres/licence" } });
    let children = children(&cluster(spec), &before).unwrap_or_else(|report| panic!("{report}"));
    assert_eq!(
        children.controller.spec["extraConf"],
        "GresTypes=licence\nAccountingStorageTRES=gres/licence\nPartitionName=all Nodes=ALL Default=YES"
    );
    let never = built(json!({ "nodeSets": { "cpu": {} } }));
    let conf = never.controller.spec["extraConf"].as_str().unwrap();
    assert!(!conf.contains("Gres") && !conf.contains("TRES"), "{conf}");
}

#[rstest]
#[case::detected(json!({ "resource": "nvidia.com/gpu", "count": 8 }), true)]
#[case::not_detected(json!({ "resource": "nvidia.com/gpu", "count": 8, "autoDetect": "off" }), false)]
fn nodes_named_after_kubernetes_nodes_need_a_gres_conf_of_the_users_own(
    #[case] gpu: Value,
    #[case] refused: bool,
) {
    let spec = json!({ "nodeSets": { "dgx": { "scalingMode": "DaemonSet", "gpu": gpu } } });
    let refusals = match children(&cluster(spec), &Around::default()) {
        Ok(_) => Vec::new(),
        Err(report) => report.violations.iter().map(ToString::to_string).collect(),
    };
    let expected = "spec.nodeSets.dgx.gpu.autoDetect: is \"nvidia\", but the generated gres.conf cannot name these Slurm nodes, \
                    which in DaemonSet mode have the names of the Kubernetes nodes; set it to \"off\", and write AutoDetect=nvidia \
                    into a gres.conf in controller.configFileRefs";
    assert_eq!(refusals, if refused { vec![expected] } else { Vec::new() });
}

#[test]
fn old_workers_keep_their_gpus_under_their_old_hostname() {
    let before = running(&built(with_gpus(&json!({}))), &["gpu-"]);
    let renamed = with_gpus(&json!({ "template": { "spec": { "hostname": "dgx-" } } }));
    let children = children(&cluster(renamed), &before).unwrap();
    assert_eq!(
        children.config_files["gres.conf"],
        "NodeName=dgx-[0-65535] AutoDetect=nvidia\nNodeName=gpu-[0-65535] AutoDetect=nvidia\n"
    );
}
