# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by tests/gpu.sh: ten minutes on a GPU that is lent. What tells most comes first, and what a step finds is
# on the page before the next one begins; a second call goes on where the first one ended. Seconds as planned, with 16
# cores: building 50; tests, and compute-sanitizer beside them, 90; the benchmark 100; PyTorch 180; then the rest.

# Whether there is a PyTorch to compare with; it takes as long to be imported as a test.
peer_found() {
    step pytorch 90 "$peer" -c 'import importlib.util, sys
if importlib.util.find_spec("torch") is None:
    print("no PyTorch in this Python: TREK_PEER_PYTHON names another"), sys.exit(77)
import torch
print(torch.__version__, "for CUDA", torch.version.cuda, "in Python", sys.version.split()[0], "-", torch.cuda.get_device_name() if torch.cuda.is_available() else "without a device")'
}

least() { if [ "$1" -lt "$2" ]; then echo "$1"; else echo "$2"; fi; }

# trek_alone WORK
trek_alone() {
    local limit
    limit=$(least 60 $(($(left) - 5))) # so that what was measured until the end of the part is written down
    measured "$1" 65 "$out/lease/bench-$1.json" "$1" --no-peer --rounds 3 --limit "$limit"
}

# pytorch WORK MODES: into the file that has trek's figures
pytorch() {
    local work=$1 modes=$2 limit where=()
    [ -n "$rehearse" ] && where=(--device cpu)
    limit=$(least 80 $(($(left) - 8)))
    if [ -n "$no_peer" ]; then
        skip "${work}_by_pytorch" "$no_peer"
    else
        measured "${work}_by_pytorch" 88 "$out/lease/bench-$work.json" "$work" --no-trek --modes "$modes" --rounds 3 --peer-limit "$limit" "${where[@]}"
    fi
}

part_lease() {
    local works peers="gpt2_64 gpt2_4 gpt2_1 attention gpt2_products matmul" work tool no_peer=""
    works=$("$python" tests/bench/gpu_bench.py --list)
    works="$(echo "$works" | grep '^gpt2_[0-9]') $(echo "$works" | grep -v '^gpt2_[0-9]')"
    [ -n "$rehearse" ] && works="gpt2_1 launch gpt2_products" peers="gpt2_1 gpt2_products"
    find_sanitizer
    for tool in memcheck racecheck; do beside sanitized $tool forward 0 12 90; done
    tests_first
    for work in $works; do trek_alone "$work"; done
    if [ -n "$why_not" ]; then no_peer=$why_not; else peer_found || no_peer="no PyTorch"; fi
    for work in $peers; do pytorch "$work" eager,compile; done
    tests_further
    for work in $works; do
        case " $peers launch fp8 attention_wgmma attention_cudnn gpt2_64_wgmma gpt2_64_cudnn " in *" $work "*) ;; *) pytorch "$work" eager,compile,reduce-overhead ;; esac
    done
    for tool in memcheck racecheck; do beside sanitized $tool gradient 0 12 120; done
    together
}
