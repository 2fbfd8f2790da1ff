#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What is installed is enough: a program outside the tree builds with pkg-config
# against the shared and the static library, and runs.
#   usage: check_install.sh <build folder>
set -euo pipefail
build=$1
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
DESTDIR=$place meson install -C "$build" --no-rebuild >"$place/install.log" 2>&1 || { cat "$place/install.log"; exit 1; }
pc=$(find "$place" -name trek.pc)
prefix=$(sed -n 's/^prefix=//p' "$pc")
export PKG_CONFIG_PATH=${pc%/*} PKG_CONFIG_SYSROOT_DIR=
sed -i "s|^prefix=.*|prefix=$place$prefix|" "$pc"
cat >"$place/program.c" <<'C'
#include <stdio.h>
#include <trek/trek.h>

int main(void)
{
    trek_scope scope = trek_scope_begin();
    trek_var *x = trek_var_from(trek_tensor_full(3, trek_dims(2, 2), TREK_F32, trek_cpu(0)));
    trek_var_set_requires_grad(x, true);
    trek_status status = trek_backward(trek_sum(trek_mul(x, x), trek_dims_none(), false));
    double slope = status == TREK_OK ? trek_var_item(trek_select(trek_select(trek_var_grad(x), 0, 0), 0, 1)) : 0;
    printf("trek %s: %g\n", trek_version(), slope);
    if (trek_error_status() != TREK_OK)
        fprintf(stderr, "%s\n", trek_error());
    trek_scope_end(scope);
    return !(slope == 6);
}
C
library=$(dirname "$(find "$place" -name 'libtrek.so')")
cc=${CC:-gcc}
flags="-std=c11 -Wall -Wextra -Wpedantic -Werror"
# shellcheck disable=SC2046,SC2086
$cc $flags "$place/program.c" -o "$place/shared" $(pkg-config --cflags --libs trek)
LD_LIBRARY_PATH=$library "$place/shared" | tee "$place/said"
grep -q "^trek $(pkg-config --modversion trek):" "$place/said" || { echo "pkg-config says version $(pkg-config --modversion trek)"; exit 1; }
# shellcheck disable=SC2046,SC2086
$cc $flags "$place/program.c" -o "$place/static" $(pkg-config --cflags trek) "$library/libtrek.a" \
    $(pkg-config --libs --static trek | sed 's/-ltrek//')
"$place/static"
