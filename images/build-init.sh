#!/bin/sh
# build-init.sh OUTPUT: builds our PID 1 as a static program, with no path of the building machine in it.
set -eu

cargo_home=${CARGO_HOME:-$HOME/.cargo}
target=x86_64-unknown-linux-gnu
flags="'-Ctarget-feature=+crt-static','--remap-path-prefix=$PWD=/src','--remap-path-prefix=$cargo_home=/cargo'"
# An explicit target keeps these flags away from build scripts and from everybody else's build products.
cargo build --quiet --release --locked --package keelson-init --target $target --config "target.$target.rustflags=[$flags]"
cp "${CARGO_TARGET_DIR:-target}/$target/release/init" "$1"
