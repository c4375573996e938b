//! The status report of slurmctld's configuration, served to the operator: `GET /v1/status` on port 6816.
//!
//! Any client on the cluster network can read it, including jobs. It contains hashes of files that users can read anyway,
//! the groups that these files name, a MAC of jwt.key keyed with slurm.key, and slurmctld's log lines about configuration
//! errors. The endpoint is read-only.
//!
//! Idle connections are closed after [`PATIENCE`], and connections per address are limited, so that one client cannot block
//! the others.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use slurm_conf::container::port::INIT as PORT;

use crate::groups;
use crate::transaction::Report;

/// The limit of open connections; further ones are closed immediately.
const CONNECTIONS: usize = 64;

/// The limit of open connections per address.
const PER_ADDRESS: usize = 4;

/// Timeout for reading a request, and for writing the response.
const PATIENCE: Duration = Duration::from_secs(2);

/// The size limit of a request.
const LARGEST: usize = 8192;

/// Stack size of a connection's thread.
const STACK: usize = 128 << 10;

/// The served report.
#[derive(Debug, Default)]
pub struct Status {
    body: Arc<Mutex<String>>,
    report: Option<StatusReport>,
}

/// The content of the report.
#[derive(Debug, PartialEq, Eq)]
pub struct StatusReport {
    /// Slurm release of slurmctld.
    pub version: String,
    pub main_pid: Option<i32>,
    /// A MAC of jwt.key, keyed with slurm.key.
    pub jwt_key: String,
    pub groups: groups::Report,
    pub report: Report,
}

/// The number of open connections by address.
#[derive(Debug, Clone, Default)]
struct Guests(Arc<Mutex<BTreeMap<IpAddr, usize>>>);

/// An open connection; dropping it decreases the count.
#[derive(Debug)]
struct Guest {
    guests: Guests,
    address: IpAddr,
}

impl Guests {
    /// Counts a new connection, unless there are too many.
    fn admit(&self, address: IpAddr) -> Option<Guest> {
        let mut counts = self.0.lock().ok()?;
        let own = counts.get(&address).copied().unwrap_or(0);
        if own >= PER_ADDRESS || counts.values().sum::<usize>() >= CONNECTIONS {
            return None;
        }
        counts.insert(address, own + 1);
        Some(Guest {
            guests: self.clone(),
            address,
        })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if let Ok(mut counts) = self.guests.0.lock()
            && let Some(own) = counts.get_mut(&self.address)
        {
            *own = own.saturating_sub(1);
            if *own == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

impl Status {
    /// Starts serving. A port that is in use must not keep slurmctld from running, so the error is only logged.
    pub fn serve() -> Self {
        let status = Self::default();
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)));
        match listener {
            Ok(listener) => status.spawn(listener),
            Err(error) => eprintln!("init: failed to serve the status on port {PORT}: {error}"),
        }
        status
    }

    fn spawn(&self, listener: TcpListener) {
        let (body, guests) = (Arc::clone(&self.body), Guests::default());
        thread::spawn(move || {
            loop {
                let Ok((connection, peer)) = listener.accept() else {
                    // Most likely there are no free file descriptors.
                    thread::sleep(PATIENCE);
                    continue;
                };
                let Some(guest) = guests.admit(peer.ip()) else {
                    continue;
                };
                let body = Arc::clone(&body);
                let serve = move || {
                    drop(answer(connection, &body));
                    drop(guest);
                };
                // If no thread can be started, the connection is closed.
                drop(thread::Builder::new().stack_size(STACK).spawn(serve));
            }
        });
    }

    /// Sets the content of the report.
    pub fn set(&mut self, report: StatusReport) {
        if self.report.as_ref() == Some(&report) {
            return;
        }
        let text = render(&report, &timestamp());
        self.report = Some(report);
        if let Ok(mut body) = self.body.lock() {
            *body = text;
        }
    }
}

fn render(status: &StatusReport, at: &str) -> String {
    let StatusReport {
        version,
        main_pid,
        jwt_key,
        groups: groups::Report { named, unknown },
        report:
            Report {
                candidate,
                active,
                last_good,
                verdict,
                message,
            },
    } = status;
    serde_json::json!({
        "daemon": "slurmctld",
        "version": version,
        "mainPid": main_pid,
        "jwtKeyMac": jwt_key,
        "groups": { "named": named, "unknown": unknown },
        "config": {
            "candidate": candidate,
            "active": active,
            "lastGood": last_good,
            "verdict": verdict.word(),
            "message": message,
            "at": at,
        },
    })
    .to_string()
}

#[expect(clippy::disallowed_methods, reason = "the report carries when it was made")]
fn timestamp() -> String {
    format!("{:.0}", jiff::Timestamp::now())
}

fn answer(mut connection: TcpStream, body: &Mutex<String>) -> std::io::Result<()> {
    let request = read_request(&mut connection)?;
    let body = body.lock().map(|body| body.clone()).unwrap_or_default();
    let (code, body) = match request.as_slice() {
        request if !request.starts_with(b"GET /v1/status ") => ("404 Not Found", ""),
        _ if body.is_empty() => ("503 Service Unavailable", ""),
        _ => ("200 OK", body.as_str()),
    };
    connection.set_write_timeout(Some(PATIENCE))?;
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {code}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    connection.write_all((head + body).as_bytes())
}

