//! LoginSet: its Controller, and what it adds to `sshd_config`.

use keelson_api::{
    LoginSet,
    validate::{Path, Report},
};
use kube::ResourceExt as _;
use slurm_conf::sshd_config::Role;

use super::controller_exists;
use crate::{around::Around, conf, judge::Rules};

impl Rules for LoginSet {
    const KIND: &'static str = "loginset";
    /// The Service has the object's own name.
    const NAME_MAX: Option<usize> = Some(63);

    fn services(&self) -> Vec<String> {
        vec![self.login_name()]
    }

    fn beside(&self, around: &Around, report: &mut Report) {
        controller_exists(&self.spec.controller_ref.name, around, report);
        let path = Path::spec().field("extraSshdConfig");
        conf::sshd(&path, Role::Login, self.spec.extra_sshd_config.as_deref(), report);
    }

    fn on_delete(&self, _: &Around) -> Vec<String> {
        vec![format!(
            "users who are logged in to LoginSet {} are cut off",
            self.name_any()
        )]
    }
}
