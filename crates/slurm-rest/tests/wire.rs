//! Tests responses that are cut, too long, invalid, late, or of another release. The server is scripted, because a real
//! one cannot be made to send these on demand.
#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "a test may fail")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;
use jiff::{SignedDuration, Timestamp};
use slurm_rest::node::NodeUpdate;
use slurm_rest::token::Signer;
use slurm_rest::{Client, Credentials, Deadlines, Error, Fetched, Hostlist, Options, Peer, Version};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

const NODES: &str = r#"{"nodes":[{"name":"n0","state":["IDLE"]}],"last_update":{"set":true,"number":9},
    "meta":{"slurm":{"release":"26.05.5"}},"errors":[],"warnings":[]}"#;

fn document(version: &str, release: &str) -> String {
    format!(
        r#"{{"info":{{"version":"Slurm-{release}"}},"paths":{{"/slurm/{version}/nodes/":{{"get":{{}},"post":{{}}}},
        "/slurm/{version}/node/{{node_name}}":{{"get":{{}},"post":{{}},"delete":{{}}}}}}}}"#
    )
}

/// The server's reaction to a request.
enum Act {
    /// Sends a response.
    Say(u16, String),
    /// Sends a redirect.
    Redirect(String),
    /// Sends a body that does not end.
    Endless,
    /// Announces more bytes than it sends, and closes the connection.
    Cut(String),
    /// Does nothing.
    Hang,
}

type Log = Arc<Mutex<Vec<String>>>;

/// Starts a server that calls `decide` for every request with its first line, its token, and the number of earlier
/// requests.
async fn serve(decide: impl Fn(&str, &str, usize) -> Act + Send + 'static) -> Result<(String, Log)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}", listener.local_addr()?);
    let log: Log = Arc::default();
    let seen = Arc::clone(&log);
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut bytes = Vec::new();
            let mut chunk = [0; 4096];
            while !complete(&bytes) {
                match socket.read(&mut chunk).await {
                    Ok(0) | Err(_) => break,
                    Ok(count) => bytes.extend_from_slice(&chunk[..count]),
                }
            }
            let request = String::from_utf8_lossy(&bytes).into_owned();
            let line = request.lines().next().unwrap_or_default().to_owned();
            let token = request
                .lines()
                .find_map(|l| l.strip_prefix("x-slurm-user-token: "))
                .unwrap_or_default();
            let before = {
                let mut seen = seen.lock().unwrap();
                seen.push(line.clone());
                seen.len() - 1
            };
            let (head, body) = match decide(&line, token, before) {
                Act::Say(status, body) => (
                    format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n", body.len()),
                    body,
                ),
                Act::Redirect(to) => (
                    format!("HTTP/1.1 307 X\r\nLocation: {to}\r\nContent-Length: 0\r\n"),
                    String::new(),
                ),
                Act::Endless => {
                    tokio::spawn(async move {
                        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{";
                        let _ = socket.write_all(head.as_bytes()).await;
                        while socket.write_all(&[b' '; 1 << 13]).await.is_ok() {}
                    });
                    continue;
                }
                Act::Cut(body) => (
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n", body.len() + 500),
                    body,
                ),
                Act::Hang => {
                    tokio::spawn(async move {
                        tokio::time::sleep(Duration::from_mins(5)).await;
                        drop(socket);
                    });
                    continue;
                }
            };
            let answer = format!("{head}Content-Type: application/json\r\nConnection: close\r\n\r\n{body}");
            let _ = socket.write_all(answer.as_bytes()).await;
        }
    });
    Ok((address, log))
}

fn complete(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head
        .lines()
        .find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    body.len() >= length.unwrap_or(0)
}

fn signer(key: &str) -> Arc<Signer> {
    let clock = Arc::new(|| Timestamp::from_second(1_794_765_000).unwrap());
    Arc::new(Signer::new(
        "slurm",
        key.as_bytes().to_vec().into(),
        SignedDuration::from_mins(10),
        clock,
    ))
}

