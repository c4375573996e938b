//! Whatever a user writes, a worker keeps PAM, outside of any block.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slurm_conf::sshd_config::{Role, render};

fuzz_target!(|extra: &str| {
    let Ok(rendered) = render(Role::Worker, extra) else { return };
    let global = rendered.text.lines().take_while(|line| !line.to_ascii_lowercase().starts_with("match "));
    let pam: Vec<&str> = global.filter(|line| line.to_ascii_lowercase().starts_with("usepam ")).collect();
    assert_eq!(pam, ["UsePAM yes"]);
});
