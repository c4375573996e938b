#!/bin/sh
# tree.sh NAME PACKAGES TREE: makes the root file system of image NAME in the new directory TREE from the Debian
# packages in the directory PACKAGES, exactly those that NAME/lock names.
#
# Both ways of building an image run this: the Containerfiles and `cargo xtask images`. The same lock gives the same
# tree on any machine: nothing is resolved here, and what packages leave behind that depends on the day or the place
# is removed.
set -eu
umask 022

name=$1 packages=$(realpath "$2") tree=$3
images=$(dirname "$(realpath "$0")")
lock=$images/$name/lock
suite=$(sed -n 's/^# suite //p' "$lock")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The flat repository that mmdebstrap's apt sees: an index of the locked packages, and nothing else is in reach.
mkdir "$work/repo"
names=
while read -r package _version _architecture size sha256 path; do
    case $package in '#'*) continue ;; esac
    file=$packages/${path##*/}
    ln -s "$file" "$work/repo/"
    dpkg-deb --field "$file" >>"$work/repo/Packages"
    printf 'Filename: ./%s\nSize: %s\nSHA256: %s\n\n' "${path##*/}" "$size" "$sha256" >>"$work/repo/Packages"
    names=$names,$package
done <"$lock"
sum=$(sha256sum "$work/repo/Packages")
printf 'Suite: %s\nSHA256:\n %s %s Packages\n' \
    "$suite" "${sum%% *}" "$(stat -c %s "$work/repo/Packages")" >"$work/repo/Release"

if grep -q '^dpkg ' "$lock"; then
    # Slurm's user is 401 in every image, as in the images that users know. It must be there before Slurm's packages,
    # which would make one with a number of their own.
    user='slurm:*:401:401:Slurm:/nonexistent:/usr/sbin/nologin'
    # Set for the tools that would otherwise write today's date, for example into /etc/shadow.
    SOURCE_DATE_EPOCH=1767225600
    export SOURCE_DATE_EPOCH
    mmdebstrap --quiet --mode=root --format=directory --variant=essential --include="${names#,}" \
        --aptopt='Acquire::Languages "none"' --dpkgopt=force-unsafe-io \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/info/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/lintian/*' \
        --essential-hook="echo '$user' >>\"\$1/etc/passwd\"; echo slurm:x:401: >>\"\$1/etc/group\"" \
        "$suite" "$tree" "deb [trusted=yes] copy:$work/repo ./"
else
    # A tree of a few libraries: nothing in it could run a package's scripts.
    mkdir "$tree"
    for file in "$work"/repo/*.deb; do dpkg-deb --extract "$file" "$tree"; done
    rm -rf "$tree"/usr/share/man "$tree"/usr/share/locale "$tree"/usr/share/lintian
fi

cd "$tree"
# What the build left: its own package source and options, indexes, logs, caches, back-up copies, identities.
rm -rf dev/* run/* tmp/* var/tmp/* var/log/* var/cache/* var/lib/apt etc/apt etc/dpkg/dpkg.cfg.d/99mmdebstrap \
    var/lib/dpkg/lock* var/lib/dpkg/*-old var/lib/dpkg/triggers/Lock \
    etc/passwd- etc/group- etc/shadow- etc/gshadow- etc/subuid- etc/subgid- etc/.pwd.lock \
    etc/machine-id etc/hostname etc/resolv.conf etc/ssh/ssh_host_* etc/munge/munge.key
# Debian's plugstack.conf includes a glob that matches nothing, which every daemon reports as an error.
rm -f etc/slurm/plugstack.conf

# What is ours in the image, and before it what is ours in those that its list includes: files, and what a file alone
# cannot say.
settle() (
    below=$(sed -n 's/^include //p' "$images/$1/packages")
    [ -z "$below" ] || settle "$below"
    [ ! -d "$images/$1/files" ] || cp -R --no-preserve=ownership,timestamps,mode "$images/$1/files/." .
    [ ! -e "$images/$1/settle.sh" ] || sh "$images/$1/settle.sh"
)
settle "$name"
