//! Builds the scheduled dumps: a `CronJob`. Pure.

use k8s_openapi::api::batch::v1::CronJob;
use keelson_api::{
    overrides::RawObject,
    slurmcluster::{DatabaseDump, children},
    well_known::app,
};
use keelson_runtime::apply::Desired;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{Part, TMP, metadata, put};
use crate::children::{metadata::owned_by, pod, volume};

const CONTAINER: &str = "dump";
const DUMPS: &str = "dumps";
const DUMPS_DIR: &str = "/dumps";
/// After this time, a dump counts as failed, so that it does not hold up all later ones.
const DEADLINE_SECONDS: i64 = 24 * 60 * 60;
/// With Kubernetes' delays, these take two and a half minutes: as long as a restart of the database should take.
const RETRIES: i32 = 4;

/// Fields of the database's container that the dump has too.
const SAME_IN_CONTAINER: [&str; 3] = ["image", "imagePullPolicy", "securityContext"];
/// Fields of the database's pod that the dump has too.
const SAME_IN_POD: [&str; 9] = [
    "affinity",
    "dnsConfig",
    "dnsPolicy",
    "imagePullSecrets",
    "nodeSelector",
    "priorityClassName",
    "runtimeClassName",
    "securityContext",
    "tolerations",
];

pub fn build(part: &Part, dump: &DatabaseDump) -> Desired<CronJob> {
    let cluster = part.cluster;
    let DatabaseDump {
        schedule,
        time_zone,
        keep,
        claim,
        container,
        template,
    } = dump;
    let env = [
        json!({ "name": "MARIADB_HOST", "value": children::database_name(cluster) }),
        json!({ "name": "MARIADB_DUMP_KEEP", "value": keep.to_string() }),
    ];
    let mut base = part.container(CONTAINER, &[volume::mount(DUMPS, DUMPS_DIR)], &env);
    put(&mut base, "args", Some(&["dump"]));
    let of_server = fields_of(part.embedded.mariadb.as_ref(), &SAME_IN_CONTAINER);
    let base = pod::container(base, Some(&of_server));
    let container = pod::container(base, container.as_ref());

    // A file in TMP contains the password.
    let volumes = [volume::claim(DUMPS, claim), volume::memory(TMP)];
    let mut pod_spec = part.pod_spec(&container, &volumes);
    put(&mut pod_spec, "restartPolicy", Some(&"Never"));
    let of_server = part.embedded.template.as_ref();
    let of_server = fields_of(
        of_server.and_then(|template| template.spec.as_ref()),
        &SAME_IN_POD,
    );
    let pod_spec = keelson_api::merge::merge_pod_spec(pod_spec, Some(&of_server));

    let user = template.as_ref();
    let base = metadata(cluster, app::DATABASE_DUMP);
    let pod_metadata = base
        .clone()
        .with_override(user.and_then(|user| user.metadata.as_ref()));
    let mut spec = json!({
        "schedule": schedule,
        "concurrencyPolicy": "Forbid",
        "successfulJobsHistoryLimit": 1,
        "failedJobsHistoryLimit": 1,
        "jobTemplate": {
            "metadata": base.of_template(),
            "spec": {
                "backoffLimit": RETRIES,
                "activeDeadlineSeconds": DEADLINE_SECONDS,
                "template": pod::template(&pod_metadata, pod_spec, user),
            },
        },
    });
    put(&mut spec, "timeZone", time_zone.as_ref());
    let metadata = base.of_object(
        &cluster.namespace().unwrap_or_default(),
        &children::dump_name(cluster),
        &[owned_by(cluster)],
    );
    Desired::new(json!({ "metadata": metadata, "spec": spec }))
}

fn fields_of(object: Option<&RawObject>, names: &[&str]) -> RawObject {
    let fields = object.into_iter().flat_map(|object| &object.0);
    let same = fields.filter(|(name, _)| names.contains(&name.as_str()));
    let same: serde_json::Map<String, Value> =
        same.map(|(name, value)| (name.clone(), value.clone())).collect();
    RawObject(same)
}
