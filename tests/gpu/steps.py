#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The steps of tests/gpu.sh: runs one, keeps a record of it, and writes what the part has found anew, after each one and while it runs.

  steps.py run  NAME LIMIT LEFT COMMAND...  runs it for LIMIT seconds at most, or for what is LEFT of the part. Status 0: it passed,
                                            now or before; 1: it failed; 2: it was not (fully) run
  steps.py skip NAME REASON                 records that it cannot be run, or with "no time left" that it is to be
  steps.py before FILE...                   the names of what failed or was not finished in the first gpu-PART.json of these
  steps.py sum                              prints the summary; status 1 if something failed

A step that is stopped at a limit, its own or the part's, is "unfinished"; it has failed if it had told of a problem before.
TREK_GPU_WORK has logs and records, TREK_GPU_OUT gets what is to be read; TREK_GPU_PART, _SOURCES and _COMMIT say of what;
TREK_GPU_AGAIN which records are not kept; TREK_GPU_HEALTH is a program that says whether the device still answers. It is asked
after a step that was stopped or died: if it does not, no further one is begun."""
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
import results
import story

OUT, WORK, PART = pathlib.Path(os.environ["TREK_GPU_OUT"]), pathlib.Path(os.environ["TREK_GPU_WORK"]), os.environ["TREK_GPU_PART"]
SOURCES, COMMIT = os.environ["TREK_GPU_SOURCES"], os.environ.get("TREK_GPU_COMMIT", "unknown")
NOT_BEGUN, GRACE, FRESH = 15, 5, 5  # seconds: what a step must have; to end after it was told to; between two writings
OWN_LIMIT = 75  # the status of a command that stopped at a limit of its own
PROBLEM = re.compile(r"^\[  FAILED  \] (?!\d+ test).*|^\[  ERROR   \] --- .*|^ERROR: .*|^========= .*|^FAILED: .*|^.*\b(?:fatal )?error: .*", re.M)
# What gpu_bench.py's table says of a work that did not end.
ENDED_EARLY = re.compile(r"^\| .* ended early \| (.*?) \|", re.M)


class Stopped(Exception):
    """The whole part is stopped from outside."""


def now():
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def path_of(name, suffix=".json"):
    return WORK / "steps" / f"{PART}.{name}{suffix}"


def log_of(name):
    return WORK / "logs" / f"{PART}.{name}.log"


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
    end_at = time.monotonic() + limit
    try:
        while True:
            try:
                return process.wait(max(min(1, end_at - time.monotonic()), 0))
            except subprocess.TimeoutExpired:
                if time.monotonic() >= end_at:
                    return None
                write_results(FRESH)
    finally:  # with what a program that died has left behind
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        end(process)


def counts_of(text):
    """Passed, failed and skipped tests that a program reported."""
    return [sum(map(int, re.findall(pattern, text, re.M)))
            for pattern in (r"^\[  PASSED  \] (\d+) test", r"^ *(\d+) FAILED TEST", r"^ *(\d+) SKIPPED TEST")]


def problems_in(text):
    return [line.strip() for line in PROBLEM.findall(text)] + ENDED_EARLY.findall(text)


def text_of(name):
    return log_of(name).read_text(errors="replace") if log_of(name).exists() else ""


def record(name, status, seconds=0, reason=""):
    text = text_of(name) if status in ("passed", "failed") else ""
    passed, failed, skipped = counts_of(text)
    if status == "skipped":
        skipped = 1
    elif status == "failed":
        failed = max(failed, 1)
    elif status == "passed" and not passed and not skipped:
        passed = 1
    step = {"name": name, "status": status, "seconds": round(seconds, 1), "passed": passed, "failed": failed, "skipped": skipped,
            "reason": reason, "problems": problems_in(text)[:40] if status == "failed" else [],
            "last": text.rstrip().splitlines()[-12:] if status == "failed" else [],
            "log": f"logs/{PART}.{name}.log", "sources": SOURCES, "time": now()}
    path_of(name).write_text(json.dumps(step, indent=1))
    path_of(name, ".now").write_text("")
    return step


def ended(name, status, seconds=0, reason=""):
    """Records and tells how a step ended."""
    step = record(name, status, seconds, reason)
    line = f"{name:<28} {'not finished' if status == 'unfinished' else status}: "
    if status in ("passed", "failed"):
        line += "{passed} passed, {failed} failed, {skipped} skipped".format(**step) + f" in {seconds:.0f} s" + (f" ({reason})" if reason else "")
    else:
        line += reason
    told = [problem[:160] for problem in step["problems"][:3]]
    if (measured := WORK / PART / f"bench-{name}.json").exists() and status in ("passed", "unfinished"):
        told += [line[:160] for line in results.speeds(json.loads(measured.read_text())) if "tokens/s" in line]
    print("\n    ".join([line[:200]] + told), flush=True)
    write_results()
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
    if health and os.access(health, os.X_OK) and run([health], 20, WORK / "logs" / f"{PART}.health.log") != 0:
        path_of("device_lost", ".txt").write_text(name)


def step(name, limit, left, *command):
    before, limit, left = kept(name), int(limit), int(left)
    if before:
        return 0 if before == "passed" else 1
    lost = path_of("device_lost", ".txt")
    if lost.exists():
        return ended(name, "unfinished", reason=f"not begun: the device no longer answers, since {lost.read_text()}")
    if left < NOT_BEGUN:
        return ended(name, "unfinished", reason="not begun: no time was left")
    record(name, "unfinished", reason="it was running when this was written")
    start = time.monotonic()
    try:
        code = run(command, min(limit, left), log_of(name))
    except Stopped:
        return ended(name, "unfinished", reason="stopped with the part")
    seconds = time.monotonic() - start
    if code == 0:
        return ended(name, "passed", seconds)
    if code == 77:
        return ended(name, "skipped", reason=(text_of(name).strip().splitlines() or [""])[-1])
    if (code is None or code < 0) and name != "build":
        still_answers(name)
    if code in (None, OWN_LIMIT):
        seen = code is None and problems_in(text_of(name))
        return ended(name, "failed" if seen else "unfinished", seconds, f"stopped after {seconds:.0f} s" + (", with problems before" if seen else ""))
    return ended(name, "failed", seconds, f"status {code}" if code > 0 else f"died by {signal.Signals(-code).name}")


def skip(name, reason):
    if not kept(name):
        ended(name, "unfinished" if reason.startswith("no time left") else "skipped", reason=reason)
    return 0


def gathered():
    """The steps of this call, and what they sum up to."""
    steps = []
    for path in (WORK / "steps").glob(f"{PART}.*.now"):
        try:
            steps.append(json.loads(path.with_suffix(".json").read_text()))
        except (OSError, ValueError):  # which is being written
            pass
    steps.sort(key=lambda s: s["time"])
    result = {"part": PART, "commit": COMMIT, "date": now()}
    result.update((key, sum(s[key] for s in steps)) for key in ("passed", "failed", "skipped"))
    return {**result, "unfinished": sum(s["status"] == "unfinished" for s in steps), "steps": steps}


def older_than(path, seconds):
    return not path.exists() or time.time() - path.stat().st_mtime >= seconds


def write_results(older=0, last=False):
    """Writes the files of TREK_GPU_OUT, unless they are younger than so many seconds or another step is at it. Whoever reads them
    sees whole ones."""
    with open(WORK / "steps" / f"{PART}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (fcntl.LOCK_NB if older else 0))
        except BlockingIOError:
            return None
        if older and not older_than(OUT / f"gpu-{PART}.md", older):
            return None
        result, profile = gathered(), results.kernels(WORK, PART)
        whole = {**result, "machine": results.machine(WORK, result), "measures": results.measures(WORK, PART), "profile": profile}
        files = {".md": page.text(WORK, result).encode(), ".json": json.dumps(whole, indent=1).encode()}
        if last or older_than(OUT / f"gpu-{PART}-logs.tar.gz", FRESH):
            files["-logs.tar.gz"] = results.archive(WORK, PART)
        if profile:
            files["-kernels.md"] = ("\n".join(["# The longest kernels", ""] + page.profile(profile)) + "\n").encode()
        for name, data in files.items():
            new = OUT / f"gpu-{PART}{name}.new"
            new.write_bytes(data)
            new.rename(OUT / f"gpu-{PART}{name}")
    return result


def before(*files):
    for file in files:
        try:
            steps = json.loads(pathlib.Path(file).read_text())["steps"]
        except (OSError, KeyError, ValueError):
            continue
        print(" ".join(s["name"] for s in steps if s["status"] in ("failed", "unfinished")))
        break
    return 0


def total():
    result = write_results(last=True)
    print(story.text(WORK, result))
    print(page.counts(result))
    return result["failed"] != 0


if __name__ == "__main__":
    sys.exit(int({"run": step, "skip": skip, "before": before, "sum": total}[sys.argv[1]](*sys.argv[2:])))
