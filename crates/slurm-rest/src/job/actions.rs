//! Job actions: submit, signal, cancel and requeue.

use std::collections::BTreeMap;

use serde::de::MapAccess;
use serde::{Deserialize, Serialize};

use super::UNKNOWN_JOB;
use crate::client::{Client, Reply, Request};
use crate::endpoint;
use crate::error::{Complaint, Error};
use crate::response::{Body, Missing};
use crate::value::{NoVal, Text};

/// The signal that ends a job.
const CANCEL: &str = "SIGKILL";

/// A batch job to submit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct JobSubmit {
    /// Its name.
    pub name: String,
    /// The script, which begins with `#!`.
    pub script: String,
    /// Its working directory.
    pub current_working_directory: String,
    /// Its environment, as `NAME=value`. Slurm rejects a job without one.
    pub environment: Vec<String>,
    /// The partition; the default partition if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// The account; the user's default account if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The number of tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks: Option<u32>,
    /// The number of nodes: `2` or `2-4`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<String>,
    /// The time limit in minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_limit: Option<NoVal>,
    /// The nodes that it requires.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub required_nodes: Vec<String>,
    /// The reservation that it runs in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation: Option<String>,
    /// The file for its output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub standard_output: Option<String>,
    /// Whether to hold the job until it is released.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub hold: bool,
    /// The tasks of an array: `0-9`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array: Option<String>,
    /// Whether it may be requeued; as configured in Slurm if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requeue: Option<bool>,
    /// A free-form comment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

#[derive(Serialize)]
pub(crate) struct Submission<'a> {
    pub(crate) job: &'a JobSubmit,
}

#[derive(Default)]
pub(crate) struct Submitted {
    job_id: NoVal,
}

impl Body for Submitted {
    fn field<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        if key == "job_id" {
            self.job_id = map.next_value()?;
        }
        Ok(key == "job_id")
    }
}

/// Slurm's errors for the jobs of a request that names several, by job.
#[derive(Default)]
struct Statuses(Vec<(String, Complaint)>);

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawStatus<'a> {
    #[serde(borrow)]
    step_id: Text<'a>,
    #[serde(borrow)]
    error: RawStatusError<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawStatusError<'a> {
    #[serde(borrow)]
    string: Text<'a>,
    code: NoVal,
}

impl Body for Statuses {
    fn field<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        if key != "status" {
            return Ok(false);
        }
        for RawStatus { step_id, error } in map
            .next_value::<Option<Vec<RawStatus<'de>>>>()?
            .unwrap_or_default()
        {
            let number = error
                .code
                .number()
                .and_then(|code| i64::try_from(code).ok())
                .unwrap_or(0);
            if number != 0 {
                let description = format!("job {}", step_id.as_str());
                self.0.push((
                    step_id.into_owned(),
                    Complaint {
                        number,
                        error: error.string.into_owned(),
                        description,
                    },
                ));
            }
        }
        Ok(true)
    }
}

/// How to requeue a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Requeue {
    /// Hold it in the queue until it is released.
    pub hold: bool,
    /// Only if it has not ended yet.
    pub incomplete_only: bool,
}

#[derive(Serialize)]
pub(crate) struct RequeueRequest {
    pub(crate) jobs: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) flags: Vec<&'static str>,
}

impl Client {
    /// Submits a batch job and returns its ID.
    pub async fn submit_job(&self, job: &JobSubmit) -> Result<u64, Error> {
        let reply = self
            .execute::<Submitted>(Request::new(&endpoint::JOB_SUBMIT).body(&Submission { job })?)
            .await?;
        let number = if let Reply::Body { body, .. } = reply {
            body.job_id.number()
        } else {
            None
        };
        let nothing = || "the response contains no job ID".to_owned();
        number.ok_or_else(|| Error::Protocol {
            call: endpoint::JOB_SUBMIT.path.to_owned(),
            message: nothing(),
        })
    }

