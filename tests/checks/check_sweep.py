#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The sweep of trainings (tests/distributed/sweep) knows every option of a trainer and of a run: its table draws it, or says why
not; and it has none that the headers do not have.

Usage: check_sweep.py <source root>
"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
TABLE = "tests/distributed/sweep/options.c"


def fields(header, struct):
    """Names of a struct's fields, in order."""
    text = re.sub(r"/\*.*?\*/", "", (root / header).read_text(), flags=re.S)
    body = re.search(r"typedef struct %s \{(.*?)\} %s;" % (struct, struct), text, flags=re.S)
    names = []
    for line in body.group(1).split(";"):
        names += re.findall(r"(\w+)\s*(?:\[\w*\])?$", part.strip()) if (part := line.split(",")[0]) else []
        names += [re.search(r"\w+", part).group() for part in line.split(",")[1:]]
    return names


headers = {f"run.{name}" for name in fields("distributed/run.h", "trek_run_opts")}
headers |= {f"trainer.{name}" for name in fields("distributed/trainer.h", "trek_trainer_opts")}
table = re.sub(r"/\*.*?\*/", "", (root / TABLE).read_text(), flags=re.S)
listed = re.findall(r'(?:PICK|CALLS|NOT_DRAWN)\("((?:run|trainer)\.\w+)"', table)
failures = [f"{name} is neither drawn nor listed with a reason" for name in sorted(headers - set(listed))]
failures += [f"{name} is no option" for name in sorted(set(listed) - headers)]
failures += [f"{name} stands there twice" for name in sorted(set(listed)) if listed.count(name) > 1]
failures += [f"{name} has no reason" for name in re.findall(r'NOT_DRAWN\("([\w.]+)", ""', table)]
for failure in failures:
    print(f"{TABLE}: {failure}")
print(f"{len(headers)} options")
sys.exit(1 if failures else 0)
