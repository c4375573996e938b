//! Asks the `init` of slurmctld's pods, on its status port, what they did with their configuration.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use keelson_api::well_known::port;
use kube::ResourceExt;

use super::delivery::{Answer, Report, is_ready};

const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum size of a report: four hashes and a few lines of slurmctld's log.
const LONGEST_REPORT: usize = 64 << 10;

/// Asks every pod.
pub async fn ask(http: &reqwest::Client, pods: &[Arc<Pod>]) -> Vec<Answer> {
    stream::iter(pods.iter().cloned())
        .map(|pod| async move { ask_one(http, &pod).await })
        .buffered(8)
        .collect()
        .await
}

async fn ask_one(http: &reqwest::Client, pod: &Pod) -> Answer {
    let status = pod.status.as_ref();
    let ready = is_ready(pod);
    let Some(address) = status.and_then(|status| status.pod_ip.as_deref()) else {
        return Answer::Silent;
    };
    let leaves = pod.metadata.deletion_timestamp.is_some();
    let host = if address.contains(':') {
        format!("[{address}]")
    } else {
        address.to_owned()
    };
    let url = format!("http://{host}:{}/v1/status", port::INIT);
    let answer = http.get(url).timeout(PATIENCE).send().await;
    match answer {
        Ok(answer) if answer.status().is_success() => {
            read_report(answer).await.map_or(Answer::Silent, Answer::Ours)
        }
        // Refused at once: nothing listens there. A pod of ours that has just terminated may still look ready, but then
        // nothing listens on slurmctld's port either.
        Err(error)
            if error.is_connect()
                && !error.is_timeout()
                && ready
                && !leaves
                && slurmctld_listens(&host).await =>
        {
            tracing::debug!(pod = pod.name_any(), "no status port: not a Keelson image");
            Answer::Foreign
        }
        Ok(_) | Err(_) => Answer::Silent,
    }
}

/// Reads a report. A larger response is not from our `init`.
async fn read_report(mut answer: reqwest::Response) -> Option<Report> {
    let mut bytes = Vec::new();
    while let Some(chunk) = answer.chunk().await.ok()? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() > LONGEST_REPORT {
            return None;
        }
    }
    serde_json::from_slice(&bytes).ok()
}

async fn slurmctld_listens(host: &str) -> bool {
    let connect = tokio::net::TcpStream::connect(format!("{host}:{}", port::SLURMCTLD));
    tokio::time::timeout(PATIENCE, connect)
        .await
        .is_ok_and(|answer| answer.is_ok())
}
