//! Checks of `sssd.conf` for errors that prevent SSSD from starting or users from logging in.
//!
//! The file may contain a password, so messages include only lines, sections and providers, and no other values.

use std::collections::BTreeMap;

/// The identity providers of all SSSD versions in use.
const ID_PROVIDERS: [&str; 6] = ["ad", "files", "idp", "ipa", "ldap", "proxy"];

/// Without systemd, SSSD starts only the listed services. Lookups require the first one, logins the second one.
const SERVICES: [&str; 2] = ["nss", "pam"];

/// The reason why nobody can log in with the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Not UTF-8.
    #[error("is not valid UTF-8: use UTF-8 text")]
    NotText,
    /// A section name without a closing bracket.
    #[error("line {line}: the section name has no closing bracket: add ]")]
    OpenSection {
        /// The line number, starting at 1.
        line: usize,
    },
    /// Neither a section, nor an option, nor a comment.
    #[error("line {line} is neither a [section] nor an option in the form option = value: fix or remove it")]
    NotAnOption {
        /// The line number, starting at 1.
        line: usize,
    },
    /// A required service is not listed.
    #[error("[sssd] does not list the required service {0}: set `services = nss, pam`")]
    Service(&'static str),
    /// No domain is enabled.
    #[error("no domain is enabled: set `domains = NAME` in [sssd] and add a section [domain/NAME]")]
    NoDomain,
    /// A domain without a section.
    #[error("[sssd] lists the domain {0}, but the section [domain/{0}] does not exist: add it")]
    UnknownDomain(String),
    /// A domain without a provider.
    #[error("[domain/{0}] has no id_provider: set one, for example `id_provider = ldap`")]
    NoProvider(String),
    /// A provider that SSSD does not support.
    #[error("[domain/{domain}] has the unknown id_provider {provider:?}: use one of {}", ID_PROVIDERS.join(", "))]
    UnknownProvider {
        /// The domain of the section.
        domain: String,
        /// The provider, as written.
        provider: String,
    },
}

impl Fault {
    /// Whether a file in `conf.d` may provide the missing settings. Callers without access to that directory, which is in the image
    /// or in a volume, cannot tell.
    pub fn may_be_mended_in_conf_d(&self) -> bool {
        match self {
            Self::NoDomain | Self::UnknownDomain(_) => true,
            Self::NotText
            | Self::OpenSection { .. }
            | Self::NotAnOption { .. }
            | Self::Service(_)
            | Self::NoProvider(_)
            | Self::UnknownProvider { .. } => false,
        }
    }
}

type Section = BTreeMap<String, String>;

/// Parses the file and returns the identity provider of every enabled domain, by domain name.
pub fn read(text: &[u8]) -> Result<BTreeMap<String, String>, Fault> {
    read_with(text, &[])
}

/// Like [`read`], but merges the files in `conf.d` in the order of their names. Their settings take precedence.
pub fn read_with(text: &[u8], conf_d: &[Vec<u8>]) -> Result<BTreeMap<String, String>, Fault> {
    let parse = |text| sections(std::str::from_utf8(text).map_err(|_| Fault::NotText)?);
    let mut sections = parse(text)?;
    // SSSD ignores a file there that it cannot parse.
    for (name, options) in conf_d.iter().filter_map(|text| parse(text).ok()).flatten() {
        sections.entry(name).or_default().extend(options);
    }
    let empty = Section::new();
    let sssd = sections.get("sssd").unwrap_or(&empty);
    let services = list(sssd.get("services"));
    for service in SERVICES {
        if !services.iter().any(|listed| listed == service) {
            return Err(Fault::Service(service));
        }
    }
    let mut providers = BTreeMap::new();
    let mut left_out = None;
    for domain in domains(sssd, &sections) {
        match provider(&domain, &sections) {
            Ok(provider) => drop(providers.insert(domain, provider)),
            // The other domains do not work either: their services wait for this one.
            Err(fault @ Fault::UnknownProvider { .. }) => return Err(fault),
            // SSSD ignores these domains.
            Err(fault) => left_out = left_out.or(Some(fault)),
        }
    }
    if providers.is_empty() {
        return Err(left_out.unwrap_or(Fault::NoDomain));
    }
    Ok(providers)
}