    /// Sends a signal such as `SIGUSR1` to the job with this [`Job::address`](super::Job::address). A bare number means
    /// all tasks of an array and all components of a heterogeneous job. v0.0.41 reports no error for an unknown job.
    pub async fn signal_job(&self, address: &str, signal: &str) -> Result<(), Error> {
        // Without a signal Slurm cancels the job.
        if signal.trim().is_empty() {
            return Err(Error::Request {
                what: endpoint::JOB_SIGNAL.path.to_owned(),
                message: "no signal given".into(),
            });
        }
        let what = format!("job {address}");
        let missing = Missing {
            what: &what,
            numbers: &UNKNOWN_JOB,
        };
        let ask = Request::new(&endpoint::JOB_SIGNAL)
            .about(address)
            .query("signal", signal)
            .missing(missing);
        let Reply::Body {
            body: Statuses(statuses),
            ..
        } = self.execute(ask).await?
        else {
            return Ok(());
        };
        match statuses.as_slice() {
            [] => Ok(()),
            unknown if unknown.iter().all(|(_, c)| UNKNOWN_JOB.contains(&c.number)) => Err(missing.error()),
            _ => Err(Error::Refused {
                complaints: statuses.into_iter().map(|(_, complaint)| complaint).collect(),
            }),
        }
    }

    /// Cancels a job.
    pub async fn cancel_job(&self, address: &str) -> Result<(), Error> {
        self.signal_job(address, CANCEL).await
    }

    /// Requeues jobs, identified by [`Job::requeue_address`](super::Job::requeue_address), and returns the errors by
    /// job. Since v0.0.45.
    pub async fn requeue_jobs(
        &self,
        addresses: &[String],
        how: Requeue,
    ) -> Result<BTreeMap<String, Complaint>, Error> {
        let Requeue {
            hold,
            incomplete_only,
        } = how;
        let flags = [(hold, "Hold"), (incomplete_only, "Incomplete")];
        let request = RequeueRequest {
            jobs: addresses.to_vec(),
            flags: flags
                .into_iter()
                .filter_map(|(set, flag)| set.then_some(flag))
                .collect(),
        };
        match self
            .execute::<Statuses>(Request::new(&endpoint::JOBS_REQUEUE).body(&request)?)
            .await
        {
            Ok(Reply::Body { body, .. }) => Ok(body.0.into_iter().collect()),
            Ok(Reply::NotModified) => Ok(BTreeMap::new()),
            // Slurm reports each refusal as an error of the whole call, with the job's number in its text.
            Err(Error::Refused { complaints })
                if complaints.iter().all(|c| job_of(&c.description).is_some()) =>
            {
                let by_job = complaints
                    .into_iter()
                    .filter_map(|c| Some((job_of(&c.description)?.to_owned(), c)));
                Ok(by_job.collect())
            }
            Err(error) => Err(error),
        }
    }
}

/// Extracts the job from a description: `Requeue JobId=7 failed` is about job 7.
fn job_of(description: &str) -> Option<&str> {
    description.split_once("JobId=")?.1.split_whitespace().next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::response::decode;
    use pretty_assertions::assert_eq;
    use serde_json::json;

    #[test]
    fn what_slurm_says_of_each_job_is_kept() {
        let json = json!({"status": [
            {"step_id": "999", "error": {"string": "Invalid job id specified", "code": 2017}},
            {"step_id": "1", "error": {"string": "", "code": 0}}
        ]});
        let statuses = decode::<Statuses>(&endpoint::JOB_SIGNAL, json.to_string().as_bytes())
            .unwrap()
            .body
            .0;
        assert_eq!(statuses.len(), 1);
        assert_eq!(statuses[0].1.number, 2017);
    }

    #[test]
    fn the_job_of_a_refusal_is_found() {
        assert_eq!(job_of("Requeue JobId=999 failed"), Some("999"));
        assert_eq!(job_of("something else"), None);
    }
}
