//! Tests job records in a real database, from the chart's values to `sacct`: the password changes, is wrong and is
//! corrected, the database stops, and the signing key changes.

use anyhow::{Context, Result, ensure};
use e2e::slurm::{CHART, EXAMPLES, condition, lean_quick_start};
use e2e::{Namespace, api, cluster, eventually, run};
use serde_json::Value;

/// A cluster without workers. Its jobs stay pending, but are recorded.
struct Slurm {
    space: Namespace,
}

impl Slurm {
    fn install() -> Result<Self> {
        let space = Namespace::create("accounting")?;
        let database = std::fs::read_to_string(format!("{EXAMPLES}/mariadb.yaml"))?;
        space.apply(&database)?;
        let directory = tempfile::tempdir()?;
        let mut install = cluster()?.helm();
        install.args(["install", "slurm", CHART, "--namespace", &space.name]);
        lean_quick_start(&mut install, directory.path())?;
        run(install
            .args(["--values", &format!("{EXAMPLES}/accounting.yaml")])
            .args(["--set", "nodesets.cpu.replicas=0"]))?;
        Ok(Self { space })
    }

    fn get(&self, words: &[&str]) -> Result<Value> {
        self.space.get(words)
    }

    /// Runs a command on the login node.
    fn login(&self, words: &[&str]) -> Result<String> {
        self.space.exec("deployment/slurm-login-users", words)
    }

    fn submit(&self) -> Result<String> {
        let job = self.login(&["sbatch", "--parsable", "--hold", "--wrap=true"])?;
        Ok(job.trim().to_owned())
    }

    /// Returns the state of a job in the accounting records.
    fn recorded(&self, job: &str) -> Result<String> {
        let words = [
            "sacct",
            "--noheader",
            "--allocations",
            "--parsable2",
            "--format=state",
        ];
        self.login(&[&words[..], &["--jobs", job]].concat())
    }

    fn set_secret(&self, name: &str, key: &str, value: &str) -> Result<()> {
        let patch = serde_json::json!({ "stringData": { key: value } });
        api::patch(&self.space.name, &format!("secret/{name}"), &patch)
    }

    /// Waits until the Accounting's `Ready` condition has this status and reason, and returns its message.
    fn accounting_is(&self, ready: &str, reason: &str) -> Result<String> {
        eventually(&format!("Ready={ready} for the reason {reason}"), || {
            let accounting = self.get(&["accounting", "slurm"])?;
            let found = condition(&accounting, "Ready")?;
            ensure!(
                found["status"] == ready && found["reason"] == reason,
                "the Accounting says {found}"
            );
            Ok(found["message"].as_str().unwrap_or_default().to_owned())
        })
    }

    fn slurmdbd(&self) -> Result<String> {
        let pod = self.get(&["pod", "slurm-accounting-0"])?;
        Ok(pod
            .pointer("/metadata/uid")
            .context("a pod without uid")?
            .to_string())
    }

    /// Waits until the slurmdbd pod with this UID is replaced and the new one is ready.
    fn replaced(&self, former: &str) -> Result<()> {
        eventually("another slurmdbd", || {
            ensure!(self.slurmdbd()? != former, "slurmdbd is the same");
            Ok(())
        })?;
        self.accounting_is("True", "AsSpecified").map(drop)
    }

    /// Returns the token in the Secret of the Token `anna`.
    fn token(&self) -> Result<String> {
        let template = "--output=go-template={{.data.SLURM_JWT | base64decode}}";
        self.space.kubectl(&["get", "secret", "anna-jwt-root", template])
    }

    /// Sends a query to slurmdbd with a token.
    fn ask_slurmdbd(&self, token: &str) -> Result<String> {
        let token = format!("SLURM_JWT={token}");
        self.login(&[
            "env",
            &token,
            "timeout",
            "20",
            "sacctmgr",
            "--noheader",
            "list",
            "cluster",
        ])
    }
}