fn provider(domain: &str, sections: &BTreeMap<String, Section>) -> Result<String, Fault> {
    let section = sections
        .get(&format!("domain/{domain}"))
        .ok_or_else(|| Fault::UnknownDomain(domain.to_owned()))?;
    let provider = section
        .get("id_provider")
        .filter(|provider| !provider.is_empty())
        .ok_or_else(|| Fault::NoProvider(domain.to_owned()))?;
    if ID_PROVIDERS.contains(&provider.as_str()) {
        return Ok(provider.clone());
    }
    Err(Fault::UnknownProvider {
        domain: domain.to_owned(),
        provider: provider.clone(),
    })
}

/// The domains that `[sssd]` lists and that are not disabled, and the domains that are enabled in their own section.
fn domains(sssd: &Section, sections: &BTreeMap<String, Section>) -> Vec<String> {
    let enabled = |name: &str| {
        let enabled = sections.get(&format!("domain/{name}"))?.get("enabled")?;
        Some(enabled.eq_ignore_ascii_case("true"))
    };
    let mut domains = list(sssd.get("domains"));
    domains.retain(|name| enabled(name) != Some(false));
    for section in sections.keys() {
        // A third part of the name refers to a trusted domain.
        let name = section.strip_prefix("domain/").filter(|name| !name.contains('/'));
        if let Some(name) = name
            && enabled(name) == Some(true)
            && !domains.iter().any(|listed| listed == name)
        {
            domains.push(name.to_owned());
        }
    }
    domains
}

fn list(value: Option<&String>) -> Vec<String> {
    let parts = value.map(String::as_str).unwrap_or_default().split(',');
    parts
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect()
}

