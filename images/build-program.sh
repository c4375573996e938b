#!/bin/sh
# build-program.sh init|keelson OUTPUT: builds one of our programs for an image, with no path of the building machine in
# it, so that every checkout builds the same bytes. init is linked static: it is the only program of the pause image.
set -eu

program=$1
output=$2
target=$(rustc -vV | sed -n 's/^host: //p')
flags="'--remap-path-prefix=$PWD=/src','--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo'"
case $program in
init) package=keelson-init flags="'-Ctarget-feature=+crt-static',$flags" ;;
*) package=$program ;;
esac
# A directory for each program: their flags differ, and neither shall rebuild what the other or anybody else has built.
directory=${CARGO_TARGET_DIR:-target}/images/$program
cargo build --quiet --release --locked --package $package --target "$target" --target-dir "$directory" \
    --config "target.$target.rustflags=[$flags]"
cp "$directory/$target/release/$program" "$output"
