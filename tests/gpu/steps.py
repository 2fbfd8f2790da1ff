#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The steps of tests/gpu.sh: runs one, keeps a record of it, and after each one writes the part's page anew.

  steps.py run  NAME LIMIT LEFT COMMAND...  runs it for LIMIT seconds at most, or for what is LEFT of the part. Status 0: it passed,
                                            now or before; 1: it failed; 2: it was not (fully) run
  steps.py skip NAME REASON                 records that it cannot be run, or with "no time left" that it is to be
  steps.py sum                              writes gpu-PART.json, prints the summary; status 1 if something failed

TREK_GPU_OUT, _PART, _SOURCES and _COMMIT say of what; TREK_GPU_AGAIN which records are not kept; TREK_GPU_HEALTH is a program that
says whether the device still answers. It is asked after a step that was stopped or died: if it does not, no further one is begun."""
import datetime
import fcntl
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import page

OUT, PART = pathlib.Path(os.environ["TREK_GPU_OUT"]), os.environ["TREK_GPU_PART"]
SOURCES, COMMIT = os.environ["TREK_GPU_SOURCES"], os.environ.get("TREK_GPU_COMMIT", "unknown")
NOT_BEGUN, GRACE = 15, 5  # seconds that a step must have; that one has to end after it was told to
PROBLEM = re.compile(r"^\[  FAILED  \] (?!\d+ test).*|^\[  ERROR   \] --- .*|^ERROR: .*|^========= .*|^FAILED: .*|^.*\b(?:fatal )?error: .*", re.M)
# What gpu_bench.py's table says of a work that did not end.
ENDED_EARLY = re.compile(r"^\| .* ended early \| (.*?) \|", re.M)


class Stopped(Exception):
    """The whole part is stopped from outside."""


def now():
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def path_of(name, suffix=".json"):
    return OUT / "steps" / f"{PART}.{name}{suffix}"


def log_of(name):
    return OUT / "logs" / f"{PART}.{name}.log"


def end(group):
    """Ends a command and all that it started; what the kernel does not let die is left behind."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(group.pid, number)
        except ProcessLookupError:
            return
        try:
            group.wait(GRACE)
        except subprocess.TimeoutExpired:
            pass


def run(command, limit, log):
    """Its exit status, negative by a signal, None if it was stopped."""
    with open(log, "wb") as file:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, preexec_fn=os.setpgrp)
        except OSError as error:
            file.write(f"{error}\n".encode())
            return 127

    def stopped(number, frame):
        raise Stopped

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stopped)
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:  # with what a program that died has left behind
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        end(process)


def counts_of(text):
    """Passed, failed and skipped tests that a program reported."""
    return [sum(map(int, re.findall(pattern, text, re.M)))
            for pattern in (r"^\[  PASSED  \] (\d+) test", r"^ *(\d+) FAILED TEST", r"^ *(\d+) SKIPPED TEST")]


def record(name, status, seconds=0, reason="", sources=SOURCES):
    text = log_of(name).read_text(errors="replace") if status in ("passed", "failed") and log_of(name).exists() else ""
    passed, failed, skipped = counts_of(text)
    if status in ("skipped", "left"):
        passed, failed, skipped = 0, 0, 1
    elif status == "failed":
        failed = max(failed, 1)
    elif not passed and not skipped:
        passed = 1
    problems = [line.strip() for line in PROBLEM.findall(text)] + ENDED_EARLY.findall(text) if status == "failed" else []
    step = {"name": name, "status": status, "seconds": round(seconds, 1), "passed": passed, "failed": failed, "skipped": skipped,
            "reason": reason, "problems": problems[:40], "last": text.rstrip().splitlines()[-12:] if status == "failed" else [],
            "log": f"logs/{PART}.{name}.log", "sources": sources, "time": now()}
    path_of(name).write_text(json.dumps(step, indent=1))
    path_of(name, ".now").write_text("")
    line = f"{name:<28} {status}: " + (reason if status in ("skipped", "left") else
                                       f"{passed} passed, {failed} failed, {skipped} skipped in {seconds:.0f} s" + (f" ({reason})" if reason else ""))
    print("\n    ".join([line] + [problem[:200] for problem in problems[:8]]), flush=True)
    write_page()
    return {"passed": 0, "failed": 1}.get(status, 2)


