//! Keeps slurmdbd from a database without TLS where the Accounting asks for TLS.
//!
//! slurmdbd's client library uses TLS if the database offers it. If the database does not, the library connects without
//! TLS and says nothing, and Slurm has no parameter against that. So `init` asks the database first and does not start
//! slurmdbd until it offers TLS. Certificates are the library's subject. A database that gives up TLS while slurmdbd
//! runs is not noticed.

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use slurm_conf::catalogue::File;
use slurm_conf::container::{DATABASE_ERROR, dir, file};
use slurm_conf::syntax;

use crate::files::Files;
use crate::process::{Event, Manager, find};

/// How often a database is asked that does not answer or has no TLS. Few attempts, because a server blocks hosts that
/// hang up too often.
const RETRY: Duration = Duration::from_secs(10);
/// Timeout of each step of a request.
const PATIENCE: Duration = Duration::from_secs(5);
/// The bit of a server's capabilities that offers TLS.
const CLIENT_SSL: u16 = 0x0800;
/// Longest greeting that is read. A real one has about a hundred bytes.
const LONGEST: u32 = 4096;

/// Waits until the database may be used. Returns false if the container has to stop.
pub fn await_tls(manager: &mut Manager, files: &Files) -> bool {
    let databases = databases(files);
    while let Some(problem) = problem(&databases) {
        eprintln!("{problem}");
        if manager.next(RETRY) == Some(Event::Stop) {
            return false;
        }
    }
    true
}

/// Returns why slurmdbd must not be started.
fn problem(databases: &[(String, u16)]) -> Option<String> {
    let mut away = None;
    let mut any = databases.is_empty();
    for (host, port) in databases {
        let problem = |what: &str| format!("{DATABASE_ERROR} {host}:{port} {what}");
        match ask(host, *port) {
            Ok(Greeting::Tls) => any = true,
            Ok(Greeting::Plain) => {
                return Some(problem("offers no TLS, and slurmdbd would connect without it"));
            }
            Ok(Greeting::Refusal(why)) => away = Some(problem(&format!("refuses connections: {why}"))),
            Err(error) => away = Some(problem(&format!("does not answer: {error}"))),
        }
    }
    away.filter(|_| !any)
}

/// Returns the databases that slurmdbd connects to, if it has to use TLS.
fn databases(files: &Files) -> Vec<(String, u16)> {
    let text = files.text(file::SLURMDBD_CONF).unwrap_or_default();
    let (document, _) = syntax::read(File::Slurmdbd, &text, &files.texts());
    let value = |key: &str| document.get(key).map(str::to_owned);
    let authorities = format!("SSL_CA={}/{}", dir::SLURM_ETC, file::DATABASE_CA);
    let options = value("StorageParameters").unwrap_or_default();
    if !options.split(',').any(|option| option == authorities) {
        return Vec::new();
    }
    let port = value("StoragePort")
        .and_then(|port| port.parse().ok())
        .unwrap_or(3306);
    // A path is a socket of this pod.
    ["StorageHost", "StorageBackupHost"]
        .iter()
        .filter_map(|key| value(key))
        .filter(|host| !host.contains('/'))
        .map(|host| (host, port))
        .collect()
}

/// A database's first message.
#[derive(Debug, PartialEq, Eq)]
enum Greeting {
    Tls,
    Plain,
    Refusal(String),
}

