//! Certificates and kubeconfigs of the cluster.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

/// A directory of keys and certificates.
#[derive(Debug, Clone)]
pub struct Pki {
    directory: PathBuf,
}

/// The subject of a certificate.
#[derive(Debug)]
struct Subject<'a> {
    common_name: &'a str,
    organization: Option<&'a str>,
    names: &'a [&'a str],
    addresses: &'a [IpAddr],
}

impl<'a> Subject<'a> {
    fn client(common_name: &'a str, organization: Option<&'a str>) -> Self {
        Self {
            common_name,
            organization,
            names: &[],
            addresses: &[],
        }
    }
}

impl Pki {
    /// Returns the keys and certificates in the directory, creating missing ones.
    pub fn ensure(directory: &Path, api: IpAddr, service: IpAddr) -> Result<Self> {
        let pki = Self {
            directory: directory.to_owned(),
        };
        if pki.file("done").exists() {
            return Ok(pki);
        }
        fs::create_dir_all(directory).with_context(|| format!("failed to create {}", directory.display()))?;
        pki.authority("ca", "kubernetes")?;
        pki.authority("front-proxy-ca", "front-proxy-ca")?;
        let service_accounts = KeyPair::generate()?;
        pki.write("sa.key", &service_accounts.serialize_pem())?;
        pki.write("sa.pub", &service_accounts.public_key_pem())?;
        let apiserver = Subject {
            common_name: "kube-apiserver",
            organization: None,
            names: &[
                "kubernetes",
                "kubernetes.default",
                "kubernetes.default.svc",
                "kubernetes.default.svc.cluster.local",
                "localhost",
            ],
            addresses: &[IpAddr::from([127, 0, 0, 1]), api, service],
        };
        pki.certificate("apiserver", "ca", &apiserver)?;
        for (file, authority, name, organization) in [
            (
                "apiserver-kubelet",
                "ca",
                "kube-apiserver-kubelet-client",
                Some("system:masters"),
            ),
            ("front-proxy", "front-proxy-ca", "front-proxy-client", None),
            ("admin", "ca", "admin", Some("system:masters")),
            (
                "kube-controller-manager",
                "ca",
                "system:kube-controller-manager",
                None,
            ),
            ("kube-scheduler", "ca", "system:kube-scheduler", None),
            ("kube-proxy", "ca", "system:kube-proxy", None),
        ] {
            pki.certificate(file, authority, &Subject::client(name, organization))?;
        }
        pki.write("done", "")?;
        Ok(pki)
    }

    /// A file in the directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Creates the certificate for the kubelet of a node.
    pub fn node(&self, node: &str, address: IpAddr) -> Result<()> {
        let name = format!("system:node:{node}");
        let subject = Subject {
            common_name: &name,
            organization: Some("system:nodes"),
            names: &[node],
            addresses: &[address],
        };
        if self.file(&format!("{node}.crt")).exists() {
            return Ok(());
        }
        self.certificate(node, "ca", &subject)
    }

    /// Writes a kubeconfig for the holder of a certificate.
    pub fn kubeconfig(&self, place: &Path, cluster: &str, server: &str, certificate: &str) -> Result<()> {
        let config = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": cluster, "cluster": {
                "server": server,
                "certificate-authority-data": self.base64("ca.crt")?,
            }}],
            "users": [{"name": certificate, "user": {
                "client-certificate-data": self.base64(&format!("{certificate}.crt"))?,
                "client-key-data": self.base64(&format!("{certificate}.key"))?,
            }}],
            "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": certificate}}],
            "current-context": cluster,
        });
        write_secret(place, &serde_json::to_string_pretty(&config)?)
    }

    fn base64(&self, name: &str) -> Result<serde_json::Value> {
        let content = fs::read(self.file(name))
            .with_context(|| format!("failed to read {}", self.file(name).display()))?;
        Ok(serde_json::to_value(k8s_openapi::ByteString(content))?)
    }

    fn authority(&self, file: &str, name: &str) -> Result<()> {
        let key = KeyPair::generate()?;
        let mut params = parameters(&Subject::client(name, None))?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        self.write(&format!("{file}.crt"), &params.self_signed(&key)?.pem())?;
        self.write(&format!("{file}.key"), &key.serialize_pem())
    }

    fn certificate(&self, file: &str, authority: &str, subject: &Subject) -> Result<()> {
        let read = |name: String| {
            fs::read_to_string(self.file(&name)).with_context(|| format!("failed to read {name}"))
        };
        let authority_key = KeyPair::from_pem(&read(format!("{authority}.key"))?)?;
        let issuer_name = if authority == "ca" {
            "kubernetes"
        } else {
            authority
        };
        let mut issuer_params = parameters(&Subject::client(issuer_name, None))?;
        issuer_params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = Issuer::new(issuer_params, authority_key);
        let key = KeyPair::generate()?;
        let mut params = parameters(subject)?;
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
        ];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        ];
        params.use_authority_key_identifier_extension = true;
        self.write(&format!("{file}.crt"), &params.signed_by(&key, &issuer)?.pem())?;
        self.write(&format!("{file}.key"), &key.serialize_pem())
    }

    fn write(&self, name: &str, content: &str) -> Result<()> {
        write_secret(&self.file(name), content)
    }
}

fn parameters(subject: &Subject) -> Result<CertificateParams> {
    let names: Vec<String> = subject.names.iter().map(|&name| name.to_owned()).collect();
    let mut params = CertificateParams::new(names)?;
    params.subject_alt_names.extend(
        subject
            .addresses
            .iter()
            .map(|&address| SanType::IpAddress(address)),
    );
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, subject.common_name);
    if let Some(organization) = subject.organization {
        params
            .distinguished_name
            .push(DnType::OrganizationName, organization);
    }
    Ok(params)
}

fn write_secret(place: &Path, content: &str) -> Result<()> {
    fs::write(place, content).with_context(|| format!("failed to write {}", place.display()))?;
    fs::set_permissions(place, fs::Permissions::from_mode(0o600))?;
    Ok(())
}
