//! The role of a slurmctld in its cluster: primary, stand-in or standby.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use slurm_conf::container::port;

use crate::files::Files;

/// Timeout of a request; the next check asks again.
const PATIENCE: Duration = Duration::from_millis(500);

/// The role of a slurmctld that has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Active, and the first on the list.
    Primary,
    /// Active because those before it on the list have failed.
    StandIn,
    /// Waits for the active slurmctld to fail.
    Standby,
}

/// Asks the slurmctld that runs with these files for its role. Returns `None` while it starts, reconfigures or is too
/// busy: it opens its port long before it has read its files, but responds only afterwards.
pub fn ask(conf: &Files) -> Option<Role> {
    let answer = get(port(conf), "/readyz").ok()?;
    let us = rustix::system::uname().nodename().to_string_lossy().into_owned();
    understand(&answer, &conf.parameters("SlurmctldHost"), &us)
}

/// Returns our position in a list of hosts.
pub fn place(hosts: &[String]) -> Option<usize> {
    let us = rustix::system::uname().nodename().to_string_lossy().into_owned();
    hosts.iter().position(|host| short(host) == short(&us))
}

/// Derives the role from the response. slurmctld reports not ready both as a standby and during a reconfiguration; a
/// single slurmctld is never a standby.
fn understand(answer: &[u8], hosts: &[String], us: &str) -> Option<Role> {
    let code = answer.strip_prefix(b"HTTP/1.")?.get(2..5)?;
    let alone = hosts.len() < 2;
    let first = hosts.first().is_some_and(|first| short(first) == short(us));
    match code {
        b"200" | b"204" if alone || first => Some(Role::Primary),
        b"200" | b"204" => Some(Role::StandIn),
        b"500" if !alone => Some(Role::Standby),
        _ => None,
    }
}

/// Returns a host's name without its domain and without the address in parentheses.
fn short(host: &str) -> &str {
    host.split(['.', '(']).next().unwrap_or(host)
}

/// Returns the first port that slurmctld listens on.
fn port(conf: &Files) -> u16 {
    let written = conf.parameters("SlurmctldPort").pop();
    let first = written
        .as_deref()
        .and_then(|ports| ports.split('-').next()?.parse().ok());
    first.unwrap_or(port::SLURMCTLD)
}

fn get(port: u16, path: &str) -> std::io::Result<Vec<u8>> {
    let connect = |host: IpAddr| TcpStream::connect_timeout(&SocketAddr::new(host, port), PATIENCE);
    let mut connection =
        connect(Ipv4Addr::LOCALHOST.into()).or_else(|_| connect(Ipv6Addr::LOCALHOST.into()))?;
    connection.set_read_timeout(Some(PATIENCE))?;
    // In a single write, because slurmctld does not reassemble requests.
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes())?;
    let mut answer = vec![0; 64];
    let read = connection.read(&mut answer)?;
    answer.truncate(read);
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::files;
    use rstest::rstest;

    const YES: &str = "HTTP/1.1 204 NO CONTENT\r\n";
    const NO: &str = "HTTP/1.1 500 INTERNAL ERROR\r\n";

    #[rstest]
    #[case::primary(YES, &["c-0(10.0.0.1)", "c-1"], "c-0", Some(Role::Primary))]
    #[case::by_its_long_name(YES, &["c-0", "c-1"], "c-0.c.svc", Some(Role::Primary))]
    #[case::alone(YES, &["c"], "x", Some(Role::Primary))]
    #[case::not_told_with_whom(YES, &[], "c-0", Some(Role::Primary))]
    #[case::stand_in(YES, &["c-0", "c-1"], "c-1", Some(Role::StandIn))]
    #[case::standby(NO, &["c-0", "c-1"], "c-1", Some(Role::Standby))]
    #[case::the_first_may_stand_by_too(NO, &["c-0", "c-1"], "c-0", Some(Role::Standby))]
    #[case::busy(NO, &["c"], "c", None)]
    #[case::old_slurmctld("HTTP/1.1 404 NOT FOUND\r\n", &["c-0", "c-1"], "c-1", None)]
    #[case::hung_up("", &["c-0", "c-1"], "c-1", None)]
    #[case::something_else("\0\0\0\x10", &["c"], "c", None)]
    fn understands_answers(
        #[case] answer: &str,
        #[case] hosts: &[&str],
        #[case] us: &str,
        #[case] expected: Option<Role>,
    ) {
        let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
        assert_eq!(understand(answer.as_bytes(), &hosts, us), expected);
    }

    #[rstest]
    #[case("", 6817)]
    #[case("SlurmctldPort=7000", 7000)]
    #[case("SlurmctldPort=7000-7003", 7000)]
    fn asks_where_slurmctld_listens(#[case] text: &str, #[case] expected: u16) {
        assert_eq!(port(&files(&[("slurm.conf", text)])), expected);
    }
}
