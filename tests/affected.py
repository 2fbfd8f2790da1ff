#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the tests of a build that a change affects, by tests/covers.txt:
affected.py BUILD [--suite S]... [--no-suite S]... [--since COMMIT | --files FILE... | --all] [--quarter] [--most PART]
affected.py --under FOLDER... [--since COMMIT | --files FILE...]
A test is affected by a source file that its program executes, by what such files include, and by its own sources. A file that
more than a third of all tests execute, or that the map does not know, affects the tests of its folder alone: tests/tensor of
tensor/, and so on. A run of an example is affected by the files of the example, any by the script that its command names. Tests
on the fake device and of kernels as PTX are affected by all of tensor/cuda. With --quarter, a quarter of the rest is printed,
too, which the name of the last commit's tree chooses: the same files give the same tests. With --most, at most that part of the
tests is printed: first those that a change affects most, where a file counts the more the fewer tests execute it, and for the
tests of its folder twice, and a fourth of what is printed are some of the quarter. Only tests of the suites, as `meson test`
chooses them. With --under, no tests are printed but what has changed below these folders, and what includes there what has
changed."""
import argparse
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.M)
DEVICE = ("tensor/cuda/", "tests/fake_cuda/")
TEXT = {".c", ".h", ".cc", ".cu", ".cuh", ".def", ".inc"}


def git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout


def changed_since(commit: str) -> set[str]:
    return set((git("diff", "--name-only", commit) + git("ls-files", "--others", "--exclude-standard")).split())


def covers() -> dict[str, list[str]]:
    """The tests of each source; ["*"] for those of many."""
    lines = (ROOT / "tests/covers.txt").read_text().splitlines()
    return {name: tests.split() for name, _, tests in (line.partition(":") for line in lines if not line.startswith("#"))}


def includers() -> dict[str, set[str]]:
    """Who includes a file, directly."""
    by: dict[str, set[str]] = {}
    for name in git("ls-files", "--cached", "--others", "--exclude-standard").split("\n"):
        path = ROOT / name
        if path.suffix in TEXT and path.is_file():
            for included in INCLUDE.findall(path.read_text(errors="replace")):
                beside = os.path.normpath(os.path.join(os.path.dirname(name), included))
                by.setdefault(included if (ROOT / included).is_file() else beside, set()).add(name)
    return by


def reached(changed: set[str]) -> set[str]:
    """The changed files and all that include them."""
    by, found, left = includers(), set(), list(changed)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += by.get(name, ())
    return found


def folder_of(source: str) -> str:
    """The folder of the tests of a source: its own below tests/, or the nearest one above that there is."""
    folder = pathlib.PurePath(source).parent
    folder = folder if folder.parts[:1] == ("tests",) else pathlib.PurePath("tests") / folder
    while len(folder.parts) > 1 and not any((ROOT / folder).glob("test_*.c")):
        folder = folder.parent
    return str(folder)


def affected_programs(changed: set[str], homes: dict[str, str]) -> dict[str, float]:
    """The programs test_NAME.c whose test is affected, by NAME, and how much; homes: the folder of each."""
    known, programs = covers(), {}
    for source in reached(changed):
        if source.startswith("tests/") and pathlib.PurePath(source).name.startswith("test_"):
            names = [pathlib.PurePath(source).stem.removeprefix("test_")]
        elif known.get(source, ["*"]) != ["*"]:
            names = known[source]
        elif pathlib.PurePath(source).suffix in TEXT and (source in changed or source in known):
            folder = folder_of(source)
            names = [name for name, home in homes.items() if home == folder != "tests"]
        else:
            continue
        home = folder_of(source)
        for name in names: # what has the source's name, and what lies where its tests lie, comes before others
            near = 3 if name == pathlib.PurePath(source).stem else 2 if homes.get(name) == home else 1
            programs[name] = programs.get(name, 0) + near / len(names)
    return programs


def affected_examples(changed: set[str]) -> set[str]:
    """The suites of the examples some file of which has changed."""
    files = (pathlib.PurePath(name) for name in reached({name for name in changed if name.startswith("examples/")}))
    return {"example_" + pathlib.PurePath(path.parts[1]).stem for path in files}


def chosen_tests(build: str, options: argparse.Namespace) -> list[tuple[str, str, set[str], set[str]]]:
    """Name, program, suites and scripts of the tests among which is chosen."""
    tests = []
    for test in json.loads((pathlib.Path(build) / "meson-info/intro-tests.json").read_text()):
        suites = {suite.split(":")[-1] for suite in test["suite"]}
        if (not options.suite or suites & set(options.suite)) and not suites & set(options.no_suite):
            programs = [pathlib.PurePath(word).name for word in test["cmd"] if "/tests/" in word]
            program = next((name for name in programs if name.startswith("test_")), "test_" + test["name"])
            scripts = {os.path.relpath(word, ROOT) for word in test["cmd"] if word.endswith(".py")}
            tests.append((test["name"], program.removeprefix("test_"), suites, scripts))
    return tests


def spread(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def quarter(names: list[str], tree: str) -> set[str]:
    """The one of four parts of about equal size, over which the tests are spread by their names, that the tree's name chooses."""
    return set(sorted(names, key=spread)[int(tree[:8] or "0", 16) % 4::4])


def bounded(weights: dict[str, float], most: int, also: set[str], tree: str) -> set[str]:
    """Those that weigh most, but a fourth of the places is for those that have their turn: else much change would take it from them
    again and again."""
    order = sorted(weights, key=lambda name: (-weights[name], spread(tree + name)))
    first = order[:most - most // 4]
    turn = sorted(also - set(first), key=lambda name: spread(tree + name))[:most // 4]
    left = [name for name in order[len(first):] if name not in turn]
    return set(first + turn + left[:most - len(first) - len(turn)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?")
    parser.add_argument("--under", nargs="+")
    parser.add_argument("--suite", action="append", default=[])
    parser.add_argument("--no-suite", action="append", default=[])
    parser.add_argument("--since", default="HEAD")
    parser.add_argument("--files", nargs="+")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--quarter", action="store_true")
    parser.add_argument("--most", type=float, default=1)
    options = parser.parse_args()
    changed = set(options.files or []) or changed_since(options.since)
    missing = [name for name in options.files or [] if not (ROOT / name).exists()]
    if missing:
        sys.exit(f"affected.py: --files: {missing[0]}; a file below {ROOT} is needed")
    if options.under:
        print("\n".join(sorted(name for name in reached(changed) if name.startswith(tuple(options.under)))))
        return
    homes = {path.stem.removeprefix("test_"): str(path.parent.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.c")}
    programs, examples, tree = affected_programs(changed, homes), affected_examples(changed), git("rev-parse", "HEAD^{tree}").strip()
    on_device, as_ptx = (any(name.startswith(folders) for name in changed) for folders in (DEVICE, DEVICE + ("tests/ptx/",)))
    tests = chosen_tests(options.build, options)
    names = [test[0] for test in tests]
    also = quarter(names, tree) if options.quarter else set()
    weights = {name: 0.0 for name in names if options.all or name in also}
    for name, program, suites, scripts in tests:
        itself = 1.0 if suites & examples or scripts & changed else 0.0
        touched = itself or program in programs or name in programs
        if touched or on_device and "cuda" in suites or as_ptx and "ptx" in suites:
            weights[name] = max(programs.get(program, 0), programs.get(name, 0), itself) + 1e-6
    found = bounded(weights, int(options.most * len(tests)) + 1, also, tree)
    print("\n".join(name for name in names if name in found))


if __name__ == "__main__":
    main()
