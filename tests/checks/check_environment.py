#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/environment.md is what the sources read: each TREK_ variable of the library, its tools and examples has a row, and each row's
variables are read; what tensor/environment.c takes of one stands in its row, and other launchers' variables are named.

Usage: check_environment.py <source root>
"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
FOLDERS = ["tensor", "autograd", "nn", "data", "optim", "graph", "onnx", "distributed", "monitor", "tools", "examples"]
# Beginnings of names that are no variables: codes of errors.
NO_VARIABLE = re.compile(r"TREK_(ERR_\w*|OK)$")


def sources():
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".c", ".h", ".cc", ".cu", ".cuh", ".sh"):
                yield path, path.read_text()


def read_variables():
    """TREK_ variables, and those of other launchers, with where they are read."""
    own, others = {}, {}
    for path, text in sources():
        where = str(path.relative_to(root))
        code = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
        found = re.findall(r'\$\{?(TREK_[A-Z0-9_]+)', text) if path.suffix == ".sh" else re.findall(r'"(TREK_[A-Z0-9_]+)"', code)
        for name in found:
            if not NO_VARIABLE.match(name):
                own.setdefault(name, where)
        if where == "distributed/control/launch.c" or where == "tensor/environment.h":
            for name in re.findall(r'"((?:SLURM|TORCHELASTIC|OMPI_COMM|MASTER|LOCAL)_[A-Z0-9_]+|RANK|WORLD_SIZE)"', code):
                others.setdefault(name, where)
    return own, others


def rules():
    """What tensor/environment.c takes: (variable, texts that its row is to have)."""
    table = (root / "tensor/environment.c").read_text()
    for name, low, high, words in re.findall(r'\{ "(TREK_\w+)", (\d+), (\d+), \{ ([^}]*) \} \}', table):
        if words != "NULL":
            yield name, [f"`{word}`" for word in re.findall(r'"(\w+)"', words)]
        else:
            yield name, [f"{low}, {high}" if high == "1" else f"{low} to {high}"]


page = (root / "docs/environment.md").read_text()
rows = {}
for line in page.split("\n"):
    if line.startswith("| `TREK_"):
        for name in re.findall(r"TREK_[A-Z0-9_]+", line.split("|")[1]):
            rows[name] = line
own, others = read_variables()
limits = list(rules())
failures = [f"docs/environment.md has no row for {name}, which {where} reads" for name, where in own.items() if name not in rows]
failures += [f"docs/environment.md has a row for {name}, which nothing reads" for name in rows if name not in own]
failures += [f"docs/environment.md does not name {name}, which {where} reads" for name, where in others.items() if f"`{name}`" not in page]
failures += [f"docs/environment.md, {name}: its row lacks {text}" for name, texts in limits for text in texts if text not in rows.get(name, "")]
if len(own) < 30 or len(limits) < 10 or len(others) < 10:
    failures.append(f"only {len(own)} variables, {len(limits)} limits, {len(others)} of launchers were found: is this check reading the tree?")
print("\n".join(failures) or f"{len(own)} variables, {len(others)} of other launchers")
sys.exit(bool(failures))
