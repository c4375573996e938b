#!/bin/sh
# fetch.sh NAME PACKAGES: puts the packages that NAME/lock names into the directory PACKAGES.
# For builds by a container engine; `cargo xtask images` fetches with the same checks.
# MIRROR overrides the mirror of the building image's own package sources.
set -eu

name=$1 packages=$2
images=$(dirname "$(realpath "$0")")
mirror=${MIRROR:-$(sed -n 's/^URIs: *\([^ ]*\).*/\1/p' /etc/apt/sources.list.d/debian.sources | head -n 1)}

mkdir -p "$packages"
while read -r package version _architecture _size sha256 path; do
    case $package in '#'*) continue ;; esac
    file=$packages/${path##*/}
    curl --fail --silent --show-error --location --retry 3 --output "$file" "$mirror/$path" || {
        echo "the mirror has no $package $version (any more): cargo xtask images --update-lock" >&2
        exit 1
    }
    echo "$sha256  $file" | sha256sum --check --quiet
done <"$images/$name/lock"
