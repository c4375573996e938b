//! The accounting database behind slurmdbd: clusters, accounts, users, associations, QOS, TRES.

mod records;
mod requests;

use serde::de::MapAccess;

pub use records::{Account, Association, Cluster, Qos, Tres, User};
use requests::{AccountRequest, ClusterRequest, QosRequest, UserRequest};
pub use requests::{NewAccount, NewQos, NewUser};

use crate::client::{Client, Reply, Request};
use crate::control::Ping;
use crate::endpoint::{self, Endpoint};
use crate::error::Error;
use crate::response::{Body, Missing};
use crate::value::RawWords;

/// A body of each call that sends one, for the test of their fields.
pub(crate) fn written() -> Vec<(Endpoint, serde_json::Value)> {
    let body = |body: serde_json::Result<serde_json::Value>| body.unwrap_or_default();
    vec![
        (
            endpoint::CLUSTERS_ADD,
            body(serde_json::to_value(ClusterRequest::new("c"))),
        ),
        (
            endpoint::ACCOUNTS_ADD,
            body(serde_json::to_value(AccountRequest::from(&NewAccount::default()))),
        ),
        (
            endpoint::USERS_ADD,
            body(serde_json::to_value(UserRequest::from(&NewUser::default()))),
        ),
        (
            endpoint::QOS_ADD,
            body(serde_json::to_value(QosRequest::from(&NewQos::default()))),
        ),
    ]
}

/// What was deleted: slurmdbd answers 200 for a name that it does not know, with an empty list, or 304.
#[derive(Default)]
struct Removed {
    listed: Option<bool>,
}

impl Body for Removed {
    fn field<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        let wanted = key.starts_with("removed_") || key.starts_with("deleted_");
        if wanted {
            self.listed = Some(map.next_value::<RawWords<'de>>()?.iter().next().is_some());
        }
        Ok(wanted)
    }
}

/// A request about one user in one account of one cluster.
fn in_account<'a>(call: &'a Endpoint, user: &NewUser) -> Request<'a> {
    Request::new(call)
        .query("user", &user.name)
        .query("account", &user.account)
        .query("cluster", &user.cluster)
}

impl Client {
    /// The accounting daemons, and whether each answers. From v0.0.42 on.
    pub async fn ping_accounting(&self) -> Result<Vec<Ping>, Error> {
        self.items(Request::new(&endpoint::DBD_PING)).await
    }

    /// The clusters that account here.
    pub async fn clusters(&self) -> Result<Vec<Cluster>, Error> {
        self.items(Request::new(&endpoint::CLUSTERS)).await
    }

    /// Makes a cluster known before its controller registers.
    pub async fn add_cluster(&self, name: &str) -> Result<(), Error> {
        self.execute::<()>(Request::new(&endpoint::CLUSTERS_ADD).body(&ClusterRequest::new(name))?)
            .await
            .map(drop)
    }

    /// Forgets a cluster and all that was accounted to it.
    pub async fn delete_cluster(&self, name: &str) -> Result<(), Error> {
        self.remove(&endpoint::CLUSTER_DELETE, name, "cluster").await
    }

    /// The accounts.
    pub async fn accounts(&self) -> Result<Vec<Account>, Error> {
        self.items(Request::new(&endpoint::ACCOUNTS)).await
    }

    /// Makes an account on a cluster.
    pub async fn add_account(&self, account: &NewAccount) -> Result<(), Error> {
        self.execute::<()>(Request::new(&endpoint::ACCOUNTS_ADD).body(&AccountRequest::from(account))?)
            .await
            .map(drop)
    }

    /// Deletes an account.
    pub async fn delete_account(&self, name: &str) -> Result<(), Error> {
        self.remove(&endpoint::ACCOUNT_DELETE, name, "account").await
    }

    /// The users.
    pub async fn users(&self) -> Result<Vec<User>, Error> {
        self.items(Request::new(&endpoint::USERS)).await
    }

    /// Lets a user into an account. One who is in already stays in.
    pub async fn add_user(&self, user: &NewUser) -> Result<(), Error> {
        let ask = Request::new(&endpoint::USERS_ADD).body(&UserRequest::from(user))?;
        if let Reply::Body { .. } = self.execute::<()>(ask).await? {
            return Ok(());
        }
        // slurmdbd says of an account that it does not know what it says of one that the user is in: nothing to do.
        let NewUser {
            name,
            account,
            cluster,
        } = user;
        let there = |a: &Association| {
            let pairs = [(&a.user, name), (&a.account, account), (&a.cluster, cluster)];
            pairs
                .iter()
                .all(|(theirs, ours)| theirs.eq_ignore_ascii_case(ours))
        };
        if self
            .items(in_account(&endpoint::ASSOCIATIONS, user))
            .await?
            .iter()
            .any(there)
        {
            return Ok(());
        }
        Err(Error::NotFound {
            what: format!("account {account} on {cluster}"),
        })
    }

    /// Deletes a user.
    pub async fn delete_user(&self, name: &str) -> Result<(), Error> {
        self.remove(&endpoint::USER_DELETE, name, "user").await
    }

    /// The associations.
    pub async fn associations(&self) -> Result<Vec<Association>, Error> {
        self.items(Request::new(&endpoint::ASSOCIATIONS)).await
    }

    /// Takes a user out of an account of a cluster.
    pub async fn delete_association(&self, user: &NewUser) -> Result<(), Error> {
        let NewUser {
            name,
            account,
            cluster,
        } = user;
        let what = format!("{name} in {account} on {cluster}");
        self.removed(in_account(&endpoint::ASSOCIATIONS_DELETE, user), &what)
            .await
    }

    /// The qualities of service.
    pub async fn qos(&self) -> Result<Vec<Qos>, Error> {
        self.items(Request::new(&endpoint::QOS)).await
    }

    /// Makes a quality of service, or changes it if it is there.
    pub async fn add_qos(&self, qos: &NewQos) -> Result<(), Error> {
        self.execute::<()>(Request::new(&endpoint::QOS_ADD).body(&QosRequest::from(qos))?)
            .await
            .map(drop)
    }

    /// Deletes a quality of service.
    pub async fn delete_qos(&self, name: &str) -> Result<(), Error> {
        self.remove(&endpoint::QOS_DELETE, name, "QOS").await
    }

    /// What is counted.
    pub async fn tres(&self) -> Result<Vec<Tres>, Error> {
        self.items(Request::new(&endpoint::TRES)).await
    }

    async fn remove(&self, call: &Endpoint, name: &str, kind: &str) -> Result<(), Error> {
        self.removed(Request::new(call).about(name), &format!("{kind} {name}"))
            .await
    }

    async fn removed(&self, ask: Request<'_>, what: &str) -> Result<(), Error> {
        let missing = Missing { what, numbers: &[] };
        match self.execute::<Removed>(ask).await? {
            Reply::Body {
                body: Removed {
                    listed: Some(true) | None,
                },
                ..
            } => Ok(()),
            Reply::Body { .. } | Reply::NotModified => Err(missing.error()),
        }
    }
}
