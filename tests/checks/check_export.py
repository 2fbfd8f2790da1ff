#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""trek-export, from outside: each kind that it writes of a run, and what it refuses. What is in the files is looked at by the readers of
other programs elsewhere (check_tensorboard.py, check_mlflow.py).
    check_export.py TREK_EXPORT"""
import csv
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

program = sys.argv[1]
failures = []


def check(what, right):
    if not right:
        failures.append(what)


def call(*arguments):
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=60)


def write(folder):
    folder.mkdir(parents=True)
    records = [{"kind": "run", "version": 1, "run": folder.name, "program": "p", "arguments": [], "host": "elsewhere", "pid": 1, "process": 0,
                "processes": 1, "started": 1.7e9, "ranks": [{"rank": 0, "device": "cuda:0", "name": "a GPU"}]},
               {"kind": "scalars", "step": 1, "epoch": 0, "values": {"loss": 0.5}},
               {"kind": "system", "memory_bytes": 5, "devices": [{"device": "cuda:0", "power_w": 90.5, "throttled": "no"}]},
               {"kind": "scalars", "step": 2, "epoch": 1, "values": {"loss": 0.25}, "at": "epoch"}, {"kind": "end", "status": "done"}]
    with open(folder / "process-0.jsonl", "w") as file:
        file.writelines(json.dumps({"time": 1.7e9 + k, **record}) + "\n" for k, record in enumerate(records))
    return folder


with tempfile.TemporaryDirectory() as work:
    work = pathlib.Path(work)
    run, other = write(work / "runs/first"), write(work / "runs/second")
    said = call("csv", run, work / "table.csv")
    check(f"a table: {said.stderr}", said.returncode == 0 and not said.stdout)
    with open(work / "table.csv", newline="") as file:
        rows = list(csv.reader(file))
    check(f"its rows: {rows}", rows == [["step", "epoch", "loss", "loss (epoch)", "system/memory_bytes", "system/cuda:0/power_w", "system/cuda:0/throttled"],
                                       ["1", "0", "0.5", "", "5", "90.5", "0"], ["2", "1", "", "0.25", "", "", ""]])
    said = call("tensorboard", run, work / "events.out.tfevents.1")
    check("TensorBoard's file", said.returncode == 0 and b"brain.Event:2" in (work / "events.out.tfevents.1").read_bytes())
    said = call("mlflow", run, work / "mlruns")
    lines = [path.read_text() for path in (work / "mlruns").glob("*/*/metrics/loss")]
    check(f"MLflow's store: {lines}", said.returncode == 0 and lines == ["1700000001000 0.5 1\n"])
    said = call("report", run, other, work / "report.html")
    check("a report of two", said.returncode == 0 and re.findall(r'data-run="(\w+)"', (work / "report.html").read_text()) == ["first", "second"])
    said = call("metrics", run)
    check("metrics", said.returncode == 0 and 'trek_device_power_watts{run="first",process="0",device="cuda:0"} 90.5\n' in said.stdout
          and 'trek_device_throttled{run="first",process="0",device="cuda:0",reason="no"} 0\n' in said.stdout and said.stdout.endswith("# EOF\n"))
    before = sorted(os.listdir(work))
    for arguments in (("csv", work / "none", work / "x"), ("mlflow", work / "none", work / "mlruns"), ("report", work / "none", work / "x"),
                      ("tensorboard", run, work / "none/x"), ("metrics", work)):
        said = call(*arguments)
        check(f"{arguments} is told", said.returncode == 1 and said.stderr.startswith("trek-export: ") and not said.stdout)
    check("what fails leaves nothing", sorted(os.listdir(work)) == before)
    for arguments in ((), ("csv",), ("csv", run), ("xml", run, "x"), ("report", run), ("metrics",), ("metrics", run, "x"), ("csv", run, "a", "b")):
        said = call(*arguments)
        check(f"{arguments} is refused", said.returncode == 2 and "--help" in said.stderr)
    said = call("--help")
    check("--help", said.returncode == 0 and said.stdout.startswith("usage: trek-export") and not said.stderr)

print("\n".join(failures) or "trek-export writes what it should")
sys.exit(bool(failures))
