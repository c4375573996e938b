//! slurmdbd.conf. It holds the database password: the text belongs into a Secret and never into a log.

use std::collections::BTreeMap;
use std::fmt;

use crate::catalogue::File;
use crate::merge::{Error, Piece, Rendered, merge};
use crate::slurm_conf::auth_pieces;
use crate::syntax::parse;
use crate::value::{encode, encode_name};

/// Everything that slurmdbd.conf is made from.
#[derive(Clone, PartialEq, Eq)]
pub struct SlurmdbdConf {
    /// What `hostname` prints where slurmdbd runs.
    pub host: String,
    /// Port of slurmdbd.
    pub port: u16,
    /// Whether `jwks.json` lies beside the other files.
    pub jwks: bool,
    /// The database.
    pub storage: Storage,
    /// What the user wrote.
    pub extra_conf: String,
}

/// A database that the `accounting_storage/mysql` plugin speaks to.
#[derive(Clone, PartialEq, Eq)]
pub struct Storage {
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Name of the database.
    pub database: String,
    /// User name, where one is needed.
    pub user: Option<String>,
    /// Password, where one is needed.
    pub password: Option<String>,
}

impl fmt::Debug for SlurmdbdConf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            host,
            port,
            jwks,
            storage,
            extra_conf: _,
        } = self;
        f.debug_struct("SlurmdbdConf")
            .field("host", host)
            .field("port", port)
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
        } = self;
        f.debug_struct("Storage")
            .field("host", host)
            .field("port", port)
            .field("database", database)
            .field("user", user)
            .finish_non_exhaustive()
    }
}

/// Writes slurmdbd.conf.
pub fn render(conf: &SlurmdbdConf) -> Result<Rendered, Error> {
    let SlurmdbdConf {
        host,
        port,
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
    // slurmdbd knows no CredType.
    let auth = auth_pieces(*jwks);
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
    Ok(pieces)
}

fn name<'a>(field: &str, value: &'a str) -> Result<&'a str, Error> {
    encode_name(value).map_err(|source| Error::Value {
        field: field.to_owned(),
        source,
    })
}
