#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, from a checkout, where nothing can be installed: a
# compiler, nvcc, Python and Meson (with Ninja) are enough. No step stops another;
# what cannot run is skipped by name. The last line says "N passed, N failed, N
# skipped"; the exit status is 0 if nothing failed.
#   usage: tests/gpu.sh [-o FOLDER] test | sanitize | bench [NAME] | all
# NAME: one of gpu_bench.py --list, or gpt2, or models, or overlap. TREK_PEER_PYTHON: a Python that has PyTorch.
# FOLDER (or TREK_GPU_OUT, default build-gpu) gets the build, logs/, one record a
# step in steps/ and gpu-PART.json. A part takes at most TREK_GPU_BUDGET seconds
# (470): what is then left is named, and the same command goes on with it. Steps
# that have a record of these sources are not run again; failed ones are with
# TREK_GPU_AGAIN=failed, all with TREK_GPU_AGAIN=all. TREK_GPU_BUILD: a build
# folder that is there already. TREK_GPU_DEVICE: the device (cuda:0).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
root=$PWD
out=${TREK_GPU_OUT:-$root/build-gpu}
[ "${1:-}" = -o ] && { out=$2; shift 2; }
part=${1:-test} only=${2:-}
mkdir -p "$out/logs" "$out/steps" || exit 1
out=$(cd "$out" && pwd)
build=${TREK_GPU_BUILD:-$out/build}
budget=${TREK_GPU_BUDGET:-470}
device=${TREK_GPU_DEVICE:-cuda:0}
[ -x /usr/local/cuda/bin/nvcc ] && PATH=$PATH:/usr/local/cuda/bin
export TREK_TEST_ROOT=$root TREK_TEST_BUILD=$build TREK_PLUGIN_PATH=${TREK_PLUGIN_PATH:-$build/tensor/cuda}
sources=$(find . -path './build*' -prune -o -path ./.git -prune -o -type f \
    \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def' -o -name 'meson*' -o -path './tests/*' \) -print0 |
    sort -z | xargs -0 cat | cksum | cut -d' ' -f1)
SECONDS=0

report() { python3 tests/gpu/report.py "$@"; }
left() { echo $((budget - SECONDS)); }
log_of() { echo "$out/logs/$part.$1.log"; }

# done_before NAME: its record is kept
done_before() {
    local kept
    kept=$(report kept "$out" "$part" "$1" "$sources")
    [ -n "$kept" ] || return 1
    case ${TREK_GPU_AGAIN:-}:$kept:$1 in
    all:* | failed:failed:* | *:failed:build | *:failed:devices) return 1 ;;
    esac
    printf '%-28s %s (before)\n' "$1" "$kept"
}

# skip NAME REASON
skip() {
    done_before "$1" && return 0
    report record "$out" "$part" "$1" "$sources" skipped 0 "" "$2" >/dev/null
    printf '%-28s skipped: %s\n' "$1" "$2"
}

# step NAME LIMIT COMMAND...: status 0 if it passed, now or before, 1 if it failed, 2 if it was not (fully) run.
# A command's status 77 is a skip, its last line the reason.
step() {
    local name=$1 limit=$2 asked=$2 log start seconds code status reason=""
    shift 2
    log=$(log_of "$name")
    if done_before "$name"; then
        [ "$(report kept "$out" "$part" "$name" "$sources")" = passed ]
        return
    fi
    if [ "$(left)" -lt 15 ]; then
        report record "$out" "$part" "$name" "" left 0 "" "no time left: run the same command again" >/dev/null
        printf '%-28s left for the next call\n' "$name"
        return 2
    fi
    [ "$(left)" -lt "$limit" ] && limit=$(left)
    start=$SECONDS
    timeout -k 10 "$limit" "$@" >"$log" 2>&1
    code=$?
    seconds=$((SECONDS - start))
    case $code in
    0) status=passed ;;
    77) status=skipped reason=$(tail -1 "$log") ;;
    124 | 137) status=failed reason="stopped after $seconds s" ;;
    *) status=failed reason="status $code" ;;
    esac
    # cut short by the end of the part, not by its own limit: the next call has more time
    [ "$status" = failed ] && [ "$limit" -lt "$asked" ] && case $code in 124 | 137) status=left ;; esac
    printf '%-28s %s\n' "$name" "$(report record "$out" "$part" "$name" "$sources" "$status" "$seconds" "$log" "$reason")"
    case $status in passed) return 0 ;; failed) return 1 ;; *) return 2 ;; esac
}

# ---- building ----------------------------------------------------------------

have_meson() {
    if command -v meson >/dev/null && command -v ninja >/dev/null; then return 0; fi
    [ -x "$out/venv/bin/meson" ] || { timeout 90 python3 -m venv "$out/venv" && timeout 90 "$out/venv/bin/pip" -q install meson ninja; } \
        >"$out/logs/venv.log" 2>&1
    PATH=$out/venv/bin:$PATH
    command -v meson >/dev/null && command -v ninja >/dev/null
}

build_all() {
    local archs=native
    command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1 || archs=90
    if [ ! -f "$build/build.ninja" ]; then
        rm -rf "$build"
        CUDA_ROOT=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")") meson setup "$build" "$root" -Dcuda=enabled -Dgpu_archs=$archs \
            -Dmpi=disabled -Dexamples=false -Disas=avx2 || return 1
    fi
    case $part in
    bench) ninja -C "$build" tests/bench/gpu/trek-gpu-bench tensor/cuda/libtrek-cuda.so tests/gpu_devices tests/bench/trek-bench-overlap \
        tools/trek-run ;;
    *) ninja -k 0 -C "$build" ;;
    esac
}
export -f build_all
export build root part

# Whether programs are there; else every further step is skipped with this reason.
why_not=""
prepare() {
    if ! command -v nvcc >/dev/null; then
        why_not="no nvcc"
        skip build "$why_not"
    elif ! have_meson; then
        why_not="no Meson and Ninja"
        skip build "$why_not"
    elif ! step build 3600 bash -c build_all; then
        grep -E 'error|FAILED|ERROR' "$(log_of build)" | head -5
        # programs that do not build are missed one by one
        [ -x "$build/tests/gpu_devices" ] && [ -e "$TREK_PLUGIN_PATH/libtrek-cuda.so" ] || why_not="not built, or not yet"
    fi
    if [ -n "$why_not" ]; then
        skip devices "$why_not"
    else
        step devices 60 "$build/tests/gpu_devices"
        [ $? = 2 ] && why_not="no CUDA device"
        cat "$(log_of devices)"
    fi
}

# on_device NAME LIMIT PROGRAM [ARGUMENTS]: a test program on the device, if it was built
on_device() {
    local name=$1 limit=$2 program=$3
    shift 3
    if [ -n "$why_not" ]; then
        skip "$name" "$why_not"
    elif [ ! -x "$build/tests/$program" ]; then
        skip "$name" "there is no $program"
    else
        TREK_TEST_DEVICE=$device step "$name" "$limit" "$build/tests/$program" "$@"
    fi
}

gpus() { grep -c '^cuda:[0-9]*: ' "$(log_of devices)" 2>/dev/null; }

# ---- the parts -----------------------------------------------------------------

part_test() {
    local name
    on_device op_table 30 test_ops_table
    on_device op_suite 240 test_ops_forward
    on_device op_random 60 test_ops_random_rows
    on_device bad_input 60 test_ops_bad_calls
    on_device op_composites 30 test_ops_composite
    on_device op_gradients 180 test_ops_gradient
    on_device op_second_gradients 180 test_ops_second
    on_device rows_against_the_cpu 120 test_cuda_rows
    on_device allocator_stress 120 test_cuda_device
    for name in tensor autograd functional functional_edges public_ops vectors training_vectors nn layers optim arena fused; do
        on_device "$name" 120 test_$name
    done
    on_device exact_2_and_3_ranks 240 test_exact
    on_device ranks 120 test_ranks
    on_device ranks_forward 120 test_ranks_forward
    on_device trainer 120 test_trainer
    on_device mixed_precision 120 test_mixed
    on_device autocast 120 test_autocast
    on_device graph_capture 120 test_capture
    on_device nccl_one_rank 60 test_nccl
    on_device attention 120 test_attention
    TREK_CUDA_SYNC=1 on_device synchronised_after_each_op 120 test_vectors
    on_device convergence 200 test_convergence
    on_device loader_windows_cpu_beside_gpu 200 test_graph_loader
    on_device mixed_devices 60 test_mixed_devices
    on_device heads 60 test_heads
    on_device ddp 120 test_ddp
    on_device ddp_calls 60 test_ddp_calls
    on_device ddp_wrapper 60 test_ddp_wrapper
    on_device checkpoint 200 test_checkpoint
    on_device checkpoint_damage 120 test_checkpoint_damage
    for name in sync_batch_norm sync_batch_norm_ways rank_sums; do
        on_device "$name" 120 test_$name
    done
    on_device runs 120 test_run
    on_device averaged_parameters 120 test_average
    on_device background_averages 120 test_run_background
    on_device processes_on_one_gpu 200 test_job
    if [ -z "$why_not" ] && [ "$(gpus)" -lt 2 ]; then
        skip processes_by_nccl "one GPU: each process needs one of its own"
    else
        TREK_TEST_EACH_GPU=1 on_device processes_by_nccl 200 test_job
    fi
}

# One tool a step, and a sixth of the rows: what is instrumented runs slowly.
part_sanitize() {
    local tool shard sanitizer=""
    for sanitizer in "$(command -v compute-sanitizer)" /usr/local/cuda/bin/compute-sanitizer \
        /usr/local/cuda/compute-sanitizer/compute-sanitizer /opt/nvidia/compute-sanitizer/compute-sanitizer ""; do
        [ -n "$sanitizer" ] && [ -x "$sanitizer" ] && break
    done
    for tool in memcheck racecheck initcheck synccheck; do
        for shard in 0 1 2 3 4 5; do
            for program in forward gradient; do
                if [ -n "$why_not" ]; then
                    skip "${tool}_${program}_$shard" "$why_not"
                elif [ -z "$sanitizer" ]; then
                    skip "${tool}_${program}_$shard" "no compute-sanitizer"
                else
                    TREK_TEST_DEVICE=$device TREK_TEST_SHORT=1 TREK_TEST_SHARD=$shard/6 TREK_CACHE=off \
                        step "${tool}_${program}_$shard" 230 "$sanitizer" --tool "$tool" --error-exitcode 9 --print-limit 20 \
                        --launch-timeout 0 "$build/tests/test_ops_$program"
                fi
            done
        done
    done
}

# The reduction between two processes under backward.
bench_overlap() {
    if [ -n "$why_not" ]; then
        skip overlap "$why_not"
    elif [ "$(gpus)" -lt 2 ]; then
        skip overlap "one GPU: reduction under backward by NCCL needs two"
    else
        step overlap 120 "$build/tools/trek-run" -n 2 "$build/tests/bench/trek-bench-overlap" && grep '^{' "$(log_of overlap)"
    fi
}

part_bench() {
    local name
    for name in $(python3 tests/bench/gpu_bench.py --list); do
        case $only:$name in
        :* | "$name:$name" | models:model_* | gpt2:gpt2_[0-9]*) ;;
        *) continue ;;
        esac
        if [ -n "$why_not" ]; then
            skip "$name" "$why_not"
        else # 100 s for trek, 180 s for PyTorch
            step "$name" 300 python3 tests/bench/gpu_bench.py --build "$build" --device "$device" --json "$out/bench-$name.json" "$name"
            [ -s "$out/bench-$name.json" ] && grep -E '^\|' "$(log_of "$name")"
        fi
    done
    case $only in "" | overlap) bench_overlap ;; esac
    python3 tests/bench/gpu_bench.py --table "$out" >"$out/bench.md" && [ -s "$out/bench.md" ] && printf '%s\n' "$out/bench.md"
}

run_part() {
    part=$1
    printf '== %s: %s\n' "$part" "$out"
    rm -f "$out/steps/$part."*.now
    prepare
    "part_$part"
    nvidia-smi --query-gpu=name,driver_version,clocks.sm,temperature.gpu,power.draw --format=csv,noheader >"$out/gpu.txt" 2>/dev/null
    report sum "$out" "$part" "$(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
}

case $part in
test | sanitize | bench) run_part "$part" ;;
all)
    failed=0
    for each in test sanitize bench; do
        SECONDS=0
        run_part $each || failed=1
    done
    exit $failed
    ;;
*)
    sed -n '3,17s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
