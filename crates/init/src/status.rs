//! The status report of slurmctld's configuration, served to the operator: `GET /v1/status` on port 6816.
//!
//! Everybody in the cluster's network can read it, jobs included. It holds hashes of files that users can read anyway, groups
//! that these files name, a name of the key of tokens that is keyed with slurm.key, and lines of slurmctld's log that tell
//! what is wrong with a configuration; there is nothing to write.
//!
//! Who connects and says nothing is cut off after [`PATIENCE`], and one address has only so many connections: a silent client
//! keeps nobody else from asking.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::groups;
use crate::transaction::Report;

/// Where the report is served.
const PORT: u16 = 6816;

/// How many connections are open at a time; further ones are closed at once.
const CONNECTIONS: usize = 64;

/// How many of them one address may have.
const PER_ADDRESS: usize = 4;

/// How long a connection may take to ask, and to read the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The largest request that is read.
const LARGEST: usize = 8192;

/// Stack of a thread that answers.
const STACK: usize = 128 << 10;

/// The report, and who serves it.
#[derive(Debug, Default)]
pub struct Status {
    body: Arc<Mutex<String>>,
    told: Option<Told>,
}

/// What is told.
#[derive(Debug, PartialEq, Eq)]
pub struct Told {
    pub main_pid: Option<i32>,
    /// The name of the key of tokens.
    pub jwt_key: String,
    pub groups: groups::Report,
    pub report: Report,
}

/// Who is connected, by address.
#[derive(Debug, Clone, Default)]
struct Guests(Arc<Mutex<BTreeMap<IpAddr, usize>>>);

/// One who is connected; gone when dropped.
#[derive(Debug)]
struct Guest {
    guests: Guests,
    address: IpAddr,
}

impl Guests {
    /// Lets one more in, unless there are too many.
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
    /// Serving is a courtesy: a taken port must not keep slurmctld from running.
    pub fn serve() -> Self {
        let status = Self::default();
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)));
        match listener {
            Ok(listener) => status.spawn(listener),
            Err(error) => eprintln!("init: no status on port {PORT}: {error}"),
        }
        status
    }

    fn spawn(&self, listener: TcpListener) {
        let (body, guests) = (Arc::clone(&self.body), Guests::default());
        thread::spawn(move || {
            loop {
                let Ok((connection, peer)) = listener.accept() else {
                    // Out of file descriptors, most likely.
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
                // Without a thread the connection is closed.
                drop(thread::Builder::new().stack_size(STACK).spawn(serve));
            }
        });
    }

    /// Sets what is told from now on.
    pub fn set(&mut self, told: Told) {
        if self.told.as_ref() == Some(&told) {
            return;
        }
        let text = render(&told, &timestamp());
        self.told = Some(told);
        if let Ok(mut body) = self.body.lock() {
            *body = text;
        }
    }
}

fn render(told: &Told, at: &str) -> String {
    let Told {
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
    } = told;
    serde_json::json!({
        "daemon": "slurmctld",
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

/// Reads to the end of the request: whoever hangs up on unread bytes takes the answer back.
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

    fn told(main_pid: Option<i32>) -> Told {
        let partitions = std::collections::BTreeSet::from(["p".to_owned()]);
        Told {
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
        let expected = r#"{"config":{"active":"a","at":"2026-11-15T12:00:00Z","candidate":"b","lastGood":"a","message":"fatal: \"x\"","verdict":"refused"},"daemon":"slurmctld","groups":{"named":2,"unknown":{"g":["p"]}},"jwtKeyMac":"k","mainPid":7}"#;
        assert_eq!(render(&told(Some(7)), "2026-11-15T12:00:00Z"), expected);
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
        // Far longer than an answer takes, and shorter than a queue of those who say nothing.
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
        status.set(told(Some(7)));
        assert!(ask(address, &[request]).contains("\"mainPid\":7"));
        assert!(
            ask(address, &["GET /v1/st", "atus HTTP/1.1\r\nHost: x\r\n", "\r\n"])
                .starts_with("HTTP/1.1 200 ")
        );
        assert!(ask(address, &["GET / HTTP/1.1\r\n\r\n"]).starts_with("HTTP/1.1 404 "));
        assert!(ask(address, &["POST /v1/status HTTP/1.1\r\n\r\n"]).starts_with("HTTP/1.1 404 "));
        status.set(told(Some(8)));
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
        status.set(told(None));
        // As many as the kernel keeps for us, and they never stop.
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
