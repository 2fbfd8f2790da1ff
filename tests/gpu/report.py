#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The records of tests/gpu.sh: one file a step, and their sum.

  report.py kept   OUT PART NAME SOURCES        prints the status of a record of these sources, or nothing
  report.py record OUT PART NAME SOURCES STATUS SECONDS LOG REASON   writes one, prints a line about it
  report.py sum    OUT PART COMMIT              writes gpu-PART.json, prints the summary"""
import datetime
import json
import pathlib
import re
import sys


def record_path(out, part, name):
    return pathlib.Path(out) / "steps" / f"{part}.{name}.json"


def counts_of(log):
    """Passed, failed and skipped tests that a program reported."""
    text = pathlib.Path(log).read_text(errors="replace") if log and pathlib.Path(log).exists() else ""
    found = [sum(map(int, re.findall(pattern, text, re.M)))
             for pattern in (r"^\[  PASSED  \] (\d+) test", r"^ *(\d+) FAILED TEST", r"^ *(\d+) SKIPPED TEST")]
    return found, re.findall(r"^\[  FAILED  \] (?!\d+ test)(.*)$|^(?:\[  ERROR   \] --- |ERROR: |========= )(.*)$", text, re.M)


def kept(out, part, name, sources):
    path = record_path(out, part, name)
    if path.exists():
        old = json.loads(path.read_text())
        if old["sources"] == sources and old["status"] in ("passed", "failed"):
            path.with_suffix(".now").write_text("")
            print(old["status"])


def record(out, part, name, sources, status, seconds, log, reason):
    (passed, failed, skipped), problems = counts_of(log)
    if status in ("skipped", "left"):
        passed, failed, skipped = 0, 0, 1
    elif status == "failed":
        failed = max(failed, 1)
    elif not passed and not skipped:
        passed = 1
    step = {"name": name, "status": status, "seconds": int(seconds), "passed": passed, "failed": failed, "skipped": skipped,
            "reason": reason, "problems": [a or b for a, b in problems][:40], "sources": sources,
            "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
    path = record_path(out, part, name)
    path.write_text(json.dumps(step, indent=1))
    path.with_suffix(".now").write_text("")
    print(f"{status}: {passed} passed, {failed} failed, {skipped} skipped in {seconds} s" + (f" ({reason})" if reason else ""))
    if status == "failed":
        for problem in step["problems"][:8]:
            print("    " + problem[:200])


def total(out, part, commit):
    folder = pathlib.Path(out)
    steps = [json.loads(p.with_suffix(".json").read_text()) for p in (folder / "steps").glob(f"{part}.*.now")]
    steps.sort(key=lambda s: s["time"])
    sums = {key: sum(s[key] for s in steps) for key in ("passed", "failed", "skipped")}
    gpu = folder / "gpu.txt"
    result = {"part": part, "commit": commit, "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
              "device": gpu.read_text().strip() if gpu.exists() else "", **sums, "steps": steps}
    (folder / f"gpu-{part}.json").write_text(json.dumps(result, indent=1))
    for step in steps:
        if step["status"] == "failed":
            print(f"FAILED: {step['name']} ({step['reason']}), log in {folder / 'logs' / (part + '.' + step['name'] + '.log')}")
    print(f"{sums['passed']} passed, {sums['failed']} failed, {sums['skipped']} skipped")
    return sums["failed"] != 0


if __name__ == "__main__":
    sys.exit({"kept": kept, "record": record, "sum": total}[sys.argv[1]](*sys.argv[2:]) or 0)
