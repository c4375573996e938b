//! Accounting: the Controllers that use it, and its additions to slurmdbd.conf.

use std::sync::Arc;

use keelson_api::{Accounting, Controller, validate::Report};
use kube::ResourceExt as _;

use crate::{
    conf,
    namespace_snapshot::{NamespaceSnapshot, listed},
    validate::Rules,
};

impl Rules for Accounting {
    const KIND: &'static str = "accounting";
    /// StatefulSet `<name>-accounting`, whose pods have a label with that name and a hash of ten characters.
    const NAME_MAX: Option<usize> = Some(63 - "-accounting".len() - "-0123456789".len());

    fn services(&self) -> Vec<String> {
        if self.spec.external {
            return Vec::new();
        }
        vec![self.accounting_name()]
    }

    fn beside(&self, snapshot: &NamespaceSnapshot, report: &mut Report) {
        conf::slurmdbd_conf(self, snapshot, report);
    }

    fn on_delete(&self, snapshot: &NamespaceSnapshot) -> Vec<String> {
        let name = self.name_any();
        let names_us = |controller: &&Arc<Controller>| {
            let reference = controller.spec.accounting_ref.as_ref();
            reference.is_some_and(|reference| reference.name == name)
        };
        let users: Vec<_> = snapshot.controllers.iter().filter(names_us).collect();
        if users.is_empty() {
            return Vec::new();
        }
        vec![format!(
            "Accounting {name} will not be deleted until these Controllers are deleted: {}",
            listed(&users)
        )]
    }
}
