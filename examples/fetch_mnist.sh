#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fetches MNIST into a folder, by curl, wget or python3, whichever is installed. Files come to their place when all are
# there and have the SHA-256 that is asked for: what fails leaves the folder as it was, and says why in one line.
#
#   examples/fetch_mnist.sh FOLDER [SUMS]     SUMS: as sha256sum writes them (default: examples/mnist.sha256)
#
# TREK_MNIST_MIRROR: where from, instead of the mirrors below. TREK_FETCH_SECONDS: at most so long for a file (300).
set -u
folder=$1 sums=${2:-$(dirname "$0")/mnist.sha256} seconds=${TREK_FETCH_SECONDS:-300}
mirrors=${TREK_MNIST_MIRROR:-https://storage.googleapis.com/cvdf-datasets/mnist https://ossci-datasets.s3.amazonaws.com/mnist}

has() { command -v "$1" >/dev/null 2>&1; }

get() {
    if has curl; then
        timeout "$seconds" curl -fsSL --connect-timeout 10 -o "$2" "$1"
    elif has wget; then
        timeout "$seconds" wget -q --timeout=10 --tries=1 -O "$2" "$1"
    elif has python3; then
        timeout "$seconds" python3 -c 'import shutil, sys, urllib.request
with urllib.request.urlopen(sys.argv[1], timeout=10) as answer, open(sys.argv[2], "wb") as file:
    shutil.copyfileobj(answer, file)' "$1" "$2"
    else
        echo "neither curl nor wget nor python3 is installed" >&2
        return 1
    fi
}

fetch_from() {
    local mirror=$1 sum name
    while read -r sum name; do
        if ! get "$mirror/$name" "$place/$name" 2>"$place/why"; then
            why="$name does not come from $mirror"
            [ -s "$place/why" ] && why="$why ($(tail -1 "$place/why"))"
            return 1
        fi
        if ! echo "$sum  $place/$name" | sha256sum -c --status 2>/dev/null; then
            why="$mirror/$name is another file: its SHA-256 is not $sum"
            return 1
        fi
    done <"$sums"
}

made=""
[ -d "$folder" ] || made=$folder
if ! mkdir -p "$folder" 2>/dev/null || ! place=$(mktemp -d "$folder/.fetch.XXXXXX" 2>/dev/null); then
    echo "$folder cannot be written"
    exit 1
fi
clear_up() {
    rm -rf "$place"
    [ -z "$made" ] || rmdir "$made" 2>/dev/null || true # unless it has come to something
}
trap clear_up EXIT
trap 'exit 1' INT TERM HUP

for mirror in $mirrors; do
    if fetch_from "$mirror"; then
        while read -r _ name; do mv -f "$place/$name" "$folder/$name" || exit 1; done <"$sums"
        exit 0
    fi
done
echo "$why"
exit 1
