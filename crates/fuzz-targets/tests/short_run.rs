//! Runs every target for seconds with random changes of valid inputs. Runs are identical unless `KEELSON_FUZZ_SEED` is
//! set; `KEELSON_FUZZ_ROUNDS` makes them longer.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that panics is a test that fails"
)]

#[path = "../../webhook/tests/rows/mod.rs"]
mod rows;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;

const ROUNDS: usize = 15_000;
/// How many inputs that got past the parser are kept for further changes.
const KEPT: usize = 500;
const LONGEST: usize = 16 << 10;

fn setting(variable: &str) -> Option<usize> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

/// Runs the target with changed inputs; `words` are typical elements of the format.
fn drive(target: fn(&[u8]) -> bool, seeds: Vec<Vec<u8>>, words: &[&str]) {
    let seed = setting("KEELSON_FUZZ_SEED").unwrap_or(1);
    let mut random = SmallRng::seed_from_u64(u64::try_from(seed).unwrap());
    for seed in &seeds {
        assert!(target(seed), "not even read: {}", seed.escape_ascii());
    }
    let mut kept = seeds;
    let mut read = 0;
    let rounds = setting("KEELSON_FUZZ_ROUNDS").unwrap_or(ROUNDS);
    for _ in 0..rounds {
        let input = changed(&mut random, &kept, words);
        match catch_unwind(AssertUnwindSafe(|| target(&input))) {
            Err(panic) => {
                eprintln!("seed {seed}, input {}", input.escape_ascii());
                resume_unwind(panic);
            }
            Ok(true) if kept.len() < KEPT => {
                read += 1;
                kept.push(input);
            }
            Ok(was_read) => read += usize::from(was_read),
        }
    }
    // A run in which nothing gets past the parser tests only the rejections.
    assert!(read > rounds / 20, "only {read} of {rounds} inputs were read");
}

fn changed(random: &mut SmallRng, kept: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
    const MARKS: &[u8] = b"=,[]-\"'\\#\n \t\0{}:0/";
    let mut input = kept[random.random_range(0..kept.len())].clone();
    for _ in 0..random.random_range(1..=3) {
        let at = random.random_range(0..=input.len());
        let end = random.random_range(at..=input.len().min(at + 20));
        match random.random_range(0..7) {
            0 if at < input.len() => input[at] ^= 1 << random.random_range(0..8),
            1 if at < input.len() => input[at] = MARKS[random.random_range(0..MARKS.len())],
            2 => drop(input.drain(at..end)),
            3 => {
                let copy = input[at..end].to_vec();
                drop(input.splice(at..at, copy));
            }
            4 => {
                let number = [0, 1, 9_999_999, u64::MAX][random.random_range(0..4)].to_string();
                drop(input.splice(at..end, number.into_bytes()));
            }
            5 => {
                let other = &kept[random.random_range(0..kept.len())];
                let tail = other[random.random_range(0..=other.len())..].to_vec();
                input.truncate(at);
                input.extend(tail);
            }
            _ => {
                let word = words[random.random_range(0..words.len())];
                drop(input.splice(at..at, word.bytes()));
            }
        }
    }
    input.truncate(LONGEST);
    input
}

fn bytes(seeds: &[&str]) -> Vec<Vec<u8>> {
    seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect()
}

#[test]
fn hostlists() {
    let seeds = [
        "n0",
        "n[0-9]",
        "gpu-[01-10,12],cpu[1-3]",
        "r[1-2]n[001-003]-ib",
        "a[0-1][0-1][5]z,b",
        "w-[0-4999]",
    ];
    drive(
        fuzz_targets::hostlist,
        bytes(&seeds),
        &["[", "]", "-", ",", "[0-9]", "n", "007"],
    );
}

#[test]
fn node_parameters() {
    let seeds = [
        "CPUs=4 RealMemory=1000",
        "Features=a,b Feature=c Gres=gpu:h200:8",
        "topology=default:s1 Weight=7 Gres=a GRES=b",
        "State=DRAIN Reason=new MemSpecLimit=1k NewThing=x",
    ];
    drive(
        fuzz_targets::node_conf,
        bytes(&seeds),
        &[
            "NodeName=",
            "Port=1",
            "Feature=",
            "=",
            " ",
            "\n",
            "\u{85}",
            "\u{2003}",
            "State=DOWN",
            "$(x)",
            "0x",
        ],
    );
}

