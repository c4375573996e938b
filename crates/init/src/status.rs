//! The status report of slurmctld's configuration, served to the operator: `GET /v1/status` on port 6816.
//!
//! Everybody in the cluster's network can read it, jobs included. It holds hashes (that of the key of tokens tells no
//! more than a token does, and everybody has one), and lines of slurmctld's log that tell
//! what is wrong with a configuration which users can read anyway; there is nothing to write.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::transaction::Report;

/// Where the report is served.
const PORT: u16 = 6816;

/// How many connections are served at a time, so that one that hangs holds up nobody.
const SERVERS: usize = 8;

/// How long a connection may take to ask, and to read the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The largest request that is read.
const LARGEST: usize = 8192;

/// The report, and who serves it.
#[derive(Debug, Default)]
pub struct Status {
    body: Arc<Mutex<String>>,
    told: Option<(Option<i32>, String, Report)>,
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
        let listener = Arc::new(listener);
        for _ in 0..SERVERS {
            let (listener, body) = (Arc::clone(&listener), Arc::clone(&self.body));
            thread::spawn(move || {
                loop {
                    match listener.accept() {
                        Ok((connection, _)) => drop(answer(connection, &body)),
                        // Out of file descriptors, most likely.
                        Err(_) => thread::sleep(PATIENCE),
                    }
                }
            });
        }
    }

    /// Sets what is told from now on.
    pub fn set(&mut self, main_pid: Option<i32>, jwt_key: &str, report: Report) {
        let now = Some((main_pid, jwt_key.to_owned(), report));
        if self.told == now {
            return;
        }
        self.told = now;
        let Some((main_pid, jwt_key, report)) = &self.told else {
            return;
        };
        let text = render(*main_pid, jwt_key, report, &timestamp());
        if let Ok(mut body) = self.body.lock() {
            *body = text;
        }
    }
}

fn render(main_pid: Option<i32>, jwt_key: &str, report: &Report, at: &str) -> String {
    let Report {
        candidate,
        active,
        last_good,
        verdict,
        message,
    } = report;
    serde_json::json!({
        "daemon": "slurmctld",
        "mainPid": main_pid,
        "jwtKey": jwt_key,
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

    fn report() -> Report {
        Report {
            candidate: "b".to_owned(),
            active: "a".to_owned(),
            last_good: "a".to_owned(),
            verdict: Verdict::Refused,
            message: "fatal: \"x\"".to_owned(),
        }
    }

    #[test]
    fn the_report_reads_like_this() {
        let expected = r#"{"config":{"active":"a","at":"2026-11-15T12:00:00Z","candidate":"b","lastGood":"a","message":"fatal: \"x\"","verdict":"refused"},"daemon":"slurmctld","jwtKey":"k","mainPid":7}"#;
        assert_eq!(render(Some(7), "k", &report(), "2026-11-15T12:00:00Z"), expected);
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
        status.set(Some(7), "", report());
        assert!(ask(address, &[request]).contains("\"mainPid\":7"));
        assert!(
            ask(address, &["GET /v1/st", "atus HTTP/1.1\r\nHost: x\r\n", "\r\n"])
                .starts_with("HTTP/1.1 200 ")
        );
        assert!(ask(address, &["GET / HTTP/1.1\r\n\r\n"]).starts_with("HTTP/1.1 404 "));
        assert!(ask(address, &["POST /v1/status HTTP/1.1\r\n\r\n"]).starts_with("HTTP/1.1 404 "));
        status.set(Some(8), "", report());
        assert!(ask(address, &[request]).contains("\"mainPid\":8"));
    }

    #[test]
    fn clients_that_say_nothing_hold_up_nobody() {
        let (mut status, address) = serve();
        status.set(None, "", report());
        let silent: Vec<TcpStream> = (1..SERVERS)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        let begun = Instant::now();
        assert!(ask(address, &["GET /v1/status HTTP/1.1\r\n\r\n"]).contains("\"mainPid\":null"));
        assert!(
            begun.elapsed() < PATIENCE * 4,
            "one after the other takes {SERVERS} times as long"
        );
        drop(silent);
    }
}
