#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds trek and runs its tests. Installs what is missing with apt-get (as root, or by sudo). The last line says
# "N passed, N failed, N skipped"; the exit status is 0 if nothing failed.
#   tests/run.sh                builds once, and runs every suite once, long tests with their short tables: minutes
#   tests/run.sh all            the gate: also sanitizers, clang, fuzzing, the differential fuzzer, the CUDA
#                               plug-in where there is a compiler. What it runs depends on the tree alone
#   tests/run.sh night          searches for new defects with new seeds, for TREK_NIGHT_SECONDS (3600) in each search, and does
#                               what the gate leaves out; prints what to add to the corpus
#   tests/run.sh docs           the site: builds it without warnings, checks its links, names, blocks of C and accessibility
#   tests/run.sh for FILE...    the programs that execute these files, or are made of them (tests/covers.txt): some twenty at most, those
#                               of the folder first
#   tests/run.sh NAME [CASE]    one program, test_NAME.c or fuzz/NAME.c, or one case of it ("*" and "?" stand for others)
#   tests/run.sh stage STAGE... those parts of all: tests/run.sh stage lists them
# Meson options (-D...) may follow. CI=true makes warnings errors. TREK_TEST_WORK: where is built (build-tests).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
root=$PWD
work=${TREK_TEST_WORK:-$root/build-tests}
options=() words=()
for word in "$@"; do
    case $word in -D*) options+=("$word") ;; *) words+=("$word") ;; esac
