# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by tests/gpu.sh: programs built on another machine. A pack is a folder with programs.tar.xz and pack.txt, which
# says of which sources and for which device they are.

MOST_BYTES=45000000

kind() { if [ -n "$rehearse" ]; then echo "fake device"; else echo CUDA; fi; }
told() { sed -n "s/^$2: //p" "$1/pack.txt"; } # FOLDER WHAT: a line of pack.txt

# The libraries of the build that a file needs, relative to the folder
own_libraries() { ldd "$1" 2>/dev/null | sed -n 's/^[^/]* => \([^ ]*\) .*/\1/p' | xargs -r -n 1 readlink -f | sed -n "s#^$(readlink -f "$build")/##p"; }

# Copies what the targets need into a folder as it lies in the build, without symbols.
copy_programs() {
    local to=$1 file library
    for file in $targets; do
        [ -e "$build/$file" ] || continue
        mkdir -p "$to/$(dirname "$file")"
        cp -L "$build/$file" "$to/$file"
        for library in $(own_libraries "$build/$file"); do # under the name that programs ask for
            mkdir -p "$to/$(dirname "$library")"
            cp "$build/$library" "$to/$(dirname "$library")/$(readelf -d "$build/$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')"
        done
    done
    find "$to" -type f ! -name '*.so*' -exec strip {} +
    find "$to" -type f -name '*.so*' -exec strip --strip-unneeded {} +
}

make_pack() {
    local folder=$1 packed=$work/packing missing preset=6
    [ -z "$rehearse" ] || preset=0
    part=pack targets=$(targets_of)
    mkdir -p "$folder"
    if ! have_meson || { [ -z "$rehearse" ] && ! command -v nvcc >/dev/null; }; then
        echo "tests/gpu.sh pack: Meson, Ninja and nvcc are needed"
        return 1
    fi
    [ -n "$rehearse" ] || eval "$("$peer" tests/gpu/wheels.py "$(cuda_root)" 2>/dev/null)"
    build_all >"$work/logs/pack.build.log" 2>&1 || { grep -E 'error|FAILED' "$work/logs/pack.build.log" | head -20; echo "tests/gpu.sh pack: $build: not all of it was built; see $work/logs/pack.build.log"; return 1; }
    rm -rf "$packed"
    mkdir -p "$packed"
    copy_programs "$packed"
    missing=$(for file in $targets; do [ -e "$packed/$file" ] || echo "$file"; done | sort -u | tr '\n' ' ')
    printf '%s\n' "sources: $sources" "commit: ${commit:-unknown}" "device: $(kind)" "built on: $(uname -m), $(ldd --version | sed -n 1p)" \
        "programs: $(find "$packed" -type f | wc -l)" "not there: ${missing:-nothing}" >"$packed/pack.txt"
    # one stream: with several threads each has a dictionary of its own
    tar -C "$packed" --sort=name --owner=0 --group=0 --numeric-owner -cf - . | xz -T1 --lzma2=preset=$preset,dict=64MiB >"$folder/programs.tar.xz.new" || return 1
    mv "$folder/programs.tar.xz.new" "$folder/programs.tar.xz"
    cp "$packed/pack.txt" "$folder/pack.txt"
    rm -rf "$packed"
    cat "$folder/pack.txt"
    echo "$folder/programs.tar.xz: $(stat -c %s "$folder/programs.tar.xz") bytes; at most $MOST_BYTES may be"
    [ "$(stat -c %s "$folder/programs.tar.xz")" -le $MOST_BYTES ]
}

# Status 77 and the reason if what was unpacked does not start here.
unpack() {
    local missing status
    rm -rf "$build" "$build.new"
    mkdir -p "$build.new" || return 1
    if command -v xz >/dev/null && command -v tar >/dev/null; then
        xz -dc "$pack/programs.tar.xz" | tar -x -C "$build.new"
    else
        python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$pack/programs.tar.xz" "$build.new"
    fi && mv "$build.new" "$build" || { echo "$pack/programs.tar.xz cannot be unpacked"; return 77; }
    missing=$(find "$build" -type f ! -name '*.txt' -exec ldd {} + 2>&1 | grep 'not found' | sort -u | head -3 | tr -s '\n\t ' ' ')
    [ -z "$missing" ] || { echo "libraries are missing here: $missing"; return 77; }
    "$build/tests/gpu_devices"
    status=$?
    case $status in
    0 | 77) echo "$sources" >"$build/taken.txt" ;;
    *) echo "gpu_devices does not start: status $status"; return 77 ;;
    esac
}

# Whether the programs are those of a pack: it is there, of these sources, for this device, and starts.
take_pack() {
    local reason="" built=$build
    pack=${pack:-$root/gpu-pack}
    [ -e "$pack/pack.txt" ] || { [ "$pack" = "$root/gpu-pack" ] || skip pack "there is no $pack/pack.txt"; return 1; }
    pack=$(cd "$pack" && pwd)
    if [ "$(told "$pack" sources)" != "$sources" ]; then
        reason="it is of other sources ($(told "$pack" sources), these are $sources)"
    elif [ "$(told "$pack" device)" != "$(kind)" ]; then
        reason="it is for another device ($(told "$pack" device))"
    fi
    [ -z "$reason" ] || { skip pack "$reason"; return 1; }
    [ -n "$commit" ] || commit=$(told "$pack" commit)
    export TREK_GPU_COMMIT="${commit:-unknown} (sources $sources)"
    use_build "$work/packed"
    export build pack sources
    export -f unpack
    if [ "$(cat "$build/taken.txt" 2>/dev/null)" != "$sources" ]; then # not by an earlier call
        rm -f "$work/steps/$part.pack.json"
        step pack 60 bash -c unpack || { use_build "$built"; return 1; }
    fi
    echo "programs: from a pack, built on $(told "$pack" "built on")" >>"$work/machine.txt"
}
