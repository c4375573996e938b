//! slurmdbd.conf. It contains the database password, so its text must be stored in a Secret and never be logged.

use std::collections::BTreeMap;
use std::fmt;

use crate::catalogue::File;
use crate::container::{dir, file};
use crate::merge::{Error, Piece, Rendered, merge};
use crate::slurm_conf::{AuthType, auth_pieces};
use crate::syntax::parse;
use crate::value::{encode, encode_name};

/// The settings for slurmdbd.conf.
#[derive(Clone, PartialEq, Eq)]
pub struct SlurmdbdConf {
    /// The output of `hostname` on the slurmdbd host.
    pub host: String,
    /// Port of slurmdbd.
    pub port: u16,
    /// How slurmdbd and its clusters authenticate each other.
    pub auth: AuthType,
    /// Whether `jwks.json` exists next to the other files.
    pub jwks: bool,
    /// The database.
    pub storage: Storage,
    /// The user's text.
    pub extra_conf: String,
}

/// The database for the `accounting_storage/mysql` plugin.
#[derive(Clone, PartialEq, Eq)]
pub struct Storage {
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Name of the database.
    pub database: String,
    /// User name, if required.
    pub user: Option<String>,
    /// Password, if required.
    pub password: Option<String>,
    /// TLS of the connection.
    pub tls: Option<StorageTls>,
}

/// TLS of the connection to the database. The authorities' certificates are in [`file::DATABASE_CA`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StorageTls {
    /// Whether slurmdbd has a certificate, in [`file::DATABASE_CERT`] and [`file::DATABASE_CERT_KEY`].
    pub client_cert: bool,
}

impl fmt::Debug for SlurmdbdConf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            host,
            port,
            auth,
            jwks,
            storage,
            extra_conf: _,
        } = self;
        f.debug_struct("SlurmdbdConf")
            .field("host", host)
            .field("port", port)
            .field("auth", auth)
            .field("jwks", jwks)
            .field("storage", storage)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            host,
            port,
            database,
            user,
            password: _,
            tls,
        } = self;
        f.debug_struct("Storage")
            .field("host", host)
            .field("port", port)
            .field("database", database)
            .field("user", user)
            .field("tls", tls)
            .finish_non_exhaustive()
    }
}

/// Writes slurmdbd.conf.
pub fn render(conf: &SlurmdbdConf) -> Result<Rendered, Error> {
    let SlurmdbdConf {
        host,
        port,
        auth,
        jwks,
        storage,
        extra_conf,
    } = conf;
    let user = parse(File::Slurmdbd, extra_conf, &BTreeMap::new()).map_err(Error::Unreadable)?;
    let mut pieces = vec![
        Piece::Title("GENERAL"),
        Piece::required("DbdHost", name("the host of slurmdbd", host)?),
        Piece::required("DbdPort", port.to_string()),
        Piece::required("SlurmUser", "slurm"),
        Piece::default("LogFile", "/dev/null"),
        Piece::Title("PLUGINS & PARAMETERS"),
    ];
    // slurmdbd does not support CredType.
    let auth = auth_pieces(*auth, *jwks);
    pieces.extend(
        auth.into_iter()
            .filter(|p| !matches!(p, Piece::Parameter { key: "CredType", .. })),
    );
    pieces.extend(storage_pieces(storage)?);
    merge(File::Slurmdbd, pieces, &user, &[])
}

fn storage_pieces(storage: &Storage) -> Result<Vec<Piece>, Error> {
    let Storage {
        host,
        port,
        database,
        user,
        password,
        tls,
    } = storage;
    let mut pieces = vec![
        Piece::Title("STORAGE"),
        Piece::required("StorageType", "accounting_storage/mysql"),
        Piece::default("StorageHost", name("the database host", host)?),
        Piece::default("StoragePort", port.to_string()),
        Piece::default("StorageLoc", name("the database name", database)?),
    ];
    for (key, field, value) in [
        ("StorageUser", "the database user", user),
        ("StoragePass", "the database password", password),
    ] {
        if let Some(value) = value {
            encode(value).map_err(|source| Error::Value {
                field: field.to_owned(),
                source,
            })?;
            pieces.push(Piece::default(key, value));
        }
    }
    if let Some(StorageTls { client_cert }) = tls {
        let mut options = vec![("SSL_CA", file::DATABASE_CA)];
        if *client_cert {
            options.extend([
                ("SSL_CERT", file::DATABASE_CERT),
                ("SSL_KEY", file::DATABASE_CERT_KEY),
            ]);
        }
        let options: Vec<String> = options
            .into_iter()
            .map(|(option, file)| format!("{option}={}/{file}", dir::SLURM_ETC))
            .collect();
        pieces.push(Piece::options("StorageParameters", options.join(",")));
    }
    Ok(pieces)
}

fn name<'a>(field: &str, value: &'a str) -> Result<&'a str, Error> {
    encode_name(value).map_err(|source| Error::Value {
        field: field.to_owned(),
        source,
    })
}
