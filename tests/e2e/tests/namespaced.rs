//! Tests an operator that is limited to one namespace, whose only cluster-wide permission is to read nodes. It runs in
//! a separate namespace that enforces Pod Security `restricted`.
//!
//! Two operators must not manage the same namespace, so the test cluster's operator is stopped and this test runs alone
//! (`.config/nextest.toml`).

use anyhow::{Context, Result, ensure};
use e2e::forward::Forward;
use e2e::operator::Stopped;
use e2e::slurm::Slurm;
use e2e::{Namespace, cluster, eventually, get, kubectl, run};
use serde_json::Value;

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/slurm-operator");

/// The operator's release, which is uninstalled with the test, including its cluster-wide objects.
struct Operator {
    space: Namespace,
}

impl Operator {
    fn install(serves: &str) -> Result<Self> {
        let space = Namespace::create("team-operator")?;
        kubectl(&[
            "label",
            "namespace",
            &space.name,
            "pod-security.kubernetes.io/enforce=restricted",
        ])?;
        let operator = Self { space };
        run(cluster()?
            .helm()
            .args(["install", "team", CHART, "--namespace", &operator.space.name])
            .args(["--set", "nameOverride=team-slurm-operator"])
            .args(["--set", "certManager.secretName=team-webhook-ca"])
            .args(["--set", &format!("operator.namespaces={serves}")])
            .args(["--set", &format!("webhook.namespaces={serves}")])
            .args(["--set", "operator.metricsSecure=true"])
            .args(["--wait", "--timeout=5m"]))?;
        Ok(operator)
    }

    fn account(&self) -> Result<String> {
        let deployment = get(&[
            "--namespace",
            &self.space.name,
            "deployment",
            "team-slurm-operator",
        ])?;
        let name = deployment
            .pointer("/spec/template/spec/serviceAccountName")
            .and_then(Value::as_str)
            .context("no service account")?;
        Ok(format!("system:serviceaccount:{}:{name}", self.space.name))
    }

    fn may(&self, verb: &str, what: &str, namespace: &str) -> Result<bool> {
        let account = self.account()?;
        let answer = cluster()?
            .kubectl()
            .args([
                "auth",
                "can-i",
                verb,
                what,
                "--as",
                &account,
                "--namespace",
                namespace,
            ])
            .output()?;
        Ok(answer.stdout.starts_with(b"yes"))
    }
}

/// A `ClusterRoleBinding` that is deleted with the test.
struct Binding(String);

impl Binding {
    fn create(role: &str, account: &str) -> Result<Self> {
        let name = format!("{role}-{}", std::process::id());
        let role = format!("--clusterrole={role}");
        let account = format!("--serviceaccount={account}");
        kubectl(&["create", "clusterrolebinding", &name, &role, &account])?;
        Ok(Self(name))
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        let _ = kubectl(&["delete", "clusterrolebinding", &self.0]);
    }
}

/// Checks that only authorized callers can read the operator's metrics.
fn figures_are_guarded(operator: &Operator) -> Result<()> {
    let space = &operator.space;
    space.kubectl(&["create", "serviceaccount", "scraper"])?;
    let token = space.kubectl(&["create", "token", "scraper"])?;
    let forward = Forward::open(&space.name, "deployment/team-slurm-operator", 8080)?;
    let server = format!("https://127.0.0.1:{}", forward.port);
    // kubectl serves as an HTTPS client, with an empty kubeconfig so that it uses only the given token.
    let scrape = |token: &str| {
        run(cluster()?
            .kubectl()
            .args(["--kubeconfig=/dev/null", "--insecure-skip-tls-verify"])
            .args(["--server", &server, "--token", token.trim()])
            .args(["get", "--raw", "/metrics"]))
    };
    for (token, expected) in [("nobody's", "must be logged in"), (&token, "Forbidden")] {
        let refused = scrape(token).err().context("a stranger read the figures")?;
        ensure!(format!("{refused:#}").contains(expected), "{refused:#}");
    }
    let _binding = Binding::create(
        "team-team-slurm-operator-metrics-reader",
        &format!("{}:scraper", space.name),
    )?;
    eventually("the figures are read", || {
        let figures = scrape(&token)?;
        ensure!(figures.contains("# TYPE"), "{figures}");
        Ok(())
    })
}

impl Drop for Operator {
    fn drop(&mut self) {
        // Delete the pods first: if their roles were deleted earlier, denied calls would look like missing permissions.
        let _ = self
            .space
            .kubectl(&["delete", "deployment", "--all", "--cascade=foreground"]);
        let _ = cluster().map(|cluster| {
            run(cluster
                .helm()
                .args(["uninstall", "team", "--wait", "--namespace", &self.space.name]))
        });
    }
}

#[test]
fn an_operator_for_one_namespace_runs_a_job_with_rights_there_alone() -> Result<()> {
    let _stopped = Stopped::stop()?;
    let space = Namespace::create("team")?;
    let operator = Operator::install(&space.name)?;
    for (verb, what, there) in [
        ("list", "secrets", true),
        ("create", "pods", true),
        ("list", "nodes", true),
        ("delete", "persistentvolumes", false),
        // A SlurmCluster's NodeSets go with it, but nothing deletes a SlurmCluster.
        ("delete", "nodesets.slinky.slurm.net", true),
        ("delete", "slurmclusters.keelson.dev", false),
    ] {
        ensure!(
            operator.may(verb, what, &space.name)? == there,
            "{verb} {what} in its own namespace"
        );
    }
    for (verb, what) in [("list", "secrets"), ("list", "pods"), ("get", "configmaps")] {
        ensure!(
            !operator.may(verb, what, "slurm")?,
            "{verb} {what} in another namespace"
        );
    }
    run(cluster()?.helm().args([
        "test",
        "team",
        "--timeout=5m",
        "--namespace",
        &operator.space.name,
    ]))?;
    figures_are_guarded(&operator)?;
    let slurm = Slurm::install_examples(space, &[], "nodesets: { cpu: { replicas: 1 } }")?;
    slurm.wait_idle(1)?;
    let job = slurm.sbatch(&["--wait"], "true")?;
    slurm.wait_job(&job, "COMPLETED")?;
    // The operator's webhook validates objects in this namespace.
    let refused = slurm
        .patch(
            "nodeset/slurm-worker-cpu",
            &serde_json::json!({"spec": {"controllerRef": {"name": "other"}}}),
        )
        .err()
        .context("another Controller was accepted")?;
    ensure!(refused.to_string().contains("controllerRef"), "{refused}");
    run(cluster()?
        .helm()
        .args(["uninstall", "slurm", "--namespace", &slurm.space.name]))?;
    eventually("the end of every pod", || slurm.space.has_no("pods"))
}