/// Reads to the end of the request: closing a socket with unread bytes would reset it and lose the response.
fn read_request(connection: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let begun = Instant::now();
    let mut request = Vec::new();
    let mut piece = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < LARGEST {
        let left = PATIENCE
            .checked_sub(begun.elapsed())
            .filter(|left| !left.is_zero());
        connection.set_read_timeout(Some(left.ok_or(std::io::ErrorKind::TimedOut)?))?;
        let read = connection.read(&mut piece)?;
        if read == 0 {
            break;
        }
        request.extend_from_slice(piece.get(..read).unwrap_or_default());
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transaction::Verdict;
    use std::net::SocketAddr;

    fn report(main_pid: Option<i32>) -> StatusReport {
        let partitions = std::collections::BTreeSet::from(["p".to_owned()]);
        StatusReport {
            version: "26.05.1".to_owned(),
            main_pid,
            jwt_key: "k".to_owned(),
            groups: groups::Report {
                named: 2,
                unknown: BTreeMap::from([("g".to_owned(), partitions)]),
            },
            report: Report {
                candidate: "b".to_owned(),
                active: "a".to_owned(),
                last_good: "a".to_owned(),
                verdict: Verdict::Refused,
                message: "fatal: \"x\"".to_owned(),
            },
        }
    }

    #[test]
    fn the_report_reads_like_this() {
        let expected = r#"{"config":{"active":"a","at":"2026-11-15T12:00:00Z","candidate":"b","lastGood":"a","message":"fatal: \"x\"","verdict":"refused"},"daemon":"slurmctld","groups":{"named":2,"unknown":{"g":["p"]}},"jwtKeyMac":"k","mainPid":7,"version":"26.05.1"}"#;
        assert_eq!(render(&report(Some(7)), "2026-11-15T12:00:00Z"), expected);
    }

    fn serve() -> (Status, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let status = Status::default();
        status.spawn(listener);
        (status, address)
    }

    fn ask(address: SocketAddr, pieces: &[&str]) -> String {
        let mut connection = TcpStream::connect(address).unwrap();
        connection.set_nodelay(true).unwrap();
        // Far longer than a response takes, and shorter than a queue of silent clients.
        connection.set_read_timeout(Some(PATIENCE * 5)).unwrap();
        for piece in pieces {
            connection.write_all(piece.as_bytes()).unwrap();
            thread::sleep(Duration::from_millis(20));
        }
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn answers_what_it_knows() {
        let (mut status, address) = serve();
        let request = "GET /v1/status HTTP/1.1\r\n\r\n";
        assert!(ask(address, &[request]).starts_with("HTTP/1.1 503 "));
        status.set(report(Some(7)));
        assert!(ask(address, &[request]).contains("\"mainPid\":7"));
        assert!(
            ask(address, &["GET /v1/st", "atus HTTP/1.1\r\nHost: x\r\n", "\r\n"])
                .starts_with("HTTP/1.1 200 ")
        );
        assert!(ask(address, &["GET / HTTP/1.1\r\n\r\n"]).starts_with("HTTP/1.1 404 "));
        assert!(ask(address, &["POST /v1/status HTTP/1.1\r\n\r\n"]).starts_with("HTTP/1.1 404 "));
        status.set(report(Some(8)));
        assert!(ask(address, &[request]).contains("\"mainPid\":8"));
    }

    /// Connects from another address of the loopback, as another pod would.
    fn connect_from(source: Ipv4Addr, to: SocketAddr) -> TcpStream {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &SocketAddr::from((source, 0))).unwrap();
        connect(&socket, &to).unwrap();
        TcpStream::from(socket)
    }

    #[test]
    fn clients_that_say_nothing_hold_up_nobody() {
        let (mut status, address) = serve();
        status.set(report(None));
        // A steady stream of connections, more than are accepted at a time.
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let silent = {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                let mut held = std::collections::VecDeque::new();
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    held.push_back(connect_from(Ipv4Addr::new(127, 0, 0, 66), address));
                    if held.len() > 2 * CONNECTIONS {
                        held.pop_front();
                    }
                    thread::sleep(Duration::from_millis(1));
                }
            })
        };
        thread::sleep(Duration::from_millis(200));
        for _ in 0..20 {
            assert!(ask(address, &["GET /v1/status HTTP/1.1\r\n\r\n"]).contains("\"mainPid\":null"));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        silent.join().unwrap();
    }

    #[test]
    fn one_address_has_its_share_and_gives_it_back() {
        let guests = Guests::default();
        let address = |last: u8| IpAddr::from([10, 0, 0, last]);
        let mut held: Vec<Guest> = (0..PER_ADDRESS)
            .filter_map(|_| guests.admit(address(1)))
            .collect();
        assert_eq!(held.len(), PER_ADDRESS);
        assert!(guests.admit(address(1)).is_none());
        held.extend(guests.admit(address(2)));
        assert_eq!(held.len(), PER_ADDRESS + 1, "another one comes in");
        held.remove(0);
        assert!(guests.admit(address(1)).is_some());
        held.clear();
        assert!(guests.0.lock().unwrap().is_empty());
        let all: Vec<Guest> = (0..=255).filter_map(|last| guests.admit(address(last))).collect();
        assert_eq!(all.len(), CONNECTIONS);
    }
}
