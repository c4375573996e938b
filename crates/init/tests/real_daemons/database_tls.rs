//! Tests slurmdbd's connection to a database with TLS: what it verifies, and what it says otherwise.

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use slurm_conf::slurm_conf::AuthType;
use slurm_conf::slurmdbd_conf::{self, SlurmdbdConf, Storage, StorageTls};

use crate::conf;
use crate::mount::Mount;
use crate::network::{Network, eventually, with_slurm};
use crate::pod::Pod;

/// Creates the database. Its user must show a certificate.
const DATABASE: &str = "\
mkdir -p /run/mysqld /var/lib/mysql
mariadb-install-db --user=root --datadir=/var/lib/mysql --skip-test-db --auth-root-authentication-method=normal >/dev/null
mariadbd --user=root --datadir=/var/lib/mysql --bootstrap <<END
CREATE DATABASE slurm_acct_db;
FLUSH PRIVILEGES;
CREATE USER slurm@'%' IDENTIFIED BY 'secret' REQUIRE X509;
GRANT ALL ON *.* TO slurm@'%';
END
";
/// Starts it with these options.
const SERVER: &str = "\
setsid mariadbd --user=root --datadir=/var/lib/mysql --socket=/run/mysqld/mysqld.sock --skip-networking=0 \
    --innodb-buffer-pool-size=64M --innodb-lock-wait-timeout=900 --innodb-flush-log-at-trx-commit=0 \
    --innodb-snapshot-isolation=OFF OPTIONS </dev/null >/run/mysqld/log 2>&1 &
until mariadb --skip-ssl --socket=/run/mysqld/mysqld.sock --user=root -e 'SELECT 1' >/dev/null; do sleep 0.2; done
";
const WITH_TLS: &str =
    "--ssl-ca=/etc/slurm/ca.crt --ssl-cert=/etc/slurm/server.crt --ssl-key=/etc/slurm/server.key";

/// An authority, and the certificates that it signs.
struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self {
            certificate,
            issuer: Issuer::new(params, key),
        })
    }

    /// A certificate for this host, and its key.
    fn sign(&self, host: &str, usage: ExtendedKeyUsagePurpose) -> Result<(String, String)> {
        let mut params = CertificateParams::new(vec![host.to_owned()])?;
        params.distinguished_name.push(rcgen::DnType::CommonName, host);
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok((certificate, key.serialize_pem()))
    }
}

/// slurmdbd's files, as the operator mounts them.
fn slurmdbd(host: &str, authority: &Authority, client: Option<&(String, String)>) -> Result<Mount> {
    let tls = StorageTls {
        client_cert: client.is_some(),
    };
    let text = slurmdbd_conf::render(&SlurmdbdConf {
        host: "db".into(),
        port: 6819,
        auth: AuthType::default(),
        jwks: false,
        storage: Storage {
            host: host.into(),
            port: 3306,
            database: "slurm_acct_db".into(),
            user: Some("slurm".into()),
            password: Some("secret".into()),
            tls: Some(tls),
        },
        extra_conf: "LogFile=/var/log/slurm/slurmdbd.log\n".into(),
    })?
    .text;
    let mut mount = conf("")
        .with("slurmdbd.conf", &text)
        .with("database-ca.crt", &authority.certificate);
    if let Some((certificate, key)) = client {
        mount = mount
            .with("database-client.crt", certificate)
            .with("database-client.key", key);
    }
    Ok(mount)
}

/// Starts slurmdbd with these files, waits for a line in its log, and stops it.
fn says(db: &mut Pod<'_>, files: &Mount, expected: &str) -> Result<()> {
    let before = db.log().len();
    db.deliver(files)?;
    db.start(&["slurmdbd"])?;
    eventually(expected, || {
        Ok(db.log().get(before..).unwrap_or_default().contains(expected))
    })?;
    db.stop()?;
    Ok(())
}

fn database<'a>(network: &'a Network, authority: &Authority) -> Result<Pod<'a>> {
    let (certificate, key) = authority.sign("maria", ExtendedKeyUsagePurpose::ServerAuth)?;
    let files = Mount::default()
        .with("ca.crt", &authority.certificate)
        .with("server.crt", &certificate)
        .with("server.key", &key);
    let mut maria = network.pod("maria", 0, &files)?;
    maria.start(&["pause"])?;
    eventually("the pod is up", || Ok(maria.run(&["true"]).is_ok()))?;
    maria.run(&["sh", "-c", DATABASE])?;
    Ok(maria)
}

fn serve(maria: &Pod<'_>, options: &str) -> Result<()> {
    maria.run(&["sh", "-c", &SERVER.replace("OPTIONS", options)])?;
    Ok(())
}

#[test]
fn slurmdbd_connects_with_tls_or_says_why_not() -> Result<()> {
    with_slurm(|network| {
        let ours = Authority::new("ours")?;
        let other = Authority::new("another")?;
        let client = ours.sign("slurmdbd", ExtendedKeyUsagePurpose::ClientAuth)?;
        let right = slurmdbd("maria", &ours, Some(&client))?;
        let maria = database(network, &ours)?;
        let mut db = network.pod("db", 401, &right)?;

        says(
            &mut db,
            &right,
            "init: error: the database maria:3306 does not answer",
        )?;
        serve(&maria, "--skip-ssl")?;
        says(
            &mut db,
            &right,
            "init: error: the database maria:3306 offers no TLS, and slurmdbd would connect without it",
        )?;
        maria.run(&[
            "sh",
            "-c",
            "pkill mariadbd; while pgrep mariadbd; do sleep 0.1; done",
        ])?;
        serve(&maria, WITH_TLS)?;

        // These lines are in the operator's tests too.
        let refused = |why: &str| format!("error: mysql_real_connect failed: {why}");
        says(
            &mut db,
            &slurmdbd("maria", &other, Some(&client))?,
            &refused("2026 TLS/SSL error: self-signed certificate in certificate chain"),
        )?;
        // The certificate has only a name.
        says(
            &mut db,
            &slurmdbd("10.78.0.31", &ours, Some(&client))?,
            &refused("2026 TLS/SSL error: Hostname verification failed"),
        )?;
        says(
            &mut db,
            &slurmdbd("maria", &ours, None)?,
            &refused("1045 Access denied for user 'slurm'@"),
        )?;
        says(
            &mut db,
            &slurmdbd(
                "maria",
                &ours,
                Some(&other.sign("slurmdbd", ExtendedKeyUsagePurpose::ClientAuth)?),
            )?,
            &refused("2026 TLS/SSL error: tlsv1 alert unknown ca"),
        )?;
        says(
            &mut db,
            &slurmdbd(
                "maria",
                &ours,
                Some(&(
                    client.0.clone(),
                    other.sign("x", ExtendedKeyUsagePurpose::ClientAuth)?.1,
                )),
            )?,
            &refused("2026 TLS/SSL error: key values mismatch"),
        )?;

        // The database refuses its user any connection without TLS.
        db.deliver(&right)?;
        db.start(&["slurmdbd"])?;
        // Port 6819.
        let listens = || {
            Ok(db
                .run(&["cat", "/proc/net/tcp", "/proc/net/tcp6"])?
                .contains(":1AA3 "))
        };
        eventually("slurmdbd listens", listens)?;
        db.stop()?;
        Ok(())
    })
}
