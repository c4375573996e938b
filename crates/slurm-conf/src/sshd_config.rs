//! `sshd_config` of login and worker pods, and root's `authorized_keys`.
//!
//! sshd uses the *first* value of a keyword, and everything after `Match` belongs to that block. Therefore the
//! user's keywords replace the operator's keywords in place, and the user's blocks are at the end of the file.

use std::collections::BTreeMap;

use crate::merge::{Error, Finding, FindingKind, Rendered};
use crate::syntax::{Origin, Problem, SyntaxError};

/// The role of the pod that runs sshd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A login pod.
    Login,
    /// A login pod that mounts root's keys as a single file, created before keys could change in running pods.
    LoginWithFixedKeys,
    /// A worker pod, where PAM admits users who have a job on the node.
    Worker,
}

/// Keywords whose values accumulate. For other keywords, sshd uses the first value.
const REPEATED: [&str; 14] = [
    "AcceptEnv",
    "AllowGroups",
    "AllowUsers",
    "DenyGroups",
    "DenyUsers",
    "HostCertificate",
    "HostKey",
    "Include",
    "ListenAddress",
    "LogVerbose",
    "PermitListen",
    "PermitOpen",
    "Port",
    "SetEnv",
];

/// The directory in login pods that contains root's keys, as `authorized_keys.root`.
pub const KEYS: &str = "/etc/ssh/authorized_keys.d";

/// The directory for users from files: `passwd`, `group`, and `authorized_keys.<user>`.
pub const EXTRA_USERS: &str = "/var/lib/extrausers";

const KEYS_COMMAND: &str = "AuthorizedKeysCommand";

