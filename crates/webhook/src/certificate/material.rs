//! Keys and certificates: creation, and conversion to and from the data of a Secret.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use time::OffsetDateTime;
use x509_parser::{
    certificate::X509Certificate, extensions::GeneralName, pem::Pem, prelude::FromDer as _, time::ASN1Time,
};

use super::plan::{Lifetimes, Stored, Validity};

/// Keys of the Secret. The first two are those of every TLS Secret.
pub const SERVING_CERTIFICATE: &str = "tls.crt";
pub const SERVING_KEY: &str = "tls.key";
pub const AUTHORITIES: &str = "ca.crt";
pub const AUTHORITY_KEY: &str = "ca.key";

/// Certificates are backdated to allow for clock skew.
const BACKDATED: SignedDuration = SignedDuration::from_mins(5);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to create a certificate")]
    Make(#[from] rcgen::Error),
    #[error("key {0} is missing")]
    Missing(&'static str),
    #[error("{0} is not valid PEM")]
    NotPem(&'static str),
    #[error("{0} holds an invalid certificate")]
    Unreadable(&'static str),
    #[error("time {0} is out of range for a certificate")]
    Time(Timestamp),
}

/// The content of the Secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Material {
    /// The trusted CA certificates, PEM, the newest first.
    authorities: Vec<String>,
    /// Key of the newest CA, PEM.
    authority_key: String,
    pub serving: Serving,
}

/// The serving certificate and its key, PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Serving {
    pub certificate: String,
    pub key: String,
}

impl std::fmt::Debug for Material {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Material")
            .field("authorities", &self.authorities.len())
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Serving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Serving").finish_non_exhaustive()
    }
}

impl Material {
    /// A new CA and a certificate signed by it.
    pub fn make(names: &[String], now: Timestamp, lifetimes: &Lifetimes) -> Result<Self, Error> {
        let (authority, authority_key) = new_authority(now, lifetimes)?;
        let serving = new_serving(&authority, &authority_key, names, now, lifetimes)?;
        Ok(Self {
            authorities: vec![authority],
            authority_key,
            serving,
        })
    }

    /// The same with a new CA in front, which has not signed anything yet.
    pub fn announce(&self, now: Timestamp, lifetimes: &Lifetimes) -> Result<Self, Error> {
        let (authority, authority_key) = new_authority(now, lifetimes)?;
        let mut authorities = vec![authority];
        authorities.extend(self.authorities.iter().cloned());
        Ok(Self {
            authorities,
            authority_key,
            serving: self.serving.clone(),
        })
    }

    /// The same with a new serving certificate signed by the newest CA.
    pub fn issue(&self, names: &[String], now: Timestamp, lifetimes: &Lifetimes) -> Result<Self, Error> {
        let newest = self.authorities.first().ok_or(Error::Missing(AUTHORITIES))?;
        let serving = new_serving(newest, &self.authority_key, names, now, lifetimes)?;
        Ok(Self {
            serving,
            ..self.clone()
        })
    }

    /// The same with the newest CA only.
    #[must_use]
    pub fn forget(&self) -> Self {
        Self {
            authorities: self.authorities.iter().take(1).cloned().collect(),
            ..self.clone()
        }
    }

    /// The CA bundle for the API server, PEM.
    pub fn bundle(&self) -> String {
        self.authorities.concat()
    }

    /// The newest CA certificate, PEM.
    pub fn newest(&self) -> &str {
        self.authorities.first().map_or("", String::as_str)
    }

    pub fn to_data(&self) -> BTreeMap<String, ByteString> {
        let text = |text: &str| ByteString(text.as_bytes().to_vec());
        [
            (SERVING_CERTIFICATE, text(&self.serving.certificate)),
            (SERVING_KEY, text(&self.serving.key)),
            (AUTHORITIES, text(&self.bundle())),
            (AUTHORITY_KEY, text(&self.authority_key)),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }

    pub fn from_data(data: &BTreeMap<String, ByteString>) -> Result<Self, Error> {
        let text = |key: &'static str| {
            let ByteString(bytes) = data.get(key).ok_or(Error::Missing(key))?;
            String::from_utf8(bytes.clone()).map_err(|_| Error::NotPem(key))
        };
        let material = Self {
            authorities: split_pem(&text(AUTHORITIES)?),
            authority_key: text(AUTHORITY_KEY)?,
            serving: Serving {
                certificate: text(SERVING_CERTIFICATE)?,
                key: text(SERVING_KEY)?,
            },
        };
        // A key that does not match the newest CA could not sign a trusted certificate.
        let key = KeyPair::from_pem(&material.authority_key)?;
        Issuer::from_ca_cert_pem(material.newest(), key)?;
        Ok(material)
    }

