//! The notify socket (`sd_notify`), on which a daemon reports its state to its service manager.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg, sockopt};

/// One notify message.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The sender's process, according to the kernel.
    pub sender: Option<i32>,
    /// The daemon has started, or has accepted a new configuration.
    pub ready: bool,
    /// The process that is the daemon from now on.
    pub main_pid: Option<i32>,
}

impl Message {
    /// Parses the `NAME=value` lines of a message and ignores unknown ones.
    fn parse(text: &str) -> Self {
        let mut message = Self::default();
        for line in text.lines() {
            match line.split_once('=') {
                Some(("READY", "1")) => message.ready = true,
                Some(("MAINPID", pid)) => message.main_pid = pid.parse().ok().filter(|&pid: &i32| pid > 1),
                _ => {}
            }
        }
        message
    }
}

/// The receiving socket.
#[derive(Debug)]
pub struct Socket {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Socket {
    /// Creates the socket in a directory that only its owner may enter.
    pub fn bind(directory: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(directory)?;
        std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o700))?;
        let path = directory.join("notify");
        let _ = std::fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path)?;
        sockopt::set_socket_passcred(&socket, true)?;
        Ok(Self { socket, path })
    }

    /// Returns the value of the daemon's `NOTIFY_SOCKET`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for the next message. An attached file descriptor is closed immediately, which tells a daemon that sent
    /// `BARRIER=1` that everything before it was received.
    pub fn receive(&self) -> io::Result<Message> {
        let mut buffer = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4), ScmCredentials(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            self.socket.as_fd(),
            &mut [IoSliceMut::new(&mut buffer)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        let text = buffer.get(..received.bytes).unwrap_or_default();
        let mut message = Message::parse(&String::from_utf8_lossy(text));
        for attached in ancillary.drain() {
            match attached {
                RecvAncillaryMessage::ScmRights(descriptors) => descriptors.for_each(drop::<OwnedFd>),
                RecvAncillaryMessage::ScmCredentials(sender) => {
                    message.sender = Some(sender.pid.as_raw_nonzero().get());
                }
                _ => {}
            }
        }
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("READY=1\nMAINPID=42", true, Some(42))]
    #[case("STATUS=fine\nREADY=1\n", true, None)]
    #[case("BARRIER=1", false, None)]
    #[case("READY=0\nMAINPID=x", false, None)]
    #[case::not_us("MAINPID=1", false, None)]
    #[case::nobody("MAINPID=-1", false, None)]
    fn reads_what_it_knows(#[case] text: &str, #[case] ready: bool, #[case] main_pid: Option<i32>) {
        let expected = Message {
            sender: None,
            ready,
            main_pid,
        };
        assert_eq!(Message::parse(text), expected);
    }

    #[test]
    fn receives_over_the_socket_and_knows_the_sender() {
        let directory = tempfile::tempdir().unwrap();
        let socket = Socket::bind(&directory.path().join("init")).unwrap();
        UnixDatagram::unbound()
            .unwrap()
            .send_to(b"READY=1", socket.path())
            .unwrap();
        let expected = Message {
            sender: i32::try_from(std::process::id()).ok(),
            ready: true,
            main_pid: None,
        };
        assert_eq!(socket.receive().unwrap(), expected);
    }
}
