//! Users and groups from mounted files, which the kubelet updates while the daemon runs.

use std::io;
use std::path::Path;

use crate::files::{Files, Mounted};

/// The files that slurmctld's lookups read. The users' SSH keys next to them are irrelevant to slurmctld.
const READ: [&str; 2] = ["passwd", "group"];

/// A directory with such files, which is polled for changes.
#[derive(Debug)]
pub struct Users {
    mounted: Mounted,
    seen: [Option<Vec<u8>>; 2],
    /// The last read error, to log it only once.
    unreadable: String,
}

impl Users {
    /// Creates it without reading the directory.
    pub fn new(directory: &Path) -> Self {
        Self {
            mounted: Mounted::new(directory),
            seen: [None, None],
            unreadable: String::new(),
        }
    }

    /// Reports whether users or groups have changed since the last call. Files that cannot be read do not count as a
    /// change, which would remove all users.
    pub fn changed(&mut self) -> bool {
        let mut files = match self.mounted.changed() {
            Ok(Some(files)) => files,
            Ok(None) => return false,
            Err(error) => {
                self.complain(&error);
                return false;
            }
        };
        let now = READ.map(|name| Files::take(&mut files, name));
        let changed = now != self.seen;
        self.seen = now;
        changed
    }

    fn complain(&mut self, error: &io::Error) {
        let text = error.to_string();
        // Without the directory the image has no such users.
        if error.kind() != io::ErrorKind::NotFound && self.unreadable != text {
            eprintln!("init: failed to read users: {text}");
            self.unreadable = text;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_what_lookups_read_is_a_change() {
        let directory = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
        let mut users = Users::new(directory.path());
        assert!(!users.changed());
        put("passwd", "ada:*:2001:2001::/home/ada:/bin/bash\n");
        assert!(users.changed());
        assert!(!users.changed());
        put("authorized_keys.ada", "ssh-ed25519 AAAA ada\n");
        assert!(!users.changed());
        put("group", "research:*:3000:ada\n");
        assert!(users.changed());
        fs::remove_file(directory.path().join("group")).unwrap();
        assert!(users.changed());
    }

    #[test]
    fn a_directory_that_is_not_there_has_no_users() {
        let mut users = Users::new(Path::new("/nowhere/extrausers"));
        assert!(!users.changed());
        assert_eq!(users.unreadable, "");
    }
}
