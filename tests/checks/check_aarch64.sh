#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The library compiles for 64-bit ARM, warning-free, and passes under qemu: ops, autograd, well-known models, state files and
# a short training on digits. Without zlib, oneDNN and cmocka, of which no ARM builds are installed. Where there is no
# qemu nothing is run.
#   usage: check_aarch64.sh <source> <build folder> [meson options]
# Its tests' results: <build folder>/meson-logs/emulated.json.
set -euo pipefail
source=$1 build=$2
shift 2
rm -rf "$build" "$build.log"
mkdir -p "$build.log"
# MNIST's files unpacked, under their names: there is no zlib
data=${TREK_DATA:-$source/../shared/data}/mnist
export TREK_DATA=$build.log/data TREK_TEST_SHORT=2 TREK_THREADS=2
if [ -e "$data/t10k-images-idx3-ubyte.gz" ]; then
    mkdir -p "$TREK_DATA/mnist"
    for name in t10k-images-idx3-ubyte.gz t10k-labels-idx1-ubyte.gz; do gunzip -c "$data/$name" >"$TREK_DATA/mnist/$name"; done
fi
meson setup "$build" "$source" --cross-file "$source/tests/checks/aarch64.ini" -Dcuda=disabled -Dmpi=disabled -Donednn=disabled \
    -Dcmocka=disabled -Dexamples=false -Dfake_cuda=false -Db_lundef=false "$@" >"$build.log/setup.log" 2>&1 ||
    { tail -20 "$build.log/setup.log"; exit 1; }
programs=() suites=(ops_table ops_forward ops_gradient ops_bad_calls ops_random_rows tensor autograd functional functional_edges fused losses nn
    layers optim arena state state_files tokenizer plan fuzz_safetensors fuzz_idx zoo convergence)
for name in "${suites[@]}"; do
    case $name in fuzz_*) programs+=("tests/fuzz/$name") ;; *) programs+=("tests/test_$name") ;; esac
done
ninja -C "$build" libtrek.a "${programs[@]}" >"$build.log/build.log" 2>&1 || { grep -E 'error|warning' "$build.log/build.log" | head -40; exit 1; }
! grep 'warning:' "$build.log/build.log"
aarch64-linux-gnu-objdump -f "$build/libtrek.a" >"$build.log/objects.log"
grep -q 'architecture: aarch64' "$build.log/objects.log"
command -v qemu-aarch64 >/dev/null || { echo "64-bit ARM: built; no qemu to run it"; exit 0; }
MALLOC_PERTURB_=${MALLOC_PERTURB_:-165} meson test -C "$build" --no-rebuild --logbase emulated --timeout-multiplier 3 "${suites[@]}" >"$build.log/test.log" 2>&1 ||
    { grep -E '^ *[0-9]+/.*(FAIL|TIMEOUT|ERROR)' "$build.log/test.log"; exit 1; }
echo "64-bit ARM: built, and run by qemu"
