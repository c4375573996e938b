//! The scripts of the image `mariadb`, run in its root file system as pods run them: read-only, without privileges, each
//! container with its own processes. Root and the mirror are needed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rstest::rstest;
use testbed::cache::Cache;
use testbed::image;
use testbed::progress::Progress;

/// The user of the image.
const UID: u32 = 999;
const PATIENCE: Duration = Duration::from_mins(1);
const RESTORE: (&str, &str) = ("MARIADB_RESTORE_DIR", "/restore");

/// Mounts the root file system with the volumes, then waits until its input is closed.
/// $1: the root file system, $2: an empty directory.
const HOLDER: &str = r#"
set -e
root=$1; work=$2
read -r pid _ < /proc/self/stat
ip link set lo up
mount -t tmpfs -o mode=755 tmpfs "$work"
mkdir "$work/upper" "$work/scratch" "$work/root"
mount -t overlay overlay -o "lowerdir=$root,upperdir=$work/upper,workdir=$work/scratch" "$work/root"
cd "$work/root"
mkdir -p dumps restore sys/fs/cgroup
echo '127.0.0.1 localhost slurm-mariadb' > etc/hosts
mount -o remount,ro "$work/root"
mount -t proc proc proc
mount --rbind /dev dev
for volume in run/mysqld tmp var/lib/mysql; do
    mount -t tmpfs -o mode=770,uid=999,gid=999 tmpfs "$volume"
done
mount -t tmpfs -o mode=770,uid=999,gid=999,size=64m tmpfs dumps
mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
mount --bind dumps restore
mount -o remount,bind,ro restore
exec chroot . /bin/sh -c 'echo "$1"; while read -r _; do :; done' sh "$pid"
"#;

/// The volumes, and the network between the containers.
struct Pods {
    holder: Child,
    inside: u32,
    logs: tempfile::TempDir,
}

impl Pods {
    fn new() -> Self {
        let recipes = fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../images")).unwrap();
        let root = image::root(&Cache::open().unwrap(), &Progress::new(true), &recipes, "mariadb").unwrap();
        let work = std::env::temp_dir().join("keelson-mariadb");
        fs::create_dir_all(&work).unwrap();
        let mut holder = Command::new("unshare")
            .args(["--net", "--mount", "--ipc", "--pid", "--fork", "--kill-child"])
            .args(["sh", "-c", HOLDER, "holder"])
            .args([root, work])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        Self {
            inside: line.trim().parse().unwrap(),
            holder,
            logs: tempfile::tempdir().unwrap(),
        }
    }

    /// The outside path of a path inside.
    fn path(&self, inside: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{inside}", self.inside))
    }

