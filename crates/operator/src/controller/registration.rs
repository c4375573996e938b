//! Tracks whether the cluster is registered with slurmdbd, which otherwise records none of its jobs.
//!
//! A slurmctld that is given a slurmdbd while it runs registers once. If slurmdbd does not answer then, slurmctld never
//! tries again. So it is given a slurmdbd only once that answers, and asked again when its registration is missing.

use std::time::Duration;

use jiff::SignedDuration;
use keelson_api::{
    Accounting,
    well_known::{condition, reason},
};
use keelson_runtime::{Key, run::chain};

use super::{
    build::Configuration,
    configuration::{choose::Chosen, delivery},
    observe::Observed,
};
use crate::{
    conditions::{ConditionStatus, Finding},
    context::Context,
    slurm::mirrors::NOT_CONNECTED,
};

/// How long slurmctld may take by itself, and the minimum time between two requests.
const BETWEEN_REQUESTS: SignedDuration = SignedDuration::from_secs(30);
/// Interval until the cluster is registered: users wait for it.
const POLL_UNTIL_REGISTERED: Duration = Duration::from_secs(2);
/// Interval while slurmrestd or slurmdbd may be starting.
const POLL_WHILE_UNKNOWN: Duration = Duration::from_secs(10);
/// Interval while registered: a new slurmdbd knows the cluster, but not where its slurmctld is.
const POLL_WHILE_REGISTERED: Duration = Duration::from_mins(1);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Registration {
    /// slurmctld has not been given a slurmdbd yet.
    NotInUse,
    /// slurmdbd cannot be queried, for this reason.
    Unknown(String),
    Missing,
    Registered,
}

/// Reports whether a configuration makes slurmctld record jobs in a slurmdbd.
pub fn is_on(configuration: &Configuration) -> bool {
    let storage = configuration.parameter("AccountingStorageType");
    storage.is_some_and(|storage| {
        storage
            .to_ascii_lowercase()
            .starts_with("accounting_storage/slurmdbd")
    })
}

/// Reports whether slurmdbd answers, according to its Accounting.
pub fn is_ready(accounting: &Accounting) -> bool {
    let status = accounting.status.as_ref();
    let conditions = status.map_or(&[][..], |status| &status.conditions);
    conditions
        .iter()
        .any(|known| known.type_ == condition::READY && known.status == "True")
}

/// Queries slurmdbd, and makes slurmctld register if it has not. `None` if no records are wanted, or if slurmctld is
/// external or being deleted.
pub async fn keep(context: &Context, observed: &Observed, chosen: &Chosen) -> Option<Registration> {
    let controller = &observed.controller;
    let accounting = observed.accounting.as_ref()?;
    if controller.spec.external || controller.metadata.deletion_timestamp.is_some() {
        return None;
    }
    if !chosen.in_use.as_ref().is_some_and(is_on) {
        return Some(Registration::NotInUse);
    }
    let key = Key::of(controller.as_ref());
    let registration = ask(context, &key, &controller.cluster_name()).await;
    let ours = delivery::image_is_ours(&observed.live.answers) == Some(true);
    // Other images may terminate when they read their files again. Without slurmdbd the request would have no effect.
    if registration == Registration::Missing
        && ours
        && is_ready(accounting)
        && let Some(client) = context
            .mirrors
            .registers(&key, context.clock.now(), BETWEEN_REQUESTS)
    {
        tracing::info!(controller = %key, "the cluster is not registered with slurmdbd; reconfiguring slurmctld");
        if let Err(error) = client.reconfigure().await {
            tracing::warn!(controller = %key, error = chain(&error), "failed to reconfigure slurmctld");
        }
    }
    Some(registration)
}

async fn ask(context: &Context, key: &Key, cluster: &str) -> Registration {
    let Some(client) = context.mirrors.client(key) else {
        return Registration::Unknown(NOT_CONNECTED.to_owned());
    };
    match client.clusters().await {
        Ok(clusters) => {
            let is = |known: &slurm_rest::accounting::Cluster| {
                known.name.eq_ignore_ascii_case(cluster) && !known.controller_host.is_empty()
            };
            if clusters.iter().any(is) {
                Registration::Registered
            } else {
                Registration::Missing
            }
        }
        Err(error) => {
            // A slurmrestd that started before there was a slurmdbd does not serve it; its successor does.
            if matches!(error, slurm_rest::Error::Unsupported { .. }) {
                client.renegotiate();
            }
            Registration::Unknown(chain(&error))
        }
    }
}

impl Registration {
    pub fn finding(&self) -> Finding {
        let kind = condition::ACCOUNTING_REGISTERED;
        match self {
            Self::Registered => Finding::new(
                kind,
                true,
                reason::AS_SPECIFIED,
                "slurmdbd records the jobs of this cluster",
            ),
            Self::NotInUse => Finding::new(
                kind,
                false,
                reason::STARTING,
                "jobs are not recorded yet: slurmdbd will be added to slurm.conf once it answers",
            ),
            Self::Missing => Finding::new(
                kind,
                false,
                reason::NOT_REGISTERED,
                "jobs are not recorded yet: waiting for slurmctld to register with slurmdbd",
            ),
            Self::Unknown(why) => {
                let message = format!("cannot ask slurmdbd whether the cluster is registered: {why}");
                Finding::new(kind, ConditionStatus::Unknown, reason::SLURM_UNREACHABLE, message)
            }
        }
    }

    /// Returns when to ask again.
    pub fn requeue_after(&self) -> Duration {
        match self {
            Self::NotInUse | Self::Missing => POLL_UNTIL_REGISTERED,
            Self::Unknown(_) => POLL_WHILE_UNKNOWN,
            Self::Registered => POLL_WHILE_REGISTERED,
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("AccountingStorageType=accounting_storage/slurmdbd\n", true)]
    #[case(
        "ClusterName=c\naccountingStorageTYPE = accounting_storage/SlurmDBD # here\n",
        true
    )]
    #[case("#AccountingStorageType=accounting_storage/slurmdbd\n", false)]
    #[case("AccountingStorageHost=db\n", false)]
    #[case("", false)]
    fn a_configuration_tells_whether_records_are_kept(#[case] conf: &str, #[case] expected: bool) {
        let configuration = Configuration {
            files: [("slurm.conf".to_owned(), conf.as_bytes().to_vec())].into(),
            ..Configuration::default()
        };
        assert_eq!(is_on(&configuration), expected);
    }

    #[rstest]
    #[case(Registration::Registered, ConditionStatus::Yes)]
    #[case(Registration::Missing, ConditionStatus::No)]
    #[case(Registration::NotInUse, ConditionStatus::No)]
    #[case(Registration::Unknown("why".into()), ConditionStatus::Unknown)]
    fn only_a_registered_cluster_counts_as_registered(
        #[case] registration: Registration,
        #[case] expected: ConditionStatus,
    ) {
        assert_eq!(registration.finding().holds, expected);
    }
}
