# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by tests/gpu.sh: what a part needs is built, and the devices are looked at.

# Where only the Python packages are there, without their programs on the path, small programs call them.
have_meson() {
    local tool module
    mkdir -p "$work/bin"
    PATH=$work/bin:$PATH
    for tool in meson ninja; do
        [ $tool = meson ] && module=mesonbuild.mesonmain || module=ninja
        command -v $tool >/dev/null && continue
        python3 -m $module --version >/dev/null 2>&1 && printf '#!/bin/sh\nexec python3 -m %s "$@"\n' $module >"$work/bin/$tool" &&
            chmod +x "$work/bin/$tool"
    done
    command -v meson >/dev/null && command -v ninja >/dev/null
}

# What the part runs
targets_of() {
    echo tests/gpu_devices
    if [ -n "$rehearse" ]; then
        printf 'tests/fake_cuda/%s\n' plugin/libtrek-cuda.so libfake_cublaslt.so libfake_cudnn.so libfake_nccl.so libfake_nvml.so
    else
        echo tensor/cuda/libtrek-cuda.so
    fi
    case $part in
    test) listing=yes part_test ;;
    grains) listing=yes part_grains ;;
    lease | second | pack) lease_programs ;;
    sanitize) printf 'tests/test_ops_%s\n' forward gradient ;;
    esac
    case $part in bench | lease | second | pack) printf 'tests/bench/%s\n' gpu/trek-gpu-bench trek-bench-overlap trek-bench-grains ;; esac
    echo tools/trek-run
}

# 90 is machine code for H100 and H200, where "native" leaves their own kernels to be compiled by each process.
architectures() {
    case $(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -u) in "" | 9.0) echo 90 ;; *) echo native ;; esac
}

# The folder $build with $targets, of those that it knows: ninja builds nothing where one is unknown. Without the
# libraries that a machine for GPUs may lack.
build_all() {
    if [ ! -f "$build/build.ninja" ]; then
        rm -rf "$build"
        CUDA_ROOT=$(cuda_root) meson setup "$build" "$root" -Dcuda=enabled -Dgpu_archs="$(architectures)" -Dfake_cuda=false -Dexamples=false \
            -Disas=avx2 -Donednn=disabled -Dcmocka=disabled -Dgloo=disabled -Dmpi=disabled || return 1
    fi
    # Sums take a minute of one core, which many cores would wait for.
    [[ $(nvcc --help 2>/dev/null) = *--split-compile* ]] && export NVCC_APPEND_FLAGS="${NVCC_APPEND_FLAGS:-} --split-compile=8"
    ninja -C "$build" -t targets all | sed -n 's/^\([^ ]*\): .*/\1/p' | grep -xFf <(echo "$targets") | sort -u | xargs -r ninja -k 0 -C "$build"
}

cuda_root() { dirname "$(dirname "$(readlink -f "$(command -v nvcc || echo -)")")"; }

# "what: which" of this machine, for the page
machine() {
    nvidia-smi --query-gpu=index,name,driver_version,memory.total,compute_cap --format=csv,noheader 2>/dev/null | sed 's/^/GPU (driver, memory, compute capability): /'
    nvcc --version 2>/dev/null | sed -n 's/^Cuda compilation tools, /nvcc: /p'
    cc --version 2>/dev/null | sed -n '1s/^/C compiler: /p'
    sed -n '/^model name/{s/^[^:]*: */CPU: /p;q}' /proc/cpuinfo
    echo "CPU cores: $(nproc)"
    [ -z "$rehearse" ] || echo "rehearsal: on the fake device, at small scale: nothing here was measured on a GPU"
}
machine_now() {
    nvidia-smi --query-gpu=clocks.sm,temperature.gpu,power.draw --format=csv,noheader 2>/dev/null | sed 's/^/GPU at the end (clock, temperature, power): /'
}

# Whether programs are there; otherwise every further step is skipped with this reason.
prepare() {
    why_not=""
    machine >"$work/machine.txt"
    eval "$("$peer" tests/gpu/wheels.py "$(cuda_root)" 2>/dev/null)"
    case $part in
    lease | second) take_pack || build_here ;;
    *) build_here ;;
    esac
    [ -x "$build/tests/gpu_devices" ] && [ -e "$TREK_PLUGIN_PATH/libtrek-cuda.so" ] || why_not=${why_not:-not built}
    if [ -n "$why_not" ]; then
        skip devices "$why_not"
    else
        step devices 60 "$build/tests/gpu_devices"
        [ $? = 2 ] && { [ "$(left)" -lt 15 ] && why_not="no time left" || why_not="no CUDA device"; }
    fi
}

build_here() {
    if [ -z "$rehearse" ] && ! command -v nvcc >/dev/null; then
        why_not="no nvcc"
    elif ! have_meson; then
        why_not="no Meson and Ninja"
    fi
    if [ -n "$why_not" ]; then
        skip build "$why_not"
        return
    fi
    echo "programs: built here" >>"$work/machine.txt"
    build_step # programs that do not build are missed one by one
    [ $? = 2 ] && why_not="no time left to build"
}

# In a shell of its own, which a step can stop.
build_step() {
    targets=$(targets_of)
    export build root targets
    export -f build_all cuda_root architectures
    step build 3600 bash -c build_all
}
