#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ninja targets that tests of a build need, by the options with which `meson test` chooses them:
needed.py BUILD [--suite S]... [--no-suite S]... [NAME]..."""
import argparse
import json
import pathlib
import sys


def introspect(build: str, what: str) -> list:
    """What Meson has written when it configured the build: to ask it again takes a second."""
    return json.loads((pathlib.Path(build) / "meson-info" / f"intro-{what}.json").read_text())


parser = argparse.ArgumentParser()
parser.add_argument("build")
parser.add_argument("--suite", action="append", default=[])
parser.add_argument("--no-suite", action="append", default=[])
parser.add_argument("names", nargs="*")
chosen = parser.parse_intermixed_args()

root = pathlib.Path(chosen.build).resolve()
files = {target["id"]: target["filename"] for target in introspect(chosen.build, "targets")}
needed, unknown = set(), set(chosen.names)
for test in introspect(chosen.build, "tests"):
    suites = {suite.split(":")[-1] for suite in test["suite"]}
    if chosen.suite and not suites & set(chosen.suite) or suites & set(chosen.no_suite) or chosen.names and test["name"] not in chosen.names:
        continue
    unknown.discard(test["name"])
    for target in test["depends"]:
        needed.update(str(pathlib.Path(name).relative_to(root)) for name in files[target])
if unknown or not needed:
    sys.exit(f"no test is called {', '.join(sorted(unknown))}" if unknown else "no test is chosen")
print("\n".join(sorted(needed)))
