//! What the accounting database holds.

use serde::Deserialize;

use crate::response::Item;
use crate::value::{NoVal, RawWords, Strings, Switch, Text, Words};

/// A cluster that accounts here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// Its name.
    pub name: String,
    /// Where its controller is; empty until it has registered, or when it is down.
    pub controller_host: String,
    /// The controller's port.
    pub controller_port: u64,
    /// Its nodes, as a host list.
    pub nodes: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawCluster<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    nodes: Text<'a>,
    #[serde(borrow)]
    controller: RawController<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawController<'a> {
    #[serde(borrow)]
    host: Text<'a>,
    port: NoVal,
}

impl Item for Cluster {
    const KEY: &'static str = "clusters";
    type Raw<'a> = RawCluster<'a>;

    fn keep(raw: RawCluster<'_>, _: &mut Strings) -> Self {
        Self {
            name: raw.name.into_owned(),
            controller_host: raw.controller.host.into_owned(),
            controller_port: raw.controller.port.number().unwrap_or(0),
            nodes: raw.nodes.into_owned(),
        }
    }
}

/// An account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// Whose it is.
    pub organization: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawAccount<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    description: Text<'a>,
    #[serde(borrow)]
    organization: Text<'a>,
}

impl Item for Account {
    const KEY: &'static str = "accounts";
    type Raw<'a> = RawAccount<'a>;

    fn keep(raw: RawAccount<'_>, _: &mut Strings) -> Self {
        Self {
            name: raw.name.into_owned(),
            description: raw.description.into_owned(),
            organization: raw.organization.into_owned(),
        }
    }
}

/// A user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The name.
    pub name: String,
    /// What the user may administer, in Slurm's words.
    pub administrator_level: Words,
    /// The account of jobs that name none.
    pub default_account: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawUser<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    administrator_level: RawWords<'a>,
    #[serde(borrow)]
    default: RawUserDefault<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawUserDefault<'a> {
    #[serde(borrow)]
    account: Text<'a>,
}

impl Item for User {
    const KEY: &'static str = "users";
    type Raw<'a> = RawUser<'a>;

    fn keep(raw: RawUser<'_>, strings: &mut Strings) -> Self {
        Self {
            name: raw.name.into_owned(),
            administrator_level: strings.keep_words(&raw.administrator_level),
            default_account: raw.default.account.into_owned(),
        }
    }
}

/// An account on a cluster, or a user of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Association {
    /// The cluster.
    pub cluster: String,
    /// The account.
    pub account: String,
    /// The user; empty for the account itself.
    pub user: String,
    /// The partition, where it is bound to one.
    pub partition: String,
    /// The account above.
    pub parent_account: String,
    /// Whether it is the user's default.
    pub is_default: bool,
    /// The share of the parent's.
    pub shares: u64,
    /// The QOS that may be used.
    pub qos: Words,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawAssociation<'a> {
    #[serde(borrow)]
    cluster: Text<'a>,
    #[serde(borrow)]
    account: Text<'a>,
    #[serde(borrow)]
    user: Text<'a>,
    #[serde(borrow)]
    partition: Text<'a>,
    #[serde(borrow)]
    parent_account: Text<'a>,
    is_default: Switch,
    shares_raw: NoVal,
    #[serde(borrow)]
    qos: RawWords<'a>,
}

impl Item for Association {
    const KEY: &'static str = "associations";
    type Raw<'a> = RawAssociation<'a>;

    fn keep(raw: RawAssociation<'_>, strings: &mut Strings) -> Self {
        Self {
            cluster: raw.cluster.into_owned(),
            account: raw.account.into_owned(),
            user: raw.user.into_owned(),
            partition: raw.partition.into_owned(),
            parent_account: raw.parent_account.into_owned(),
            is_default: raw.is_default.0,
            shares: raw.shares_raw.number().unwrap_or(0),
            qos: strings.keep_words(&raw.qos),
        }
    }
}

/// A quality of service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qos {
    /// Its number.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// What it adds to a job's priority.
    pub priority: u64,
    /// Its flags, in Slurm's words.
    pub flags: Words,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawQos<'a> {
    id: NoVal,
    #[serde(borrow)]
    name: Text<'a>,
    #[serde(borrow)]
    description: Text<'a>,
    priority: NoVal,
    #[serde(borrow)]
    flags: RawWords<'a>,
}

impl Item for Qos {
    const KEY: &'static str = "qos";
    type Raw<'a> = RawQos<'a>;

    fn keep(raw: RawQos<'_>, strings: &mut Strings) -> Self {
        Self {
            id: raw.id.number().unwrap_or(0),
            name: raw.name.into_owned(),
            description: raw.description.into_owned(),
            priority: raw.priority.number().unwrap_or(0),
            flags: strings.keep_words(&raw.flags),
        }
    }
}

/// Something that is counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tres {
    /// Its number.
    pub id: u64,
    /// Its type: `cpu`, `gres`.
    pub kind: String,
    /// Its name, where the type has several: `gpu`.
    pub name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawTres<'a> {
    id: NoVal,
    #[serde(borrow, rename = "type")]
    kind: Text<'a>,
    #[serde(borrow)]
    name: Text<'a>,
}

impl Item for Tres {
    const KEY: &'static str = "TRES";
    type Raw<'a> = RawTres<'a>;

    fn keep(raw: RawTres<'_>, _: &mut Strings) -> Self {
        Self {
            id: raw.id.number().unwrap_or(0),
            kind: raw.kind.into_owned(),
            name: raw.name.into_owned(),
        }
    }
}