#[test]
fn node_lists() {
    let nodes = json!({
        "nodes": [
            { "name": "n0", "state": ["IDLE", "DRAIN", "NEW_FLAG"], "cpus": 4, "reason": "x", "comment": "{\"a\":1}",
              "boot_time": { "set": true, "infinite": false, "number": 9 }, "partitions": ["main"], "features": ["a"] },
            { "name": "n1", "state": "DOWN*", "weight": 1, "gres": "gpu:8", "extra": "\u{e9}" },
        ],
        "last_update": { "set": true, "infinite": false, "number": 1_770_000_000 },
        "meta": { "slurm": { "release": "26.05.5" } }, "errors": [], "warnings": [],
    });
    let seeds = [nodes.to_string(), r#"{"nodes":[]}"#.to_owned()];
    drive(
        fuzz_targets::node_list,
        seeds.map(String::into_bytes).into(),
        &[
            "null",
            "{}",
            "[]",
            "\"infinite\"",
            "\\u0000",
            "-1",
            "1e999",
            "true",
        ],
    );
}

#[test]
fn reviews() {
    let mut seeds = Vec::new();
    for table in rows::tables() {
        for (number, row) in table.rows.iter().enumerate() {
            let object = table.object(number, row, "fuzz");
            let (group, version) = rows::api_version(&table.kind).split_once('/').unwrap();
            let kind = json!({ "group": group, "version": version, "kind": table.kind });
            let review = json!({
                "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
                "request": { "uid": "u", "kind": kind, "operation": "CREATE", "namespace": "fuzz",
                             "name": object["metadata"]["name"], "object": object, "oldObject": null },
            });
            seeds.push(review.to_string().into_bytes());
        }
    }
    drive(
        fuzz_targets::review,
        seeds,
        &[
            "null",
            "{}",
            "[]",
            "\\n",
            "$(x)",
            "UPDATE",
            "DELETE",
            "\"spec\":",
            "\\u0000",
            "9999999999",
        ],
    );
}

const SLURM_WORDS: &[&str] = &[
    "PartitionName=",
    "NodeName=",
    "SlurmctldHost=",
    "Include x",
    "ClusterName=",
    "\\\n",
    "# c",
    "SlurmUser=root",
    "\"",
    "State=UP",
    "DEFAULT",
    "SlurmctldParameters=",
];

#[test]
fn slurm_conf_with_what_users_add() {
    let seeds = [
        "\0State=UP\0test",
        "SchedulerParameters=bf_max_job_test=1000\nPartitionName=p Nodes=ALL\n\0Default=YES MaxTime=1-0\0c",
        "TaskPlugin=task/affinity \\\n  # more\nPriorityWeightAge=5\n\0State=UP\0c",
        "# only words\nMailProg=\"/bin/a b\"\n\0\0cluster_1",
    ];
    drive(fuzz_targets::slurm_conf, bytes(&seeds), SLURM_WORDS);
}

#[test]
fn files_of_slurm() {
    let seeds = [
        "A=1\nB=\"two words\"\n",
        "PartitionName=p Nodes=ALL Default=YES # c\n",
        "Name=gpu Type=h200 File=/dev/nvidia[0-7]\n",
        "CgroupPlugin=disabled\nConstrainCores=yes\n",
        "DbdHost=localhost\nStoragePass=\"a b\"\n",
    ];
    drive(fuzz_targets::syntax, bytes(&seeds), SLURM_WORDS);
}

#[test]
fn sshd_options() {
    let seeds = [
        "LoginGraceTime 30\n",
        "Match User a\n  X11Forwarding no\n",
        "AllowGroups a b\n# c\nPort 22\n",
    ];
    drive(
        fuzz_targets::sshd_config,
        bytes(&seeds),
        &[
            "UsePAM no",
            "Match all",
            "match ",
            "usepam=no",
            "Include /x",
            "\n",
            "\r",
            "\"",
        ],
    );
}
