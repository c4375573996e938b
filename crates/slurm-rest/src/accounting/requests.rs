//! What may be added to the accounting database.

use serde::Serialize;

use crate::value::NoVal;

/// An account to be made on one cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NewAccount {
    /// Its name.
    pub name: String,
    /// The cluster.
    pub cluster: String,
    /// What it is for.
    pub description: String,
    /// Whose it is.
    pub organization: String,
}

/// A user to be let into an account of one cluster. The user is made where there is none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NewUser {
    /// The name.
    pub name: String,
    /// The account.
    pub account: String,
    /// The cluster.
    pub cluster: String,
}

/// A quality of service to be made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NewQos {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// What it adds to a job's priority.
    pub priority: u32,
}

#[derive(Serialize)]
pub(crate) struct AccountRequest<'a> {
    association_condition: AccountCondition<'a>,
    account: AccountDescription<'a>,
}

#[derive(Serialize)]
struct AccountCondition<'a> {
    accounts: [&'a str; 1],
    clusters: [&'a str; 1],
}

#[derive(Serialize)]
struct AccountDescription<'a> {
    description: &'a str,
    organization: &'a str,
}

impl<'a> From<&'a NewAccount> for AccountRequest<'a> {
    fn from(account: &'a NewAccount) -> Self {
        let NewAccount {
            name,
            cluster,
            description,
            organization,
        } = account;
        Self {
            association_condition: AccountCondition {
                accounts: [name],
                clusters: [cluster],
            },
            account: AccountDescription {
                description,
                organization,
            },
        }
    }
}

#[derive(Serialize)]
pub(crate) struct UserRequest<'a> {
    association_condition: UserCondition<'a>,
    user: serde_json::Map<String, serde_json::Value>,
}

#[derive(Serialize)]
struct UserCondition<'a> {
    users: [&'a str; 1],
    accounts: [&'a str; 1],
    clusters: [&'a str; 1],
}

impl<'a> From<&'a NewUser> for UserRequest<'a> {
    fn from(user: &'a NewUser) -> Self {
        let NewUser {
            name,
            account,
            cluster,
        } = user;
        Self {
            association_condition: UserCondition {
                users: [name],
                accounts: [account],
                clusters: [cluster],
            },
            user: serde_json::Map::new(),
        }
    }
}

#[derive(Serialize)]
pub(crate) struct QosRequest<'a> {
    qos: [QosDescription<'a>; 1],
}

#[derive(Serialize)]
struct QosDescription<'a> {
    name: &'a str,
    description: &'a str,
    priority: NoVal,
}

impl<'a> From<&'a NewQos> for QosRequest<'a> {
    fn from(qos: &'a NewQos) -> Self {
        let NewQos {
            name,
            description,
            priority,
        } = qos;
        Self {
            qos: [QosDescription {
                name,
                description,
                priority: NoVal::Number((*priority).into()),
            }],
        }
    }
}

#[derive(Serialize)]
pub(crate) struct ClusterRequest<'a> {
    clusters: [ClusterName<'a>; 1],
}

#[derive(Serialize)]
struct ClusterName<'a> {
    name: &'a str,
}

impl<'a> ClusterRequest<'a> {
    pub(crate) fn new(name: &'a str) -> Self {
        Self {
            clusters: [ClusterName { name }],
        }
    }
}
