//! slurm.conf, written from the settings of the operator, the node sets and the user's text.

use std::collections::{BTreeMap, BTreeSet};

use crate::catalogue::File;
use crate::container::dir::{LOG, SLURM_ETC, SLURMCTLD_SPOOL, SLURMD_SPOOL};
use crate::container::file::{self, SLURMCTLD_LOG, SLURMD_LOG};
use crate::merge::{Error, Piece, Refusal, Rendered, merge};
use crate::sizing;
use crate::syntax::{Document, Statement, SyntaxError, parse, parse_pairs};
use crate::value::{ValueError, encode_name, encode_nodeset_name, encode_partition_name};

/// The settings for slurm.conf.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SlurmConf {
    /// The name of the cluster in Slurm.
    pub cluster_name: String,
    /// The controllers: the first is the primary, the others are backups.
    pub hosts: Vec<ControllerHost>,
    /// Port of slurmctld.
    pub slurmctld_port: u16,
    /// Port of slurmd.
    pub slurmd_port: u16,
    /// The address of the only controller. It is not written if there are backups, because clients would then not
    /// find them.
    pub service_address: Option<String>,
    /// How the daemons authenticate each other.
    pub auth: AuthType,
    /// Whether `jwks.json` exists next to the other files.
    pub jwks: bool,
    /// The accounting daemon, if any.
    pub accounting: Option<AccountingHost>,
    /// Whether slurmctld serves metrics (`metrics/openmetrics`).
    pub metrics: bool,
    /// The names of scripts next to the other files.
    pub scripts: Scripts,
    /// The node sets, in file order.
    pub nodesets: Vec<NodeSet>,
    /// The nodes requested by node sets plus the other nodes in Slurm, see [`sizing::max_node_count`].
    pub nodes: u32,
    /// Records that were removed but that jobs still refer to. Partitions among them are draining.
    pub retained: Vec<Statement>,
    /// The user's text.
    pub extra_conf: String,
    /// Contents of the files that `extra_conf` can include, by name.
    pub included_files: BTreeMap<String, String>,
}

/// How the daemons and commands of a cluster authenticate each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AuthType {
    /// auth/slurm: daemons sign with slurm.key, and sackd signs for the commands of users.
    #[default]
    Slurm,
    /// auth/munge: munged signs for everyone with munge.key.
    Munge,
}

impl AuthType {
    /// The file name of the key.
    pub fn key_file(self) -> &'static str {
        match self {
            Self::Slurm => file::SLURM_KEY,
            Self::Munge => file::MUNGE_KEY,
        }
    }
}

/// One slurmctld.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerHost {
    /// The output of `hostname` on the host.
    pub name: String,
    /// The address, if it differs from the name.
    pub address: Option<String>,
}

/// A slurmdbd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountingHost {
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// A second slurmdbd.
    pub backup_host: Option<String>,
}

/// Names of script files next to slurm.conf.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scripts {
    /// Run by slurmd before a job.
    pub prolog: BTreeSet<String>,
    /// Run by slurmd after a job.
    pub epilog: BTreeSet<String>,
    /// Run by slurmctld before a job.
    pub prolog_slurmctld: BTreeSet<String>,
    /// Run by slurmctld after a job.
    pub epilog_slurmctld: BTreeSet<String>,
}

/// The nodes that register with one feature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSet {
    /// The node set's name in Slurm.
    pub name: String,
    /// The feature that its nodes register with.
    pub feature: String,
    /// A partition with the same name.
    pub partition: Option<Partition>,
}

/// The partition of a node set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Partition {
    /// The partition parameters, as written by the user.
    pub config: String,
    /// Whether the partition is being removed and accepts no new jobs.
    pub leaving: bool,
}

