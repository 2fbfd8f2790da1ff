# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by tests/gpu.sh: minutes on a GPU that is lent. What tells most comes first, and what a step finds is
# written down before the next one begins. Each stage has its seconds, so that none takes those of the later ones.

# Whether there is a PyTorch to compare with
peer_found() {
    step pytorch 30 "$peer" -c 'import importlib.metadata, importlib.util, sys
if importlib.util.find_spec("torch") is None:
    print("no PyTorch in this Python: TREK_PEER_PYTHON names another"), sys.exit(77)
print(importlib.metadata.version("torch"), "in Python", sys.version.split()[0])'
}

# trek_alone WORK...
trek_alone() {
    local each
    for each; do # it ends by itself, so that what was measured until then is written down
        measured "$each" 65 "$each" --no-peer --rounds 3 --limit "$(least 60 $(($(left) - 5)))"
    done
}

# gpt2_64 with each attention: that of gpt2_64 itself is chosen by the library
speeds() { TREK_CUDA_ATTENTION=auto trek_alone gpt2_64; trek_alone gpt2_64_wgmma gpt2_64_cudnn gpt2_64_own; }

# pytorch WORK [MODES]: into the file that has trek's figures
pytorch() {
    local each=$1 modes=${2:-eager,compile} where=()
    [ -z "$rehearse" ] || where=(--device cpu)
    if [ -n "$no_peer" ]; then
        skip "${each}_by_pytorch" "$no_peer"
    else
        measured "${each}_by_pytorch" 118 "$each" --no-trek --modes "$modes" --rounds 3 --peer-limit "$(least 110 $(($(left) - 8)))" "${where[@]}"
    fi
}

# Two steps of the fastest gpt2_64, kernel by kernel
profile() {
    local ncu small=()
    ncu=$(tool_at "${TREK_GPU_NCU:-}" "$(command -v ncu)" /usr/local/cuda/bin/ncu /opt/nvidia/nsight-compute/*/ncu)
    [ -z "$rehearse" ] || small=(--scale 256)
    if [ -n "$why_not" ]; then
        skip profile "$why_not"
    elif [ -z "$ncu" ]; then
        skip profile "no ncu"
    else
        step profile 75 "$python" tests/gpu/kernels.py "$ncu" "$(($(least 75 "$(left)") - 8))" "$work/$part" \
            "$build/tests/bench/gpu/trek-gpu-bench" --device "$device" "${small[@]}"
    fi
}

# Attention alone: its kernels are the newest, and the suite "sanitize" has the rest.
sanitized_attention() {
    local tool whose
    find_sanitizer
    for tool in memcheck racecheck; do
        for whose in own wgmma; do
            TREK_CUDA_ATTENTION=$whose TREK_TEST_CASE=bf16_tiles_end_anywhere beside sanitized ${tool}_attention_by_$whose $tool 55 test_attention
        done
    done
    together
}

agreement() { on_device agreement 45 gpu_agree; }

# A rehearsal has a few of them: they all have the same form.
tests_rest() {
    [ -z "$rehearse" ] || local chosen_steps="channels_last processes_on_one_gpu allocator_stress"
    tests_further
}

# What has to be built for both parts
lease_programs() {
    local listing=yes
    tests_first
    agreement
    tests_rest
}

part_lease() {
    stage 95; tests_first
    stage 40; agreement
    stage 55; speeds
    stage 75; profile
    if [ -n "$rehearse" ]; then
        trek_alone gpt2_products gpt2_1
    else
        stage 80; trek_alone matmul gpt2_products memory attention linear_cross_entropy linear_cross_entropy_pieces adamw gpt2_4 gpt2_1
    fi
    stage 60; sanitized_attention
    stage "$budget"
    spare=yes
    trek_alone launch
    [ -n "$rehearse" ] || trek_alone eager replay attention_wgmma attention_cudnn
    tests_rest
    spare=""
}

# In any order: what is named, and no more
again() {
    chosen_steps=$1
    tests_first
    agreement
    sanitized_attention
    tests_further
    trek_alone $("$python" tests/bench/gpu_bench.py --list | grep -v '^gpt2_64')
    chosen_steps=""
}

part_second() {
    local no_peer="" before images others="gpt2_4 attention gpt2_products matmul" each
    images=$("$python" tests/bench/gpu_bench.py --list | grep -xE -m 1 'resnet|model_convnet_last')
    [ -z "$rehearse" ] || images=gpt2_products others="" # minutes otherwise
    before=$("$python" tests/gpu/steps.py before "$pack/gpu-lease.json" "$out/gpu-lease.json" "$work/gpu-lease.json")
    stage 50
    [ -z "$before" ] || again "$before"
    agreement
    stage 45; speeds
    if [ -n "$why_not" ]; then no_peer=$why_not; else peer_found || no_peer="no PyTorch"; fi
    stage 110; pytorch gpt2_64
    stage 40; trek_alone "$images"; pytorch "$images"
    stage 75; profile
    stage "$budget"
    spare=yes
    for each in $others; do
        trek_alone $each
        pytorch $each
    done
    spare=""
}