#[test]
fn job_records_survive_what_happens_to_the_database_and_its_password() -> Result<()> {
    let slurm = Slurm::install()?;
    slurm.accounting_is("True", "AsSpecified")?;

    // slurmctld registers its cluster automatically.
    let cluster = format!("{}_slurm", slurm.space.name);
    eventually("the cluster's registration", || {
        let known = slurm.login(&[
            "sacctmgr",
            "--noheader",
            "--parsable2",
            "list",
            "cluster",
            "format=cluster",
        ])?;
        ensure!(known.lines().any(|line| line == cluster), "{known:?}");
        Ok(())
    })?;
    let job = eventually("a submitted job", || slurm.submit())?;
    eventually("its record", || {
        let state = slurm.recorded(&job)?;
        ensure!(state.starts_with("PENDING"), "{state:?}");
        Ok(())
    })?;

    // The password changes in the database, then in the Secret.
    let first = slurm.slurmdbd()?;
    let change = "SET PASSWORD = PASSWORD('another')";
    let words = [
        "mariadb",
        "--host=127.0.0.1",
        "--user=slurm",
        "--password=change-me",
    ];
    slurm
        .space
        .exec("mariadb-0", &[&words[..], &["--execute", change]].concat())?;
    slurm.set_secret("mariadb-password", "password", "another")?;
    slurm.replaced(&first)?;
    slurm.login(&["scancel", &job])?;
    eventually("the record of the cancelled job", || {
        let state = slurm.recorded(&job)?;
        ensure!(state.starts_with("CANCELLED"), "{state:?}");
        Ok(())
    })?;

    // With a wrong password, the condition quotes the database. With the correct one, it recovers.
    slurm.set_secret("mariadb-password", "password", "wrong")?;
    let said = slurm.accounting_is("False", "DatabaseUnusable")?;
    ensure!(said.contains("Access denied for user 'slurm'"), "{said}");
    slurm.set_secret("mariadb-password", "password", "another")?;
    slurm.accounting_is("True", "AsSpecified")?;

    // slurmdbd keeps listening when it loses the database, and only logs an error when it gets a query.
    slurm
        .space
        .kubectl(&["scale", "statefulset", "mariadb", "--replicas=0"])?;
    let said = eventually("the loss of the database in the status", || {
        let _ = slurm.login(&["timeout", "10", "sacctmgr", "--noheader", "list", "cluster"]);
        let accounting = slurm.get(&["accounting", "slurm"])?;
        let found = condition(&accounting, "Degraded")?;
        ensure!(found["reason"] == "DatabaseUnusable", "{found}");
        Ok(found["message"].to_string())
    })?;
    ensure!(said.contains("mysql_real_connect failed"), "{said}");
    slurm
        .space
        .kubectl(&["scale", "statefulset", "mariadb", "--replicas=1"])?;
    slurm.accounting_is("True", "AsSpecified")?;
    let state = eventually("an answer of the database", || slurm.recorded(&job))?;
    ensure!(state.starts_with("CANCELLED"), "{state:?}");

    a_token_is_signed_again_when_the_key_changes(&slurm)
}

fn a_token_is_signed_again_when_the_key_changes(slurm: &Slurm) -> Result<()> {
    slurm.space.apply(
        r#"{"apiVersion": "slinky.slurm.net/v1beta1", "kind": "Token", "metadata": {"name": "anna"},
            "spec": {"username": "root", "lifetime": "1h",
                     "jwtKeyRef": {"name": "slurm-auth-jwt", "key": "jwt.key"}}}"#,
    )?;
    let first = eventually("a token", || slurm.token())?;
    slurm.ask_slurmdbd(&first)?;
    ensure!(
        slurm.ask_slurmdbd(&format!("{first}x")).is_err(),
        "slurmdbd takes any token, so this test shows nothing"
    );

    let slurmdbd = slurm.slurmdbd()?;
    slurm.set_secret("slurm-auth-jwt", "jwt.key", &"another key ".repeat(4))?;
    let second = eventually("another token", || {
        let token = slurm.token()?;
        ensure!(token != first, "it is the same");
        Ok(token)
    })?;
    slurm.replaced(&slurmdbd)?;
    eventually("slurmdbd with the new key", || slurm.ask_slurmdbd(&second))?;
    ensure!(slurm.ask_slurmdbd(&first).is_err(), "the old token still counts");
    let token = slurm.get(&["token.slinky.slurm.net", "anna"])?;
    ensure!(condition(&token, "Ready")?["status"] == "True", "{token}");

    // The Secret is deleted with its Token.
    slurm
        .space
        .kubectl(&["delete", "token.slinky.slurm.net", "anna"])?;
    eventually("the end of the token's Secret", || {
        ensure!(slurm.token().is_err(), "it is still there");
        Ok(())
    })
}

