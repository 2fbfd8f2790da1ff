#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The library compiles for 64-bit ARM, warning-free. Where no zlib for arm64 is
# installed, the native zlib's headers serve (they do not depend on the machine)
# with an empty library to link against; nothing is run.
#   usage: check_aarch64.sh <source> <build folder> [meson options]
set -euo pipefail
source=$1 build=$2
shift 2
stub=$build.zlib
rm -rf "$build" "$stub"
mkdir -p "$stub"
cp "$(printf '#include <zlib.h>\n' | gcc -E - | sed -n 's/^# 1 "\(.*zlib\.h\)".*/\1/p' | head -1)" "$stub/"
cp "$(printf '#include <zconf.h>\n' | gcc -E - | sed -n 's/^# 1 "\(.*zconf\.h\)".*/\1/p' | head -1)" "$stub/"
: >"$stub/empty.c"
aarch64-linux-gnu-gcc -shared -o "$stub/libz.so" "$stub/empty.c"
printf 'Name: zlib\nDescription: headers of zlib\nVersion: 1.2.13\nLibs: -L%s -lz\nCflags: -I%s\n' "$stub" "$stub" >"$stub/zlib.pc"
{
    cat "$source/tests/aarch64.ini"
    printf "[built-in options]\npkg_config_path = '%s'\n[properties]\npkg_config_libdir = '%s'\n" "$stub" "$stub"
} >"$stub/cross.ini"
sed -i "/^\[binaries\]/a pkgconfig = 'pkg-config'" "$stub/cross.ini"
meson setup "$build" "$source" --cross-file "$stub/cross.ini" -Dcuda=disabled -Dmpi=disabled -Donednn=disabled \
    -Dtests=false -Dexamples=false -Db_lundef=false "$@" >"$stub/setup.log" 2>&1 || { cat "$stub/setup.log"; exit 1; }
# Objects and the static library; the shared one would need a real zlib.
ninja -C "$build" libtrek.a >"$stub/build.log" 2>&1 || { tail -40 "$stub/build.log"; exit 1; }
aarch64-linux-gnu-objdump -f "$build/libtrek.a" >"$stub/objects.log"
grep -q 'architecture: aarch64' "$stub/objects.log"
