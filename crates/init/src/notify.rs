//! The socket on which a daemon tells its service manager how it is doing (`sd_notify`).

use std::io::IoSliceMut;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use rustix::net::{RecvAncillaryBuffer, RecvFlags, recvmsg};

/// What a daemon said in one message.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// It is up, or it has taken a new configuration.
    pub ready: bool,
    /// The process that is the daemon from now on.
    pub main_pid: Option<i32>,
    /// It is going down on purpose.
    pub stopping: bool,
}

impl Message {
    /// Reads the `NAME=value` lines of a message; what is not known is passed over.
    pub fn parse(text: &str) -> Self {
        let mut message = Self::default();
        for line in text.lines() {
            match line.split_once('=') {
                Some(("READY", "1")) => message.ready = true,
                Some(("STOPPING", "1")) => message.stopping = true,
                Some(("MAINPID", pid)) => message.main_pid = pid.parse().ok(),
                _ => {}
            }
        }
        message
    }
}

/// The receiving end.
#[derive(Debug)]
pub struct Socket {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Socket {
    /// Makes the socket; `path` goes into the daemon's `NOTIFY_SOCKET`.
    pub fn bind(path: &Path) -> std::io::Result<Self> {
        let _ = std::fs::remove_file(path);
        Ok(Self {
            socket: UnixDatagram::bind(path)?,
            path: path.to_owned(),
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for the next message. A file descriptor that comes along is closed at once: that is how a daemon that
    /// sent `BARRIER=1` learns that everything before it was received.
    pub fn receive(&self) -> std::io::Result<Message> {
        let mut buffer = [0; 4096];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            self.socket.as_fd(),
            &mut [IoSliceMut::new(&mut buffer)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        for message in ancillary.drain() {
            if let rustix::net::RecvAncillaryMessage::ScmRights(descriptors) = message {
                descriptors.for_each(drop::<OwnedFd>);
            }
        }
        let text = buffer.get(..received.bytes).unwrap_or_default();
        Ok(Message::parse(&String::from_utf8_lossy(text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("READY=1\nMAINPID=42", Message { ready: true, main_pid: Some(42), stopping: false })]
    #[case("STATUS=fine\nREADY=1\n", Message { ready: true, ..Message::default() })]
    #[case("BARRIER=1", Message::default())]
    #[case("READY=0\nMAINPID=x", Message::default())]
    #[case("STOPPING=1", Message { stopping: true, ..Message::default() })]
    fn reads_what_it_knows(#[case] text: &str, #[case] expected: Message) {
        assert_eq!(Message::parse(text), expected);
    }

    #[test]
    fn receives_over_the_socket() {
        let directory = tempfile::tempdir().unwrap();
        let socket = Socket::bind(&directory.path().join("notify")).unwrap();
        UnixDatagram::unbound()
            .unwrap()
            .send_to(b"READY=1", socket.path())
            .unwrap();
        assert!(socket.receive().unwrap().ready);
    }
}