/// The command through which sshd reads the keys in [`KEYS`] and [`EXTRA_USERS`], and the output of the user's own command.
///
/// A command is required because `AuthorizedKeysFile` would reject the files: the kubelet makes volume directories
/// world-writable, and `StrictModes` checks the mode and ignores the read-only mount. sshd accepts no keys from a command that
/// fails, so this command always succeeds: a user may have no such file, and a directory service may not respond. Partial
/// responses of the user's command are discarded.
fn keys_command(theirs: Option<&str>) -> String {
    let files = format!("sh {KEYS}/authorized_keys.%u {EXTRA_USERS}/authorized_keys.%u");
    match theirs.filter(|theirs| !theirs.eq_ignore_ascii_case("none")) {
        None => format!(r#"/bin/sh -c 'cat "$@" 2>/dev/null; exit 0' {files}"#),
        // sshd would interpret a single % as a token.
        Some(theirs) => format!(
            r#"/bin/sh -c 'cat "$1" "$2" 2>/dev/null; shift 2; keys=$("$@") && printf "%%s" "$keys"; exit 0' {files} {theirs}"#
        ),
    }
}

struct Directive {
    origin: Origin,
    keyword: String,
    arguments: String,
}

impl Directive {
    /// The part that must be unique: the keyword, and for `Subsystem` also its name.
    fn identity(&self) -> String {
        identity(&self.keyword, &self.arguments)
    }
}

fn identity(keyword: &str, arguments: &str) -> String {
    let keyword = keyword.to_ascii_lowercase();
    if keyword == "subsystem" {
        let name = arguments.split_whitespace().next().unwrap_or_default();
        return format!("{keyword} {name}");
    }
    keyword
}

/// Writes `sshd_config`.
pub fn render(role: Role, extra: &str) -> Result<Rendered, Error> {
    let (global, blocks) = read(extra)?;
    let mut findings = Vec::new();

    let mut singles: BTreeMap<String, &Directive> = BTreeMap::new();
    for directive in global.iter().filter(|d| !is_repeated(&d.keyword)) {
        if let Some(first) = singles.get(&directive.identity()) {
            findings.push(finding(
                directive,
                FindingKind::Superseded {
                    by: first.origin.clone(),
                },
            ));
        } else {
            singles.insert(directive.identity(), directive);
        }
    }

    let mut lines = vec![
        "# Written by the operator: edits of this file are lost.".to_owned(),
        "Include /etc/ssh/sshd_config.d/*.conf".to_owned(),
    ];
    for (keyword, arguments, required) in own(role) {
        let theirs = singles.remove(&identity(keyword, arguments));
        let arguments = match theirs {
            Some(theirs) if required => {
                if !theirs.arguments.eq_ignore_ascii_case(arguments) {
                    let ours = format!("{keyword} {arguments}");
                    findings.push(finding(theirs, FindingKind::Required { ours }));
                }
                arguments
            }
            Some(theirs) => &theirs.arguments,
            None => arguments,
        };
        if keyword == KEYS_COMMAND {
            let theirs = theirs.map(|theirs| theirs.arguments.as_str());
            lines.push(format!("{keyword} {}", keys_command(theirs)));
            continue;
        }
        lines.push(format!("{keyword} {arguments}"));
    }
    for directive in &global {
        let kept = is_repeated(&directive.keyword)
            || singles
                .get(&directive.identity())
                .is_some_and(|s| std::ptr::eq(*s, directive));
        if kept {
            lines.push(format!("{} {}", directive.keyword, directive.arguments));
        }
    }
    for Directive {
        keyword, arguments, ..
    } in &blocks
    {
        let indent = if keyword.eq_ignore_ascii_case("Match") {
            ""
        } else {
            "    "
        };
        lines.push(format!("{indent}{keyword} {arguments}"));
    }
    findings.sort_by(|a, b| a.origin.cmp(&b.origin));
    Ok(Rendered {
        text: lines.join("\n") + "\n",
        findings,
    })
}

/// Writes root's `authorized_keys`.
pub fn render_authorized_keys(keys: &str) -> String {
    let keys = keys.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut text = String::from("# Written by the operator: edits of this file are lost.\n");
    for key in keys {
        text.push_str(key);
        text.push('\n');
    }
    text
}

/// The operator's keywords, and whether they are fixed: without PAM, a worker would admit every user.
fn own(role: Role) -> Vec<(&'static str, &'static str, bool)> {
    let mut own = match role {
        Role::Login | Role::LoginWithFixedKeys => vec![
            ("UsePAM", "yes", false),
            ("X11Forwarding", "yes", false),
            ("Subsystem", "sftp internal-sftp", false),
        ],
        Role::Worker => vec![
            ("UsePAM", "yes", true),
            ("Subsystem", "sftp internal-sftp", false),
            ("AuthenticationMethods", "publickey password", false),
        ],
    };
    if role != Role::LoginWithFixedKeys {
        // The command depends on the user's command, see `keys_command`.
        own.extend([
            (KEYS_COMMAND, "none", false),
            ("AuthorizedKeysCommandUser", "nobody", false),
        ]);
    }
    own
}

fn is_repeated(keyword: &str) -> bool {
    REPEATED.iter().any(|r| r.eq_ignore_ascii_case(keyword))
}

fn finding(directive: &Directive, kind: FindingKind) -> Finding {
    Finding {
        origin: directive.origin.clone(),
        key: directive.keyword.clone(),
        kind,
    }
}

/// The keywords before the first `Match`, and the remaining ones.
fn read(text: &str) -> Result<(Vec<Directive>, Vec<Directive>), Error> {
    let (mut global, mut blocks, mut problems) = (Vec::new(), Vec::new(), Vec::new());
    for (content, line) in text.lines().zip(1..) {
        let origin = Origin { file: None, line };
        match read_line(content) {
            Ok(None) => {}
            Ok(Some((keyword, arguments))) => {
                let directive = Directive {
                    origin,
                    keyword,
                    arguments,
                };
                let in_block = !blocks.is_empty() || directive.keyword.eq_ignore_ascii_case("Match");
                let part = if in_block { &mut blocks } else { &mut global };
                part.push(directive);
            }
            Err(error) => problems.push(Problem { origin, error }),
        }
    }
    if problems.is_empty() {
        Ok((global, blocks))
    } else {
        Err(Error::Unreadable(problems))
    }
}

fn read_line(line: &str) -> Result<Option<(String, String)>, SyntaxError> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    if let Some(control) = line.chars().find(|c| c.is_control() && *c != '\t') {
        return Err(SyntaxError::Control(control));
    }
    let end = line
        .find(|c: char| c.is_whitespace() || c == '=')
        .unwrap_or(line.len());
    let (keyword, rest) = line.split_at(end);
    if keyword.is_empty() || !keyword.chars().all(|c| c.is_ascii_alphanumeric()) {
        return Err(SyntaxError::NotAPair(line.to_owned()));
    }
    let rest = rest.trim_start();
    let arguments = rest.strip_prefix('=').unwrap_or(rest).trim();
    if arguments.is_empty() {
        return Err(SyntaxError::NoValue(keyword.to_owned()));
    }
    Ok(Some((keyword.to_owned(), arguments.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pretty_assertions::assert_eq;

    #[test]
    fn the_users_keyword_stands_in_the_place_of_ours() {
        let extra = "x11forwarding no\nSubsystem sftp /usr/lib/sftp-server\nAllowUsers a\nAllowUsers b\n";
        let rendered = render(Role::Login, extra).unwrap();
        assert_eq!(
            rendered.text,
            "# Written by the operator: edits of this file are lost.\n\
             Include /etc/ssh/sshd_config.d/*.conf\n\
             UsePAM yes\nX11Forwarding no\nSubsystem sftp /usr/lib/sftp-server\n\
             AuthorizedKeysCommand /bin/sh -c 'cat \"$@\" 2>/dev/null; exit 0' \
             sh /etc/ssh/authorized_keys.d/authorized_keys.%u /var/lib/extrausers/authorized_keys.%u\n\
             AuthorizedKeysCommandUser nobody\n\
             AllowUsers a\nAllowUsers b\n"
        );
        assert_eq!(rendered.findings, []);
    }

    #[test]
    fn pods_with_fixed_keys_keep_the_file_that_they_have() {
        let rendered = render(Role::LoginWithFixedKeys, "").unwrap();
        assert_eq!(
            rendered.text,
            "# Written by the operator: edits of this file are lost.\n\
             Include /etc/ssh/sshd_config.d/*.conf\n\
             UsePAM yes\nX11Forwarding yes\nSubsystem sftp internal-sftp\n"
        );
    }

    #[test]
    fn a_command_of_the_users_adds_its_keys_to_ours() {
        let extra =
            "AuthorizedKeysCommand /usr/bin/sss_ssh_authorizedkeys %u\nAuthorizedKeysCommandUser sssd\n";
        let rendered = render(Role::Login, extra).unwrap();
        let lines: Vec<&str> = rendered
            .text
            .lines()
            .filter(|line| line.starts_with("Auth"))
            .collect();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].ends_with("/authorized_keys.%u /usr/bin/sss_ssh_authorizedkeys %u"));
        assert_eq!(lines[1], "AuthorizedKeysCommandUser sssd");
        assert!(rendered.findings.is_empty());
    }

    /// Runs the command like sshd: words split by quotes, tokens replaced, without an additional shell.
    #[cfg(unix)]
    fn keys(command: &str) -> (bool, String) {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("authorized_keys.ada"), "ours\n").unwrap();
        let command = command.replace(KEYS, &directory.path().display().to_string());
        let (shell, rest) = command.split_once(" -c '").unwrap();
        let (script, files) = rest.split_once("' ").unwrap();
        let output = std::process::Command::new(shell)
            .args(["-c", &script.replace("%%", "%")])
            .args(files.replace("%u", "ada").split_whitespace())
            .output()
            .unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    }

    #[test]
    fn keys_are_read_whatever_else_is_missing_or_fails() {
        assert_eq!(keys(&keys_command(None)), (true, "ours\n".to_owned()));
        assert_eq!(keys(&keys_command(Some("none"))), (true, "ours\n".to_owned()));
        assert_eq!(
            keys(&keys_command(Some("/bin/echo theirs"))),
            (true, "ours\ntheirs".to_owned())
        );
        assert_eq!(
            keys(&keys_command(Some("/bin/false"))),
            (true, "ours\n".to_owned())
        );
    }

    #[test]
    fn a_worker_keeps_pam_and_says_so() {
        let rendered = render(Role::Worker, "\nUsePAM no\n").unwrap();
        assert!(rendered.text.contains("UsePAM yes\n"));
        assert_eq!(
            rendered.findings[0].to_string(),
            "line 2: UsePAM is ignored because the operator requires UsePAM yes"
        );
    }

    #[test]
    fn a_match_block_ends_the_file_and_keeps_its_own_keywords() {
        let extra = "PermitRootLogin no\nMatch User root\nPermitRootLogin yes\nX11Forwarding no\n";
        let rendered = render(Role::Login, extra).unwrap();
        assert!(rendered.text.ends_with(
            "PermitRootLogin no\nMatch User root\n    PermitRootLogin yes\n    X11Forwarding no\n"
        ));
    }

    #[test]
    fn a_second_value_is_reported_because_sshd_takes_the_first() {
        let rendered = render(Role::Login, "LoginGraceTime 10\nLoginGraceTime=20").unwrap();
        assert!(rendered.text.contains("LoginGraceTime 10\n"));
        assert_eq!(
            rendered.findings[0].to_string(),
            "line 2: LoginGraceTime is ignored because line 1 takes precedence"
        );
    }

    #[test]
    fn unreadable_lines_are_all_named() {
        let Err(Error::Unreadable(problems)) = render(Role::Login, "Port\n!x 3\nUsePAM a\u{7}") else {
            panic!("accepted")
        };
        assert_eq!(
            problems.iter().map(|p| p.origin.line).collect::<Vec<_>>(),
            [1, 2, 3]
        );
    }
}
