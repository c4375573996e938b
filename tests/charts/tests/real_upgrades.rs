//! Tests upgrades of installed objects: a new default in a chart must not replace login pods, which would end their
//! sessions, unless the user asked for it.

use anyhow::{Context, Result};
use chart_tests::helms;
use chart_tests::lookup::upgraded;
use rstest::rstest;
use serde_json::{Value, json};

/// The capabilities that the documentation of an earlier chart recommended.
fn nine() -> Value {
    json!({
        "drop": ["ALL"],
        "add": ["AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID", "SYS_CHROOT"],
    })
}

fn runtime_default() -> Value {
    json!({ "seccompProfile": { "type": "RuntimeDefault" } })
}

/// Returns an installed LoginSet with these security contexts of its container and its pod.
fn installed(container: &Value, pod: &Value) -> Value {
    json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "LoginSet",
        "metadata": { "name": "slurm-login-users", "namespace": "slurm" },
        "spec": { "login": { "securityContext": container }, "template": { "spec": { "securityContext": pod } } },
    })
}

#[rstest]
// Installed by an earlier chart, with its defaults.
#[case(json!({ "privileged": false }), json!(null), json!({}), json!(null), json!(null))]
// Installed by an earlier chart, with the capabilities that its documentation recommended.
#[case(
    json!({ "privileged": false, "capabilities": nine() }), json!(null),
    json!({ "login": { "securityContext": { "capabilities": nine() } } }),
    nine(), json!(null)
)]
// Installed by this chart.
#[case(json!({ "privileged": false, "capabilities": nine() }), runtime_default(), json!({}), nine(), runtime_default())]
// A seccomp profile that the user set, on the container or the pod, counts as an existing profile.
#[case(
    json!({ "privileged": false }), json!({ "seccompProfile": { "type": "Unconfined" } }),
    json!({}), json!(null), runtime_default()
)]
#[case(
    json!({ "privileged": false, "seccompProfile": { "type": "Unconfined" } }), json!(null),
    json!({}), json!(null), runtime_default()
)]
// Requested by the user.
#[case(
    json!({ "privileged": false }), json!(null),
    json!({ "restrictCapabilities": true }), nine(), runtime_default()
)]
#[case(
    json!({ "privileged": false, "capabilities": nine() }), runtime_default(),
    json!({ "restrictCapabilities": false }), json!(null), json!(null)
)]
fn a_login_set_keeps_the_limits_that_it_was_installed_with(
    #[case] container: Value,
    #[case] pod: Value,
    #[case] values: Value,
    #[case] capabilities: Value,
    #[case] pod_context: Value,
) -> Result<()> {
    let values = json!({ "loginsets": { "users": values } });
    let installed = installed(&container, &pod);
    for helm in helms() {
        let objects = upgraded(&helm, "slurm", &values, std::slice::from_ref(&installed))?;
        let loginset = objects.get("LoginSet/slurm-login-users").context("no LoginSet")?;
        let at = |pointer: &str| loginset.pointer(pointer).cloned().unwrap_or_default();
        assert_eq!(at("/spec/login/securityContext/capabilities"), capabilities);
        assert_eq!(at("/spec/template/spec/securityContext"), pod_context);
    }
    Ok(())
}

#[test]
fn a_login_set_that_is_new_gets_all_limits() -> Result<()> {
    for helm in helms() {
        let objects = upgraded(&helm, "slurm", &json!({ "loginsets": { "users": {} } }), &[])?;
        let loginset = objects.get("LoginSet/slurm-login-users").context("no LoginSet")?;
        assert_eq!(
            loginset.pointer("/spec/login/securityContext/capabilities"),
            Some(&nine())
        );
        assert_eq!(
            loginset.pointer("/spec/template/spec/securityContext"),
            Some(&runtime_default())
        );
    }
    Ok(())
}
