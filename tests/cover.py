#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/covers.txt, which says what tests execute a source file:
cover.py BUILD [--jobs N] [--work FOLDER]
BUILD is configured with -Db_coverage=true by gcc, and compiled. Each program runs once, short, with counters of its own
(GCOV_PREFIX); they are read as gcc 12 and later write them (gcc/gcov-io.h describes the format). A line of the result is a
source file and the tests that execute some function of it; "*" stands for more than a third of all tests."""
import argparse
import concurrent.futures
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys

FUNCTION, ARCS = 0x01000000, 0x01A10000
HEAD = """# What executes a source file: its tests, or * for more than a third of them all. Made by tests/cover.py; docs/testing.md says when.
"""


def executed(path: pathlib.Path) -> bool:
    """Whether some counter of a .gcda file is not 0. gcc writes a negative length where all counters of a function are."""
    data = path.read_bytes()
    if data[:4] != b"adcg":
        raise ValueError(f"{path}: this is no file of counters of a little-endian gcc")
    at = 16 # magic, version, stamp, checksum
    while at + 8 <= len(data):
        tag, length = struct.unpack_from("<Ii", data, at)
        at += 8
        if tag == 0:
            break
        if tag == ARCS and length > 0 and any(data[at:at + length]):
            return True
        at += max(length, 0)
    return False


def run(test: dict, build: pathlib.Path, sources: dict, work: pathlib.Path) -> tuple[str, set, bool]:
    """What a test executes, and whether it passes."""
    folder = work / test["name"]
    environment = {**os.environ, **test["env"], "GCOV_PREFIX": str(folder), "TREK_TEST_SHORT": "1"}
    try:
        result = subprocess.run(test["cmd"], env=environment, cwd=test["workdir"] or build, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL, timeout=900, check=False).returncode
    except subprocess.TimeoutExpired:
        result = 1
    found = set()
    for counters in folder.rglob("*.gcda"):
        source = sources.get("/" + str(counters.relative_to(folder)))
        if source and source not in found and executed(counters):
            found.add(source)
    shutil.rmtree(folder, ignore_errors=True)
    return test["name"], found, result in (0, 77)


def sources_of(build: pathlib.Path, root: pathlib.Path) -> dict:
    """The source of each file of counters, for those of the library and its tools."""
    sources = {}
    for command in json.loads((build / "compile_commands.json").read_text()):
        source = (build / command["file"]).resolve()
        if source.is_relative_to(root) and not source.is_relative_to(build) and not source.is_relative_to(root / "tests"):
            counters = (build / command["output"]).with_suffix(".gcda")
            sources[str(counters)] = str(source.relative_to(root))
    return sources


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--work", type=pathlib.Path)
    options = parser.parse_args()
    build, root = options.build.resolve(), pathlib.Path(__file__).resolve().parent.parent
    work, sources = (options.work or build / "covers").resolve(), sources_of(build, root)
    shutil.rmtree(work, ignore_errors=True)
    tests = [test for test in json.loads((build / "meson-info/intro-tests.json").read_text())
             if not {"checks", "fuzz"} & {suite.split(":")[-1] for suite in test["suite"]}]
    covers: dict[str, set] = {source: set() for source in sources.values()}
    failed = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for name, found, passed in pool.map(lambda test: run(test, build, sources, work), tests):
            print(f"{name}: {len(found)} files{'' if passed else '; it failed'}", flush=True)
            failed += [] if passed else [name]
            for source in found:
                covers[source].add(name)
    lines = [f"{source}: {'*' if 3 * len(names) > len(tests) else ' '.join(sorted(names))}".rstrip()
             for source, names in sorted(covers.items())]
    if failed:
        sys.exit(f"nothing is written: {', '.join(failed)} failed")
    (root / "tests/covers.txt").write_text(HEAD + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
