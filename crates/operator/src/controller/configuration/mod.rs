//! How a configuration reaches slurmctld: which one, whether it may have it now, and what it makes of it.
//!
//! `user_files` checks the user's files; `baseline` says what slurmctld has now; `change` what a step from there costs;
//! `quiesce` empties the cluster where running jobs would not survive it; `choose` puts these together; `delivery` says how
//! far the chosen one has come, `status_port` asks the pods; `refusal` and `file_origin` explain what slurmctld said.

pub mod baseline;
pub mod change;
pub mod choose;
pub mod delivery;
pub mod file_origin;
pub mod quiesce;
pub mod refusal;
pub mod status_port;
pub mod user_files;