/// slurm.conf for a cluster with an external slurmctld, with the settings that clients and slurmrestd need to reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalSlurmConf {
    /// The name of the cluster in Slurm.
    pub cluster_name: String,
    /// Host of slurmctld.
    pub host: String,
    /// Port of slurmctld.
    pub port: u16,
    /// How the daemons authenticate each other.
    pub auth: AuthType,
    /// The accounting daemon, if any.
    pub accounting: Option<AccountingHost>,
    /// The user's text.
    pub extra_conf: String,
}

const OLD_HOST: &str = "the operator manages the controllers with SlurmctldHost";
const REFUSALS: [Refusal; 5] = [
    ("SlurmctldHost", OLD_HOST),
    ("ControlMachine", OLD_HOST),
    ("ControlAddr", OLD_HOST),
    ("BackupController", OLD_HOST),
    ("BackupAddr", OLD_HOST),
];
const HIDES_BACKUPS: Refusal = ("SlurmctldAddr", "clients would not find the backup controllers");

/// Writes slurm.conf.
pub fn render(conf: &SlurmConf) -> Result<Rendered, Error> {
    let user = parse(File::Slurm, &conf.extra_conf, &conf.included_files).map_err(Error::Unreadable)?;
    render_read(conf, &user)
}

/// Like [`render`], but with the user's text already parsed.
pub fn render_read(conf: &SlurmConf, user: &Document) -> Result<Rendered, Error> {
    let SlurmConf {
        cluster_name,
        hosts,
        slurmctld_port,
        slurmd_port,
        service_address,
        auth,
        jwks,
        accounting,
        metrics,
        scripts,
        nodesets,
        nodes,
        retained,
        extra_conf: _,
        included_files: _,
    } = conf;
    let cluster_name = name("the cluster name", cluster_name)?;
    if hosts.is_empty() {
        return Err(Error::Value {
            field: "the controller list".into(),
            source: ValueError::Empty,
        });
    }
    let single = hosts.len() == 1;

    let mut pieces = vec![
        Piece::Title("GENERAL"),
        Piece::required("ClusterName", cluster_name),
        Piece::required("SlurmUser", "slurm"),
    ];
    for host in hosts {
        pieces.push(Piece::Record(Statement::new("SlurmctldHost", host_value(host)?)));
    }
    pieces.push(Piece::required("SlurmctldPort", slurmctld_port.to_string()));
    if let Some(address) = service_address.as_ref().filter(|_| single) {
        pieces.push(Piece::required(
            "SlurmctldAddr",
            name("the service address", address)?,
        ));
    }
    pieces.extend([
        Piece::required("StateSaveLocation", format!("{SLURMCTLD_SPOOL}/{cluster_name}")),
        Piece::default("SlurmdUser", "root"),
        Piece::required("SlurmdPort", slurmd_port.to_string()),
        Piece::default("SlurmdSpoolDir", SLURMD_SPOOL),
        Piece::default("MaxNodeCount", sizing::max_node_count(*nodes).to_string()),
    ]);
    pieces.extend(
        sizing::timeouts(*nodes)
            .iter()
            .map(|(key, value)| Piece::default(key, *value)),
    );
    pieces.extend([
        Piece::Title("LOGGING"),
        Piece::default("SlurmctldLogFile", format!("{LOG}/{SLURMCTLD_LOG}")),
        Piece::default("SlurmSchedLogFile", format!("{LOG}/{SLURMCTLD_LOG}")),
        Piece::default("SlurmdLogFile", format!("{LOG}/{SLURMD_LOG}")),
        Piece::Title("PLUGINS & PARAMETERS"),
    ]);
    pieces.extend(auth_pieces(*auth, *jwks));
    pieces.push(Piece::options(
        "SlurmctldParameters",
        "enable_configless,reconfig_on_restart",
    ));
    if *metrics {
        pieces.push(Piece::default("MetricsType", "metrics/openmetrics"));
    }
    pieces.extend(accounting_pieces(accounting.as_ref())?);
    pieces.extend(script_pieces(scripts)?);
    pieces.extend(nodeset_pieces(nodesets)?);
    pieces.extend(retained_pieces(retained, &pieces, user));

    let mut refusals = REFUSALS.to_vec();
    if !single {
        refusals.push(HIDES_BACKUPS);
    }
    merge(File::Slurm, pieces, user, &refusals)
}

