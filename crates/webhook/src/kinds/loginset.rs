//! LoginSet: its Controller, its additions to `sshd_config`, and the changes that replace its pods.

use keelson_api::{
    LoginSet,
    loginset::LoginSetSpec,
    validate::{Path, Report},
};
use kube::ResourceExt as _;
use slurm_conf::sshd_config::Role;

use super::controller_exists;
use crate::{
    conf,
    namespace_snapshot::NamespaceSnapshot,
    validate::{Rules, warn},
};

impl Rules for LoginSet {
    const KIND: &'static str = "loginset";
    /// The Service has the object's own name.
    const NAME_MAX: Option<usize> = Some(63);

    fn services(&self) -> Vec<String> {
        vec![self.login_name()]
    }

    fn beside(&self, snapshot: &NamespaceSnapshot, report: &mut Report) {
        controller_exists(&self.spec.controller_ref.name, snapshot, report);
        let path = Path::spec().field("extraSshdConfig");
        conf::sshd(&path, Role::Login, self.spec.extra_sshd_config.as_deref(), report);
    }

    fn on_update(old: &Self, new: &Self, report: &mut Report) {
        if let Some(field) = replaces_pods(&old.spec, &new.spec).filter(|_| old.spec.replicas > 0) {
            let grace = grace_period(&old.spec);
            warn(
                report,
                &Path::spec().field(field),
                format!("this change replaces the login pods; open sessions are closed after {grace} s"),
            );
        }
    }

    fn on_delete(&self, _: &NamespaceSnapshot) -> Vec<String> {
        vec![format!(
            "users logged in to LoginSet {} will be disconnected",
            self.name_any()
        )]
    }
}

/// The first changed field that replaces the login pods.
fn replaces_pods(old: &LoginSetSpec, new: &LoginSetSpec) -> Option<&'static str> {
    // Without `..`: for each new field, decide whether a change of it replaces the pods.
    let LoginSetSpec {
        controller_ref: _,
        replicas: _,
        login,
        initconf,
        template,
        root_ssh_authorized_keys: _,
        extra_sshd_config,
        sssd_conf_ref,
        sssd: _,
        strategy: _,
        service: _,
    } = new;
    [
        ("login", *login != old.login),
        ("initconf", *initconf != old.initconf),
        ("template", *template != old.template),
        ("extraSshdConfig", *extra_sshd_config != old.extra_sshd_config),
        (
            "sssdConfRef",
            new.sssd_enabled() && *sssd_conf_ref != old.sssd_conf_ref,
        ),
        ("sssd", new.sssd_enabled() != old.sssd_enabled()),
    ]
    .into_iter()
    .find_map(|(field, changed)| changed.then_some(field))
}

/// Termination grace period of the running pods, in seconds.
fn grace_period(spec: &LoginSetSpec) -> u64 {
    const KUBERNETES_DEFAULT: u64 = 30;
    let pod = spec.template.as_ref().and_then(|template| template.spec.as_ref());
    pod.and_then(|pod| pod.0.get("terminationGracePeriodSeconds")?.as_u64())
        .unwrap_or(KUBERNETES_DEFAULT)
}
