#!/bin/sh
# build-program.sh init|keelson OUTPUT: builds one of our programs for an image, with no path of the building machine in
# it, so that every checkout builds the same bytes. init is linked static: it is the only program of the pause image.
set -eu

program=$1
output=$2
target=$(rustc -vV | sed -n 's/^host: //p')
# A directory for each program, because their flags differ; in the cache, so that checkouts share what others have built. Paths in
# the checkout are relative anyway, and flags that name it would have each checkout build everything once more.
cache=${KEELSON_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/keelson}
directory=$cache/cargo/$program
flags="'--remap-path-prefix=$directory=/build','--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo'"
case $program in
init) package=keelson-init flags="'-Ctarget-feature=+crt-static',$flags" ;;
*) package=$program ;;
esac
mkdir -p "$directory"
# Until the program is copied: another checkout puts its own in the same place.
exec 9>"$directory/lock"
flock 9
# Cargo goes by the age of files: what another checkout compiled later than this one was written would pass for its own.
if [ "$(cat "$directory/checkout" 2>/dev/null)" != "$PWD" ]; then
    cargo clean --quiet --release --locked --workspace --target "$target" --target-dir "$directory"
    echo "$PWD" >"$directory/checkout"
fi
cargo build --quiet --release --locked --package $package --target "$target" --target-dir "$directory" \
    --config "target.$target.rustflags=[$flags]"
cp "$directory/$target/release/$program" "$output"
