#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, from a checkout, without a network. No step stops another; what cannot run is skipped by
# name. The last line says "N passed, N failed, N skipped, N not finished"; the exit status is 0 if nothing failed.
#   usage: tests/gpu.sh [-o FOLDER] [-p PACK] pack PACK | lease [second] | test | grains | divided | sanitize | bench [NAME] | all
# pack: on a machine without a GPU, builds what lease needs and writes it into PACK, one archive and a small text.
# lease: the first seven minutes on a GPU; lease second: five more. They take the programs from PACK (default gpu-pack),
# if they are those of these sources and start here, and build them otherwise. all: test, sanitize and bench in turn.
# grains: what test has of training in grains, alone. divided: of what is divided over ranks (.shard), for two GPUs or more.
# NAME: one of gpu_bench.py --list, or gpu_bench.py's groups gpt2 and models, or overlap, or grains.
# FOLDER (TREK_GPU_OUT, default the folder of work) gets a few files: gpu-PART.md, the page; gpu-PART.json;
# gpu-PART-kernels.md; gpu-PART-logs.tar.gz. They are written anew while steps run, at least every 20 seconds.
# TREK_GPU_WORK (default build-gpu): the build, the logs, one record a step. A part takes at most TREK_GPU_BUDGET seconds
# (lease 405, lease second 305, others 470), and the same command goes on with what it left: steps that have a record of
# these sources are not run again. TREK_GPU_AGAIN=failed runs those that failed again, TREK_GPU_AGAIN=all all of them.
# TREK_GPU_BUILD: a build folder that is there already. TREK_GPU_DEVICE: the device (cuda:0). TREK_PEER_PYTHON: a Python
# that has PyTorch. TREK_GPU_COMMIT: what the page calls these sources where neither git nor the pack knows it.
# TREK_GPU_REHEARSE=1: everything small, on the fake device of TREK_GPU_BUILD or of a pack that was made from it.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
export LC_ALL=C # file names sort alike on every machine
root=$PWD
out=${TREK_GPU_OUT:-} pack=${TREK_GPU_PACK:-} words=()
while [ $# -gt 0 ]; do
    case $1 in
    -o | -p)
        [ $# -gt 1 ] || { echo "tests/gpu.sh: $1: nothing behind it; a folder has to be"; exit 2; }
        if [ "$1" = -o ]; then out=$2; else pack=$2; fi
        shift
        ;;
    *) words+=("$1") ;;
    esac
    shift
done
part=${words[0]:-test} only=${words[1]:-}
work=${TREK_GPU_WORK:-$root/build-gpu}
mkdir -p "$work/logs" "$work/steps" "${out:=$work}" || exit 1
work=$(cd "$work" && pwd) out=$(cd "$out" && pwd)
budget=${TREK_GPU_BUDGET:-470}
device=${TREK_GPU_DEVICE:-cuda:0}
peer=${TREK_PEER_PYTHON:-python3}
python=$(python3 -c "import sys; print(sys.executable)" 2>/dev/null) || python=python3 # found once: it is called for each step
rehearse=${TREK_GPU_REHEARSE:-}
width=$(($(nproc) / 2)) # test programs at a time: they compute on the CPU, too, to compare
[ "$width" -ge 1 ] || width=1
[ "$width" -le 8 ] || width=8
[ -x /usr/local/cuda/bin/nvcc ] && PATH=$PATH:/usr/local/cuda/bin
[ -z "$rehearse" ] || export TREK_TEST_SHORT=1
why_not="" # why no further step can be run
# What is compiled or run. What git ignores, results and packs are no part of it.
sources=$(find ./*.h ./meson* $(printf '%s\n' ./*/meson.build | xargs -n 1 dirname | grep -vx ./examples) \
    \( -name __pycache__ -o -path ./data/mnist \) -prune -o -type f ! -name '*.o' -print0 | sort -z | xargs -0 cksum | cksum | cut -d' ' -f1)
commit=$(git describe --always --dirty --abbrev=12 2>/dev/null || echo "${TREK_GPU_COMMIT:-}")

# use_build FOLDER: programs and the plug-in are those of this folder.
use_build() {
    build=$(readlink -m "$1") # libraries are named by absolute paths
    export TREK_TEST_ROOT=$root TREK_TEST_BUILD=$build TREK_PLUGIN_PATH=$build/tensor/cuda TREK_GPU_HEALTH=$build/tests/gpu_devices
    [ -n "$rehearse" ] || return 0
    export TREK_PLUGIN_PATH=$build/tests/fake_cuda/plugin
    for name in cublaslt cudnn nccl nvml; do export "TREK_${name^^}_LIBRARY=$build/tests/fake_cuda/libfake_$name.so"; done
}
use_build "${TREK_GPU_BUILD:-$work/build}"
export TREK_GPU_WORK=$work TREK_GPU_OUT=$out TREK_GPU_PART=$part TREK_GPU_SOURCES=$sources

SECONDS=0
stage_end=$budget
# stage SECONDS: the steps that follow have so much time in all.
stage() { [ -n "$rehearse" ] || stage_end=$((SECONDS + $1)); }
least() { if [ "$1" -lt "$2" ]; then echo "$1"; else echo "$2"; fi; }
left() { echo $(($(least "$budget" "$stage_end") - SECONDS)); }
log_of() { echo "$work/logs/$part.$1.log"; }
chosen_steps="" # the names of the only steps to be run; empty: all
spare=""        # steps that follow are not missed where no time is left for them
wanted() { [[ -z $chosen_steps || " $chosen_steps " = *" $1 "* ]] && { [ -z "$spare" ] || [ "$(left)" -ge 25 ]; }; }
skip() { ! wanted "$1" || "$python" tests/gpu/steps.py skip "$@"; } # NAME REASON
# step NAME LIMIT COMMAND...: status 0 if it passed, now or before, 1 if it failed, 2 if it was not (fully) run.
# A command's status 77 is a skip, its last line the reason; 75 says that it was stopped at a limit of its own.
step() {
    local name=$1 limit=$2
    wanted "$name" || return 2
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
. tests/gpu/pack.sh
. tests/gpu/parts.sh
. tests/gpu/lease.sh

run_part() {
    part=$1
    trap ended INT TERM
    [ -n "${TREK_GPU_BUDGET:-}" ] || case $part in lease) budget=405 ;; second) budget=305 ;; esac
    stage_end=$budget
    export TREK_GPU_PART=$part TREK_GPU_COMMIT="${commit:-unknown} (sources $sources)"
    mkdir -p "$work/$part" # what its steps measure
    printf '== %s: into %s, work in %s\n' "$part" "$out" "$work"
    rm -f "$work/steps/$part."*.now "$work/steps/$part.device_lost.txt"
    prepare
    "part_$part"
    together
    machine_now >"$work/machine_end.txt"
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

case $part:$only in
pack:?*) make_pack "$only" ;;
lease:second) run_part second ;;
lease: | test:* | grains:* | divided:* | sanitize:* | bench:*) run_part "$part" ;;
all:)
    failed=0
    for each in test sanitize bench; do
        SECONDS=0
        run_part $each || failed=1
    done
    exit $failed
    ;;
*)
    sed -n '3,21s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
