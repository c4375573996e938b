//! Whether the cluster is registered with slurmdbd. Without that slurmdbd keeps no record of its jobs.
//!
//! A slurmctld that is told of a slurmdbd while it runs registers once. If nobody answers then, it never tries again, so
//! that it is told of slurmdbd only when that answers, and asked to register again when its registration is missing.

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
};

/// How long slurmctld may take by itself, and how long after one request the next is made.
const BETWEEN_REQUESTS: SignedDuration = SignedDuration::from_secs(30);
/// Somebody waits for it.
const LOOK_UNTIL_REGISTERED: Duration = Duration::from_secs(2);
/// slurmrestd or slurmdbd may be starting.
const LOOK_WHILE_UNKNOWN: Duration = Duration::from_secs(10);
/// A new slurmdbd knows the cluster, but not where its slurmctld is.
const LOOK_WHILE_REGISTERED: Duration = Duration::from_mins(1);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Registration {
    /// slurmctld is not told of slurmdbd yet.
    NotInUse,
    /// slurmdbd cannot be asked, for this reason.
    Unknown(String),
    Missing,
    Registered,
}

/// Whether a configuration has slurmctld keep records in a slurmdbd.
pub fn is_on(configuration: &Configuration) -> bool {
    let conf = configuration.files.get("slurm.conf");
    let text = String::from_utf8_lossy(conf.map_or(&[][..], Vec::as_slice)).to_ascii_lowercase();
    text.lines().any(|line| {
        let mut parts = line.splitn(2, '=').map(str::trim);
        parts.next() == Some("accountingstoragetype")
            && parts
                .next()
                .is_some_and(|value| value.starts_with("accounting_storage/slurmdbd"))
    })
}

/// Whether slurmdbd answers, as far as its Accounting tells.
pub fn is_ready(accounting: &Accounting) -> bool {
    let status = accounting.status.as_ref();
    let conditions = status.map_or(&[][..], |status| &status.conditions);
    conditions
        .iter()
        .any(|known| known.type_ == condition::READY && known.status == "True")
}

/// Asks slurmdbd; `None` where slurmctld does not run here or no records are wanted. Has slurmctld register where it has not.
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
    // Another image may end when it reads its files again. slurmdbd must be there, or the request is for nothing.
    if registration == Registration::Missing
        && ours
        && is_ready(accounting)
        && let Some(client) = context
            .mirrors
            .registers(&key, context.clock.now(), BETWEEN_REQUESTS)
    {
        tracing::info!(controller = %key, "the cluster is not registered with slurmdbd; reconfiguring slurmctld");
        if let Err(error) = client.reconfigure().await {
            tracing::warn!(controller = %key, error = chain(&error), "cannot reconfigure slurmctld");
        }
    }
    Some(registration)
}

async fn ask(context: &Context, key: &Key, cluster: &str) -> Registration {
    let Some(client) = context.mirrors.client(key) else {
        return Registration::Unknown("there is no connection to slurmrestd".to_owned());
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
            // A slurmrestd that was started before there was a slurmdbd serves nothing of it; its successor does.
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
                "no job is recorded yet: slurmctld is told of slurmdbd once that answers",
            ),
            Self::Missing => Finding::new(
                kind,
                false,
                reason::NOT_REGISTERED,
                "no job is recorded yet: slurmctld has not registered with slurmdbd and is asked to",
            ),
            Self::Unknown(why) => {
                let message = format!("slurmdbd cannot be asked whether the cluster is registered: {why}");
                Finding::new(kind, ConditionStatus::Unknown, reason::SLURM_UNREACHABLE, message)
            }
        }
    }

    /// When to ask again.
    pub fn requeue_after(&self) -> Duration {
        match self {
            Self::NotInUse | Self::Missing => LOOK_UNTIL_REGISTERED,
            Self::Unknown(_) => LOOK_WHILE_UNKNOWN,
            Self::Registered => LOOK_WHILE_REGISTERED,
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