def kept(name):
    """The status of a record of these sources."""
    try:
        old = json.loads(path_of(name).read_text())
    except (OSError, ValueError):
        return None
    again = os.environ.get("TREK_GPU_AGAIN", "")
    if old["sources"] != SOURCES or old["status"] not in ("passed", "failed"):
        return None
    if again == "all" or (old["status"] == "failed" and (again == "failed" or name in ("build", "devices"))):
        return None
    path_of(name, ".now").write_text("")
    print(f"{name:<28} {old['status']} (before)", flush=True)
    return old["status"]


def still_answers(name):
    health = os.environ.get("TREK_GPU_HEALTH", "")
    if health and os.access(health, os.X_OK) and run([health], 20, OUT / "logs" / f"{PART}.health.log") != 0:
        path_of("device_lost", ".txt").write_text(name)


def step(name, limit, left, *command):
    before, limit, left = kept(name), int(limit), int(left)
    if before:
        return 0 if before == "passed" else 1
    lost = path_of("device_lost", ".txt")
    if lost.exists():
        return record(name, "left", reason=f"the device no longer answers, since {lost.read_text()}", sources="")
    if left < NOT_BEGUN:
        return record(name, "left", reason="no time left: run the same command again", sources="")
    start = time.monotonic()
    try:
        code = run(command, min(limit, left), log_of(name))
    except Stopped:
        return record(name, "left", reason="stopped with the part", sources="")
    seconds = time.monotonic() - start
    if code == 0:
        return record(name, "passed", seconds)
    if code == 77:
        return record(name, "skipped", reason=(log_of(name).read_text(errors="replace").strip().splitlines() or [""])[-1])
    if (code is None or code < 0) and name != "build":
        still_answers(name)
    # cut short by the end of the part, or ended because of it, not by its own limit: the next call has more time
    if left < limit and (code is None or seconds > left - NOT_BEGUN):
        return record(name, "left", reason=f"stopped after {seconds:.0f} s, at the end of the part", sources="")
    reason = f"stopped after {seconds:.0f} s" if code is None else f"status {code}"
    if code is not None and code < 0:
        reason = f"died by {signal.Signals(-code).name}"
    return record(name, "failed", seconds, reason)


def skip(name, reason):
    return 0 if kept(name) else record(name, "left" if reason.startswith("no time left") else "skipped", reason=reason)


def gathered():
    """The steps of this call, and what they sum up to."""
    steps = [json.loads(p.with_suffix(".json").read_text()) for p in (OUT / "steps").glob(f"{PART}.*.now")]
    steps.sort(key=lambda s: s["time"])
    result = {"part": PART, "commit": COMMIT, "date": now()}
    result.update((key, sum(s[key] for s in steps)) for key in ("passed", "failed", "skipped"))
    return {**result, "left": [s["name"] for s in steps if s["status"] == "left"], "steps": steps}


def write_page():
    """Steps may end at the same time: one writes after the other, and whoever reads sees a whole page."""
    with open(OUT / "steps" / f"{PART}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = gathered()
        for file, text in ((f"gpu-{PART}.json", json.dumps(result, indent=1)), (f"gpu-{PART}.md", page.text(OUT, result))):
            new = OUT / (file + ".new")
            new.write_text(text)
            new.rename(OUT / file)
    return result


def total():
    result = write_page()
    for one in result["steps"]:
        if one["status"] == "failed":
            print(f"FAILED: {one['name']} ({one['reason']}), log in {OUT / one['log']}")
    if result["left"]:
        print(f"left for the same command: {len(result['left'])} steps")
    print(f"written: {OUT / f'gpu-{PART}.md'}")
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**result))
    return result["failed"] != 0


if __name__ == "__main__":
    sys.exit(int({"run": step, "skip": skip, "sum": total}[sys.argv[1]](*sys.argv[2:])))