    /// The properties that `plan` needs.
    pub fn facts(&self, names: &[String]) -> Result<Stored, Error> {
        let authorities = self
            .authorities
            .iter()
            .map(|pem| look(AUTHORITIES, pem, validity))
            .collect::<Result<Vec<_>, _>>()?;
        let newest = pem_of(AUTHORITIES, self.newest())?;
        let newest = parse(AUTHORITIES, &newest)?;
        look(SERVING_CERTIFICATE, &self.serving.certificate, |serving| Stored {
            authorities,
            serving: validity(serving),
            signed_by_newest: serving.verify_signature(Some(newest.public_key())).is_ok(),
            names_match: names.iter().all(|name| has_name(serving, name)),
        })
    }
}

impl Serving {
    /// When the certificate expires.
    pub fn expires(&self) -> Result<Timestamp, Error> {
        look(SERVING_CERTIFICATE, &self.certificate, |certificate| {
            validity(certificate).until
        })
    }
}

fn new_authority(now: Timestamp, lifetimes: &Lifetimes) -> Result<(String, String), Error> {
    let mut params = dated(now, lifetimes.authority, Timestamp::MAX)?;
    // Each CA has a unique name, so that chains are not mixed up.
    params
        .distinguished_name
        .push(DnType::CommonName, format!("keelson webhook authority {now}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate()?;
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}

fn new_serving(
    authority: &str,
    authority_key: &str,
    names: &[String],
    now: Timestamp,
    lifetimes: &Lifetimes,
) -> Result<Serving, Error> {
    let end = look(AUTHORITIES, authority, |certificate| validity(certificate).until)?;
    let issuer = Issuer::from_ca_cert_pem(authority, KeyPair::from_pem(authority_key)?)?;
    let mut params = dated(now, lifetimes.serving, end)?;
    params.subject_alt_names = CertificateParams::new(names.to_vec())?.subject_alt_names;
    if let Some(name) = names.first() {
        params.distinguished_name.push(DnType::CommonName, name.as_str());
    }
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    Ok(Serving {
        certificate: params.signed_by(&key, &issuer)?.pem(),
        key: key.serialize_pem(),
    })
}

fn dated(
    now: Timestamp,
    lifetime: SignedDuration,
    latest_end: Timestamp,
) -> Result<CertificateParams, Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    let backdated = BACKDATED.min(lifetime / 10);
    params.not_before = certificate_time(now.checked_sub(backdated).unwrap_or(now))?;
    params.not_after = certificate_time(now.checked_add(lifetime).unwrap_or(latest_end).min(latest_end))?;
    Ok(params)
}

fn certificate_time(at: Timestamp) -> Result<OffsetDateTime, Error> {
    OffsetDateTime::from_unix_timestamp(at.as_second()).map_err(|_| Error::Time(at))
}

/// Splits PEM text into its certificates; drops everything else.
fn split_pem(text: &str) -> Vec<String> {
    const END: &str = "-----END CERTIFICATE-----";
    text.split_inclusive(END)
        .filter_map(|part| {
            let start = part.find("-----BEGIN CERTIFICATE-----")?;
            part.get(start..).filter(|pem| pem.ends_with(END))
        })
        .map(|pem| format!("{pem}\n"))
        .collect()
}

fn pem_of(what: &'static str, text: &str) -> Result<Pem, Error> {
    Pem::iter_from_buffer(text.as_bytes())
        .next()
        .and_then(Result::ok)
        .ok_or(Error::NotPem(what))
}

fn parse<'a>(what: &'static str, pem: &'a Pem) -> Result<X509Certificate<'a>, Error> {
    X509Certificate::from_der(&pem.contents)
        .map(|(_, certificate)| certificate)
        .map_err(|_| Error::Unreadable(what))
}

fn look<T>(what: &'static str, text: &str, see: impl FnOnce(&X509Certificate<'_>) -> T) -> Result<T, Error> {
    Ok(see(&parse(what, &pem_of(what, text)?)?))
}