done
[ "${CI:-}" = true ] && options+=(-Dwerror=true)
export TREK_TEST_ROOT=$root
jobs=$(nproc)
passed=0 failed=0 skipped=0
niceness=0 rebuild=(--no-rebuild)
night='' # seconds of each search, where it is one for new defects
filled=165 # what malloc() fills memory with in tests: otherwise Meson draws a number
mkdir -p "$work" && rm -f "$work"/aside.* "$work"/*.ready || exit 1

# --- what is counted ----------------------------------------------------------------------------

pass() { passed=$((passed + 1)); }
fail() { failed=$((failed + 1)); printf 'FAILED: %s\n' "$1"; }
skip() { skipped=$((skipped + 1)); printf 'skipped: %s\n' "$1"; }
# check REASON COMMAND...
check() {
    local reason=$1
    shift
    if "$@"; then pass; else fail "$reason"; fi
}
# count LINE: adds up "N passed, N failed, N skipped"; false if it is none
count() {
    [[ $1 =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]] || return 1
    passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2])) skipped=$((skipped + BASH_REMATCH[3]))
}

# idle: the seconds that the machine's cores have waited since it was started, with all that runs on it; 0 where nobody tells
idle() {
    local name user nice system idle waiting rest
    read -r name user nice system idle waiting rest 2>/dev/null </proc/stat || idle=0 waiting=0
    echo $(((idle + waiting) / ticks))
}
ticks=$(getconf CLK_TCK 2>/dev/null || echo 100)

# run_stage NAME: the function stage_NAME, with its title, its time, and how long cores were idle meanwhile
run_stage() {
    local from=$SECONDS idle_from
    idle_from=$(idle)
    printf '\n== %s\n' "$1"
    "stage_$1"
    printf -- '-- %s: %ss (at %ss, idle cores: %ss)\n' "$1" $((SECONDS - from)) "$SECONDS" $(($(idle) - idle_from))
}

# aside LABEL COMMAND...: beside what follows; join LABEL waits, shows what it said and adds what it counted
aside() {
    local label=$1
    shift
    (
        passed=0 failed=0 skipped=0
        "$@"
        printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
    ) >"$work/aside.$label.log" 2>&1 &
    printf '%d' $! >"$work/aside.$label.pid"
}
join() {
    wait "$(cat "$work/aside.$1.pid")"
    rm "$work/aside.$1.pid"
    sed '$d' "$work/aside.$1.log"
    count "$(tail -1 "$work/aside.$1.log")" || fail "$1 has not ended as it should"
}

# --- what is installed, built and run -----------------------------------------------------------

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo -n "$@"; else return 1; fi
}

# install_packages NAME...: those that are missing
install_packages() {
    local missing=() package
    command -v dpkg >/dev/null || return 0
    for package in "$@"; do
        dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
    done
    [ ${#missing[@]} = 0 ] && return 0
    printf '\n== installing %s\n' "${missing[*]}"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update >/dev/null
    apt_install "${missing[@]}" && return 0
    for package in "${missing[@]}"; do # one that this system does not have keeps the others away
        apt_install "$package" || printf '%s could not be installed: %s\n' "$package" "$(tail -1 "$work/apt.log")"
    done
}
apt_install() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@" >"$work/apt.log" 2>&1
}
base_packages=(meson ninja-build gcc g++ pkg-config zlib1g-dev libcmocka-dev libdnnl-dev python3 libopenmpi-dev openmpi-bin
    libgloo-dev iproute2 liblapack3 libfftw3-single3 libfftw3-double3 libprotobuf-c-dev protobuf-c-compiler
    libpng-dev libjpeg-dev libncurses-dev libmicrohttpd12)
site_packages=(doxygen graphviz python3-venv)
all_packages=("${site_packages[@]}" make cmake debhelper dpkg-dev fakeroot clang lld clang-format clang-tidy gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
    chromium chromium-driver)

# with clang's runtime for sanitizers and libFuzzer, of the version that `clang` is
install_all() {
    install_packages "${base_packages[@]}" "${all_packages[@]}"
    command -v clang >/dev/null && install_packages "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev"
}

# build NAME [meson options]: configures and compiles $work/NAME: what the tests need that $chosen (options of `meson test`)
# chooses, or the target $alone, or all but the target $without
without='' alone='' chosen=()
build() {
    local name=$1 dir=$work/$1 targets=()
    rm -f "$dir.ready"
    if configure "$@" && targets_of "$dir" &&
        nice -n "$niceness" ninja -C "$dir" -j "$jobs" "${targets[@]}" >"$work/$name.build.log" 2>&1; then
        if grep -q 'warning:' "$work/$name.build.log"; then
            fail "$name: warnings"
            grep 'warning:' "$work/$name.build.log" | head -5
        else
            pass
        fi
        : >"$dir.ready"
        return 0
    fi
    fail "$name does not build"
    tail -5 "$work/$name.setup.log"
    grep -E 'error|warning|undefined' "$work/$name.build.log" 2>/dev/null | head -10
    return 1
}
# configure NAME [meson options]: $work/NAME is configured. A folder that was configured in the same way is kept: ninja knows
# what has changed since.
configure() {
    local name=$1 dir=$work/$1 how
    shift
    how="${CC:-cc} ${CXX:-c++} $root $* ${options[*]}"
    if [ -e "$dir/build.ninja" ] && [ "$(cat "$dir.how" 2>/dev/null)" = "$how" ]; then
        ninja -C "$dir" build.ninja >"$work/$name.setup.log" 2>&1 # with what its own files say now
        return
    fi
    rm -rf "$dir" "$dir.how"
    meson setup "$dir" "$root" "$@" "${options[@]}" >"$work/$name.setup.log" 2>&1 && printf '%s' "$how" >"$dir.how"
}
targets_of() {
    local list
    if [ ${#chosen[@]} != 0 ]; then
        list=$(python3 tests/needed.py "$1" "${chosen[@]}") || return
    elif [ -n "$without" ]; then
        list=$(ninja -C "$1" -t query all | sed -n 's/^    //p' | grep -vxF "$without" | grep -v '^meson-') || return
    else
        list=$alone
    fi
    [ -z "$list" ] || mapfile -t targets <<<"$list"
}

# beside NAME: build_NAME beside the stages that follow, giving way to them
beside() {
    niceness=19
    aside "build_$1" "build_$1"
    niceness=0
}
# ready NAME: what build_NAME builds, now, since it was begun, or for a stage before
ready() {
    if [ -e "$work/aside.build_$1.pid" ]; then join "build_$1"; elif [ ! -e "$work/$1.ready" ]; then "build_$1"; fi
    [ -e "$work/$1.ready" ]
}

# tests NAME LABEL [meson test options]: runs tests of $work/NAME and adds up what they report
tests() {
    local name=$1 label=$2 counts from=$SECONDS
    shift 2
    rm -f "$work/$name/meson-logs/$label.json"
    MALLOC_PERTURB_=$filled nice -n "$niceness" meson test -C "$work/$name" "${rebuild[@]}" --num-processes "$jobs" --logbase "$label" "$@" >"$work/$name.$label.log" 2>&1
    if [ ! -s "$work/$name/meson-logs/$label.json" ]; then
        fail "$name: no tests ran"
        tail -5 "$work/$name.$label.log"
        return
    fi
    counts=$(python3 tests/count.py "$work/$name/meson-logs/$label.json")
    set -- $counts
    printf '%s %s: %s passed, %s failed, %s skipped (%ss)\n' "$name" "$label" "$1" "$2" "$3" $((SECONDS - from))
    count "$1 passed, $2 failed, $3 skipped"
}

# in_order NAME TEST...: puts into `names` these tests of $work/NAME: those that take long first, those that run alone last. Meson
# keeps to its own order only if it is given no names.
in_order() {
    mapfile -t names < <(python3 -c 'import json, sys
place = {test["name"]: -test["priority"] for test in json.load(open(sys.argv[1]))}
print("\n".join(sorted(sys.argv[2:], key=place.__getitem__)))' "$work/$1/meson-info/intro-tests.json" "${@:2}")
}

# selected NAME [--suite S]... [--no-suite S]...: puts into `names` what the gate runs of these tests of $work/NAME beside the plain
# run of all that need no GPU: what lately changed affects, and a quarter of the rest, but no more than the part $most of them. At
# night, and with TREK_TEST_ALL set, all of them.
names=() most=0.34
selected() {
    local name=$1 list
    shift
    if [ -n "$night${TREK_TEST_ALL:-}" ]; then
        list=$(python3 tests/affected.py "$work/$name" "$@" --all) || return
    else
        list=$(python3 tests/affected.py "$work/$name" "$@" --since "$(since)" --quarter --most "$most") || return
    fi
    mapfile -t names < <(printf '%s' "$list")
}

# build_selected NAME SUITES SUITES [meson options]: what the selected tests of these suites need, and the tests $always; the second
# may be empty
always=()
build_selected() {
    local name=$1 suites chosen=("${always[@]}")
    configure "$name" "${@:4}" || { fail "$name cannot be configured"; tail -5 "$work/$name.setup.log"; return 1; }
    for suites in "$2" "$3"; do
        [ -n "$suites" ] || continue
        # shellcheck disable=SC2086
        selected "$name" $suites || { fail "$name: what changed affects cannot be told"; return 1; }
        chosen+=("${names[@]}")
    done
    if [ ${#chosen[@]} = 0 ]; then : >"$work/$name.ready"; else build "$name" "${@:4}"; fi
}
# selected_tests NAME LABEL SUITES [meson test options]: runs those of these suites that build_selected has built
selected_tests() {
    local name=$1 label=$2 suites=$3
    shift 3
    # shellcheck disable=SC2086
    selected "$name" $suites || return
    if [ ${#names[@]} = 0 ]; then printf '%s %s: none is selected\n' "$name" "$label"; return; fi
    tests "$name" "$label" --timeout-multiplier 4 "$@" "${names[@]}"
}

has_flag() { grep -qw "$1" /proc/cpuinfo; }
built() { [ -e "$work/$1/build.ninja" ] || { fail "$2: $1 is not built"; return 1; }; }
# programs whose time goes by in waiting for other processes
waiting=(--suite processes --suite mpi)
not_waiting=(--no-suite processes --no-suite mpi)

# One instruction set beside the baseline, where not all are needed.
best_isa=avx2
has_flag avx512f && best_isa=avx512

# --- once ---------------------------------------------------------------------------------------

# Every suite on the CPU, each program once, long ones with their short tables, and of the examples a tenth. The library is compiled
# with -O1, which saves a third of the time, except the kernels that this machine chooses, and the test programs with -O0. The fake
# device, to compile which takes as long as all the rest, if
# its kernels have changed, what takes minutes there never, and the simulation if what it simulates has changed: neither the first
# time in a folder. The programs that wait for processes begin as soon as they are compiled, and what measures time runs at the end.
once=(once -Dcuda=disabled -Disas="$best_isa" -Dfuzz=false -Doptimization=1)
once_waiting() { tests once waiting --num-processes $((3 * jobs)) "$@"; }
stage_once() {
    local names all waits timed chosen most=0.1 less=(--no-suite cuda_long --no-suite ptx --no-suite simulation_mutants --no-suite examples)
    local -x TREK_TEST_SHORT=1
    { [ -e "$work/once/build.ninja" ] && changed tensor/cuda tests/fake_cuda; } || less+=(--no-suite cuda --no-suite fake_cuda)
    { [ -e "$work/once/build.ninja" ] && changed distributed tests/simulation; } || less+=(--no-suite simulation)
    configure "${once[@]}" && selected once --suite examples --no-suite timed || { fail "once cannot be configured"; tail -5 "$work/once.setup.log"; return; }
    mapfile -t waits < <(python3 tests/affected.py "$work/once" --all "${less[@]}" "${waiting[@]}")
    mapfile -t timed < <(python3 tests/affected.py "$work/once" --all "${less[@]}" --suite timed)
    mapfile -t all < <(python3 tests/affected.py "$work/once" --all "${less[@]}" "${not_waiting[@]}" --no-suite timed)
    all+=("${names[@]}") chosen=("${waits[@]}")
    build "${once[@]}" || return
    aside waiting once_waiting "${waits[@]}"
    chosen=("${all[@]}" "${timed[@]}")
    build "${once[@]}" && tests once suites "${all[@]}"
    join waiting
    tests once timed "${timed[@]}"
}

# known BUILD NAME: whether there is such a test; else says which are called like it
known() {
    local near
    [[ $2 == *[*?[]* ]] && return # a pattern
    near=$(meson introspect --tests "$1" | python3 -c 'import difflib, json, sys
name, names = sys.argv[1], sorted({test["name"] for test in json.load(sys.stdin)})
near = [n for n in names if name in n][:6] or difflib.get_close_matches(name, names, 6, 0.5)
print("" if name in names else "; near it are " + ", ".join(near) if near else "; tests/ has none that is called like it")' "$2")
    [ -z "$near" ] || fail "there is no test $2$near"
    [ -z "$near" ]
}

# one NAME [CASE]: that program alone, in the build of "once"
one() {
    local name=$1 dir=$work/once
    [ -e "tests/fuzz/$name.c" ] && [ -z "$(find tests -name "test_$name.c")" ] && name=fuzz_$name
    configure "${once[@]}" || { tail -5 "$work/once.setup.log"; fail "the build cannot be configured"; return; }
    known "$dir" "$name" || return
    [ -n "${2:-}" ] && export TREK_TEST_CASE=$2
    rebuild=() # what this program needs
    tests once one "$name"
    [ -s "$dir/meson-logs/one.json" ] && python3 -c 'import json, sys
for line in open(sys.argv[1]):
    test = json.loads(line)
    print((test.get("stdout") or "")[-20000:] + (test.get("stderr") or "")[-20000:])' "$dir/meson-logs/one.json"
}

# for FILE...: what these files affect, in the build of "once"
for_files() {
    local names chosen list all how=(--no-suite ptx --no-suite cuda --no-suite fake_cuda)
    [[ " $*" =~ \ (tensor/cuda|tests/fake_cuda)/ ]] && how=(--no-suite ptx --no-suite cuda_long)
    configure "${once[@]}" || { tail -5 "$work/once.setup.log"; fail "the build cannot be configured"; return; }
    how=("$work/once" "${how[@]}" --files "$@")
    list=$(python3 tests/affected.py "${how[@]}" --most 0.08) && all=$(python3 tests/affected.py "${how[@]}") ||
        { fail "what these files affect cannot be told"; return; }
    mapfile -t names < <(printf '%s' "$list")
    [ ${#names[@]} != 0 ] || { skip "no test executes ${*}"; return; }
    all=$(($(wc -l <<<"$all") - ${#names[@]}))
    [ "$all" = 0 ] || printf '%d more tests execute this: tests/run.sh has them\n' "$all"
    chosen=("${names[@]}")
    build "${once[@]}" && tests once for "${names[@]}"
}

# --- the parts of "all" -------------------------------------------------------------------------

cuda_plugin=tensor/cuda/libtrek-cuda.so
has_cuda() { grep -qF "$cuda_plugin" "$work/plain/build.ninja"; }
compile_plugin() { # and keeps its kernels' PTX
    mkdir -p "$work/kept"
    if NVCC_APPEND_FLAGS="--keep --keep-dir $work/kept" nice -n 19 ninja -C "$work/plain" -j "$jobs" "$cuda_plugin" >"$work/plugin.build.log" 2>&1; then
        pass
    else
        fail "the CUDA plug-in does not build"
        grep -E 'error|warning' "$work/plugin.build.log" | head -10
    fi
}

# How "plain" is configured; GPUs' code is compiled to PTX.
plain=(plain -Dgpu_archs="${TREK_TEST_GPU_ARCHS:-ptx}")

# What changed lately: since six hours before the last commit, or since TREK_TEST_SINCE.
since() {
    local last
    [ -n "${TREK_TEST_SINCE:-}" ] && { echo "$TREK_TEST_SINCE"; return; }
    last=$(git log -1 --format=%ct 2>/dev/null) || { echo HEAD; return; }
    git rev-list -1 --before=$((last - 21600)) HEAD | grep . || git rev-list --max-parents=0 HEAD | tail -1
}

# Whether what changed lately looks at the plug-in for GPUs or is part of it. If not, the fake device runs what else runs as PTX,
# and the plug-in is compiled at night alone.
affects_plugin() {
    [ -n "$night" ] || changed tests/ptx tests/gpu tests/gpu.sh tests/checks/check_{lease,plugin}.sh ||
        [ -n "$(python3 tests/affected.py --since "$(since)" --under tensor/cuda/)" ]
}

# generated_headers FOLDER: those that sources include
generated_headers() {
    ninja -C "$1" -t targets all | sed -n 's/^\([^.].*\.h\): CUSTOM_COMMAND$/\1/p' | xargs -r ninja -C "$1" >"$work/headers.log" 2>&1
}

# What can be refused before anything is compiled; these checks are also tests of a build, which need not run again
refusals=(includes sources tested docs count environment errors excerpts messages packages headers declarations sweep)
done_before=() # options that leave out what a stage before has done
pages_compiled='' # by the suite "pages", in a stage before
stage_refusals() {
    mapfile -t done_before < <(printf -- '--no-suite\n%s\n' "${refusals[@]}")
    aside texts refuse_texts
    tidy --since "$(since)"
    join texts
}
refuse_texts() {
    local name
    check "sources do not keep to .clang-format" python3 tests/checks/check_format.py "$root"
    command -v clang-format >/dev/null || skip "clang-format is not installed: the width of lines was checked, spaces were not"
    for name in "${refusals[@]}"; do
        check "check_$name" python3 "tests/checks/check_$name.py" "$root"
    done
}

# The plug-in for GPUs, where there is a CUDA compiler, takes as long as all the rest: it is compiled beside the tests,
# to PTX.
stage_plain() {
    local without=$cuda_plugin
    build "${plain[@]}" || return
    local names all twice=() less=(--no-suite cuda --no-suite ptx --no-suite examples "${done_before[@]}") most=0.34
    if affects_plugin; then
        has_cuda && aside compile_plugin compile_plugin
        [ -z "$night" ] && twice=(--no-suite twice) # what runs as PTX runs on the fake device, too, at night
    fi
    [ -z "$night" ] && ! changed distributed tests/simulation && less+=(--no-suite simulation_mutants)
    [ -n "$night" ] && local -x TREK_SIMULATION_RUNS=${TREK_SIMULATION_RUNS:-1000000}
    mapfile -t all < <(python3 tests/affected.py "$work/plain" --all "${less[@]}" "${not_waiting[@]}")
    selected plain --suite examples && all+=("${names[@]}") && most=0.5 &&
        selected plain --suite cuda "${twice[@]}" || { fail "plain: what changed affects cannot be told"; return; }
    in_order plain "${all[@]}" "${names[@]}"
    TREK_TEST_LONG=1 tests plain suites "${names[@]}" # tests that draw at random draw more often
    pages_compiled=1
}

stage_processes() {
    [ -n "$night" ] && local -x TREK_SWEEP_RUNS=20000 TREK_TEST_LONG=1
    built plain processes && tests plain processes "${waiting[@]}" --num-processes $((2 * jobs))
}

# Jobs that are drawn at random, each compared with one rank: how many, TREK_TEST_DRAWS says; a tenth as many over MPI, where it is
# installed. Jobs in which processes die and come, and those with divided memory. And faults that replays and audits have to find:
# 200, and a million grains without any.
stage_grains() {
    built plain "jobs in grains" || return
    local draws=${TREK_TEST_DRAWS:-2000}
    TREK_TEST_DRAWS=$draws tests plain grains grain_jobs --timeout-multiplier 20
    grep -qF '"grain_jobs_mpi"' "$work/plain/meson-info/intro-tests.json" &&
        TREK_TEST_DRAWS=$((draws / 10)) tests plain grains_mpi grain_jobs_mpi --timeout-multiplier 20
    TREK_TEST_DRAWS=${TREK_TEST_DEATHS:-500} tests plain deaths grain_arrivals grain_deaths grain_newcomers grain_run_arrivals \
        --timeout-multiplier 20
    TREK_TEST_DRAWS=${TREK_TEST_DIVIDED:-300} TREK_TEST_CASE=same_bits tests plain divided divided_jobs --timeout-multiplier 20
    TREK_TEST_DRAWS=${TREK_TEST_FAULTS:-200} TREK_TEST_AUDITED=${TREK_TEST_AUDITED:-1000000} tests plain faults replay audit --timeout-multiplier 60
}

# The same beside sleeps that last ten times as long, or a tenth, and threads that begin late: what waits for others waits for what
# they do, and not for a time in which they should have done it.
stage_sleeps() {
    local times
    built plain sleeps || return
    for times in 10 0.1; do
        tests plain "sleeps_$times" "${waiting[@]}" --suite threads --no-suite cuda --no-suite fake_cuda --num-processes $((2 * jobs)) \
            --timeout-multiplier 4 --wrapper "env TREK_TEST_SLEEP=$times LD_PRELOAD=$work/plain/tests/libsleeps.so"
    done
}

stage_plugin() {
    built plain "the CUDA plug-in" || return
    [ -e "$work/aside.compile_plugin.pid" ] && join compile_plugin
    if grep -qF tests/fake_cuda/plugin "$work/plain/build.ninja"; then
        check "minutes on a GPU, rehearsed (tests/gpu.sh lease)" bash tests/checks/check_lease.sh "$work/plain"
    else
        skip "minutes on a GPU, rehearsed: no fake device"
    fi
    if ! has_cuda; then
        skip "the CUDA plug-in: no CUDA compiler"
        return
    fi
    tests plain loading check_load # with it
    check "the CUDA plug-in without a driver" bash tests/checks/check_plugin.sh "$work/plain"
}

# Puts the PTX of the plug-in's build where that of the target "ptx" would be; false: some is not there.
place_ptx() {
    local source name to=$work/plain/tests/ptx
    for source in $(cd tensor/cuda && find . -name '*.cu'); do
        name=${source#./} name=kernel_${name//\//_}
        cp "$work/kept/$(basename "$source" .cu).ptx" "$to/${name%.cu}.ptx"
    done
    cp "$work"/kept/optimizer_*.ptx "$to"
    for name in $(ninja -C "$work/plain" -t targets all | sed -n 's#^tests/ptx/\(.*\.ptx\):.*#\1#p'); do [ -s "$to/$name" ] || return; done
}

# The suite "cuda" in part, by what nvcc makes of the kernels
stage_ptx() {
    local targets=(tests/ptx/ptx_check tests/ptx/attention_mma_80.txt)
    built plain "kernels as PTX" || return
    if ! grep -q '^build ptx:' "$work/plain/build.ninja"; then
        skip "kernels as PTX: no CUDA compiler"
        return
    fi
    place_ptx 2>/dev/null || targets+=(ptx)
    if nice -n "$niceness" ninja -C "$work/plain" -j "$jobs" "${targets[@]}" >"$work/ptx.build.log" 2>&1; then
        local less='' most=0.5
        [ -z "$night" ] && ! changed tensor/cuda tests/ptx tests/fake_cuda && less=' --no-suite ptx_mutants'
        TREK_TEST_SHORT=1 selected_tests plain ptx "--suite ptx$less"
    else
        fail "kernels as PTX do not build"
        grep -E 'error|warning' "$work/ptx.build.log" | head -10
    fi
}

stage_install() {
    built plain install || return
    if has_cuda && [ ! -e "$work/plain/$cuda_plugin" ]; then compile_plugin; fi # it is installed, too
    check "what is installed does not work" bash tests/checks/check_install.sh "$work/plain"
}

stage_debian() {
    if command -v dpkg-buildpackage >/dev/null && command -v dh >/dev/null; then
        check "Debian's packages" bash tests/checks/check_debian.sh "$root" "$work/debian"
    else
        skip "Debian's packages: dpkg-buildpackage or debhelper is not installed"
    fi
}

# What sanitizers tell are lines: to say where each variable is doubles the time of compiling.
lines=(-Dbuildtype=debugoptimized -Dcpp_args=-g1 -Dc_args=-g1)

# Another compiler: what it warns of, its address and undefined sanitizers, and libFuzzer, in one build. Tests are compiled against
# the stand-in for cmocka; oneDNN is looked at here, and left out of the build of "thread".
# Large cases, mutants and the other programs that kill and wait for processes add nothing here. Kernels of the baseline: those of
# other instruction sets are the same source with wider vectors, which takes minutes to instrument.
address_suites="--no-suite checks --no-suite ptx --no-suite cuda_long --no-suite mutation --no-suite simulation_mutants --no-suite simulation --no-suite processes --no-suite mpi --no-suite fuzz"
address_waiting="--suite control --suite job --suite shared"
has_fuzzer() {
    command -v clang >/dev/null && echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return d && n == 7 ? 0 : 0; }' |
        clang -x c - -fsanitize=fuzzer,address,undefined -o "$work/fuzzer_probe" >/dev/null 2>&1
}
build_clang() {
    local always=() device=()
    has_fuzzer || return
    [ -z "$night" ] && device=(-Dfake_cuda=false) # to instrument the fake device takes as long as all the rest
    mapfile -t always < <(fuzzers | sed 's/^/fuzz_/')
    CC=clang CXX=clang++ build_selected clang "$address_suites" "$address_waiting" \
        -Dbuildtype=debugoptimized -Dc_args=-g1 -Dcpp_args='-g1 -fno-sanitize=vptr' "${device[@]}" -Dwerror=true -Doptimization=1 -Dfuzz=true \
        -Dcuda=disabled -Dmpi=disabled -Dgloo=disabled -Dcmocka=disabled -Disas= -Db_sanitize=address,undefined -Db_lundef=false -Dexamples=false
}
# ready_clang WHAT: whether it is built; says that WHAT is skipped where it cannot be
ready_clang() {
    has_fuzzer || { skip "$1: no clang with libFuzzer"; return 1; }
    ready clang
}
stage_clang() { ready_clang "clang"; }
stage_address() {
    ready_clang "the address sanitizer" || return
    export TREK_TEST_SHORT=1 ASAN_OPTIONS=detect_leaks=1:abort_on_error=0:allocator_may_return_null=1
    export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
    selected_tests clang suites "$address_suites"
    selected_tests clang processes "$address_waiting" --num-processes $((2 * jobs))
    unset TREK_TEST_SHORT ASAN_OPTIONS UBSAN_OPTIONS
}

# what takes a quarter of an hour on the fake device, at night alone
thread_suites() { echo "--suite threads --suite cuda_threads$([ -n "$night" ] || echo ' --no-suite cuda_long')"; }
# no instruction set beside the baseline: kernels share nothing that it does not
build_thread() {
    local device=(-Dfake_cuda=false) # as with the other sanitizers
    { [ -n "$night" ] || changed "${of_device[@]}" || turn 6; } && device=()
    build_selected thread "$(thread_suites)" '' "${lines[@]}" -Dcuda=disabled -Dmpi=disabled -Disas= \
        -Db_sanitize=thread -Db_lundef=false -Donednn=disabled -Dexamples=false "${device[@]}"
}
stage_thread() {
    ready thread || return
    [ -n "$night" ] && local -x TREK_TEST_LONG=1
    export TREK_TEST_SHORT=1 TSAN_OPTIONS="halt_on_error=1:suppressions=$root/tests/thread.suppressions"
    selected_tests thread threads "$(thread_suites)"
    unset TREK_TEST_SHORT TSAN_OPTIONS
}

stage_aarch64() {
    if ! command -v aarch64-linux-gnu-gcc >/dev/null; then
        skip "64-bit ARM: no compiler for it"
        return
    fi
    if bash tests/checks/check_aarch64.sh "$root" "$work/aarch64" "${options[@]}" >"$work/aarch64.out" 2>&1; then
        pass
        cat "$work/aarch64.out"
    else
        fail "64-bit ARM"
        tail -20 "$work/aarch64.out"
    fi
    [ -s "$work/aarch64/meson-logs/emulated.json" ] || return
    set -- $(python3 tests/count.py "$work/aarch64/meson-logs/emulated.json")
    count "$1 passed, $2 failed, $3 skipped"
}

# fuzz NAME: from the committed corpus; what it finds stays in $work/fuzz.found. In the gate so many inputs from a fixed seed
# and nothing kept; at night for its part of so many seconds, of which two are run at a time, from what earlier nights have found, too.
fuzz() {
    local name=$1 corpus=$work/fuzz.corpus/$1 amount=(-seed=1 -runs="${TREK_FUZZ_RUNS:-4000}")
    if [ -n "$night" ]; then amount=(-max_total_time="$((1 + 2 * night / $(fuzzers | wc -l)))"); else rm -rf "$corpus"; fi
    mkdir -p "$corpus" "$work/fuzz.found"
    if ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
        nice -n "$niceness" "$work/clang/tests/fuzz/fuzz_$name" "${amount[@]}" -max_len=6200 -malloc_limit_mb=64 \
        -rss_limit_mb=2000 -timeout=10 -print_final_stats=1 -artifact_prefix="$work/fuzz.found/$name-" "$corpus" "tests/fuzz/corpus/$name" >"$work/fuzz.$name.log" 2>&1; then
        pass
        printf 'fuzz %s: %s inputs\n' "$name" "$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/fuzz.$name.log")"
    else
        fail "fuzz_$name: $(grep -m 1 -E 'ERROR|runtime error|does not hold' "$work/fuzz.$name.log") ($work/fuzz.$name.log)"
    fi
}
fuzz_some() {
    local name
    for name in "$@"; do fuzz "$name"; done
}

fuzzers() { # their names
    local folder
    for folder in tests/fuzz/corpus/*/; do basename "$folder"; done
}
stage_fuzz() {
    local names=() k
    ready_clang "fuzzing" || return
    mapfile -t names < <(fuzzers)
    aside fuzz_even fuzz_some $(for ((k = 0; k < ${#names[@]}; k += 2)); do echo "${names[k]}"; done)
    fuzz_some $(for ((k = 1; k < ${#names[@]}; k += 2)); do echo "${names[k]}"; done)
    join fuzz_even
}

# So many calls from a fixed seed; at night for so many seconds from a new one. TREK_DIFFERENTIAL_CASES, _SEED: another number, seed
differential() {
    local amount=(--cases "${TREK_DIFFERENTIAL_CASES:-60000}" --seed "${TREK_DIFFERENTIAL_SEED:-1}")
    [ -n "$night" ] && amount=(--seconds "$night" --seed "$(date +%s)")
    bash tests/differential/run.sh --library "$work/plain/libtrek.so" "${amount[@]}" >"$work/differential.log" 2>&1
    tail -25 "$work/differential.log" | sed '$d' | grep -v '^$' | tail -12
    count "$(tail -1 "$work/differential.log")" || fail "the differential fuzzer: $(tail -1 "$work/differential.log")"
    [ -n "$night" ] || return
    bash tests/differential/run.sh --library "$work/plain/libtrek.so" --samples >"$work/samples.log" 2>&1
    grep '^DIFFERENCE' "$work/samples.log"
    count "$(tail -1 "$work/samples.log")" || fail "PyTorch's samples: $(tail -1 "$work/samples.log")"
}
stage_differential() {
    if [ ! -e tests/differential/run.sh ]; then
        skip "there is no differential fuzzer"
        return
    fi
    built plain "the differential fuzzer" && differential
}

# with_packages PACKAGES LABEL CHECK ARGUMENT...: a check in Python that needs these packages
with_packages() {
    local packages=$1 label=$2 script=$3
    shift 3
    # shellcheck disable=SC2086
    if "$work/venv/bin/pip" -q install $packages >>"$work/pip.log" 2>&1; then
        check "$label" "$work/venv/bin/python3" "tests/checks/$script" "$@"
    else
        skip "$label: not all of $packages can be installed"
    fi
}

stage_files() {
    built plain "files that others read" || return
    if ! python3 -m venv "$work/venv" >"$work/pip.log" 2>&1; then
        skip "files that others read: there is no venv for Python"
        return
    fi
    with_packages "numpy safetensors xxhash" "state files and safetensors" check_safetensors.py "$work/plain/tests/state_tool"
    with_packages "numpy" "arrays, tables and NumPy" check_tables.py "$work/plain/libtrek.so"
    with_packages "numpy pillow" "images and Pillow" check_images.py "$work/plain/libtrek.so"
    with_packages "numpy scikit-learn" "metrics and scikit-learn" check_metrics.py "$work/plain/tests/metrics_tool"
    with_packages "numpy tensorboard prometheus_client" "watched runs, tensorboard and Prometheus's client" check_tensorboard.py "$work/plain/libtrek.so"
    with_packages "numpy mlflow-skinny" "watched runs and MLflow" check_mlflow.py "$work/plain/libtrek.so"
    with_packages "numpy safetensors" "the page on Python" check_python.py "$root" "$work/plain/libtrek.so"
    if [ -x "$work/plain/tests/onnx_tool" ]; then
        with_packages "numpy safetensors onnx onnxruntime" "ONNX files, onnx's checker and onnxruntime" check_onnx.py "$work/plain/tests/onnx_tool"
    else
        skip "protobuf-c is not there: nothing was exported to ONNX"
    fi
    check_transformers
}

# In the Python of the differential fuzzer, which has torch, with three more packages.
check_transformers() {
    local python needs='import torch, transformers, tokenizers, safetensors'
    if python=$(bash tests/differential/run.sh --python 2>>"$work/pip.log") && { "$python" -c "$needs" >/dev/null 2>&1 ||
        { "$python" -m pip -q install transformers tokenizers safetensors >>"$work/pip.log" 2>&1 && "$python" -c "$needs" >/dev/null 2>&1; }; }; then
        check "names of PyTorch in the reference" "$python" docs/site/counterparts.py "$root"
        check "GPT-2, transformers and tokenizers" "$python" tests/checks/check_transformers.py "$work/plain/tests/gpt2_tool" \
            "$work/plain/examples"
        check "sampling and transformers" "$python" tests/checks/check_generate.py "$work/plain/libtrek.so"
        check "the page on Python, with torch and tokenizers" "$python" tests/checks/check_python.py "$root" "$work/plain/libtrek.so"
    else
        skip "transformers and tokenizers for Python cannot be installed"
    fi
}

# accessible FOLDER: pages of the site by axe, in a browser: all where what they look like has changed, or in its turn, else those that
# were written
accessible() {
    local site=$1 pages=()
    if [ -z "$night" ] && [ "${words[0]:-}" != docs ] && ! changed docs/site tests/checks/check_accessible.py && ! turn 0; then
        mapfile -t pages < <(git diff --name-only --diff-filter=d "$(since)" -- 'docs/*.md' | sed 's#^docs/##; s#\.md$#.html#' | grep -v README)
        [ ${#pages[@]} != 0 ] || return
    fi
    if command -v chromium >/dev/null && "$site/venv/bin/pip" -q install axe-core-python >>"$work/pip.site.log" 2>&1; then
        check "accessibility of the site" "$site/venv/bin/python3" tests/checks/check_accessible.py "$site/html" "${pages[@]}"
    else
        skip "accessibility of the site: there is no Chromium, or axe cannot be installed"
    fi
}

# The site of docs/ and the reference, in the build that there is.
stage_docs() {
    local name=plain site
    [ -e "$work/plain/build.ninja" ] || { name=site && build site -Dcuda=disabled -Dfake_cuda=false -Disas="$best_isa" -Dexamples=false; } || return
    site=$work/$name/site
    [ ${#done_before[@]} != 0 ] || check "pages name what is not there" python3 tests/checks/check_docs.py "$root"
    [ -n "$pages_compiled" ] || tests "$name" pages --suite pages
    if ! command -v doxygen >/dev/null || ! command -v dot >/dev/null; then
        skip "the site: doxygen or graphviz is not installed"
    elif ! { mkdir -p "$site" && python3 -m venv "$site/venv" && "$site/venv/bin/pip" -q install -r docs/site/requirements.txt; } >"$work/pip.site.log" 2>&1; then
        skip "the site: Sphinx and what it needs cannot be installed"
    elif nice -n "$niceness" ninja -C "$work/$name" docs >"$work/site.log" 2>&1; then
        check "the site" python3 tests/checks/check_site.py "$root" "$site"
        accessible "$site"
    else
        fail "the site does not build without warnings"
        tail -15 "$work/site.log"
    fi
}

# The live page in a real browser
stage_page() {
    built plain "the live page in a browser" || return
    if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then
        skip "the live page in a browser: chromium or chromium-driver is not installed"
    elif ! python3 -m venv "$work/venv" >>"$work/pip.log" 2>&1; then
        skip "the live page in a browser: there is no venv for Python"
    else
        with_packages "selenium axe-core-python" "the live page in Chromium" check_page.py "$work/plain/libtrek.so"
    fi
}

# What clang-format and clang-tidy say of all sources
stage_style() {
    check "sources do not keep to .clang-format" python3 tests/checks/check_format.py "$root"
    command -v clang-format >/dev/null || skip "clang-format is not installed: the width of lines was checked, spaces were not"
    tidy
}

# tidy [OPTIONS of check_tidy.py]
tidy() {
    if ! command -v clang-tidy >/dev/null; then
        skip "clang-tidy is not installed"
    elif configure "${plain[@]}" && generated_headers "$work/plain"; then
        check "clang-tidy has found something" python3 tests/checks/check_tidy.py "$root" "$work/plain" "$@"
    else
        fail "the build cannot be configured"
        tail -5 "$work/plain.setup.log"
    fi
}

stages=(refusals plain processes grains sleeps plugin ptx install debian files page docs style clang aarch64 differential address thread fuzz)
# Some things go on beside others, so that no core waits: what the sanitizers need is compiled from early on, and gives way to all
# other stages, of which many wait: for processes, packages, a browser, one thread of Sphinx; the differential fuzzer is two
# minutes of one thread; and fuzzing gives way to the tests of threads.
files_and_page() { # in the same venv
    if [ -n "$night" ] || changed "${of_files[@]}" || turn 3; then run_stage files; fi
    if [ -n "$night" ] || changed "${of_page[@]}" || turn 5; then run_stage page; fi
}
# What writes and reads files that others read, and what the live page is made of
of_files=(data onnx examples/gpt2.c examples/gpt2_model.h docs/python.md tests/onnx tests/support graph/metric*
    tests/checks/check_{safetensors,tables,images,metrics,tensorboard,mlflow,python,onnx,transformers,generate}.py
    monitor/viewer/event* monitor/export* monitor/viewer/export* monitor/viewer/run_* nn/checksum* nn/config* nn/generate* nn/json* nn/read_file* nn/replace_file* nn/safetensors*
    nn/sample* nn/state* nn/transformer* nn/kv_cache*)
of_page=(monitor/page* monitor/report* monitor/viewer/page* monitor/viewer/report* monitor/viewer/http* tests/checks/check_page.py)
of_device=(tensor/cuda tests/fake_cuda graph/capture*)
of_debian=(debian packaging meson_options.txt tests/checks/check_debian.sh)
# What is installed, and what pages are made of
public_headers=('*.h' ':!tests/*.h' ':!*_internal.h')
of_install=(packaging tools meson_options.txt '*meson.build' ':!tests/*meson.build' "${public_headers[@]}" tests/checks/check_install.sh)
of_docs=(docs '*.md' "${public_headers[@]}" examples meson.build tests/checks/{check_docs,check_site,check_accessible,check_code_blocks,public}.py)
everything() {
    local stage stages=()
    run_stage refusals
    [ "$failed" = 0 ] || return
    beside clang
    run_stage plain
    beside thread
    run_stage processes
    aside files files_and_page # which wait for packages; at night all of it
    affects_plugin && stages+=(plugin ptx)
    { changed "${of_install[@]}" || turn 4; } && stages+=(install)
    { changed "${of_docs[@]}" || turn 0; } && stages+=(docs)
    { changed "${of_debian[@]}" || installs_otherwise || turn 1; } && stages+=(debian)
    { changed tests/checks/aarch64.ini tests/checks/check_aarch64.sh || turn 2; } && stages+=(aarch64)
    for stage in "${stages[@]}"; do run_stage "$stage"; done
    join files
    aside differential run_stage differential
    run_stage address
    join differential
    niceness=19
    aside fuzz run_stage fuzz
    niceness=0
    run_stage thread
    join fuzz
}

# Whether one of these files or folders has changed lately
changed() { [ -n "${TREK_TEST_ALL:-}" ] || ! git diff --quiet "$(since)" -- "$@" 2>/dev/null; }
# Whether a line that installs something, or names what is built of it, has changed in the build files
installs_otherwise() {
    git diff -U0 "$(since)" -- '*meson.build' ':!tests/*meson.build' |
        grep -E '^[-+][^-+].*(install|library\(|executable\(|dependency\(|headers)' >/dev/null # -q would end git, and so the pipe
}
# turn K: whether the name of the last commit's tree says so, as it does of one in eight: then a stage is run although nothing of its
# own has changed
turn() {
    local name
    name=$(git rev-parse 'HEAD^{tree}' 2>/dev/null) && [ $((16#${name:0:8} % 8)) = "$1" ]
}

# What searches, each for $night seconds, and what the gate leaves out. Nothing is kept from one search by another.
whole_night() {
    local stage
    night=${TREK_NIGHT_SECONDS:-3600}
    export TREK_RANDOM_SEED=${TREK_RANDOM_SEED:-$(date +%s)}
    filled=$((1 + TREK_RANDOM_SEED % 255))
    printf 'TREK_RANDOM_SEED=%s\n' "$TREK_RANDOM_SEED"
    for stage in plain processes grains sleeps plugin ptx install debian aarch64 style docs address thread; do run_stage "$stage"; done
    files_and_page
    run_stage fuzz
    run_stage differential
    printf '\nWhat was found is in %s; give each file to tests/fuzz/corpus, each case to the program that found it:\n' "$work/fuzz.found"
    ls "$work/fuzz.found" 2>/dev/null
}

# --- which form ---------------------------------------------------------------------------------

case ${words[0]:-} in
'')
    install_packages "${base_packages[@]}"
    run_stage once
    ;;
all)
    install_all
    everything
    ;;
night)
    install_all
    whole_night
    ;;
for)
    install_packages "${base_packages[@]}"
    for_files "${words[@]:1}"
    ;;
docs)
    install_packages "${base_packages[@]}" "${site_packages[@]}"
    run_stage docs
    ;;
stage)
    [ ${#words[@]} -gt 1 ] || { printf '%s\n' "${stages[*]}"; exit 0; }
    install_all
    for stage in "${words[@]:1}"; do
        if declare -F "stage_$stage" >/dev/null; then run_stage "$stage"; else fail "there is no stage $stage"; fi
    done
    ;;
*)
    install_packages "${base_packages[@]}"
    one "${words[@]}"
    ;;
esac

[ -e "$work/aside.compile_plugin.pid" ] && join compile_plugin
printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" = 0 ]
