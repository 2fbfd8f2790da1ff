#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""clang-tidy, with the checks of .clang-tidy, over the C sources of the library, the tools and the examples.

Usage: check_tidy.py <source root> <build folder> [--since COMMIT]

--since: only sources that have changed since that commit, and of those that include a header of trek's that has, a few for each.
"""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

folders = ("tensor", "autograd", "nn", "data", "optim", "graph", "onnx", "distributed", "monitor", "tools", "examples")
root, build = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
since = sys.argv[sys.argv.index("--since") + 1] if "--since" in sys.argv else None


PER_HEADER = 4 # what is wrong in a header is seen by any of those who include it


def what_changed(sources):
    """Those that are to be looked at."""
    done = subprocess.run(["git", "-C", root, "diff", "--name-only", since], capture_output=True, text=True)
    if done.returncode: # without git's history all of them are
        return sources
    changed = set(done.stdout.split())
    chosen = {place for place in sources if str(place.relative_to(root)) in changed}
    texts = {place: place.read_text() for place in sources}
    for name in sorted(name for name in changed if name.endswith((".h", ".def"))):
        by = [place for place in sources if f'"{name}"' in texts[place]]
        chosen.update(sorted(by, key=lambda place: hashlib.sha256(f"{name} {place.relative_to(root)}".encode()).digest())[:PER_HEADER])
    return sorted(chosen)


def listed():
    """Each once, though kernels are compiled for several instruction sets."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        place = pathlib.Path(os.path.normpath(pathlib.Path(entry["directory"]) / entry["file"]))
        if place.suffix == ".c" and root in place.parents and place.relative_to(root).parts[0] in folders:
            yield place


def is_ours(line):
    """MPI's header and the like are no system headers to the compiler."""
    return root in pathlib.Path(os.path.normpath(build / line.split(":")[0])).parents


def look_at(place):
    done = subprocess.run(["clang-tidy", "-p", folder.name, "--quiet", str(place)], capture_output=True, text=True, cwd=root)
    said = [line for line in done.stdout.split("\n") if re.search(r": (warning|error): ", line)]
    if said:
        return filter(is_ours, said)
    return [f"{place}: clang-tidy ended with {done.returncode}: {done.stderr[-300:]}"] if done.returncode else []


def is_foreign(option):
    return subprocess.run(["clang", "-Werror", "-fsyntax-only", "-x", "c", "/dev/null", option], capture_output=True).returncode != 0


# What gcc alone knows ends clang; what clang knows and ignores is a warning, which -Werror makes an error.
commands = json.loads((build / "compile_commands.json").read_text())
options = {word for entry in commands for word in entry["command"].split(" ") if word.startswith("-f")}
foreign = set(filter(is_foreign, options))
for entry in commands:
    entry["command"] = " ".join(word for word in entry["command"].split(" ") if word not in foreign)
folder = tempfile.TemporaryDirectory()
pathlib.Path(folder.name, "compile_commands.json").write_text(json.dumps(commands))
sources, failures = sorted(set(listed())), set()
if len(sources) < 150:
    failures.add(f"only {len(sources)} sources were found: is this the build of the library?")
if since:
    sources = what_changed(sources)
with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    for said in pool.map(look_at, sources):
        failures.update(line.replace(f"{root}/", "") for line in said)
print("\n".join(sorted(failures)) or f"{len(sources)} sources")
sys.exit(bool(failures))
