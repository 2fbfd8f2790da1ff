#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, from a checkout, where nothing can be installed: a
# compiler, nvcc, Python and Meson (with Ninja) are enough. No step stops another;
# what cannot run is skipped by name. The last line says "N passed, N failed, N
# skipped"; the exit status is 0 if nothing failed.
#   usage: tests/gpu.sh [-o FOLDER] lease | test | sanitize | bench [NAME] | all
# lease: for ten minutes on a GPU: what tells most first, of tests, benchmarks, PyTorch and compute-sanitizer, into
# one file, FOLDER/gpu-lease.md. all: test, sanitize and bench, each to its end, for whoever has the time.
# NAME: one of gpu_bench.py --list, or gpt2, or models, or overlap. TREK_PEER_PYTHON: a Python that has PyTorch.
# FOLDER (or TREK_GPU_OUT, default build-gpu) gets the build, logs/, one record a
# step in steps/, gpu-PART.json and the page gpu-PART.md, which is written anew after
# each step. A part takes at most TREK_GPU_BUDGET seconds (470): what is then left is
# named, and the same command goes on with it. Steps that have a record of these
# sources are not run again; failed ones are with TREK_GPU_AGAIN=failed, all with
# TREK_GPU_AGAIN=all. TREK_GPU_BUILD: a build folder that is there already.
# TREK_GPU_DEVICE: the device (cuda:0). TREK_GPU_REHEARSE=1: everything small, on the
# fake device of TREK_GPU_BUILD. TREK_GPU_COMMIT: what the page calls these sources
# where git does not know them.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
root=$PWD
out=${TREK_GPU_OUT:-$root/build-gpu}
[ "${1:-}" = -o ] && { out=$2; shift 2; }
part=${1:-test} only=${2:-}
mkdir -p "$out/logs" "$out/steps" "$out/lease" || exit 1
out=$(cd "$out" && pwd)
build=${TREK_GPU_BUILD:-$out/build}
budget=${TREK_GPU_BUDGET:-470}
device=${TREK_GPU_DEVICE:-cuda:0}
peer=${TREK_PEER_PYTHON:-python3}
python=$(python3 -c "import sys; print(sys.executable)" 2>/dev/null) || python=python3 # found once: it is called for each step
rehearse=${TREK_GPU_REHEARSE:-}
width=$(($(nproc) / 2)) # test programs at a time: they compute on the CPU, too, to compare
[ "$width" -ge 1 ] || width=1
[ "$width" -le 8 ] || width=8
[ -x /usr/local/cuda/bin/nvcc ] && PATH=$PATH:/usr/local/cuda/bin
export TREK_TEST_ROOT=$root TREK_TEST_BUILD=$build TREK_PLUGIN_PATH=${TREK_PLUGIN_PATH:-$build/tensor/cuda}
if [ -n "$rehearse" ]; then
    export TREK_PLUGIN_PATH=$build/tests/fake_cuda/plugin TREK_TEST_SHORT=1
    for name in cublaslt cudnn nccl nvml; do export "TREK_${name^^}_LIBRARY=$build/tests/fake_cuda/libfake_$name.so"; done
fi
why_not="" # why no further step can be run
# What is built and written changes no sources.
made=(-path './build*' -o -path ./.git -o -name __pycache__ -o -path "./${out#"$root"/}" -o -path "./${build#"$root"/}")
sources=$(find . \( "${made[@]}" \) -prune -o -type f \
    \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def' -o -name 'meson*' -o -path './tests/*' \) -print0 |
    sort -z | xargs -0 cat | cksum | cut -d' ' -f1)
commit=$(git describe --always --dirty --abbrev=12 2>/dev/null || echo "${TREK_GPU_COMMIT:-unknown}")
export TREK_GPU_OUT=$out TREK_GPU_PART=$part TREK_GPU_SOURCES=$sources TREK_GPU_COMMIT="$commit (sources $sources)"
export TREK_GPU_HEALTH=$build/tests/gpu_devices
SECONDS=0

left() { echo $((budget - SECONDS)); }
log_of() { echo "$out/logs/$part.$1.log"; }
skip() { "$python" tests/gpu/steps.py skip "$@"; } # NAME REASON
# step NAME LIMIT COMMAND...: status 0 if it passed, now or before, 1 if it failed, 2 if it was not (fully) run.
# A command's status 77 is a skip, its last line the reason.
step() {
    local name=$1 limit=$2
    shift 2
    "$python" tests/gpu/steps.py run "$name" "$limit" "$(left)" "$@" &
    wait $! # which a signal ends
}
# beside STEP...: with those that were begun so, until `together`
beside() {
    while [ "$(jobs -rp | wc -l)" -ge "$width" ]; do wait -n; done
    (
        trap 'kill $(jobs -p) 2>/dev/null; wait; exit 1' TERM
        "$@"
    ) &
}
together() { wait; }

. tests/gpu/build.sh
. tests/gpu/parts.sh
. tests/gpu/lease.sh

run_part() {
    part=$1
    export TREK_GPU_PART=$part
    printf '== %s: %s\n' "$part" "$out"
    rm -f "$out/steps/$part."*.now "$out/steps/$part.device_lost.txt"
    prepare
    "part_$part"
    together
    nvidia-smi --query-gpu=name,driver_version,clocks.sm,temperature.gpu,power.draw --format=csv,noheader >"$out/gpu.txt" 2>/dev/null
    "$python" tests/gpu/steps.py sum
}

# Steps end their commands when they are told to, and the page says what there was.
ended() {
    trap '' INT TERM
    kill $(jobs -p) 2>/dev/null
    wait
    "$python" tests/gpu/steps.py sum
    exit 1
}
trap ended INT TERM

case $part in
lease | test | sanitize | bench) run_part "$part" ;;
all)
    failed=0
    for each in test sanitize bench; do
        SECONDS=0
        run_part $each || failed=1
    done
    exit $failed
    ;;
*)
    sed -n '3,25s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
