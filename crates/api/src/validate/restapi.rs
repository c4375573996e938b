//! Rules for RestApis.

use crate::restapi::{RestApi, RestApiSpec};
use crate::validate::path::Path;
use crate::validate::pods::{Own, Pod};
use crate::validate::report::Report;
use crate::validate::{Validate, references, service, text};
use crate::well_known::container;

impl Validate for RestApi {
    fn check(&self, report: &mut Report) {
        let spec = Path::spec();
        let RestApiSpec {
            controller_ref,
            replicas,
            slurmrestd,
            template,
            service,
        } = &self.spec;
        references::local(&spec.field("controllerRef"), controller_ref, "Controller", report);
        text::not_negative(&spec.field("replicas"), *replicas, report);
        if *replicas == 0 {
            report.warn(
                &spec.field("replicas"),
                "without slurmrestd the operator cannot drain, update or remove workers",
            );
        }
        Pod {
            containers: &[Own::new(container::SLURMRESTD, slurmrestd.as_ref(), true)],
            init_containers: &[],
            template: template.as_ref(),
        }
        .check(report);
        service::check(service.as_ref(), report);
    }
}
