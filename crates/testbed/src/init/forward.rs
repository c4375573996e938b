//! Forwards connections from the loopback interface of this machine to the API server in the cluster network.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;

use anyhow::{Context, Result};

/// Serves the listener that was passed as standard input.
pub fn serve_stdin(target: SocketAddr) -> Result<()> {
    let listener = TcpListener::from(
        io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .context("no listener was passed as standard input")?,
    );
    thread::Builder::new().name("forward".into()).spawn(move || {
        for client in listener.incoming().flatten() {
            thread::spawn(move || {
                if let Ok(server) = TcpStream::connect(target) {
                    let _ = join(&client, &server);
                }
            });
        }
    })?;
    Ok(())
}

fn join(client: &TcpStream, server: &TcpStream) -> io::Result<()> {
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        let _ = io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Write);
    });
    let _ = io::copy(&mut &*server, &mut &*client);
    client.shutdown(Shutdown::Write)
}
