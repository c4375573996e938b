//! Tests that the API server accepts the rendered objects, that the control plane meets Pod Security `restricted`, and
//! that the operator image is small.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use e2e::slurm::{EXAMPLES, Slurm};
use e2e::{Namespace, cluster, get};
use serde_json::Value;

use crate::{CHARTS, NO_PODS_FOR_USERS, helm};

/// Kinds of other projects, whose CRDs this cluster does not have.
const NOT_HERE: &[&str] = &["ServiceMonitor", "Certificate", "Issuer"];

/// Applies every object of the chart tests by dry run, with strict field validation.
#[test]
fn everything_that_the_charts_render_is_valid() -> Result<()> {
    let space = Namespace::create("matrix")?;
    let helm = cluster()?.spec().binaries.helm.clone();
    let mut tried = 0;
    let mut tables: Vec<PathBuf> = std::fs::read_dir(format!("{CHARTS}/tests"))?
        .map(|file| file.map(|file| file.path()))
        .collect::<std::io::Result<_>>()?;
    tables.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    for table in tables {
        let cases = chart_tests::Table::read(&table)?;
        let mut objects: Vec<Value> = cases
            .renders(&helm, &space.name)?
            .into_iter()
            .flat_map(|(_, objects)| objects)
            .filter(|object| !NOT_HERE.iter().any(|kind| object["kind"] == *kind))
            .collect();
        // Some cases use namespaces that do not exist here, so the objects are moved to this one.
        for object in &mut objects {
            if let Some(namespace) = object.pointer_mut("/metadata/namespace") {
                *namespace = Value::from(space.name.as_str());
            }
        }
        objects.dedup();
        if objects.is_empty() {
            continue;
        }
        tried += objects.len();
        // The API server rejects a pod without its ServiceAccount, and a dry run creates none.
        let pods = objects.iter().filter(|object| object["kind"] == "Pod");
        let accounts: BTreeSet<&str> = pods
            .filter_map(|pod| pod.pointer("/spec/serviceAccountName")?.as_str())
            .collect();
        for name in accounts {
            let account =
                serde_json::json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
            space.apply(&account.to_string())?;
        }
        let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
        let mut dry = cluster()?
            .kubectl()
            .args([
                "apply",
                "--server-side",
                "--force-conflicts",
                "--dry-run=server",
                "--validate=strict",
            ])
            .args(["--field-manager=matrix", "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        dry.stdin
            .take()
            .context("no standard input")?
            .write_all(list.as_bytes())?;
        let output = dry.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {said}", table.display());
    }
    ensure!(tried > 100, "only {tried} objects");
    Ok(())
}

/// Every Slurm component that does not start processes for users meets Pod Security `restricted`.
#[test]
fn the_control_plane_runs_in_a_restricted_namespace() -> Result<()> {
    let space = Namespace::create("restricted")?;
    e2e::kubectl(&[
        "label",
        "namespace",
        &space.name,
        "pod-security.kubernetes.io/enforce=restricted",
    ])?;
    let database = std::fs::read_to_string(format!("{EXAMPLES}/mariadb.yaml"))?;
    space.apply(&database)?;
    let slurm = Slurm::install_examples(space, &["accounting"], NO_PODS_FOR_USERS)?;
    for object in [
        "accountings.slinky.slurm.net",
        "controllers.slinky.slurm.net",
        "restapis.slinky.slurm.net",
    ] {
        slurm.wait_condition(&format!("{object}/slurm"), "Ready", "True", "")?;
    }
    // The root file systems are read-only, and `/tmp` is a volume.
    for pod in [
        "slurm-controller-0",
        "slurm-accounting-0",
        "deployment/slurm-restapi",
    ] {
        let mounts = slurm.space.exec(pod, &["cat", "/proc/mounts"])?;
        let root = mounts.lines().find(|line| line.split(' ').nth(1) == Some("/"));
        let options = root.and_then(|line| line.split(' ').nth(3)).unwrap_or_default();
        ensure!(options.starts_with("ro,"), "{pod} has {root:?}");
        slurm.space.exec(pod, &["touch", "/tmp/written"])?;
    }
    // The pod of `helm test` also meets the level.
    helm(&slurm.space, &["test", "slurm", "--timeout=5m"])?;
    let stranger = format!(
        r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "root"}},
             "spec": {{"containers": [{{"name": "root", "image": "{}"}}]}}}}"#,
        e2e::tools_image()
    );
    let refused = slurm
        .space
        .apply(&stranger)
        .err()
        .context("a root pod was let in")?;
    ensure!(refused.to_string().contains("violates PodSecurity"), "{refused}");
    Ok(())
}

/// The maximum size of the operator image in bytes. Uncompressed, as on a node, which is stricter than the download
/// size.
const OPERATOR_IMAGE: u64 = 40_000_000;

#[test]
fn the_operators_image_is_small() -> Result<()> {
    if std::env::var_os("KEELSON_TEST_QUICK").is_some() {
        eprintln!("not looked at: this operator was built without optimisation");
        return Ok(());
    }
    let name = testbed::image::name("slurm-operator");
    let nodes = get(&["nodes"])?;
    let images = nodes
        .pointer("/items/0/status/images")
        .and_then(Value::as_array)
        .context("a node without images")?;
    let image = images
        .iter()
        .find(|image| {
            image["names"]
                .as_array()
                .is_some_and(|names| names.contains(&Value::from(name.as_str())))
        })
        .with_context(|| format!("the node does not have {name}"))?;
    let size = image["sizeBytes"].as_u64().context("an image without size")?;
    ensure!(size <= OPERATOR_IMAGE, "{name} has {size} bytes");
    Ok(())
}
