#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The CUDA plug-in as it is built for users: exports one symbol, needs no library
# of CUDA's to be loaded, and a machine without a driver gets a status from it.
#   usage: check_plugin.sh BUILD_FOLDER
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
build=$1
plugin=$build/tensor/cuda/libtrek-cuda.so
failed=0
complain() { echo "$1"; failed=1; }

exported=$(nm -D --defined-only "$plugin" | awk '{ print $3 }' | tr '\n' ' ')
[ "$exported" = "trek_backend_open " ] || complain "it exports: $exported"
needed=$(readelf -d "$plugin" | grep NEEDED | grep -E 'cuda|cublas|cudnn|nccl|libtrek')
[ -z "$needed" ] || complain "it cannot be loaded without: $needed"

cat >"$build/no_device.c" <<'C'
#include <stdio.h>
#include <string.h>
#include "trek.h"
int main(void)
{
    int count = trek_device_count(TREK_CUDA);
    trek_tensor *t = trek_tensor_zeros(trek_dims(3), TREK_F32, trek_cuda(0));
    printf("%d device(s); %s\n", count, trek_error());
    if (count > 0) /* a machine with a GPU: that it can be used is for gpu.sh to see */
        return t ? 0 : 1;
    return !t && trek_error_status() == TREK_ERR_DEVICE && strstr(trek_error(), "no CUDA device") ? 0 : 1;
}
C
for kind in shared static; do
    if [ $kind = shared ]; then
        libraries=("$build/libtrek.so" -Wl,-rpath,"$build")
    else
        libraries=("$build/libtrek.a" $(pkg-config --libs zlib 2>/dev/null || echo -lz) -lm -ldl -lpthread)
        grep -q TREK_HAVE_ONEDNN "$build/build.ninja" && libraries+=(-ldnnl)
    fi
    if cc -std=c11 -I. "$build/no_device.c" -o "$build/no_device_$kind" "${libraries[@]}"; then
        TREK_PLUGIN_PATH=$(realpath "$(dirname "$plugin")") "$build/no_device_$kind" || complain "$kind core: no clear status"
    else
        complain "$kind core: does not link"
    fi
done
exit $failed