fn options(address: &str, signer: &Arc<Signer>) -> Result<Options> {
    let limit = Duration::from_secs(5);
    let deadlines = Deadlines {
        read: limit,
        list: limit,
        write: limit,
        key_grace: Duration::from_millis(300),
    };
    Ok(Options {
        deadlines,
        ..Options::new(address.parse()?, Credentials::Signer(Arc::clone(signer)))
    })
}

fn client(address: &str) -> Result<Client> {
    Ok(Client::new(options(address, &signer("key"))?)?)
}

fn is_document(line: &str) -> bool {
    line.contains("/openapi/v3")
}

fn describe() -> Act {
    Act::Say(200, document("v0.0.45", "26.05.5"))
}

#[tokio::test]
async fn a_list_that_is_cut_is_read_again() -> Result<()> {
    let (address, log) = serve(|line, _, before| match before {
        _ if is_document(line) => describe(),
        1 => Act::Cut(NODES[..20].into()),
        _ => Act::Say(200, NODES.into()),
    })
    .await?;
    let Fetched::Changed(list) = client(&address)?.nodes(None).await? else {
        panic!("nothing listed")
    };
    assert_eq!(&*list.items[0].name, "n0");
    assert_eq!(log.lock().unwrap().len(), 3);
    Ok(())
}

#[tokio::test]
async fn a_write_whose_answer_is_cut_is_not_repeated() -> Result<()> {
    let (address, log) = serve(|line, _, _| {
        if is_document(line) {
            describe()
        } else {
            Act::Cut("{".into())
        }
    })
    .await?;
    let result = client(&address)?.update_node("n0", &NodeUpdate::drain("x")).await;
    assert!(
        matches!(
            result,
            Err(Error::Unreachable {
                daemon: Peer::Slurmrestd,
                ..
            })
        ),
        "{result:?}"
    );
    assert_eq!(log.lock().unwrap().len(), 2);
    Ok(())
}