/// Writes slurm.conf for an external slurmctld.
pub fn render_external(conf: &ExternalSlurmConf) -> Result<Rendered, Error> {
    let ExternalSlurmConf {
        cluster_name,
        host,
        port,
        auth,
        accounting,
        extra_conf,
    } = conf;
    let user = parse(File::Slurm, extra_conf, &BTreeMap::new()).map_err(Error::Unreadable)?;
    let mut pieces = vec![
        Piece::Title("GENERAL"),
        Piece::required("ClusterName", name("the cluster name", cluster_name)?),
        Piece::required("SlurmUser", "slurm"),
        Piece::Record(Statement::new(
            "SlurmctldHost",
            name("the controller host", host)?,
        )),
        Piece::required("SlurmctldPort", port.to_string()),
        Piece::Title("PLUGINS & PARAMETERS"),
    ];
    pieces.extend(plugin_pieces(*auth));
    pieces.extend(accounting_pieces(accounting.as_ref())?);
    merge(File::Slurm, pieces, &user, &REFUSALS)
}

fn name<'a>(field: &str, value: &'a str) -> Result<&'a str, Error> {
    of(field, encode_name(value))
}

fn of<'a>(field: &str, encoded: Result<&'a str, ValueError>) -> Result<&'a str, Error> {
    encoded.map_err(|source| Error::Value {
        field: field.to_owned(),
        source,
    })
}

/// A `SelectType` with which workers cannot register: slurmctld rejects `MaxNodeCount` with it.
pub fn unfit_select_type(document: &Document) -> Option<&Statement> {
    let last = document.all("SelectType").last()?;
    (!last.head.value.eq_ignore_ascii_case("select/cons_tres")).then_some(last)
}

fn host_value(host: &ControllerHost) -> Result<String, Error> {
    let hostname = name("the controller name", &host.name)?;
    Ok(match &host.address {
        Some(address) => format!("{hostname}({})", name("the controller address", address)?),
        None => hostname.to_owned(),
    })
}

pub(crate) fn auth_pieces(auth: AuthType, jwks: bool) -> Vec<Piece> {
    let jwks = if jwks {
        format!(",jwks={SLURM_ETC}/jwks.json")
    } else {
        String::new()
    };
    let mut pieces = plugin_pieces(auth).to_vec();
    pieces.push(Piece::options(
        "AuthAltParameters",
        format!("jwt_key={SLURM_ETC}/jwt.key{jwks}"),
    ));
    if auth == AuthType::Slurm {
        // munged vouches for numbers only, not for the names of users and groups.
        pieces.push(Piece::options("AuthInfo", "use_client_ids"));
    }
    pieces
}

fn plugin_pieces(auth: AuthType) -> [Piece; 3] {
    let (auth_type, cred_type) = match auth {
        AuthType::Slurm => ("auth/slurm", "cred/slurm"),
        AuthType::Munge => ("auth/munge", "cred/munge"),
    };
    [
        Piece::required("AuthType", auth_type),
        Piece::default("CredType", cred_type),
        Piece::options("AuthAltTypes", "auth/jwt"),
    ]
}

fn accounting_pieces(accounting: Option<&AccountingHost>) -> Result<Vec<Piece>, Error> {
    let mut pieces = vec![Piece::Title("ACCOUNTING")];
    let Some(AccountingHost {
        host,
        port,
        backup_host,
    }) = accounting
    else {
        pieces.push(Piece::default("AccountingStorageType", "accounting_storage/none"));
        return Ok(pieces);
    };
    pieces.push(Piece::default(
        "AccountingStorageType",
        "accounting_storage/slurmdbd",
    ));
    pieces.push(Piece::default(
        "AccountingStorageHost",
        name("the accounting host", host)?,
    ));
    if let Some(backup) = backup_host {
        pieces.push(Piece::default(
            "AccountingStorageBackupHost",
            name("the accounting backup host", backup)?,
        ));
    }
    pieces.push(Piece::default("AccountingStoragePort", port.to_string()));
    Ok(pieces)
}

