use super::*;
use rstest::rstest;
use std::os::unix::fs::{PermissionsExt, symlink};

pub fn files(list: &[(&str, &str)]) -> Files {
    list.iter()
        .map(|(name, content)| ((*name).to_owned(), content.as_bytes().to_vec()))
        .collect()
}

#[test]
fn a_directory_ends_up_with_exactly_these_files() {
    let directory = tempfile::tempdir().unwrap();
    files(&[("old.conf", "x"), ("slurm.conf", "1"), ("sub/old", "x")])
        .write(directory.path())
        .unwrap();
    let wanted = files(&[
        ("slurm.conf", "2"),
        ("slurm.key", "k"),
        ("sub/prolog", "#!/bin/sh\n"),
    ]);
    wanted.write(directory.path()).unwrap();
    assert_eq!(Files::read(directory.path()).unwrap(), wanted);
    let mode = |name: &str| {
        fs::metadata(directory.path().join(name))
            .unwrap()
            .permissions()
            .mode()
            & 0o777
    };
    assert_eq!(
        (mode("slurm.key"), mode("sub/prolog"), mode("slurm.conf")),
        (0o600, 0o700, 0o600)
    );
}

#[test]
fn keys_are_neither_hashed_nor_kept() {
    let plain = files(&[("slurm.conf", "1")]);
    let keys = files(&[("slurm.key", "a"), ("jwt.key", "b"), ("slurm.jwks", "c")]);
    let all = plain.clone().with(&keys);
    assert_eq!(all.hash(), plain.hash());
    assert_eq!(all.split_keys(), (plain, keys));
}

/// A reference value for other implementations of the hash.
#[test]
fn the_hash_is_this() {
    let files = files(&[
        ("slurm.conf", "ClusterName=x\n"),
        ("gres.conf", ""),
        ("slurm.key", "secret"),
    ]);
    assert_eq!(
        files.hash(),
        "0e33695007a291276cd6a6f2b421f21b7f5288c757a40131b240de27d8894ca3"
    );
}

#[test]
fn the_hash_knows_where_a_file_ends() {
    assert_ne!(files(&[("a", "bc")]).hash(), files(&[("ab", "c")]).hash());
    assert_ne!(
        files(&[("a", "b"), ("c", "")]).hash(),
        files(&[("a", "bc")]).hash()
    );
}

#[rstest]
#[case::plain("StateSaveLocation=/a", &["/a"])]
#[case::blanks_and_case("statesavelocation = /a", &["/a"])]
#[case::remark("StateSaveLocation=/a # where it is", &["/a"])]
#[case::quoted("StateSaveLocation=\"/a\"", &["/a"])]
#[case::remarked_out("#StateSaveLocation=/a", &[])]
#[case::another("XStateSaveLocation=/a", &[])]
#[case::twice("StateSaveLocation=/a\nStateSaveLocation=/b", &["/a", "/b"])]
#[case::empty("StateSaveLocation=", &[])]
#[case::after_a_broken_line("what is this\nStateSaveLocation=/a", &["/a"])]
#[case::included("Include more.conf", &["/included"])]
fn parameters_are_read_as_slurm_reads_them(#[case] text: &str, #[case] expected: &[&str]) {
    assert_eq!(
        files(&[("slurm.conf", text), ("more.conf", "StateSaveLocation=/included")])
            .parameters("StateSaveLocation"),
        expected
    );
}

#[rstest]
#[case::whole(&[("slurm.conf", "Include a.conf\ninclude sub/b.conf"), ("a.conf", ""), ("sub/b.conf", "")], None)]
#[case::nothing(&[("gres.conf", "")], Some("there is no slurm.conf"))]
#[case::missing(&[("slurm.conf", "x=1\n  INCLUDE  a.conf # ours")], Some("slurm.conf includes a.conf, which is not there"))]
#[case::by_another(&[("slurm.conf", "Include a.conf"), ("a.conf", "Include b")], Some("a.conf includes b, which is not there"))]
#[case::elsewhere(&[("slurm.conf", "Include /dev/null")], None)]
#[case::not_elsewhere(&[("slurm.conf", "Include /no/such")], Some("slurm.conf includes /no/such, which is not there"))]
#[case::out_of_sight(&[("slurm.conf", "Include *.conf\nInclude %c.conf\n#Include b\nIncluded x")], None)]
#[case::topology(&[("slurm.conf", "TopologyPlugin=topology/tree")], Some("TopologyPlugin=topology/tree needs topology.yaml or topology.conf, which is not there"))]
#[case::topology_there(&[("slurm.conf", "TopologyPlugin=topology/tree"), ("topology.yaml", "")], None)]
#[case::no_topology(&[("slurm.conf", "TopologyPlugin=topology/flat")], None)]
#[case::not_slurms(&[("slurm.conf", ""), ("job_submit.lua", "include me")], None)]
fn a_missing_file_is_seen_before_slurmctld_waits_for_it(
    #[case] list: &[(&str, &str)],
    #[case] expected: Option<&str>,
) {
    assert_eq!(files(list).flaw().as_deref(), expected);
}

/// Lays files out as the kubelet does.
fn deliver(directory: &Path, version: &str, text: &str) {
    fs::create_dir_all(directory.join(version).join("sub")).unwrap();
    fs::write(directory.join(version).join("slurm.conf"), text).unwrap();
    fs::write(directory.join(version).join("sub/a.conf"), text).unwrap();
    symlink(version, directory.join("..tmp")).unwrap();
    fs::rename(directory.join("..tmp"), directory.join("..data")).unwrap();
    let _ = symlink("..data/slurm.conf", directory.join("slurm.conf"));
    let _ = symlink("..data/sub", directory.join("sub"));
}

#[test]
fn a_mounted_directory_is_read_when_it_changes() {
    let directory = tempfile::tempdir().unwrap();
    let mut mounted = Mounted::new(directory.path());
    deliver(directory.path(), "..1", "1");
    let expected = |text: &str| Some(files(&[("slurm.conf", text), ("sub/a.conf", text)]));
    assert_eq!(mounted.changed().unwrap(), expected("1"));
    assert_eq!(mounted.changed().unwrap(), None);
    deliver(directory.path(), "..2", "2");
    assert_eq!(mounted.changed().unwrap(), expected("2"));
}

#[test]
fn a_circle_of_links_has_an_end() {
    let directory = tempfile::tempdir().unwrap();
    symlink(".", directory.path().join("again")).unwrap();
    fs::write(directory.path().join("slurm.conf"), "").unwrap();
    assert!(
        Files::read(directory.path())
            .unwrap()
            .text("slurm.conf")
            .is_some()
    );
}

#[test]
fn what_cannot_be_configuration_is_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let file = fs::File::create(directory.path().join("core")).unwrap();
    file.set_len(LARGEST + 1).unwrap();
    assert!(
        Files::read(directory.path())
            .unwrap_err()
            .to_string()
            .contains("32 MiB")
    );
}
