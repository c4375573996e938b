//! A certificate in a mounted directory, managed externally, such as by cert-manager.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use keelson_runtime::run::chain;
use tokio_util::sync::CancellationToken;

use super::{Serving, material, tls, tls::Tls};
use crate::readiness::Readiness;

/// Polling interval. Polling two small files is cheaper than watching them.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("failed to read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("failed to load the certificate in {path}")]
    Load {
        path: PathBuf,
        #[source]
        source: tls::Error,
    },
}

/// Loads the certificate of a directory, and reloads it when it changes.
pub async fn follow(directory: PathBuf, tls: Tls, readiness: Readiness, stop: CancellationToken) {
    let mut loaded = None;
    loop {
        let looked = look(&directory, &tls, &mut loaded).await;
        readiness.certificate(looked.err().map(|error| chain(&error)));
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

async fn look(directory: &Path, tls: &Tls, loaded: &mut Option<Serving>) -> Result<(), Error> {
    let read = async |name| {
        let path = directory.join(name);
        tokio::fs::read_to_string(&path)
            .await
            .map_err(|source| Error::Read { path, source })
    };
    // The two files change together but are read one after the other: a mismatched pair matches on the next read.
    let found = Serving {
        certificate: read(material::SERVING_CERTIFICATE).await?,
        key: read(material::SERVING_KEY).await?,
    };
    if loaded.as_ref() == Some(&found) {
        return Ok(());
    }
    tls.load(&found).map_err(|source| Error::Load {
        path: directory.to_owned(),
        source,
    })?;
    *loaded = Some(found);
    Ok(())
}
