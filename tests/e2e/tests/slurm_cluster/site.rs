//! One cluster that uses what its site has: storage, files, GPUs and a database. At the end, its namespace is deleted.

use anyhow::{Result, ensure};
use e2e::slurm::Slurm;
use e2e::{Namespace, eventually, kubectl, names};
use serde_json::json;

use crate::external_database::{self, Authority};
use crate::{CONTROLLER, gpus, sharing, start, ten_lines, with_accounting_and_login};

#[test]
fn a_cluster_uses_the_storage_files_gpus_and_database_of_its_site() -> Result<()> {
    let space = Namespace::create("slc-site")?;
    let authority = Authority::new("of the site")?;
    authority.start_server(&space)?;
    sharing::create_sources(&space)?;
    gpus::offer(&space)?;
    let mut cluster = with_accounting_and_login(ten_lines("slurm"));
    let spec = &mut cluster["spec"];
    spec["accounting"]["database"] = external_database::database();
    spec["storage"] = sharing::storage();
    spec["files"] = sharing::files();
    spec["nodeSets"]["cpu"]["replicas"] = json!(1);
    (spec["nodeSets"]["gpu"], spec["nodeSets"]["bare"]) = gpus::node_sets();
    let slurm = start(space, &cluster)?;
    external_database::require_a_certificate(&slurm)?;
    slurm.wait_condition(CONTROLLER, "AccountingRegistered", "True", "")?;
    slurm.wait_idle(2)?;

    gpus::jobs_get_them_from_one_line(&slurm)?;
    sharing::volumes_are_the_same_everywhere(&slurm)?;
    sharing::files_follow_their_content(&slurm)?;
    external_database::is_verified(&slurm, &authority)?;
    gpus::missing_gpus_are_told(&slurm)?;
    its_namespace_can_be_deleted(&slurm)
}

fn its_namespace_can_be_deleted(slurm: &Slurm) -> Result<()> {
    slurm.hold("cpu-0", 60)?;
    let name = &slurm.space.name;
    kubectl(&["delete", "namespace", name, "--wait=false"])?;
    eventually("the namespace is gone", || {
        let left = names(&["namespaces"])?;
        ensure!(!left.contains(&format!("namespace/{name}")), "it is there");
        Ok(())
    })
}
