#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tests/gpu.sh lease, rehearsed on the fake device: every step's command is run at small scale, compute-sanitizer and
# PyTorch by stand-ins. One of them hangs and will not be ended, one dies: the rest runs, the page tells of both, a part that
# had no time is gone on with, compiled Python is no change of the sources, and nothing that was started stays.
#   usage: check_lease.sh BUILD_FOLDER
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
build=$1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0
complain() { echo "$1"; failed=1; }
says() { grep -qE -- "$1" "$page" || complain "the page does not say: $1"; }

cat >"$work/sanitizer" <<'SH'
#!/usr/bin/env bash
program=${!#}
case $2:$(basename "$program") in
racecheck:test_ops_forward)
    trap '' TERM
    echo "$$" >"$(dirname "$0")/hung"
    echo "========= Error: what was seen before it hung"
    while :; do sleep 1; done
    ;;
racecheck:*) kill -SEGV $$ ;;
*) exec "$program" ;;
esac
SH
cat >"$work/python" <<'SH'
#!/usr/bin/env bash
[ "$1" = -c ] && { echo "2.0.stand-in for CUDA 0"; exit; }
echo "$*" >>"$(dirname "$0")/peer.calls"
[ "${!#}" = gpt2_1 ] || { echo "no such module" >&2; exit 1; }
for mode in eager compile; do echo "{\"work\": \"gpt2_1\", \"measure\": \"1 x 256\", \"mode\": \"$mode\", \"us\": 1e9, \"host_us\": 1}"; done
SH
chmod +x "$work/sanitizer" "$work/python"

gpu() { # BUDGET FOLDER PART [NAME]
    TREK_GPU_REHEARSE=1 TREK_GPU_BUILD=$build TREK_GPU_SANITIZER=$work/sanitizer TREK_PEER_PYTHON=$work/python TREK_GPU_BUDGET=$1 \
        bash tests/gpu.sh -o "$work/$2" "${@:3}" >"$work/$2.log" 2>&1
}

page=$work/out/gpu-lease.md
gpu 470 out lease && complain "steps fail, and its status is 0"
says "^\*\*$(tail -1 "$work/out.log")\*\*$"
says '^\| device, as trek sees it \| cuda:0: Fake GPU 0'
says '^\| PyTorch \| 2.0.stand-in'
says '^\| commit \| '
for name in build op_suite_0 op_suite_5 op_gradients_2 rows_against_the_cpu attention graph_capture gpt2_1 gpt2_products gpt2_1_by_pytorch \
    memcheck_forward_0_of_12 memcheck_gradient_0_of_12 allocator_stress; do
    says "^\| $name \| passed \|"
done
says '^### racecheck_forward_0_of_12: stopped after '
says '^========= Error: what was seen before it hung$'
says '^### racecheck_gradient_0_of_12: died by SIGSEGV$'
says '^### launch: status 1$' # there is no driver to launch by
says '^no such module' # PyTorch's side of another work
says '^\| gpt2_1 \| 1 x 256 \| [^|]* captured[^|]*\| [^|]*1000000000.00 compile[^|]*\| [0-9.]+ \|'
says '^\| GPT-2 124 M, 1 x 256, a step \| .* \| only tried \|$'
[ "$(grep -c '^### ' "$page")" = 4 ] || complain "$(grep '^### ' "$page") failed, and four steps were meant to"
grep -q '^## Left' "$page" && complain "something is left: $(tail -1 "$page")"
grep -q -- '--modes eager,compile .*gpt2_1$' "$work/peer.calls" || complain "PyTorch was asked for: $(cat "$work/peer.calls")"
kill -0 "$(cat "$work/hung")" 2>/dev/null && complain "what hung is still there"

# a call that has no time, the one that goes on, and one that finds all of it done
page=$work/part/gpu-bench.md
rm -rf tests/gpu/__pycache__ tests/bench/__pycache__
gpu 10 part bench gpt2_1 || complain "what is left fails"
says '^\| gpt2_1 \| left \|'
says '^## Left for the next call$'
gpu 470 part bench gpt2_1 || complain "the next call fails"
says '^\| gpt2_1 \| passed \|'
gpu 10 part bench gpt2_1
grep -q '^gpt2_1  *passed (before)$' "$work/part.log" || complain "what was done is done again"

TREK_FAKE_GPUS=0 gpu 470 none bench gpt2 || complain "a machine without a GPU fails"
grep -q '^1 passed, 0 failed, 6 skipped$' "$work/none.log" || complain "without a GPU: $(tail -1 "$work/none.log")"
# a device that is lost: what is asked whether it still answers says no
steps() {
    TREK_GPU_OUT=$work/lost TREK_GPU_PART=test TREK_GPU_SOURCES=1 TREK_GPU_HEALTH=/bin/false python3 tests/gpu/steps.py "$@" >>"$work/lost.log"
}
mkdir -p "$work/lost/logs" "$work/lost/steps"
page=$work/lost/gpu-test.md
steps run short 30 16 sh -c 'sleep 2; exit 1'
steps run hangs 1 100 sleep 60
steps run other 10 100 true
says '^\| short \| left \| .*at the end of the part'
says '^\| hangs \| failed \| .*stopped after 1 s'
says '^\| other \| left \| .*the device no longer answers, since hangs'

[ $failed = 0 ] || cat "$work"/*.log
exit $failed
