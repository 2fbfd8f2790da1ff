#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds trek in every way that this machine allows and runs its tests. Installs
# what is missing with apt-get (as root, or by sudo). The last line says
# "N passed, N failed, N skipped"; the exit status is 0 if nothing failed.
#   usage: tests/run.sh [meson options]      CI=true makes warnings errors
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
root=$PWD
work=${TREK_TEST_WORK:-$root/build-tests}
options=("$@")
[ "${CI:-}" = true ] && options+=(-Dwerror=true)
export TREK_TEST_ROOT=$root
jobs=$(nproc)
passed=0 failed=0 skipped=0
mkdir -p "$work"

say() { printf '\n== %s (%ss)\n' "$1" "$SECONDS"; }
pass() { passed=$((passed + 1)); }
fail() { failed=$((failed + 1)); printf 'FAILED: %s\n' "$1"; }
skip() { skipped=$((skipped + 1)); printf 'skipped: %s\n' "$1"; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo -n "$@"; else return 1; fi
}

install_packages() {
    local missing=() package
    command -v dpkg >/dev/null || return 0
    for package in meson ninja-build gcc g++ pkg-config zlib1g-dev libcmocka-dev libdnnl-dev python3 python3-venv \
        gcc-aarch64-linux-gnu libc6-dev-arm64-cross libopenmpi-dev openmpi-bin; do
        dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
    done
    [ ${#missing[@]} = 0 ] && return 0
    say "installing ${missing[*]}"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update >/dev/null
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}" >"$work/apt.log" 2>&1 ||
        printf 'some packages could not be installed:\n%s\n' "$(tail -3 "$work/apt.log")"
}

# build NAME [meson options]: configures and compiles $work/NAME
build() {
    local name=$1 dir=$work/$1
    shift
    rm -rf "$dir"
    if meson setup "$dir" "$root" "$@" "${options[@]}" >"$work/$name.setup.log" 2>&1 &&
        ninja -C "$dir" -j "$jobs" >"$work/$name.build.log" 2>&1; then
        if grep -q 'warning:' "$work/$name.build.log"; then
            fail "$name: warnings"
            grep 'warning:' "$work/$name.build.log" | head -5
        else
            pass
        fi
        return 0
    fi
    fail "$name does not build"
    tail -5 "$work/$name.setup.log"
    grep -E 'error|warning|undefined' "$work/$name.build.log" 2>/dev/null | head -10
    return 1
}

# tests NAME LABEL [meson test options]: runs tests of $work/NAME and adds up what they report
tests() {
    local name=$1 label=$2 counts
    shift 2
    rm -f "$work/$name/meson-logs/$label.json"
    meson test -C "$work/$name" --no-rebuild --num-processes "$jobs" --logbase "$label" "$@" >"$work/$name.$label.log" 2>&1
    if [ ! -s "$work/$name/meson-logs/$label.json" ]; then
        fail "$name: no tests ran"
        tail -5 "$work/$name.$label.log"
        return
    fi
    counts=$(python3 tests/count.py "$work/$name/meson-logs/$label.json")
    printf '%s %s: %s passed, %s failed, %s skipped\n' "$name" "$label" $counts
    set -- $counts
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
}

has_flag() { grep -qw "$1" /proc/cpuinfo; }

# Sanitizer builds have one instruction set beside the baseline.
best_isa=avx2
has_flag avx512f && best_isa=avx512

install_packages

say "plain"
# The plug-in for GPUs where there is a CUDA compiler: for one architecture and PTX, which is what takes the time
if build plain -Dgpu_archs="${TREK_TEST_GPU_ARCHS:-90}"; then
    tests plain all
    say "instruction sets"
    for isa in baseline avx2 avx512; do
        if { [ $isa = avx2 ] && ! has_flag avx2; } || { [ $isa = avx512 ] && ! has_flag avx512f; }; then
            skip "TREK_ISA=$isa: not on this machine"
            continue
        fi
        [ $isa = "$best_isa" ] && continue # what ran above
        TREK_ISA=$isa tests plain "isa_$isa" ops_forward ops_gradient ops_random_rows vectors
    done
    say "one thread"
    TREK_THREADS=1 tests plain one_thread ops_forward vectors training_vectors
    say "the CUDA plug-in without a driver"
    if [ -e "$work/plain/tensor/cuda/libtrek-cuda.so" ]; then
        if bash tests/check_plugin.sh "$work/plain"; then pass; else fail "the CUDA plug-in"; fi
    else
        skip "the CUDA plug-in: no CUDA compiler"
    fi
    say "the GPU script without a GPU"
    if [ ! -e "$work/plain/tensor/cuda/libtrek-cuda.so" ]; then
        skip "the GPU script: no CUDA compiler"
    elif command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
        skip "the GPU script: there is a GPU, run tests/gpu.sh all"
    else
        for part in test sanitize bench; do
            if TREK_GPU_BUILD=$work/plain bash tests/gpu.sh -o "$work/gpu" $part >"$work/gpu.$part.log" 2>&1 &&
                tail -1 "$work/gpu.$part.log" | grep -q '^[1-9][0-9]* passed, 0 failed, [1-9][0-9]* skipped$'; then
                pass
            else
                fail "tests/gpu.sh $part: $(tail -1 "$work/gpu.$part.log")"
            fi
        done
    fi
    say "install"
    if bash tests/check_install.sh "$work/plain"; then pass; else fail "what is installed does not work"; fi
fi

say "without oneDNN and cmocka"
if build plain_kernels -Donednn=disabled -Dcuda=disabled -Dcmocka=disabled -Dexamples=false; then
    tests plain_kernels all ops_forward ops_gradient vectors training_vectors
fi

say "address and undefined behaviour sanitizers"
# gcc 12 takes the address of a thread-local variable for a null pointer; real ones crash anyway
if build address -Dbuildtype=debugoptimized -Dcuda=disabled -Dmpi=disabled -Disas="$best_isa" -Db_sanitize=address,undefined -Db_lundef=false -Dc_args=-fno-sanitize=null -Dexamples=false; then
    # ISAs beside the best one ran above; large cases, mutants and the other programs that kill and wait for processes add
    # nothing here
    TREK_TEST_SHORT=1 ASAN_OPTIONS=detect_leaks=1:abort_on_error=0:allocator_may_return_null=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
        tests address all --timeout-multiplier 4 --no-suite checks --no-suite mutation --no-suite cuda_long --no-suite processes
    TREK_TEST_SHORT=1 ASAN_OPTIONS=detect_leaks=1:abort_on_error=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
        tests address processes --timeout-multiplier 4 job shared
fi

say "thread sanitizer"
# no instruction set beside the baseline: kernels share nothing that it does not
if build thread -Dbuildtype=debugoptimized -Dcuda=disabled -Dmpi=disabled -Disas= -Db_sanitize=thread -Db_lundef=false -Donednn=disabled -Dexamples=false; then
    TREK_TEST_SHORT=1 TSAN_OPTIONS=halt_on_error=1 tests thread threads --timeout-multiplier 4 --suite threads --suite cuda_threads
fi

say "64-bit ARM"
if command -v aarch64-linux-gnu-gcc >/dev/null; then
    if bash tests/check_aarch64.sh "$root" "$work/aarch64" "${options[@]}"; then pass; else fail "the library does not build for aarch64"; fi
else
    skip "no compiler for aarch64"
fi

say "files that others read"
if python3 -m venv "$work/venv" >/dev/null 2>&1 && "$work/venv/bin/pip" -q install numpy safetensors >"$work/pip.log" 2>&1; then
    if "$work/venv/bin/python3" tests/check_safetensors.py "$work/plain/tests/state_tool"; then pass; else fail "state files and safetensors"; fi
else
    skip "safetensors for Python cannot be installed"
fi

say "done"
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" = 0 ]
