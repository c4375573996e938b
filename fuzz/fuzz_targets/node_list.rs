//! No answer makes the reader fall over, whatever the server sends.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slurm_rest::node::decode_nodes;

fuzz_target!(|answer: &[u8]| {
    let _ = decode_nodes(answer);
});