fn ask(host: &str, port: u16) -> io::Result<Greeting> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "its name is unknown");
    for address in addresses(host)? {
        match ask_at(SocketAddr::new(address, port)) {
            Ok(greeting) => return Ok(greeting),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Looks a name up. This static binary has no NSS.
fn addresses(host: &str) -> io::Result<Vec<IpAddr>> {
    if let Ok(address) = host.parse() {
        return Ok(vec![address]);
    }
    let output = Command::new(find("getent")).args(["ahosts", host]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut addresses: Vec<IpAddr> = text
        .lines()
        .filter_map(|line| line.split_whitespace().next()?.parse().ok())
        .collect();
    addresses.dedup();
    Ok(addresses)
}

fn ask_at(address: SocketAddr) -> io::Result<Greeting> {
    let connection = TcpStream::connect_timeout(&address, PATIENCE)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    let mut head = [0; 4];
    let mut connection = connection.take(u64::from(LONGEST));
    connection.read_exact(&mut head)?;
    let [a, b, c, _sequence] = head;
    let mut message = vec![0; u32::from_le_bytes([a, b, c, 0]).min(LONGEST - 4) as usize];
    connection.read_exact(&mut message)?;
    understand(&message).ok_or_else(|| io::Error::other("it is no MariaDB or MySQL server"))
}

/// Reads the initial handshake of the protocol that MariaDB and `MySQL` share, or an error.
fn understand(message: &[u8]) -> Option<Greeting> {
    match message.split_first()? {
        (10, rest) => {
            let version = rest.iter().position(|byte| *byte == 0)?;
            // The connection's number, half of the challenge, and a zero byte.
            let at = version + 1 + 4 + 8 + 1;
            let capabilities = u16::from_le_bytes(rest.get(at..at + 2)?.try_into().ok()?);
            Some(if capabilities & CLIENT_SSL == 0 {
                Greeting::Plain
            } else {
                Greeting::Tls
            })
        }
        (255, rest) => {
            let number = u16::from_le_bytes(rest.get(..2)?.try_into().ok()?);
            let text: String = String::from_utf8_lossy(rest.get(2..)?)
                .chars()
                .filter(|c| !c.is_control())
                .collect();
            Some(Greeting::Refusal(format!("{number} {text}")))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;
    use std::thread;

    use rstest::rstest;

    use super::*;
    use crate::files::tests::files;

    /// The greeting of MariaDB 11.8, with these capabilities.
    fn greeting(capabilities: u16) -> Vec<u8> {
        let mut message = b"\x0a11.8.9-MariaDB\0\x05\0\0\0ABCDEFGH\0".to_vec();
        message.extend(capabilities.to_le_bytes());
        message.extend(b"\x2d\x02\0\xff\xc1\x15\0\0\0\0\0\0\0\0\0\0ABCDEFGHIJKL\0mysql_native_password\0");
        message
    }

    #[rstest]
    #[case::with_tls(greeting(0xfffe), Some(Greeting::Tls))]
    #[case::without_tls(greeting(0xf7fe), Some(Greeting::Plain))]
    #[case::refused(
        b"\xff\x69\x04Host 'db' is blocked because of many connection errors".to_vec(),
        Some(Greeting::Refusal("1129 Host 'db' is blocked because of many connection errors".into()))
    )]
    #[case::something_else(b"SSH-2.0-OpenSSH_10.0\r\n".to_vec(), None)]
    #[case::cut_off(greeting(0xfffe)[..20].to_vec(), None)]
    #[case::empty(Vec::new(), None)]
    fn a_greeting_says_whether_there_is_tls(#[case] message: Vec<u8>, #[case] expected: Option<Greeting>) {
        assert_eq!(understand(&message), expected);
    }

    const TLS: &str = "StorageParameters=SSL_CA=/etc/slurm/database-ca.crt,SSL_CIPHER=HIGH\n";

    #[rstest]
    #[case::no_tls("StorageHost=db\n", &[])]
    #[case::tls_of_the_users_own("StorageHost=db\nStorageParameters=SSL_CA=/mine/ca.pem\n", &[])]
    #[case::tls(&format!("StorageHost=db\n{TLS}"), &[("db", 3306)])]
    #[case::with_a_backup(
        &format!("StorageHost=db\nStoragePort=3307\nstoragebackuphost=db2\n{TLS}"),
        &[("db", 3307), ("db2", 3307)]
    )]
    #[case::a_socket(&format!("StorageHost=unix:/run/db.sock\n{TLS}"), &[])]
    fn only_databases_that_must_have_tls_are_asked(#[case] conf: &str, #[case] expected: &[(&str, u16)]) {
        let expected: Vec<_> = expected
            .iter()
            .map(|(host, port)| ((*host).to_owned(), *port))
            .collect();
        assert_eq!(databases(&files(&[("slurmdbd.conf", conf)])), expected);
    }

    fn server(message: Vec<u8>) -> (String, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for connection in listener.incoming() {
                let length = u32::try_from(message.len()).unwrap().to_le_bytes();
                let mut connection = connection.unwrap();
                let _ = connection.write_all(&length[..3]);
                let _ = connection.write_all(&[0]);
                let _ = connection.write_all(&message);
            }
        });
        ("127.0.0.1".to_owned(), port)
    }

    #[test]
    fn slurmdbd_starts_when_a_database_offers_tls_and_none_lacks_it() {
        let (with, without) = (server(greeting(0xfffe)), server(greeting(0xf7fe)));
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let closed = ("127.0.0.1".to_owned(), closed.port());
        let told = |databases: &[&(String, u16)]| {
            let databases: Vec<_> = databases.iter().map(|one| (*one).clone()).collect();
            problem(&databases).unwrap_or_default()
        };
        assert_eq!(told(&[]), "");
        assert_eq!(told(&[&with]), "");
        assert_eq!(told(&[&closed, &with]), "");
        let text = told(&[&with, &without]);
        assert!(
            text.starts_with("init: error: the database 127.0.0.1:") && text.contains("offers no TLS"),
            "{text}"
        );
        let text = told(&[&closed]);
        assert!(text.contains("does not answer: Connection refused"), "{text}");
    }
}
