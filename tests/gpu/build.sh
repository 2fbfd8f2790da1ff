# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by tests/gpu.sh: what a part needs is built, and the devices are looked at.

# Where only the Python packages are there, without their programs on the path, small programs call them.
have_meson() {
    local tool module
    mkdir -p "$out/bin"
    PATH=$out/bin:$PATH
    for tool in meson ninja; do
        [ $tool = meson ] && module=mesonbuild.mesonmain || module=ninja
        command -v $tool >/dev/null && continue
        python3 -m $module --version >/dev/null 2>&1 && printf '#!/bin/sh\nexec python3 -m %s "$@"\n' $module >"$out/bin/$tool" &&
            chmod +x "$out/bin/$tool"
    done
    if ! command -v meson >/dev/null || ! command -v ninja >/dev/null; then # at last from the network
        [ -x "$out/venv/bin/meson" ] || { timeout 90 python3 -m venv "$out/venv" &&
            timeout 90 "$out/venv/bin/pip" -q --retries 1 --timeout 8 install meson ninja; } >"$out/logs/venv.log" 2>&1
        PATH=$out/venv/bin:$PATH
    fi
    command -v meson >/dev/null && command -v ninja >/dev/null
}

# What the part runs
targets_of() {
    echo tests/gpu_devices
    if [ -n "$rehearse" ]; then
        printf 'tests/fake_cuda/%s\n' plugin/libtrek-cuda.so libfake_cublaslt.so libfake_nccl.so libfake_nvml.so
    else
        echo tensor/cuda/libtrek-cuda.so
    fi
    case $part in test | lease) listing=yes part_test ;; sanitize) printf 'tests/test_ops_%s\n' forward gradient ;; esac
    case $part in bench | lease) printf 'tests/bench/%s\n' gpu/trek-gpu-bench trek-bench-overlap ;; esac
    echo tools/trek-run
}

build_all() {
    local archs=native
    command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1 || archs=90
    if [ ! -f "$build/build.ninja" ]; then
        rm -rf "$build"
        CUDA_ROOT=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")") meson setup "$build" "$root" -Dcuda=enabled -Dgpu_archs=$archs \
            -Dfake_cuda=false -Dmpi=disabled -Dexamples=false -Disas=avx2 || return 1
    fi
    # Sums take a minute of one core, which many cores would wait for.
    [[ $(nvcc --help 2>/dev/null) = *--split-compile* ]] && export NVCC_APPEND_FLAGS="${NVCC_APPEND_FLAGS:-} --split-compile=8"
    # of those that this folder has: ninja builds nothing where one is unknown
    ninja -C "$build" -t targets all | sed -n 's/^\([^ ]*\): .*/\1/p' | grep -xFf <(echo "$targets") | sort -u | xargs -r ninja -k 0 -C "$build"
}

# "what: which" of this machine, for the page
machine() {
    nvidia-smi --query-gpu=index,name,driver_version,memory.total,compute_cap --format=csv,noheader 2>/dev/null | sed 's/^/GPU (driver, memory, compute capability): /'
    nvcc --version 2>/dev/null | sed -n 's/^Cuda compilation tools, /nvcc: /p'
    cc --version 2>/dev/null | sed -n '1s/^/C compiler: /p'
    sed -n '/^model name/{s/^[^:]*: */CPU: /p;q}' /proc/cpuinfo
    echo "CPU cores: $(nproc)"
    [ -n "$rehearse" ] && echo "rehearsal: on the fake device, at small scale: nothing here was measured on a GPU"
}

# Whether programs are there; else every further step is skipped with this reason.
prepare() {
    why_not=""
    machine >"$out/machine.txt"
    eval "$("$peer" tests/gpu/wheels.py "$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")" 2>/dev/null)"
    if [ -z "$rehearse" ] && ! command -v nvcc >/dev/null; then
        why_not="no nvcc"
        skip build "$why_not"
    elif ! have_meson; then
        why_not="no Meson and Ninja"
        skip build "$why_not"
    else
        build_step # programs that do not build are missed one by one
        [ $? = 2 ] && why_not="no time left to build"
        [ -x "$build/tests/gpu_devices" ] && [ -e "$TREK_PLUGIN_PATH/libtrek-cuda.so" ] || why_not=${why_not:-not built}
    fi
    if [ -n "$why_not" ]; then
        skip devices "$why_not"
    else
        step devices 60 "$build/tests/gpu_devices"
        [ $? = 2 ] && { [ "$(left)" -lt 15 ] && why_not="no time left" || why_not="no CUDA device"; }
        cat "$(log_of devices)" 2>/dev/null
    fi
}

# In a shell of its own, which a step can stop.
build_step() {
    targets=$(targets_of)
    export build root targets
    export -f build_all
    step build 3600 bash -c build_all
}
