//! slurmctld itself: reconfiguration.

use crate::client::{Client, Reply, Request};
use crate::endpoint;
use crate::error::Error;
use crate::response::{Item, Listing};

impl Client {
    /// Tells all daemons to reload their configuration. A slurmctld that runs in the foreground **exits** on an invalid
    /// file, and this call still succeeds.
    pub async fn reconfigure(&self) -> Result<(), Error> {
        self.execute::<()>(Request::new(&endpoint::RECONFIGURE))
            .await
            .map(drop)
    }

    /// Reads a list that does not support requests for changes.
    pub(crate) async fn items<T: Item>(&self, ask: Request<'_>) -> Result<Vec<T>, Error> {
        match self.execute::<Listing<T>>(ask).await? {
            Reply::Body { body, .. } => Ok(body.items),
            Reply::NotModified => Ok(Vec::new()),
        }
    }
}
