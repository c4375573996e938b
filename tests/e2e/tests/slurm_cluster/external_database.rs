//! A database that is there already: a MariaDB that accepts TLS only, from clients with a certificate.

use anyhow::{Result, ensure};
use e2e::slurm::Slurm;
use e2e::{Namespace, eventually};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};

use crate::{CLUSTER, wait_settled};

/// The embedded database's image, with its script: all that differs are the arguments.
const SERVER: &str = "
apiVersion: v1
kind: Service
metadata: { name: mariadb }
spec:
  selector: { app: mariadb }
  ports: [{ port: 3306 }]
---
apiVersion: v1
kind: Pod
metadata: { name: mariadb, labels: { app: mariadb } }
spec:
  enableServiceLinks: false
  securityContext: { runAsUser: 999, runAsGroup: 999, fsGroup: 999 }
  containers:
    - name: mariadb
      image: IMAGE
      args:
        - --require-secure-transport=ON
        - --ssl-ca=/certificate/ca.crt
        - --ssl-cert=/certificate/tls.crt
        - --ssl-key=/certificate/tls.key
      env: [{ name: MARIADB_PASSWORD, value: of-the-site }]
      readinessProbe:
        exec: { command: [mariadb-admin, --skip-ssl, --socket=/run/mysqld/mysqld.sock, ping] }
        periodSeconds: 1
      resources: { requests: { cpu: 50m, memory: 256Mi } }
      volumeMounts:
        - { name: data, mountPath: /var/lib/mysql }
        - { name: run, mountPath: /run/mysqld }
        - { name: tmp, mountPath: /tmp }
        - { name: certificate, mountPath: /certificate }
  volumes:
    - { name: data, emptyDir: {} }
    - { name: run, emptyDir: {} }
    - { name: tmp, emptyDir: {} }
    - { name: certificate, secret: { secretName: mariadb } }
";

/// An authority, and the certificates that it signs.
pub struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate()?;
        Ok(Self {
            certificate: params.self_signed(&key)?.pem(),
            issuer: Issuer::new(params, key),
        })
    }

    /// Returns a Secret with a certificate for this host, its key, and the authority's certificate.
    fn secret(&self, name: &str, host: &str, usage: ExtendedKeyUsagePurpose) -> Result<Value> {
        let mut params = CertificateParams::new(vec![host.to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, host);
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": { "name": name },
            "stringData": { "ca.crt": self.certificate, "tls.crt": certificate, "tls.key": key.serialize_pem() },
        }))
    }

    /// Starts the server, and creates the Secrets that it and [`database`] name.
    pub fn start_server(&self, space: &Namespace) -> Result<()> {
        let secrets = json!({ "apiVersion": "v1", "kind": "List", "items": [
            self.secret("mariadb", "mariadb", ExtendedKeyUsagePurpose::ServerAuth)?,
            self.secret("slurmdbd-certificate", "slurmdbd", ExtendedKeyUsagePurpose::ClientAuth)?,
            { "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "database" },
              "stringData": { "password": "of-the-site", "ca.crt": self.certificate } },
        ] });
        space.apply(&secrets.to_string())?;
        space
            .apply(&SERVER.replace("IMAGE", &testbed::image::name("mariadb")))
            .map(drop)
    }
}

pub fn database() -> Value {
    let secret = |key: &str| json!({ "name": "database", "key": key });
    json!({ "external": {
        "host": "mariadb",
        "username": "slurm",
        "passwordKeyRef": secret("password"),
        "tls": { "caCertRef": secret("ca.crt"), "clientCertRef": { "name": "slurmdbd-certificate" } },
    } })
}

/// From now on, the database refuses slurmdbd without its certificate.
pub fn require_a_certificate(slurm: &Slurm) -> Result<()> {
    let require = "ALTER USER slurm@'%' REQUIRE X509";
    slurm
        .space
        .exec("mariadb", &["mariadb", "--skip-ssl", "--execute", require])
        .map(drop)
}

/// Lets slurmdbd trust another authority for a while, in which a job runs.
pub fn is_verified(slurm: &Slurm, ours: &Authority) -> Result<()> {
    let other = Authority::new("another")?;
    slurm.set_secret("database", "ca.crt", &other.certificate)?;
    slurm.wait_told(
        CLUSTER,
        ["Degraded", "True", "ComponentDegraded"],
        &["Accounting slurm", "mysql_real_connect failed", "TLS/SSL error"],
    )?;
    let job = slurm.sbatch(&[], "true")?;
    slurm.wait_job(&job, "COMPLETED")?;
    slurm.set_secret("database", "ca.crt", &ours.certificate)?;
    wait_settled(slurm)?;
    eventually("the job's record", || {
        let words = [
            "sacct",
            "--noheader",
            "--allocations",
            "--format=state",
            "--jobs",
            &job,
        ];
        let state = slurm.login(&words)?;
        ensure!(state.trim() == "COMPLETED", "job {job} is {state}");
        Ok(())
    })
}
