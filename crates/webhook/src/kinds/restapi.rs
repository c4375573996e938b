//! RestApi: the operator needs one for each Controller.

use keelson_api::{RestApi, validate::Report};
use kube::ResourceExt as _;

use super::controller_exists;
use crate::{
    namespace_snapshot::{NamespaceSnapshot, listed},
    validate::Rules,
};

impl Rules for RestApi {
    const KIND: &'static str = "restapi";
    /// Service `<name>-restapi`.
    const NAME_MAX: Option<usize> = Some(63 - "-restapi".len());

    fn services(&self) -> Vec<String> {
        vec![self.restapi_name()]
    }

    fn beside(&self, snapshot: &NamespaceSnapshot, report: &mut Report) {
        controller_exists(&self.spec.controller_ref.name, snapshot, report);
    }

    fn on_delete(&self, snapshot: &NamespaceSnapshot) -> Vec<String> {
        let name = self.name_any();
        let controller = &self.spec.controller_ref;
        let another = snapshot
            .restapis
            .iter()
            .any(|r| r.spec.controller_ref == *controller && r.name_any() != name);
        let nodesets: Vec<_> = snapshot
            .nodesets
            .iter()
            .filter(|n| n.spec.controller_ref == *controller)
            .collect();
        if another || nodesets.is_empty() {
            return Vec::new();
        }
        vec![format!(
            "RestApi {name} will not be deleted until these NodeSets are deleted: {}; the operator drains their workers through it",
            listed(&nodesets)
        )]
    }
}