    /// Names in a directory, sorted.
    fn list(&self, inside: &str) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.path(inside))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Deletes what is in the volume.
    fn empty(&self, volume: &str) {
        for name in self.list(volume) {
            let path = self.path(volume).join(name);
            if path.is_dir() {
                fs::remove_dir_all(path).unwrap();
            } else {
                fs::remove_file(path).unwrap();
            }
        }
    }

    /// A command in the root file system, as the user of the image.
    fn command(&self, before: &[&str], env: &[(&str, &str)], words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.inside.to_string()]);
        command.args(["--net", "--mount", "--ipc", "--root", "--wd", "--"]);
        command.args(before);
        command.args(["setpriv", "--reuid=999", "--regid=999", "--clear-groups"]);
        command.args([
            "env",
            "--ignore-environment",
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            "TINI_SUBREAPER=1",
        ]);
        command.args(env.iter().map(|(name, value)| format!("{name}={value}")));
        command.args(words).stdin(Stdio::null());
        command
    }

    /// Starts a container with these arguments.
    fn start(&self, args: &[&str], env: &[(&str, &str)]) -> Container {
        // The first process survives the change of the user, so that the others end with it.
        let first = "\"$@\"; exit $?";
        let before = [
            "unshare",
            "--pid",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            first,
            "sh",
        ];
        let entry = ["tini", "--", "/bin/bash", "/usr/lib/keelson/mariadb.sh"];
        let (file, log) = tempfile::NamedTempFile::new_in(&self.logs)
            .unwrap()
            .keep()
            .unwrap();
        let child = self
            .command(&before, env, &[&entry, args].concat())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        Container { child, log }
    }

    /// Runs a container to its end.
    fn run(&self, args: &[&str], env: &[(&str, &str)]) -> (ExitStatus, String) {
        let mut container = self.start(args, env);
        (container.child.wait().unwrap(), container.said())
    }

    /// Starts the server and waits until it answers.
    fn serve(&self, env: &[(&str, &str)]) -> Container {
        let mut server = self.start(&[], env);
        server.await_that("the server answers", |_| {
            let ping = ["mariadb-admin", "--socket=/run/mysqld/mysqld.sock", "ping"];
            let mut ping = self.command(&[], &[], &ping);
            ping.stdout(Stdio::null()).stderr(Stdio::null());
            ping.status().unwrap().success()
        });
        server
    }

    /// The answer to a query, or the error.
    fn ask(&self, options: &[&str], query: &str) -> Result<String, String> {
        let words = [
            &["mariadb", "--batch", "--skip-column-names"],
            options,
            &["--execute", query],
        ];
        let output = self.command(&[], &[], &words.concat()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(text(&output.stderr))
        }
    }

    /// The answer to a query of slurmdbd's user.
    fn sql(&self, password: &str, query: &str) -> Result<String, String> {
        let password = format!("--password={password}");
        self.ask(
            &["--host=slurm-mariadb", "--user=slurm", &password, "slurm_acct_db"],
            query,
        )
    }

    /// The answer to a query of a person in the container.
    fn sql_of_root(&self, query: &str) -> Result<String, String> {
        self.ask(&[], query)
    }

    /// Puts a file into the volume of dumps.
    fn write_dump(&self, name: &str, content: &[u8]) {
        let path = self.path("/dumps").join(name);
        fs::write(&path, content).unwrap();
        chown(path, Some(UID), Some(UID)).unwrap();
    }

    fn dump(&self, password: &str, keep: &str) -> (ExitStatus, String) {
        self.run(
            &["dump"],
            &[
                ("MARIADB_HOST", "slurm-mariadb"),
                ("MARIADB_PASSWORD", password),
                ("MARIADB_DUMP_KEEP", keep),
            ],
        )
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

/// A container. Its processes are killed when it is dropped.
struct Container {
    child: Child,
    log: PathBuf,
}

impl Container {
    /// What it has logged.
    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn await_that(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds(self) {
            let ended = self.child.try_wait().unwrap();
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "{what}: {ended:?}\n{}",
                self.said()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends it as the kubelet does.
    fn stop(mut self) -> ExitStatus {
        let child_of = |process: String| {
            let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap();
            children.split_whitespace().next().unwrap().to_owned()
        };
        let tini = child_of(child_of(self.child.id().to_string()));
        let told = Command::new("kill").arg(tini).status().unwrap();
        assert!(told.success());
        self.child.wait().unwrap()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const ONE: [(&str, &str); 1] = [("MARIADB_PASSWORD", "one")];
const RESTORED: [(&str, &str); 2] = [("MARIADB_PASSWORD", "one"), RESTORE];

/// Enough records that loading them takes a moment.
const RECORDS: &str = "CREATE TABLE records (id INT PRIMARY KEY, script LONGTEXT, raw LONGBLOB) ENGINE=InnoDB; \
    INSERT INTO records SELECT seq, REPEAT(CONCAT(seq, ' '), 20), UNHEX(SHA2(seq, 256)) FROM seq_1_to_200000; \
    CREATE PROCEDURE answer() SELECT 42";
/// What has to be the same after a restore.
const FINGERPRINT: &str =
    "SELECT COUNT(*), SUM(CRC32(CONCAT(id, script, HEX(raw)))) FROM records; CALL answer()";

/// Leaves a dump of those records in the volume of dumps. Returns their fingerprint.
fn dump_of_records(pods: &Pods) -> String {
    let server = pods.serve(&ONE);
    pods.sql("one", RECORDS).unwrap();
    let (status, said) = pods.dump("one", "3");
    assert!(status.success(), "{said}");
    let fingerprint = pods.sql("one", FINGERPRINT).unwrap();
    assert!(server.stop().success());
    fingerprint
}

#[test]
fn a_database_is_made_once_and_changes_its_password_at_a_start() {
    let pods = Pods::new();
    let server = pods.serve(&[("MARIADB_PASSWORD", "one"), ("MARIADB_BUFFER_POOL_SIZE", "64M")]);
    assert_eq!(pods.list("/var/lib/mysql"), ["data"]);
    pods.sql("one", "CREATE TABLE t (a INT); INSERT INTO t VALUES (7)")
        .unwrap();
    let settings = "SELECT @@innodb_lock_wait_timeout, @@max_allowed_packet, @@innodb_snapshot_isolation, \
        @@innodb_buffer_pool_size";
    assert_eq!(pods.sql("one", settings).unwrap(), "900\t16777216\t0\t67108864");
    // Administrators are who may run programs in the container.
    for account in ["root", "mysql", "mariadb.sys", ""] {
        let over_the_network = ["--host=127.0.0.1", "--protocol=tcp", &format!("--user={account}")];
        let refused = pods.ask(&over_the_network, "SELECT 1").unwrap_err();
        assert!(refused.contains("ERROR"), "{account}: {refused}");
    }
    let accounts = "SELECT CONCAT(User, '@', Host) FROM mysql.user ORDER BY 1";
    assert_eq!(
        pods.sql_of_root(accounts).unwrap(),
        "mariadb.sys@localhost\nmysql@localhost\nroot@localhost\nslurm@%"
    );
    pods.sql_of_root("CREATE DATABASE own; GRANT SELECT ON own.* TO slurm@'%'")
        .unwrap();
    assert!(server.stop().success());

    let other = r"it's \ 100% `other` $HOME";
    let server = pods.serve(&[("MARIADB_PASSWORD", other)]);
    assert_eq!(pods.sql(other, "SELECT a FROM t").unwrap(), "7");
    assert!(pods.sql("one", "SELECT 1").unwrap_err().contains("Access denied"));
    let grants = pods.sql(other, "SHOW GRANTS").unwrap();
    assert!(grants.contains("GRANT SELECT ON `own`"), "{grants}");
    // As the how-to about moving a database does it.
    pods.sql_of_root("REVOKE ALL ON slurm_acct_db.* FROM slurm@'%'; KILL USER slurm")
        .unwrap();
    let refused = pods.sql(other, "SELECT a FROM t").unwrap_err();
    assert!(refused.contains("denied"), "{refused}");
    assert!(server.stop().success());
    let server = pods.serve(&[("MARIADB_PASSWORD", other)]);
    let (status, said) = pods.dump(other, "3");
    assert!(status.success(), "{said}");
    assert!(server.stop().success());
    let (status, said) = pods.run(&[], &[("MARIADB_PASSWORD", "")]);
    assert!(!status.success());
    assert_eq!(
        said.trim(),
        "error: the password of the database is empty: set it in its Secret"
    );
}

#[test]
fn a_line_break_at_the_end_of_the_password_is_left_out() {
    let pods = Pods::new();
    let server = pods.serve(&[("MARIADB_PASSWORD", "one\r\n")]);
    // The operator leaves it out of slurmdbd.conf too.
    assert_eq!(pods.sql("one", "SELECT 1").unwrap(), "1");
    let (status, said) = pods.dump("one\n", "3");
    assert!(status.success(), "{said}");
    assert!(server.stop().success());
    for args in [&[][..], &["dump"]] {
        let (status, said) = pods.run(args, &[("MARIADB_PASSWORD", "one\ntwo")]);
        assert!(!status.success());
        assert_eq!(
            said.trim(),
            "error: the password of the database contains a line break: set another one in its Secret"
        );
        let (status, said) = pods.run(args, &[("MARIADB_PASSWORD", "\n")]);
        assert!(!status.success());
        assert_eq!(
            said.trim(),
            "error: the password of the database is empty: set it in its Secret"
        );
    }
}

#[rstest]
#[case::of_this_version("memory.max", "268435456\n", 128 << 20)]
#[case::none("memory.max", "max\n", 512 << 20)]
#[case::of_the_first_version("memory/memory.limit_in_bytes", "2147483648\n", 1 << 30)]
#[case::none_of_the_first_version("memory/memory.limit_in_bytes", "9223372036854771712\n", 512 << 20)]
fn the_buffer_pool_is_half_of_the_memory_limit(
    #[case] file: &str,
    #[case] content: &str,
    #[case] expected: u64,
) {
    let pods = Pods::new();
    let file = pods.path("/sys/fs/cgroup").join(file);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, content).unwrap();
    let server = pods.serve(&ONE);
    let pool = pods.sql("one", "SELECT @@innodb_buffer_pool_size").unwrap();
    assert_eq!(pool.parse::<u64>().unwrap(), expected);
    assert!(server.stop().success());
}

#[test]
fn a_start_that_is_killed_leaves_nothing_that_counts_as_a_database() {
    let pods = Pods::new();
    for file in ["mysql", "mysql/global_priv.frm"] {
        let mut server = pods.start(&[], &ONE);
        server.await_that("a part of the database", |_| {
            let places = pods.list("/var/lib/mysql");
            places
                .iter()
                .any(|place| pods.path("/var/lib/mysql").join(place).join(file).exists())
        });
        drop(server);
        let left = pods.list("/var/lib/mysql");
        assert!(
            left.len() == 1 && left[0].starts_with("new."),
            "{left:?}: it was not killed while it installed"
        );
    }
    let server = pods.serve(&ONE);
    assert_eq!(pods.list("/var/lib/mysql"), ["data"]);
    assert_eq!(pods.sql("one", "SELECT 1").unwrap(), "1");
    // A pod that is killed as it serves has a complete database.
    pods.sql("one", "CREATE TABLE t (a INT); INSERT INTO t VALUES (7)")
        .unwrap();
    drop(server);
    let server = pods.serve(&ONE);
    assert_eq!(pods.sql("one", "SELECT a FROM t").unwrap(), "7");
    assert!(server.stop().success());
}

#[test]
fn dumps_are_complete_and_the_oldest_ones_are_removed() {
    let pods = Pods::new();
    let (status, said) = pods.dump("one", "3");
    assert!(!status.success());
    assert!(
        said.starts_with("error: the database was not dumped: mariadb-dump: Got error: 2002"),
        "{said}"
    );
    assert_eq!(pods.list("/dumps"), [""; 0]);

    let server = pods.serve(&ONE);
    pods.sql("one", RECORDS).unwrap();
    let of_others = [
        "slurm-mariadb-old-20260101T000000Z.sql.gz",
        "slurm-mariadb-20260101.sql.gz",
        "other-mariadb-20260101T000000Z.sql.gz",
    ];
    // One is from a clock that was ahead.
    let old = [
        "slurm-mariadb-20260101T000000Z.sql.gz",
        "slurm-mariadb-20260102T000000Z.sql.gz",
        "slurm-mariadb-99990101T000000Z.sql.gz",
    ];
    for name in of_others.iter().chain(&old) {
        pods.write_dump(name, b"old");
    }
    let mut killed = pods.start(
        &["dump"],
        &[("MARIADB_HOST", "slurm-mariadb"), ("MARIADB_PASSWORD", "one")],
    );
    killed.await_that("a part of a dump", |_| {
        let names = pods.list("/dumps");
        let partial = names.iter().find(|name| name.ends_with(".partial"));
        partial.is_some_and(|name| fs::metadata(pods.path("/dumps").join(name)).unwrap().len() > 0)
    });
    drop(killed);
    let partial = pods
        .list("/dumps")
        .into_iter()
        .find(|name| name.ends_with(".partial"))
        .expect("it was not killed while it dumped");
    assert_eq!(pods.list("/dumps").len(), 7);

    let (status, said) = pods.dump("one", "2");
    assert!(status.success(), "{said}");
    let left = pods.list("/dumps");
    for name in of_others {
        assert!(
            left.contains(&name.to_owned()),
            "{name} is not a dump of this database"
        );
    }
    let ours: Vec<&String> = left
        .iter()
        .filter(|name| !of_others.contains(&name.as_str()) && **name != partial)
        .collect();
    assert_eq!(ours.len(), 2, "{left:?}");
    assert_eq!(ours[1], old[2]);
    let mode = fs::metadata(pods.path("/dumps").join(ours[0]))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o640);
    // What a killed dump left goes when nothing can be writing it any more.
    let long_ago = File::options()
        .write(true)
        .open(pods.path("/dumps").join(&partial))
        .unwrap();
    let day_before = long_ago.metadata().unwrap().modified().unwrap() - Duration::from_hours(25);
    long_ago.set_modified(day_before).unwrap();
    assert!(pods.dump("one", "2").0.success());
    assert!(!pods.list("/dumps").contains(&partial));

    // One that cannot be written leaves everything as it was.
    let before = pods.list("/dumps");
    let filler = pods.path("/dumps").join("filler");
    let mut file = File::create(&filler).unwrap();
    let mut size = 0;
    while let Ok(written) = file.write(&[0; 1 << 12]) {
        size += written;
    }
    file.set_len(size as u64 - (1 << 20)).unwrap();
    let (status, said) = pods.dump("one", "1");
    assert!(!status.success());
    assert!(said.contains("No space left on device"), "{said}");
    fs::remove_file(filler).unwrap();
    assert_eq!(pods.list("/dumps"), before);
    assert!(server.stop().success());
}

#[test]
fn a_dump_is_loaded_once_also_when_the_first_starts_are_killed() {
    let pods = Pods::new();
    let fingerprint = dump_of_records(&pods);
    pods.empty("/var/lib/mysql");

    let dump = pods.list("/dumps").remove(0);
    let whole = fs::read(pods.path("/dumps").join(&dump)).unwrap();
    pods.write_dump("half.sql.gz", &whole[..whole.len() / 2]);
    let half = [&RESTORED[..], &[("MARIADB_RESTORE_FILE", "half.sql.gz")]].concat();
    let (status, said) = pods.run(&[], &half);
    assert!(!status.success());
    assert!(
        said.contains("error: half.sql.gz in the volume of restoreFrom.claim is not a complete dump"),
        "{said}"
    );

    // A copy that takes until it is killed to load.
    let slowly = format!("zcat {dump} | sed '$ i DO SLEEP(60);' | gzip >slow.sql.gz");
    let slowly = Command::new("sh")
        .args(["-c", &slowly])
        .current_dir(pods.path("/dumps"))
        .status();
    assert!(slowly.unwrap().success());
    let slow = [&RESTORED[..], &[("MARIADB_RESTORE_FILE", "slow.sql.gz")]].concat();
    for part in ["slurm_acct_db", "slurm_acct_db/records.ibd"] {
        let mut server = pods.start(&[], &slow);
        server.await_that("a part of the records", |_| {
            let places = pods.list("/var/lib/mysql");
            places
                .iter()
                .any(|place| pods.path("/var/lib/mysql").join(place).join(part).exists())
        });
        // Nobody can mistake a half for the whole.
        assert!(pods.sql("one", "SELECT 1").is_err());
        let ping = [
            "mariadb-admin",
            "--socket=/run/mysqld/mysqld.sock",
            "--connect-timeout=1",
            "ping",
        ];
        let ping = pods.command(&[], &[], &ping).output().unwrap();
        assert!(!ping.status.success());
        drop(server);
        let left = pods.list("/var/lib/mysql");
        assert!(
            left.len() == 1 && left[0].starts_with("new."),
            "{left:?}: it was not killed while it loaded"
        );
    }

    fs::remove_file(pods.path("/dumps").join("slow.sql.gz")).unwrap();
    let server = pods.serve(&RESTORED);
    assert!(
        server.said().contains("loaded slurm-mariadb-"),
        "{}",
        server.said()
    );
    assert_eq!(pods.list("/var/lib/mysql"), ["data"]);
    assert_eq!(pods.sql("one", FINGERPRINT).unwrap(), fingerprint);
    pods.sql("one", "DELETE FROM records WHERE id > 1").unwrap();
    assert!(server.stop().success());

    let server = pods.serve(&RESTORED);
    assert!(
        server
            .said()
            .contains("the database exists already, so no dump is loaded")
    );
    assert_eq!(pods.sql("one", "SELECT COUNT(*) FROM records").unwrap(), "1");
    // The restored database can be dumped in turn.
    let (status, said) = pods.dump("one", "3");
    assert!(status.success(), "{said}");
    assert!(server.stop().success());
}

/// How a dump of a person's own looks, in parts.
const HEADER: &str = "CREATE TABLE records (id INT);\n";
const FOOTER: &str = "-- Dump completed on 2026-11-19  3:15:00\n";
const REMEDY: &str =
    "set restoreFrom.file to another dump, or remove restoreFrom to start with an empty database";

#[rstest]
#[case::none(&[], None, "there is no dump in the volume of restoreFrom.claim: set restoreFrom.file if it has another name than \
    those of scheduled dumps, or remove restoreFrom to start with an empty database")]
#[case::not_there(&[], Some("a/b.sql"), "there is no file a/b.sql in the volume of restoreFrom.claim: correct restoreFrom.file")]
#[case::several(
    &[("a-mariadb-20260101T000000Z.sql.gz", ""), ("b-mariadb-20260101T000000Z.sql.gz", "")],
    None,
    "the volume of restoreFrom.claim has dumps of several databases (a-mariadb b-mariadb): set restoreFrom.file"
)]
#[case::cut_short(&[("own.sql", HEADER)], Some("own.sql"), "own.sql in the volume of restoreFrom.claim is not a complete dump, \
    because its last line is not '-- Dump completed': {REMEDY}")]
#[case::not_sql(
    &[("own.sql", "CREATE TABLE records (id INT);\nINSERT INTO nosuch VALUES (1);\n-- Dump completed\n")],
    Some("own.sql"),
    "own.sql could not be loaded: ERROR 1146 (42S02) at line 2: Table 'slurm_acct_db.nosuch' doesn't exist: {REMEDY}"
)]
#[case::no_tables(
    &[("own.sql", "CREATE DATABASE x;\nUSE x;\nCREATE TABLE records (id INT);\n-- Dump completed\n")],
    Some("own.sql"),
    "own.sql has no tables of the database slurm_acct_db: dump that database alone, without --databases, then {REMEDY}"
)]
fn a_dump_that_cannot_be_loaded_is_named_with_what_to_do(
    #[case] files: &[(&str, &str)],
    #[case] file: Option<&str>,
    #[case] expected: &str,
) {
    let pods = Pods::new();
    for (name, content) in files {
        pods.write_dump(name, content.as_bytes());
    }
    let mut env = RESTORED.to_vec();
    env.extend(file.map(|file| ("MARIADB_RESTORE_FILE", file)));
    let (status, said) = pods.run(&[], &env);
    assert_eq!(status.code(), Some(1), "{said}");
    let expected = format!("error: {}", expected.replace("{REMEDY}", REMEDY));
    assert_eq!(said.lines().last(), Some(expected.as_str()), "{said}");
    // Nothing was made that a corrected file would find.
    pods.write_dump("good.sql", format!("{HEADER}{FOOTER}").as_bytes());
    let mut corrected = RESTORED.to_vec();
    corrected.push(("MARIADB_RESTORE_FILE", "good.sql"));
    let server = pods.serve(&corrected);
    assert_eq!(pods.sql("one", "SELECT COUNT(*) FROM records").unwrap(), "0");
    assert!(server.stop().success());
}