/// Enables accounting in a running cluster, before the database exists.
#[test]
fn accounting_that_is_turned_on_later_records_jobs() -> Result<()> {
    let space = Namespace::create("records-later")?;
    let slurm = e2e::slurm::Slurm::install_examples(space, &[], "nodesets: { cpu: { replicas: 1 } }")?;
    slurm.wait_idle(1)?;
    slurm.upgrade("{ nodesets: { cpu: { replicas: 1 } }, accounting: { enabled: true } }")?;
    let registered = |status: &str, reason: &str| {
        slurm.wait_condition(
            "controllers.slinky.slurm.net/slurm",
            "AccountingRegistered",
            status,
            reason,
        )
    };
    registered("False", "Starting")?;
    // Jobs still start, and jobs that run when slurmdbd becomes available are recorded.
    let through = slurm.sbatch(&["--job-name=through"], "sleep 600")?;
    eventually("a running job", || {
        let state = slurm.login(&["squeue", "--noheader", "--format=%T", "--jobs", &through])?;
        ensure!(state.trim() == "RUNNING", "{state:?}");
        Ok(())
    })?;
    let database = std::fs::read_to_string(format!("{EXAMPLES}/mariadb.yaml"))?;
    slurm.space.apply(&database)?;
    registered("True", "AsSpecified")?;
    slurm.login(&["scancel", &through])?;
    let after = slurm.sbatch(&["--wait", "--job-name=after"], "true")?;
    is_recorded(&slurm, &through, "CANCELLED")?;
    is_recorded(&slurm, &after, "COMPLETED")?;

    // Jobs run and end while the database is down, and slurmdbd is replaced before the database is back.
    let database = |replicas: &str| {
        let words = ["scale", "statefulset", "mariadb", replicas];
        slurm.space.kubectl(&words).map(drop)
    };
    database("--replicas=0")?;
    let away = ["wait", "--for=delete", "pod/mariadb-0", "--timeout=120s"];
    slurm.space.kubectl(&away)?;
    let meanwhile = slurm.sbatch(&["--wait", "--job-name=meanwhile"], "true")?;
    slurm.space.kubectl(&["delete", "pod", "slurm-accounting-0"])?;
    let without = slurm.sbatch(&["--wait", "--job-name=without"], "true")?;
    database("--replicas=1")?;
    is_recorded(&slurm, &meanwhile, "COMPLETED")?;
    is_recorded(&slurm, &without, "COMPLETED")?;
    registered("True", "AsSpecified")?;
    is_recorded(&slurm, &after, "COMPLETED")
}

/// Waits until the database has the job in this state.
fn is_recorded(slurm: &e2e::slurm::Slurm, job: &str, state: &str) -> Result<()> {
    let words = [
        "sacct",
        "--noheader",
        "--allocations",
        "--parsable2",
        "--format=state",
        "--jobs",
        job,
    ];
    eventually("the job's record", || {
        let found = slurm.login(&words)?;
        ensure!(found.starts_with(state), "job {job}: {found:?}");
        Ok(())
    })
}

#[test]
fn a_slurmdbd_that_moves_elsewhere_leaves_no_children() -> Result<()> {
    let space = Namespace::create("elsewhere")?;
    for (name, key) in [
        ("keys", "slurm.key"),
        ("keys-jwt", "jwt.key"),
        ("database", "password"),
    ] {
        let value = format!(
            "--from-literal={key}={}",
            "a key of forty characters or a little more"
        );
        space.kubectl(&["create", "secret", "generic", name, &value])?;
    }
    space.apply(
        r#"{"apiVersion": "slinky.slurm.net/v1beta1", "kind": "Accounting", "metadata": {"name": "db"},
            "spec": {"slurmKeyRef": {"name": "keys", "key": "slurm.key"}, "jwtKeyRef": {"name": "keys-jwt", "key": "jwt.key"},
                     "slurmdbd": {"image": "localhost/keelson/slurmdbd:26.05"},
                     "storageConfig": {"host": "nowhere", "passwordKeyRef": {"name": "database", "key": "password"}}}}"#,
    )?;
    let accounting = "accounting.slinky.slurm.net/db";
    let children = [
        "statefulset/db-accounting",
        "service/db-accounting",
        "secret/db-accounting",
    ];
    for child in children {
        eventually("a child of the Accounting", || {
            space.kubectl(&["get", child]).map(drop)
        })?;
    }
    let patch = serde_json::json!({ "spec": {
        "external": true, "externalConfig": { "host": "dbd.example.com", "port": 7031 },
    } });
    api::patch(&space.name, accounting, &patch)?;
    let said = eventually("the address in the status", || {
        let found = space.get(&["accounting", "db"])?;
        let ready = condition(&found, "Ready")?;
        ensure!(ready["reason"] == "External", "{ready}");
        Ok(ready["message"].to_string())
    })?;
    ensure!(said.contains("dbd.example.com:7031"), "{said}");
    eventually("the end of its children", || {
        for child in children {
            ensure!(space.kubectl(&["get", child]).is_err(), "{child} is still there");
        }
        Ok(())
    })
}
