//! What a slurmctld is among those of its cluster.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use crate::files::Files;

/// How long an answer may take; the next look asks again.
const PATIENCE: Duration = Duration::from_millis(500);

/// What a slurmctld that serves is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The first on the list, and in charge.
    Primary,
    /// In charge because those before it on the list have failed.
    StandIn,
    /// It waits for the one in charge to fail.
    Standby,
}

/// Asks the slurmctld that runs with these files. Nothing is known while it starts, reconfigures or is too busy: it opens
/// its port long before it has read its files, but answers only afterwards.
pub fn ask(conf: &Files) -> Option<Role> {
    let answer = get(port(conf), "/readyz").ok()?;
    let us = rustix::system::uname().nodename().to_string_lossy().into_owned();
    understand(&answer, &conf.parameters("SlurmctldHost"), &us)
}

/// Our place on a list of hosts.
pub fn place(hosts: &[String]) -> Option<usize> {
    let us = rustix::system::uname().nodename().to_string_lossy().into_owned();
    hosts.iter().position(|host| short(host) == short(&us))
}

/// slurmctld says that it is not ready both as a standby and in the middle of a reconfiguration, but one that is alone is
/// never a standby.
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

/// A host's name without its domain, or its address in brackets.
fn short(host: &str) -> &str {
    host.split(['.', '(']).next().unwrap_or(host)
}

/// The first of the ports that slurmctld listens on.
fn port(conf: &Files) -> u16 {
    let written = conf.parameters("SlurmctldPort").pop();
    let first = written
        .as_deref()
        .and_then(|ports| ports.split('-').next()?.parse().ok());
    first.unwrap_or(6817)
}

fn get(port: u16, path: &str) -> std::io::Result<Vec<u8>> {
    let connect = |host: IpAddr| TcpStream::connect_timeout(&SocketAddr::new(host, port), PATIENCE);
    let mut connection =
        connect(Ipv4Addr::LOCALHOST.into()).or_else(|_| connect(Ipv6Addr::LOCALHOST.into()))?;
    connection.set_read_timeout(Some(PATIENCE))?;
    // In one piece: slurmctld does not put requests together.
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
