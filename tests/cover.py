#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/covers.txt, which says what tests execute a source file:
cover.py BUILD [--jobs N] [--work FOLDER] [--minutes N]
BUILD is configured with -Db_coverage=true by gcc, and compiled. Each program runs once, short, with counters of its own
(GCOV_PREFIX); they are read as gcc 12 and later write them (gcc/gcov-io.h describes the format). A line of the result is a
source file and the tests that execute some function of it; "*" stands for more than a third of all tests.

Of a test that fails, which may be because the machine is busy, what it executed counts, and what it executed by the map that
there was. When the minutes are over no further test begins. Those that have not begun keep what the map said of them; and it gets no
lines for new sources, which would lack them. Tests that the map does not know yet are first, those that take long last. What has
been found is kept in the folder (BUILD/covers), until BUILD is compiled again: the next run begins with what is missing."""
import argparse
import concurrent.futures
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import time

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


def run(test: dict, build: pathlib.Path, sources: dict, work: pathlib.Path, until: float) -> tuple[str, set, bool | None]:
    """What a test executes, and whether it passes; None: it has not begun."""
    folder, kept = work / test["name"], work / (test["name"] + ".json")
    if kept.exists() and kept.stat().st_mtime > (build / ".ninja_log").stat().st_mtime:
        return test["name"], set(json.loads(kept.read_text())), True
    if time.monotonic() > until:
        return test["name"], set(), None
    shutil.rmtree(folder, ignore_errors=True)
    environment = {**os.environ, **test["env"], "GCOV_PREFIX": str(folder), "TREK_TEST_SHORT": "1"}
    try:
        result = subprocess.run(test["cmd"], env=environment, cwd=test["workdir"] or build, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL, timeout=1800, check=False).returncode
    except subprocess.TimeoutExpired:
        result = 1
    found = set()
    for counters in folder.rglob("*.gcda"):
        source = sources.get("/" + str(counters.relative_to(folder)))
        if source and source not in found and executed(counters):
            found.add(source)
    shutil.rmtree(folder, ignore_errors=True)
    if result in (0, 77):
        kept.write_text(json.dumps(sorted(found)))
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


def known(sources: set) -> dict[str, list]:
    """The tests of each of these sources, by the map that there is."""
    lines = (root_of() / "tests/covers.txt").read_text().splitlines()
    rows = (line.partition(":") for line in lines if not line.startswith("#"))
    return {source: tests.split() for source, _, tests in rows if source in sources}


def root_of() -> pathlib.Path:
    return pathlib.Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--work", type=pathlib.Path)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    options = parser.parse_args()
    build, root = options.build.resolve(), root_of()
    work, sources = (options.work or build / "covers").resolve(), sources_of(build, root)
    work.mkdir(parents=True, exist_ok=True)
    tests = [test for test in json.loads((build / "meson-info/intro-tests.json").read_text())
             if not {"checks", "fuzz"} & {suite.split(":")[-1] for suite in test["suite"]}]
    covers: dict[str, set] = {source: set() for source in sources.values()}
    before = known(set(covers))
    old = {name for names in before.values() for name in names}
    tests.sort(key=lambda test: (test["name"] in old, test["priority"]))
    until = time.monotonic() + 60 * options.minutes
    failed, left = set(), set()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for name, found, passed in pool.map(lambda test: run(test, build, sources, work, until), tests):
            how = {True: "", False: "; it failed", None: "; it has not begun"}[passed]
            print(f"{name}: {len(found)} files{how}", flush=True)
            failed |= set() if passed else {name}
            left |= {name} if passed is None else set()
            for source in found:
                covers[source].add(name)
    for source, names in before.items():
        covers[source] |= failed & set(names) if "*" not in names else failed
    lines = [f"{source}: {'*' if 3 * len(names) > len(tests) else ' '.join(sorted(names))}".rstrip()
             for source, names in sorted(covers.items()) if source in before or not left]
    (root / "tests/covers.txt").write_text(HEAD + "\n".join(lines) + "\n")
    if failed:
        sys.exit(f"{len(failed - left)} tests failed, {len(left)} have not begun; the map before counts for them: "
                 f"{', '.join(sorted(failed))}")


if __name__ == "__main__":
    main()
