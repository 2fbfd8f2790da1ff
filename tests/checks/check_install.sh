#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What is installed is enough: programs outside the tree build with pkg-config against
# the shared and the static library, and run; among them all that the pages show.
#   usage: check_install.sh <build folder>
set -euo pipefail
build=$1
there=$(realpath "$build")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
DESTDIR=$place meson install -C "$build" --no-rebuild >"$place/install.log" 2>&1 || { cat "$place/install.log"; exit 1; }
pc=$(find "$place" -name trek.pc)
prefix=$place$(sed -n 's/^prefix=//p' "$pc")
library=$(dirname "$(find "$place" -name 'libtrek.so')")
export PKG_CONFIG_PATH=${pc%/*} PKG_CONFIG_SYSROOT_DIR=
pkg_config() { pkg-config --define-variable=prefix="$prefix" "$@"; } # the tree stands elsewhere than it was made for
for file in share/man/man1/trek-run.1 share/doc/trek/README.md share/doc/trek/CONTRIBUTING.md share/doc/trek/docs/distributed.md share/doc/trek/examples/quickstart.c bin/trek-run bin/trek-replay share/man/man1/trek-replay.1 bin/trek-export share/man/man1/trek-export.1; do
    [ -s "$prefix/$file" ] || [ -s "$prefix/$file.gz" ] || { echo "$file is not installed"; exit 1; }
done
[ -s "$library/libtrek-monitor.so" ] || { echo "libtrek-monitor.so is not installed"; exit 1; }
cat >"$place/program.c" <<'C'
#include <stdio.h>
#include <trek/trek.h>

int main(void)
{
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(trek_tensor_full(trek_dims(2, 2), 3, TREK_F32, trek_cpu(0)));
    trek_var_set_requires_grad(x, true);
    trek_status status = trek_backward(trek_sum(trek_mul(x, x), trek_dims_all(), false));
    double slope = status == TREK_OK ? trek_var_item(trek_select(trek_select(trek_var_grad(x), 0, 0), 0, 1)) : 0;
    printf("trek %s: %g\n", trek_version(), slope);
    if (trek_error_status() != TREK_OK)
        fprintf(stderr, "%s\n", trek_error());
    trek_scope_end(scope);
    return !(slope == 6);
}
C
cc=${CC:-gcc}
flags="-std=c11 -Wall -Wextra -Wpedantic -Werror"
# said PROGRAM: what it has to say
said() {
    LD_LIBRARY_PATH=$library "$1" | tee "$place/said"
    grep -q "^trek $(pkg-config --modversion trek): 6$" "$place/said" || { echo "$1: not what pkg-config's version says"; exit 1; }
}

# shellcheck disable=SC2046,SC2086
$cc $flags "$place/program.c" -o "$place/shared" $(pkg_config --cflags --libs trek)
said "$place/shared"
# As the README says: -l:libtrek.a, with what it needs in turn; all of it, so that nothing is missing.
# shellcheck disable=SC2046,SC2086
$cc $flags "$place/program.c" -o "$place/static" $(pkg_config --static --cflags --libs trek | sed 's/-ltrek\b/-Wl,--whole-archive -l:libtrek.a -Wl,--no-whole-archive/')
LD_LIBRARY_PATH='' "$place/static" >/dev/null

# Without installing: against the build folder, by the same name of the header.
mkdir "$place/folder" # where no header of the tree is at hand
# shellcheck disable=SC2046,SC2086
(cd "$place/folder" && $cc -std=c11 ../program.c -o ../uninstalled $(PKG_CONFIG_PATH=$there/meson-uninstalled pkg-config --cflags --libs trek))
LD_LIBRARY_PATH=$there "$place/uninstalled" >/dev/null

# The examples as they are installed, from a copy under another name, by their own Makefile.
cp -r "$prefix/share/doc/trek/examples" "$place/copy"
make -s -C "$place/copy" OUT="$place" CFLAGS="-std=c11 -Wall -Wextra -Werror" PKG_CONFIG="pkg-config --define-variable=prefix=$prefix"

# What the pages show, against the headers that are installed.
python3 "$(dirname "$0")/check_code_blocks.py" "$(dirname "$0")/../.." "$library/libtrek.so" "$prefix/include" "$prefix/include/trek"

if command -v g++ >/dev/null; then
    cat >"$place/program.cc" <<'CC'
#include <cstdio>
#include <trek/trek.h>

int main()
{
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(trek_tensor_full(trek_dims(2, 2), 1.5, TREK_F32, trek_cpu(0)));
    std::printf("trek %s: %g\n", trek_version(), trek_var_item(trek_sum(x, trek_dims(0, -1), false)));
    trek_scope_end(scope);
    return trek_error_status() != TREK_OK;
}
CC
    # shellcheck disable=SC2046
    g++ -std=c++11 -Wall -Wextra -Wpedantic -Werror "$place/program.cc" -o "$place/cxx" $(pkg_config --cflags --libs trek)
    said "$place/cxx"
fi

command -v cmake >/dev/null || { echo "cmake is not installed: its package was not tried"; exit 0; }
mkdir "$place/cmake"
cp "$place/program.c" "$place/cmake"
cat >"$place/cmake/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.13)
project(program C)
find_package(trek ${WANTED} CONFIG REQUIRED)
add_executable(shared program.c)
target_link_libraries(shared trek::trek)
add_executable(static program.c)
target_link_libraries(static -Wl,--whole-archive trek::static -Wl,--no-whole-archive)
CMAKE
version=$(pkg-config --modversion trek)
cmake -S "$place/cmake" -B "$place/cmake/build" -DCMAKE_PREFIX_PATH="$prefix" -DWANTED="${version%.*}" >"$place/cmake.log" 2>&1 &&
    cmake --build "$place/cmake/build" >>"$place/cmake.log" 2>&1 || { cat "$place/cmake.log"; exit 1; }
said "$place/cmake/build/shared"
LD_LIBRARY_PATH='' "$place/cmake/build/static" >/dev/null
if cmake -S "$place/cmake" -B "$place/cmake/other" -DCMAKE_PREFIX_PATH="$prefix" -DWANTED=99.0 >/dev/null 2>&1; then
    echo "CMake takes trek $version for version 99.0"
    exit 1
fi
