#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tests/gpu.sh lease, rehearsed on the fake device at small scale, with stand-ins for compute-sanitizer, ncu and PyTorch. The
# programs come from a pack, and run in a copy of the tree in a root that has no compiler, no Meson and no git, where
# namespaces are allowed; otherwise with a PATH that has none. Some stand-ins hang or die: the rest runs, the page and what is
# printed at the end tell of them, and nothing that was started stays. The second part goes on where the first one ended.
#   usage: check_lease.sh BUILD_FOLDER
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
build=$1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0
complain() { echo "$1"; failed=1; }
says() { grep -qE -- "$1" "$page" || complain "$(basename "$page") does not say: $1"; }
gpu() { # BUDGET FOLDER WORD...: in this tree, with the build
    TREK_GPU_REHEARSE=1 TREK_GPU_BUILD=$build TREK_GPU_BUDGET=$1 TREK_GPU_WORK=$work/$2.work bash tests/gpu.sh -o "$work/$2" "${@:3}" >"$work/$2.log" 2>&1
}

# --- the root: a few programs with their libraries, Python without packages, the tree as another machine gets it ------

root=$work/root tree=$work/root/tree
copied() { # FILE...: under the same names in the root, with the libraries they need
    local file
    for file; do
        mkdir -p "$root$(dirname "$file")"
        cp -L "$file" "$root$file"
        ldd "$file" 2>/dev/null | grep -o '/[^ )]*'
    done | sort -u | while read -r file; do [ -e "$root$file" ] || { mkdir -p "$root$(dirname "$file")" && cp -L "$file" "$root$file"; }; done
}
make_root() {
    local name library python
    mkdir -p "$root"/{usr/bin,dev,proc,tmp,stand-in} "$tree"
    ln -s usr/bin "$root/bin"
    for name in bash sh env basename cat chmod cksum cp cut date dirname find grep head kill ldd ls mkdir mktemp mv nproc readlink rm sed sleep sort stat \
        tail tar touch tr true uname wc xargs xz; do
        copied "$(readlink -f "$(type -P $name)")"
        [ -e "$root/usr/bin/$name" ] || ln -s "$(readlink -f "$(type -P $name)")" "$root/usr/bin/$name"
    done
    python=$(python3 -c 'import os, sys; print(os.path.realpath(sys.executable))')
    library=$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
    copied "$python" "$library"/lib-dynload/*.so
    [ -e "$root/usr/bin/python3" ] || ln -s "$python" "$root/usr/bin/python3"
    tar -C / -c --exclude=site-packages --exclude=dist-packages --exclude=test --exclude=__pycache__ --exclude='config-*' "${library#/}" | tar -C "$root" -x
    { git ls-files -coz --exclude-standard 2>/dev/null || find . \( -path './build*' -o -path ./.git -o -path ./gpu-pack \) -prune -o -type f -print0; } |
        tar -c --null --ignore-failed-read -T - 2>/dev/null | tar -C "$tree" -x
    for name in "$build"/tests/fake_cuda/plugin/libtrek-cuda.so "$build"/tests/test_ops_forward; do # what the pack's programs need of the system
        ldd "$name" | grep -o '=> /[^ ]*' | cut -c4- | grep -v "^$(readlink -f "$build")/"
    done | sort -u | while read -r library; do [ -e "$root$library" ] || { mkdir -p "$root$(dirname "$library")" && cp -L "$library" "$root$library"; }; done
}

user=()
[ "$(id -u)" = 0 ] || user=(-r)
if unshare "${user[@]}" -m true 2>/dev/null; then
    enter() { # COMMAND...: in the root's /tree
        unshare "${user[@]}" -m bash -c 'mount --rbind /proc "$1/proc" && mount --rbind /dev "$1/dev" && root=$1 && shift &&
            exec chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/tmp "$@"' enter "$root" "$@"
    }
    inside=""
else
    echo "no namespaces here: the rehearsal runs with a PATH that has no compilers"
    enter() { env PATH="$root/usr/bin" "$@"; }
    inside=$root
fi

lease() { # LOG WORD...
    enter TREK_GPU_REHEARSE=1 TREK_GPU_BUDGET=470 TREK_GPU_SANITIZER="$inside/stand-in/sanitizer" TREK_GPU_NCU="$inside/stand-in/ncu" \
        TREK_PEER_PYTHON="$inside/stand-in/python" bash "$inside/tree/tests/gpu.sh" "${@:2}" >"$work/$1.log" 2>&1
}

make_root
enter true || { echo "the root does not work"; exit 1; }
cat >"$root/stand-in/sanitizer" <<'SH'
#!/usr/bin/env bash
here=$(dirname "$0")
case $TREK_GPU_PART$2:$TREK_CUDA_ATTENTION in
secondracecheck:*) ;;
leaseracecheck:own)
    echo "========= Error: what was seen before it hung"
    exec sleep 1000
    ;;
leaseracecheck:wgmma)
    trap '' TERM
    echo "$$" >"$here/hung"
    sleep 3
    touch "$here/marker"
    sleep 7.5
    cp -p "$TREK_GPU_OUT/gpu-lease.md" "$here/seen.md"
    while :; do sleep 1; done
    ;;
*memcheck:wgmma) kill -SEGV $$ ;;
*)
    echo "path: cuda:0 attention mma: 5 calls"
    echo "path: cuda:0 attention cudnn: 0 calls, 12 refused (the last: a mask)"
    exec "${!#}"
    ;;
esac
SH
cat >"$root/stand-in/python" <<'SH'
#!/usr/bin/env bash
[ "$1" = -c ] && { echo "2.0.stand-in"; exit; }
echo "$*" >>"$(dirname "$0")/peer.calls"
[ "${!#}" = gpt2_64 ] || { echo "no such module" >&2; exit 1; }
for mode in eager compile; do echo "{\"work\": \"gpt2_64\", \"measure\": \"64 x 1024\", \"mode\": \"$mode\", \"us\": 1e9, \"host_us\": 1}"; done
SH
cat >"$root/stand-in/ncu" <<'SH'
#!/usr/bin/env bash
echo "$*" >>"$(dirname "$0")/ncu.calls"
while [ "$1" != --log-file ]; do shift; done
{
    echo '==PROF== Connected to process 7'
    echo '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","dram__bytes.sum","gpu__time_duration.sum"'
    echo '"","","","","","","","","","","","byte","ns"'
    for k in {1..40}; do
        echo "\"$k\",\"7\",\"trek-gpu-bench\",\"host\",\"void norm_rows_kernel<trek_bf16, (int)$k>(const trek_norm *, long)\",\"1\",\"7\",\"(1, 1, 1)\",\"(1, 1, 1)\",\"0\",\"9.0\",\"4,000\",\"${k}000\""
    done
    for k in 1 2; do
        echo '"50","7","trek-gpu-bench","host","void (anonymous namespace)::attention_mma_kernel<trek_bf16, (int)64>(attention_job)","1","7","(1, 1, 1)","(1, 1, 1)","0","9.0","6000000000","3000000"'
    done
    echo '"51","7","cut sh'
} >"$2"
exec "${@:3}" >/dev/null
SH
chmod +x "$root"/stand-in/*

# --- the pack, which other files in the tree do not make another one ----------------------------------------------------

TREK_GPU_REHEARSE=1 TREK_GPU_BUILD=$build TREK_GPU_WORK=$work/packing LC_ALL=C.UTF-8 bash tests/gpu.sh pack "$tree/gpu-pack" >"$work/pack.log" 2>&1 ||
    complain "it was not packed"
mkdir -p "$tree/tests/gpu/__pycache__" "$tree/results"
touch "$tree/tests/gpu/__pycache__/page.pyc" "$tree/results/old.c"
[ "$(ls "$tree/gpu-pack" | tr '\n' ' ')" = "pack.txt programs.tar.xz " ] || complain "the pack is $(ls "$tree/gpu-pack")"
enter bash -c 'for name in cc gcc c++ nvcc ninja meson git; do ! command -v $name || exit 1; done; ! python3 -c "import mesonbuild" 2>/dev/null' ||
    complain "there are compilers in the root"

# --- the first part ---------------------------------------------------------------------------------------------------------

page=$tree/results/gpu-lease.md
lease lease lease -o results && complain "steps fail, and its status is 0"
says "^\*\*$(tail -1 "$work/lease.log")\*\*$"
says '^\| device, as trek sees it \| cuda:0: Fake GPU'
says "^\| commit \| $(sed -n 's/^commit: //p' "$tree/gpu-pack/pack.txt") \(sources [0-9]+\) \|$"
says '^\| programs \| from a pack, '
says '^\| pack \| passed \|'
grep -qE '^\| build \|' "$page" && complain "something was built, though there is a pack"
sed -n 2p "$work/lease.log" | grep -q '^pack .*passed' || complain "it does not begin with the pack: $(sed -n 2p "$work/lease.log")"
for name in op_suite_0 op_suite_5 op_gradients_2 rows_against_the_cpu attention_by_own attention_by_wgmma attention_by_cudnn graph_capture gpt2_64 gpt2_64_own \
    gpt2_64_wgmma gpt2_64_cudnn gpt2_products profile memcheck_attention_by_own allocator_stress; do
    says "^\| $name \| passed \|"
done
says '^### racecheck_attention_by_own: stopped after .* with problems before$'
says '^========= Error: what was seen before it hung$'
says '^### memcheck_attention_by_wgmma: died by SIGSEGV$'
says '^### launch: status 1$' # there is no driver to launch by
[ "$(grep -c '^### ' "$page")" = 3 ] || complain "$(grep '^### ' "$page") failed, and three steps were meant to"
says '^\* racecheck_attention_by_wgmma: stopped after 1[0-9] s$'
says '^\| racecheck_attention_by_wgmma \| unfinished \|'
says '^\* cuda:0 attention mma: [0-9]+ calls \[.*\]$'
says '^\* cuda:0 attention cudnn: [0-9]+ calls, [0-9]+ refused \(a mask\) '
says '^\| gpt2_64 \| 64 x 1024 \| [^|]* captured'
says '^\| GPT-2 124 M, 64 x 1024, tokens/s \| .* \| only tried \|$'
says '^\| attention_mma<bf16,64> \| 3\.000 \| [0-9.]+ \| 1 \| 6\.00 \| 2000 \|$'
says '^\| 13 others \|'
grep -qE -- '--metrics gpu__time_duration.sum,dram__bytes.sum .*--csv --page raw .*trek-gpu-bench .*--profile [1-9].* gpt2_64$' "$root/stand-in/ncu.calls" ||
    complain "ncu was called so: $(cat "$root/stand-in/ncu.calls")"
[ "$root/stand-in/seen.md" -nt "$root/stand-in/marker" ] || complain "the page is not written anew while a step runs"
grep -q '^\* racecheck_attention_by_wgmma: it was running when' "$root/stand-in/seen.md" || complain "the page does not tell of a step that runs"
kill -0 "$(cat "$root/stand-in/hung")" 2>/dev/null && complain "what hung is still there"
[ -z "$(find "$tree/results" -mindepth 1 ! -type f)" ] || complain "there are folders among the results"
[ "$(find "$tree/results" -name 'gpu-*' | grep -cE '/[A-Za-z0-9._-]+$')" = 4 ] || complain "the results are $(ls "$tree/results")"
python3 -c 'import json, sys, tarfile
whole = json.load(open(sys.argv[1] + ".json"))
assert whole["failed"] == 3 and whole["unfinished"] == 1 and len(whole["profile"]["kernels"]) == 41, whole["failed"]
names = tarfile.open(sys.argv[1] + "-logs.tar.gz").getnames()
assert "logs/lease.attention_by_own.log" in names and "lease/ncu.csv" in names, names' "$tree/results/gpu-lease" 2>"$work/python.log" || complain "JSON or logs: $(tail -1 "$work/python.log")"

# what is printed at the end tells it all to whoever gets nothing else
page=$work/story
sed -n '/^==== trek on a GPU: lease/,$p' "$work/lease.log" >"$page"
[ "$(wc -c <"$page")" -le 10000 ] || complain "the end is $(wc -c <"$page") bytes long"
says '^device, as trek sees it: cuda:0: Fake GPU'
says '^device, as trek sees it: driver for CUDA .*cuBLASLt .*cuDNN .*NCCL '
says '^FAILED racecheck_attention_by_own '
says '^    ========= Error: what was seen before it hung$'
says '^    error: launch, .*no CUDA driver'
says '^NOT FINISHED$'
says '^  racecheck_attention_by_wgmma: stopped after '
says '^  cuda:0 attention mma: [0-9]+ calls '
for name in gpt2_64 gpt2_64_own gpt2_64_wgmma gpt2_64_cudnn; do says "^  $name, 64 x 1024: eager .* tokens/s.*; captured .* tokens/s"; done # a long line goes on in the next one
says '^ +3\.000 +[0-9.]+ +1 +6\.00 +2000 attention_mma<bf16,64>$'
[ "$(grep -c ' norm_rows<bf16,[0-9]*>$' "$page")" = 27 ] || complain "the story has not 28 kernels"

# --- the second part: what failed again, and PyTorch -------------------------------------------------------------------------

page=$tree/results/gpu-second.md
lease second lease second -o results -p gpu-pack && complain "steps of the second part fail, and its status is 0"
says '^### launch: status 1$'
says '^### memcheck_attention_by_wgmma: died by SIGSEGV$'
for name in racecheck_attention_by_own racecheck_attention_by_wgmma; do says "^\| $name \| passed \|"; done
grep -qE '^\| (op_suite_0|allocator_stress|build) \|' "$page" && complain "what had passed was run again"
for name in profile gpt2_64_own gpt2_64_by_pytorch; do says "^\| $name \| passed \|"; done
says '^\| PyTorch \| 2.0.stand-in'
says '^\| gpt2_64 \| 64 x 1024 \| [^|]* captured[^|]*\| [^|]*1000000000.00 compile[^|]*\| [0-9.]+ \|'
says '^no such module' # PyTorch's side of another work
grep -q -- '--modes eager,compile .*gpt2_64$' "$root/stand-in/peer.calls" || complain "PyTorch was asked for: $(cat "$root/stand-in/peer.calls")"
[ "$(find "$tree/results" -name 'gpu-*' | wc -l)" = 8 ] || complain "the results of both are $(ls "$tree/results")"

# --- packs that do not fit: it says so, and builds, which cannot be done there ---------------------------------------------------

echo "/* another */" >>"$tree/trek.h"
lease other lease -o results
grep -qE '^pack +skipped: it is of other sources' "$work/other.log" && grep -qE '^build +skipped: no Meson' "$work/other.log" ||
    complain "a pack of other sources: $(head -5 "$work/other.log")"

# --- a call that has no time, the one that goes on, and one that finds all of it done --------------------------------------------

page=$work/part/gpu-bench.md
gpu 10 part bench gpt2_1 || complain "what is left fails"
says '^\| gpt2_1 \| unfinished \|'
says '^## Not finished$'
gpu 470 part bench gpt2_1 || complain "the next call fails"
says '^\| gpt2_1 \| passed \|'
gpu 10 part bench gpt2_1
grep -q '^gpt2_1  *passed (before)$' "$work/part.log" || complain "what was done is done again"

TREK_FAKE_GPUS=0 gpu 470 none bench gpt2 || complain "a machine without a GPU fails"
grep -q '^1 passed, 0 failed, 7 skipped, 0 not finished$' "$work/none.log" || complain "without a GPU: $(tail -1 "$work/none.log")"
# a device that is lost: what is asked whether it still answers says no
steps() {
    TREK_GPU_OUT=$work/lost TREK_GPU_WORK=$work/lost TREK_GPU_PART=test TREK_GPU_SOURCES=1 TREK_GPU_HEALTH=/bin/false python3 tests/gpu/steps.py "$@" >>"$work/lost.log"
}
mkdir -p "$work/lost/logs" "$work/lost/steps"
page=$work/lost/gpu-test.md
steps run own_limit 30 16 sh -c 'exit 75'
steps run hangs 1 100 sleep 60
steps run other 10 100 true
says '^\| own_limit \| unfinished \|'
says '^\| hangs \| unfinished \| .*stopped after 1 s'
says '^\| other \| unfinished \| .*the device no longer answers, since hangs'

[ $failed = 0 ] || tail -n 200 "$work"/*.log | cut -c1-300
exit $failed