fn script_pieces(scripts: &Scripts) -> Result<Vec<Piece>, Error> {
    let Scripts {
        prolog,
        epilog,
        prolog_slurmctld,
        epilog_slurmctld,
    } = scripts;
    // slurmctld runs its scripts from the directory; slurmd receives its scripts by file name.
    let directory = format!("{SLURM_ETC}/");
    let kinds = [
        ("PrologSlurmctld", prolog_slurmctld, directory.as_str()),
        ("EpilogSlurmctld", epilog_slurmctld, directory.as_str()),
        ("Prolog", prolog, ""),
        ("Epilog", epilog, ""),
    ];
    let mut pieces = Vec::new();
    for (key, files, prefix) in kinds {
        for file in files {
            if pieces.is_empty() {
                pieces.push(Piece::Title("PROLOG & EPILOG"));
            }
            let file = name("the script name", file)?;
            pieces.push(Piece::Record(Statement::new(key, format!("{prefix}{file}"))));
        }
    }
    Ok(pieces)
}

fn nodeset_pieces(nodesets: &[NodeSet]) -> Result<Vec<Piece>, Error> {
    let mut pieces = Vec::new();
    for NodeSet {
        name: nodeset,
        feature,
        partition,
    } in nodesets
    {
        if pieces.is_empty() {
            pieces.push(Piece::Title("NODESET & PARTITION"));
        }
        let nodeset = of("the node set name", encode_nodeset_name(nodeset))?;
        let feature = name("the node set feature", feature)?;
        pieces.push(Piece::Record(
            Statement::new("NodeSet", nodeset).with("Feature", feature),
        ));
        if let Some(partition) = partition {
            of("the partition name", encode_partition_name(nodeset))?;
            pieces.push(Piece::Record(partition_line(nodeset, partition)?));
        }
    }
    Ok(pieces)
}

fn partition_line(nodeset: &str, partition: &Partition) -> Result<Statement, Error> {
    let attributes = parse_pairs(&partition.config).map_err(|source| Error::PartitionConfig {
        nodeset: nodeset.to_owned(),
        source,
    })?;
    if let Some(misplaced) = attributes.iter().find(|attribute| attribute.is("PartitionName")) {
        let source = SyntaxError::Misplaced(misplaced.key.clone());
        return Err(Error::PartitionConfig {
            nodeset: nodeset.to_owned(),
            source,
        });
    }
    let mut line = Statement::new("PartitionName", nodeset).with("Nodes", nodeset);
    for attribute in attributes {
        line.set_attribute(&attribute.key, &attribute.value);
    }
    if partition.leaving {
        line.set_attribute("State", "DRAIN");
    }
    Ok(line)
}

/// Keeps the records that jobs still refer to, unless the new file contains them.
fn retained_pieces(retained: &[Statement], pieces: &[Piece], user: &Document) -> Vec<Piece> {
    let same = |a: &Statement, b: &Statement| a.head.is(&b.head.key) && a.head.value == b.head.value;
    let written = |statement: &Statement| {
        pieces
            .iter()
            .any(|piece| matches!(piece, Piece::Record(r) if same(r, statement)))
            || user.statements.iter().any(|s| same(s, statement))
    };
    let mut kept = Vec::new();
    for statement in retained.iter().filter(|s| !written(s)) {
        if kept.is_empty() {
            kept.push(Piece::Title("STILL IN USE BY JOBS"));
        }
        let mut statement = Statement {
            origin: None,
            ..statement.clone()
        };
        if statement.head.is("PartitionName") {
            statement.set_attribute("State", "DRAIN");
        }
        kept.push(Piece::Record(statement));
    }
    kept
}

#[cfg(test)]
mod tests;
