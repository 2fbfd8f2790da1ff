#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Debian's packages are built, each has what is its own, and a program is built against what they hold. Small ones: without
# plug-ins, optimisation and instruction sets.
#   usage: check_debian.sh <source folder> <folder to work in>
set -euo pipefail
root=$1 work=$2
rm -rf "$work"
mkdir -p "$work/trek"
tar -C "$root" --exclude='./build*' --exclude=./.git -cf - . | tar -C "$work/trek" -xf -
cd "$work/trek"
DEB_BUILD_OPTIONS="parallel=$(nproc) nocheck noopt" DEB_BUILD_PROFILES=pkg.trek.small TREK_DEB_OPTIONS=-Disas= \
    dpkg-buildpackage -us -uc -b >"$work/build.log" 2>&1 || { tail -30 "$work/build.log"; exit 1; }
cd "$work"
# holds PACKAGE FILE...: unpacks it; patterns of what it must hold
holds() {
    local package=$1 file
    shift
    dpkg -x "$package"_[0-9]*.deb "$work/system"
    dpkg -c "$package"_[0-9]*.deb >"$work/$package.list"
    for file in "$@"; do
        grep -q "/$file" "$work/$package.list" || { echo "$package has no $file"; exit 1; }
    done
}
holds libtrek0.2 'libtrek\.so\.0\.2\.'
holds libtrek0.2-monitor 'libtrek-monitor\.so'
holds libtrek-dev 'include/trek/trek\.h' 'include/trek/core\.h' 'include/trek/tensor/tensor\.h' 'libtrek\.a' 'libtrek\.so ' 'trek\.pc' 'trek-config\.cmake'
holds trek-tools 'bin/trek-run' 'man1/trek-run\.1\.gz' 'bin/trek-export' 'bin/trek-replay' 'man1/trek-replay\.1\.gz' 'man1/trek-export\.1\.gz'
holds trek-doc 'docs/distributed\.md' 'examples/quickstart\.c' 'examples/Makefile'
grep -q '\.h$' "$work/libtrek0.2.list" && { echo "the library's package has headers"; exit 1; }
export PKG_CONFIG_PATH
PKG_CONFIG_PATH=$(dirname "$(find "$work/system" -name trek.pc)")
make -s -C "$work/system/usr/share/doc/trek-doc/examples" OUT="$work" cadence_sim \
    PKG_CONFIG="pkg-config --define-variable=prefix=$work/system/usr"
LD_LIBRARY_PATH=$(dirname "$PKG_CONFIG_PATH") "$work/cadence_sim" --help >/dev/null
echo "$(ls ./*.deb | wc -l) packages"
