#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The differential fuzzer: draws calls of trek's public functions, of every dtype, layout and shape, and compares
# values, gradients and gradients of gradients with PyTorch's. What differs is made smaller and printed with the line
# that runs it again; differences that are meant stand in differences.py with the place where they are written.
#   usage: tests/differential/run.sh --library build/libtrek.so [--seed S] [--seconds N] [--cases N] [--only NAME]
#          ... --samples            the samples of PyTorch's own suite instead of drawn calls
#          ... --replay SEED:CASE     runs that case again
#          ... --case JSON            runs a case that was made smaller
#          ... --list                 what is covered, and how
#          ... --python               nothing but the Python that has PyTorch, for other checks
#   a night: tests/differential/run.sh --library build/libtrek.so --seconds 28800 --seed "$(date +%s)"
# PyTorch comes from the Python in TREK_TORCH_PYTHON, from python3, or from an environment that is made in
# TREK_TORCH_VENV (default ~/.cache/trek/torch-venv) with pip. Where it cannot be had, the suite's own references
# in f64 stand in (TREK_TEST_BUILD/tests: test_ops_forward, test_ops_gradient, test_ops_second, test_ops_random_rows).
# The last line says "N passed, N failed, N skipped"; the exit status is 0 if nothing failed.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
venv=${TREK_TORCH_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/trek/torch-venv}

has_torch() { "$1" -c 'import torch, numpy' >/dev/null 2>&1; }

find_python() {
    local python
    for python in "${TREK_TORCH_PYTHON:-}" "$venv/bin/python" python3; do
        [ -n "$python" ] && has_torch "$python" && { echo "$python"; return 0; }
    done
    echo "installing PyTorch in $venv" >&2
    python3 -m venv "$venv" >/dev/null 2>&1 || return 1
    "$venv/bin/pip" install --quiet --index-url https://download.pytorch.org/whl/cpu torch >/dev/null 2>&1 &&
        "$venv/bin/pip" install --quiet numpy >/dev/null 2>&1 ||
        "$venv/bin/pip" install --quiet torch numpy >/dev/null 2>&1 || return 1
    has_torch "$venv/bin/python" && echo "$venv/bin/python"
}

# option NAME DEFAULT ARGUMENTS...: the value of --NAME
option() {
    local name=$1 value=$2
    shift 2
    while [ $# -gt 0 ]; do
        case $1 in
        --"$name") value=${2:-} ;;
        --"$name"=*) value=${1#*=} ;;
        esac
        shift
    done
    printf '%s\n' "$value"
}

# Without PyTorch: the suite's references, the random rows with a seed for as long as was asked for.
fall_back() {
    local library passed=0 failed=0 program folder
    library=$(option library '' "$@")
    folder=${TREK_TEST_BUILD:-$(dirname "$library")}/tests
    export TREK_RANDOM_SEED TREK_RANDOM_SECONDS TREK_TEST_ROOT=$here/../..
    TREK_RANDOM_SEED=$(option seed 1 "$@")
    TREK_RANDOM_SECONDS=$(option seconds 60 "$@")
    echo "PyTorch cannot be installed: the suite's own references"
    for program in test_ops_forward test_ops_gradient test_ops_second test_ops_random_rows; do
        if [ ! -x "$folder/$program" ]; then
            echo "not there: $folder/$program"
            failed=$((failed + 1))
        elif "$folder/$program" >/dev/null 2>&1; then
            passed=$((passed + 1))
        else
            echo "failed: $folder/$program"
            failed=$((failed + 1))
        fi
    done
    echo "$passed passed, $failed failed, 1 skipped"
    [ "$failed" = 0 ]
}

[ "${1:-}" = --python ] && { find_python; exit; }
python=$(find_python) || { fall_back "$@"; exit; }
# Fresh memory is large numbers, not zeros, so that reading what was never written shows.
export TREK_CACHE=${TREK_CACHE-off} GLIBC_TUNABLES=${GLIBC_TUNABLES:+$GLIBC_TUNABLES:}glibc.malloc.perturb=128
export OMP_NUM_THREADS=1 TREK_LOG=error PYTHONDONTWRITEBYTECODE=1
exec "$python" "$here/fuzz.py" "$@"