fn validity(certificate: &X509Certificate<'_>) -> Validity {
    // Only dates far in the past or the future are out of range.
    let at = |time: ASN1Time| {
        let fallback = if time.timestamp() < 0 {
            Timestamp::MIN
        } else {
            Timestamp::MAX
        };
        Timestamp::from_second(time.timestamp()).unwrap_or(fallback)
    };
    Validity {
        from: at(certificate.validity().not_before),
        until: at(certificate.validity().not_after),
    }
}

fn has_name(certificate: &X509Certificate<'_>, wanted: &str) -> bool {
    let address = wanted
        .parse()
        .ok()
        .map(|address: std::net::IpAddr| match address {
            std::net::IpAddr::V4(v4) => v4.octets().to_vec(),
            std::net::IpAddr::V6(v6) => v6.octets().to_vec(),
        });
    let names = certificate.subject_alternative_name().ok().flatten();
    names.is_some_and(|names| {
        names.value.general_names.iter().any(|name| match name {
            GeneralName::DNSName(dns) => *dns == wanted,
            GeneralName::IPAddress(bytes) => address.as_deref() == Some(*bytes),
            _ => false,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        vec!["webhook.ns.svc".into(), "127.0.0.1".into()]
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn what_was_made_is_read_back_from_the_secret() {
        let lifetimes = Lifetimes::default();
        let now = at(1_800_000_000);
        let made = Material::make(&names(), now, &lifetimes).unwrap();
        let read = Material::from_data(&made.to_data()).unwrap();
        assert!(read == made);
        let facts = read.facts(&names()).unwrap();
        assert!(facts.signed_by_newest && facts.names_match);
        assert_eq!(facts.serving.until, now + lifetimes.serving);
        assert_eq!(facts.authorities.len(), 1);
        assert!(!read.facts(&["other".into()]).unwrap().names_match);
    }

    #[test]
    fn a_rotation_keeps_the_old_authority_until_it_is_forgotten() {
        let lifetimes = Lifetimes::default();
        let first = Material::make(&names(), at(1_800_000_000), &lifetimes).unwrap();
        let announced = first.announce(at(1_810_000_000), &lifetimes).unwrap();
        assert!(announced.serving == first.serving);
        assert!(!announced.facts(&names()).unwrap().signed_by_newest);
        assert!(announced.bundle().contains(first.newest()));
        let issued = announced.issue(&names(), at(1_810_000_100), &lifetimes).unwrap();
        assert!(issued.facts(&names()).unwrap().signed_by_newest);
        let read = Material::from_data(&issued.to_data()).unwrap();
        assert!(read == issued);
        assert_eq!(read.forget().bundle(), issued.newest());
    }

    #[test]
    fn a_serving_certificate_ends_with_its_authority() {
        let lifetimes = Lifetimes {
            authority: SignedDuration::from_hours(24),
            ..Lifetimes::default()
        };
        let now = at(1_800_000_000);
        let made = Material::make(&names(), now, &lifetimes).unwrap();
        assert_eq!(made.serving.expires().unwrap(), now + lifetimes.authority);
    }

    #[test]
    fn what_somebody_else_put_into_the_secret_is_refused_with_a_reason() {
        let lifetimes = Lifetimes::default();
        let one = Material::make(&names(), at(1_800_000_000), &lifetimes).unwrap();
        let mut data = one.to_data();
        data.remove(AUTHORITY_KEY);
        assert_eq!(
            Material::from_data(&data).unwrap_err().to_string(),
            "key ca.key is missing"
        );
        data.insert(AUTHORITY_KEY.into(), ByteString(b"garbage".to_vec()));
        assert!(Material::from_data(&data).is_err());
    }
}