fn sections(text: &str) -> Result<BTreeMap<String, Section>, Fault> {
    let mut sections: BTreeMap<String, Section> = BTreeMap::new();
    let mut current: Option<String> = None;
    let mut option: Option<String> = None;
    for (index, whole) in text.lines().enumerate() {
        let line = index + 1;
        let trimmed = whole.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        // An indented line continues the value above it.
        if whole.starts_with([' ', '\t'])
            && let (Some(section), Some(option)) = (&current, &option)
        {
            let values = sections.entry(section.clone()).or_default();
            let value = values.entry(option.clone()).or_default();
            value.push(' ');
            value.push_str(trimmed);
        } else if let Some(rest) = trimmed.strip_prefix('[') {
            let name = rest.strip_suffix(']').ok_or(Fault::OpenSection { line })?.trim();
            sections.entry(name.to_owned()).or_default();
            (current, option) = (Some(name.to_owned()), None);
        } else {
            let (key, value) = trimmed
                .split_once('=')
                .filter(|(key, _)| !key.trim().is_empty())
                .ok_or(Fault::NotAnOption { line })?;
            // SSSD ignores options before the first section.
            let Some(section) = &current else { continue };
            let key = key.trim().to_owned();
            let values = sections.entry(section.clone()).or_default();
            values.insert(key.clone(), value.trim().to_owned());
            option = Some(key);
        }
    }
    Ok(sections)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const GOOD: &str = "\
# users
domains = nobody
[sssd]
services = nss,
  pam
domains = example, spare, forgotten
[nss]
[domain/example]
id_provider = ldap
ldap_default_authtok = hunter2
[domain/spare]
enabled = false
[domain/extra]
enabled = TRUE
id_provider = proxy
[domain/extra/trusted]
";

    #[test]
    fn every_domain_in_use_has_its_provider() {
        let providers = read(GOOD.as_bytes()).unwrap();
        let providers: Vec<(&str, &str)> = providers.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        assert_eq!(providers, [("example", "ldap"), ("extra", "proxy")]);
    }

    // The results of starting SSSD 2.13 with these files in a container.
    #[rstest]
    #[case::it_ends("[sssd\nservices = nss,pam\n", Fault::OpenSection { line: 1 })]
    #[case::it_ends("[sssd]\nnonsense\n", Fault::NotAnOption { line: 2 })]
    #[case::it_ends("[sssd]\nservices = nss, pam\n", Fault::NoDomain)]
    #[case::it_ends("", Fault::Service("nss"))]
    #[case::it_ends("[sssd]\nservices = nss, pam\ndomains = a\n", Fault::UnknownDomain("a".into()))]
    #[case::it_ends("[sssd]\nservices = nss, pam\ndomains = a\n[domain/a]\n", Fault::NoProvider("a".into()))]
    #[case::nobody_is_found(
        "[sssd]\ndomains = a\n[domain/a]\nid_provider = ldap\n",
        Fault::Service("nss")
    )]
    #[case::nobody_may_log_in(
        "[sssd]\nservices = nss\ndomains = a\n[domain/a]\nid_provider = ldap\n",
        Fault::Service("pam")
    )]
    #[case::the_provider_is_started_over_and_over(
        "[sssd]\nservices = nss, pam\ndomains = a\n[domain/a]\nid_provider = ldpa\n",
        Fault::UnknownProvider { domain: "a".into(), provider: "ldpa".into() }
    )]
    fn what_lets_nobody_in_is_a_fault(#[case] text: &str, #[case] fault: Fault) {
        assert_eq!(read(text.as_bytes()), Err(fault));
    }

    const WITHOUT_DOMAINS: &str = "[sssd]\nservices = nss, pam\n";

    #[test]
    fn domains_may_come_from_conf_d() {
        let file = |text: &str| text.as_bytes().to_vec();
        let broken = file("[sssd\n");
        let domain = file("[sssd]\ndomains = a\n[domain/a]\nid_provider = proxy\n");
        let later = file("[domain/a]\nid_provider = ldap\n");
        let providers = read_with(WITHOUT_DOMAINS.as_bytes(), &[broken, domain, later]).unwrap();
        assert_eq!(providers, BTreeMap::from([("a".to_owned(), "ldap".to_owned())]));
        let listed = format!("{WITHOUT_DOMAINS}domains = a\n");
        let section = file("[domain/a]\nid_provider = ldap\n");
        assert!(read_with(listed.as_bytes(), &[section]).is_ok());
        assert_eq!(read_with(WITHOUT_DOMAINS.as_bytes(), &[]), Err(Fault::NoDomain));
    }

    #[rstest]
    #[case(WITHOUT_DOMAINS, true)]
    #[case("[sssd]\nservices = nss, pam\ndomains = a\n", true)]
    #[case("[sssd]\nservices = nss, pam\ndomains = a\n[domain/a]\n", false)]
    #[case(
        "[sssd]\nservices = nss, pam\ndomains = a\n[domain/a]\nid_provider = ldpa\n",
        false
    )]
    #[case("[sssd]\ndomains = a\n[domain/a]\nid_provider = ldap\n", false)]
    #[case("[sssd\n", false)]
    fn only_a_domain_that_is_not_there_may_be_elsewhere(#[case] text: &str, #[case] elsewhere: bool) {
        let fault = read(text.as_bytes()).unwrap_err();
        assert_eq!(fault.may_be_mended_in_conf_d(), elsewhere, "{fault}");
    }

    #[test]
    fn a_fault_never_quotes_a_line() {
        let broken = GOOD.replace("ldap_default_authtok =", "ldap_default_authtok");
        assert_eq!(
            read(broken.as_bytes()).unwrap_err().to_string(),
            "line 10 is neither a [section] nor an option in the form option = value: fix or remove it"
        );
        assert_eq!(read(&[0xff]), Err(Fault::NotText));
    }
}
