//! The accounting database behind slurmdbd: which clusters are registered. This crate only reads it.

use serde::Deserialize;

use crate::client::{Client, Request};
use crate::endpoint;
use crate::error::Error;
use crate::response::Item;
use crate::value::{NoVal, Strings, Text};

/// A cluster that uses this slurmdbd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// Its name.
    pub name: String,
    /// The host of its slurmctld; empty before it has registered and while it is down.
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

impl Client {
    /// Lists the clusters registered with slurmdbd.
    pub async fn clusters(&self) -> Result<Vec<Cluster>, Error> {
        self.items(Request::new(&endpoint::CLUSTERS)).await
    }
}