#[tokio::test]
async fn senseless_answers_are_named_and_not_asked_for_again() -> Result<()> {
    let (address, log) = serve(|line, _, before| match before {
        _ if is_document(line) => describe(),
        1 => Act::Say(200, r#"{"nodes":[{"name":"n0"},5]}"#.into()),
        2 => Act::Say(200, "<html>".into()),
        3 => Act::Say(
            200,
            r#"{"last_update":{"set":true,"number":9},"errors":[]}"#.into(),
        ),
        4 => Act::Say(304, String::new()),
        _ => Act::Say(418, "{}".into()),
    })
    .await?;
    let client = client(&address)?;
    for expected in [
        "at nodes[1]",
        "status 200 OK: not JSON",
        "the nodes field is missing",
        "status 304",
        "418",
    ] {
        let error = client
            .nodes(None)
            .await
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        assert!(
            error.starts_with("invalid response") && error.contains(expected),
            "{error}"
        );
    }
    assert_eq!(log.lock().unwrap().len(), 6);
    Ok(())
}

#[tokio::test]
async fn an_answer_without_its_object_does_not_mean_that_the_object_is_gone() -> Result<()> {
    let (address, _) = serve(|line, _, _| {
        if is_document(line) {
            describe()
        } else {
            Act::Say(200, r#"{"errors":[]}"#.into())
        }
    })
    .await?;
    let error = client(&address)?.node("n0").await;
    assert!(matches!(error, Err(Error::Protocol { .. })), "{error:?}");
    Ok(())
}

#[tokio::test]
async fn an_answer_that_is_too_long_is_refused() -> Result<()> {
    let (address, _) = serve(|line, _, _| {
        if is_document(line) {
            describe()
        } else {
            Act::Say(200, "x".repeat(5_000))
        }
    })
    .await?;
    let options = Options {
        max_answer: 4_000,
        ..options(&address, &signer("key"))?
    };
    let error = Client::new(options)?.nodes(None).await;
    assert!(matches!(error, Err(Error::Protocol { .. })), "{error:?}");
    Ok(())
}

#[tokio::test]
async fn a_server_that_never_answers_ends_in_time() -> Result<()> {
    let (address, log) = serve(|line, _, _| if is_document(line) { describe() } else { Act::Hang }).await?;
    let limit = Duration::from_millis(300);
    let mut options = options(&address, &signer("key"))?;
    options.deadlines = Deadlines {
        read: limit,
        list: limit,
        write: limit,
        ..options.deadlines
    };
    assert_eq!(
        Client::new(options)?.nodes(None).await.err(),
        Some(Error::Timeout { after: limit })
    );
    assert_eq!(log.lock().unwrap().len(), 2);
    Ok(())
}

#[tokio::test]
async fn an_upgrade_is_noticed_by_a_path_that_is_gone_and_nothing_is_lost() -> Result<()> {
    let (address, log) = serve(
        |line, _, before| match (is_document(line), line.contains("v0.0.44")) {
            (true, _) if before == 0 => Act::Say(200, document("v0.0.44", "25.11.2")),
            (true, _) => describe(),
            (false, true) => Act::Say(404, "Unable to find requested URL".into()),
            (false, false) => Act::Say(200, NODES.into()),
        },
    )
    .await?;
    let client = client(&address)?;
    assert_eq!(client.served().await?.version, Version::V44);
    client
        .update_nodes(&"n0".parse()?, &NodeUpdate::drain("x"))
        .await?;
    assert_eq!(client.served().await?.version, Version::V45);
    let lines = log.lock().unwrap().clone();
    assert!(
        lines
            .last()
            .is_some_and(|line| line.starts_with("POST /slurm/v0.0.45/nodes/")),
        "{lines:?}"
    );
    Ok(())
}

#[tokio::test]
async fn an_upgrade_that_still_serves_the_old_version_is_noticed_by_its_release() -> Result<()> {
    let (address, _) = serve(|line, _, before| match (is_document(line), before) {
        (true, 0) => Act::Say(200, document("v0.0.44", "25.11.2")),
        (true, _) => describe(),
        (false, _) => Act::Say(200, NODES.into()),
    })
    .await?;
    let client = client(&address)?;
    client.nodes(None).await?;
    assert_eq!(client.served().await?.version, Version::V45);
    Ok(())
}

#[tokio::test]
async fn a_refused_token_is_made_again_with_the_other_key() -> Result<()> {
    let good = Arc::new(Mutex::new(String::new()));
    let accepted = Arc::clone(&good);
    let (address, log) = serve(move |line, token, _| match () {
        () if token != accepted.lock().unwrap().as_str() => Act::Say(401, "Authentication failure".into()),
        () if is_document(line) => describe(),
        () => Act::Say(200, NODES.into()),
    })
    .await?;
    let signer = signer("old");
    *good.lock().unwrap() = secrecy::ExposeSecret::expose_secret(&signer.token()?).to_owned();
    signer.rotate(b"new".to_vec().into());
    let client = Client::new(options(&address, &signer)?)?;
    client.nodes(None).await?;
    // The first call learns which key is accepted; later calls use it.
    let before = log.lock().unwrap().len();
    client.nodes(None).await?;
    assert_eq!((before, log.lock().unwrap().len()), (3, 4));
    Ok(())
}

#[tokio::test]
async fn a_key_that_slurm_changes_between_two_tries_is_found() -> Result<()> {
    let signer = signer("old");
    signer.rotate(b"new".to_vec().into());
    let new = secrecy::ExposeSecret::expose_secret(&signer.token()?).to_owned();
    // The server rejects the new key, then the old one, and then accepts only the new one.
    let (address, log) = serve(move |line, token, before| match before {
        0 | 1 => Act::Say(401, "Authentication failure".into()),
        _ if token != new => Act::Say(401, "Authentication failure".into()),
        _ if is_document(line) => describe(),
        _ => Act::Say(200, NODES.into()),
    })
    .await?;
    let client = Client::new(options(&address, &signer)?)?;
    client.nodes(None).await?;
    assert_eq!(log.lock().unwrap().len(), 4);
    Ok(())
}

#[tokio::test]
async fn without_a_good_key_the_error_says_so_and_shows_no_secret() -> Result<()> {
    let (address, _) = serve(|_, _, _| Act::Say(401, "Authentication failure".into())).await?;
    let signer = signer("hunter2");
    let client = Client::new(options(&address, &signer)?)?;
    let error = client.nodes(None).await.expect_err("accepted");
    let token = signer.token()?;
    let shown = format!("{error} {error:?} {client:?} {:?}", options(&address, &signer)?);
    assert!(matches!(error, Error::Unauthorised { .. }), "{error}");
    assert!(
        !shown.contains("hunter2") && !shown.contains(secrecy::ExposeSecret::expose_secret(&token)),
        "{shown}"
    );
    Ok(())
}

/// Everything that is logged, including by the HTTP library.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn no_log_line_shows_a_secret() -> Result<()> {
    let written = Written::default();
    let writer = written.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let guard = tracing::subscriber::set_default(subscriber);
    // A rejected token, a cut response, and a good one.
    let (address, _) = serve(|line, _, before| match before {
        0 => Act::Say(401, "Authentication failure".into()),
        _ if is_document(line) => describe(),
        2 => Act::Cut(NODES[..20].into()),
        _ => Act::Say(200, NODES.into()),
    })
    .await?;
    let signer = signer("hunter2");
    let before = signer.token()?;
    signer.rotate(b"hunter3".to_vec().into());
    let client = Client::new(options(&address, &signer)?)?;
    client.nodes(None).await?;
    drop(guard);
    let shown = String::from_utf8_lossy(&written.0.lock().unwrap()).into_owned();
    assert!(shown.contains("retrying after a delay"), "{shown}");
    for secret in [before, signer.token()?] {
        let token = secrecy::ExposeSecret::expose_secret(&secret);
        // The signature must not appear by itself either.
        let signature = token.rsplit('.').next().unwrap_or(token);
        assert!(!shown.contains(signature), "{shown}");
    }
    assert!(!shown.contains("hunter"), "{shown}");
    Ok(())
}

#[tokio::test]
async fn names_are_encoded_and_an_empty_one_is_never_sent() -> Result<()> {
    let (address, log) = serve(|line, _, _| {
        if is_document(line) {
            describe()
        } else {
            Act::Say(200, "{}".into())
        }
    })
    .await?;
    let client = client(&address)?;
    client.delete_nodes(&"w-[0-3],x".parse()?).await?;
    for name in ["", ".", ".."] {
        assert!(
            matches!(client.node(name).await, Err(Error::Request { .. })),
            "{name:?} was sent"
        );
    }
    client.delete_nodes(&Hostlist::default()).await?;
    let _ = client.node("a/../b?c#d").await;
    let lines = log.lock().unwrap().clone();
    assert_eq!(lines[1], "DELETE /slurm/v0.0.45/node/w-%5B0-3%5D%2Cx HTTP/1.1");
    assert_eq!(lines[2], "GET /slurm/v0.0.45/node/a%2F..%2Fb%3Fc%23d HTTP/1.1");
    assert_eq!(lines.len(), 3);
    Ok(())
}

#[tokio::test]
async fn a_job_is_not_ended_by_a_signal_that_is_empty() -> Result<()> {
    let (address, log) = serve(|line, _, _| if is_document(line) { describe() } else { Act::Hang }).await?;
    let client = client(&address)?;
    for signal in ["", " "] {
        let sent = client.signal_job("7", signal).await;
        assert!(matches!(sent, Err(Error::Request { .. })), "{sent:?}");
    }
    assert_eq!(log.lock().unwrap().len(), 0);
    Ok(())
}

#[tokio::test]
async fn a_call_that_the_version_lacks_is_told_without_asking() -> Result<()> {
    let (address, log) = serve(|line, _, _| if is_document(line) { describe() } else { Act::Hang }).await?;
    let client = client(&address)?;
    let error = client.jobs(None).await.err().map(|error| error.to_string());
    assert_eq!(
        error.as_deref(),
        Some("the server does not support /slurm/{version}/jobs/ in v0.0.45")
    );
    assert_eq!(log.lock().unwrap().len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_redirect_is_not_followed() -> Result<()> {
    let (elsewhere, log) = serve(|_, _, _| Act::Say(200, NODES.into())).await?;
    for first in [true, false] {
        let to = elsewhere.clone();
        let (address, _) = serve(move |line, _, _| {
            if is_document(line) && !first {
                describe()
            } else {
                Act::Redirect(format!("{to}/"))
            }
        })
        .await?;
        let error = client(&address)?.nodes(None).await.unwrap_err().to_string();
        assert!(error.contains("redirects are not followed"), "{error}");
        let error = client(&address)?
            .update_nodes(&Hostlist::from_names(["n0"])?, &NodeUpdate::undrain())
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains("redirects are not followed"), "{error}");
    }
    assert_eq!(
        *log.lock().unwrap(),
        Vec::<String>::new(),
        "nobody else is asked, and gets the token"
    );
    Ok(())
}

#[tokio::test]
async fn an_answer_without_an_end_is_not_kept() -> Result<()> {
    let (address, _) = serve(|line, _, _| match () {
        () if is_document(line) => describe(),
        () => Act::Endless,
    })
    .await?;
    let limited = Options {
        max_answer: 1 << 20,
        ..options(&address, &signer("key"))?
    };
    let error = Client::new(limited)?.nodes(None).await.unwrap_err().to_string();
    assert!(error.ends_with("longer than 1048576 bytes"), "{error}");
    // The limit of a list does not apply to one object or to the API document.
    let error = client(&address)?.node("n0").await.unwrap_err().to_string();
    assert!(error.ends_with("longer than 16777216 bytes"), "{error}");
    let (address, _) = serve(|_, _, _| Act::Endless).await?;
    let error = client(&address)?.nodes(None).await.unwrap_err().to_string();
    assert!(error.ends_with("longer than 16777216 bytes"), "{error}");
    Ok(())
}

#[tokio::test]
async fn the_words_of_somebody_else_are_not_quoted() -> Result<()> {
    let secret = "hunter2";
    let said = [
        (200, format!("password: {secret}")),
        (500, format!("password: {secret}")),
        (302, format!("password: {secret}")),
        (200, format!(r#"{{"nodes":"{secret}"}}"#)),
        (200, format!(r#"{{"nodes":[{{"name":{{"{secret}":1}}}}]}}"#)),
        (
            500,
            format!(r#"{{"errors":[{{"description":"{secret}","error":"{secret}"}}]}}"#),
        ),
        (200, format!(r#"{{"errors":"{secret}"}}"#)),
        (200, format!(r#"{{"paths":{{"/slurm/{secret}/nodes/":{{}}}}}}"#)),
        (
            200,
            format!(r#"{{"paths":{{"/slurm/v0.0.40/nodes/":"{secret}"}}}}"#),
        ),
    ];
    for (status, body) in said {
        for first in [true, false] {
            let answer = body.clone();
            let (address, _) = serve(move |line, _, _| {
                if is_document(line) && !first {
                    describe()
                } else {
                    Act::Say(status, answer.clone())
                }
            })
            .await?;
            // A response that can be decoded as a list is not an error.
            let Err(error) = client(&address)?.nodes(None).await else {
                continue;
            };
            assert!(
                !format!("{error} {error:?}").contains(secret),
                "{status} {body}: {error:?}"
            );
        }
    }
    Ok(())
}
