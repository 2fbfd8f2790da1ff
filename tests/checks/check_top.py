#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""trek-top, from outside: what it prints of runs (--once, --json), and its view on a pseudo terminal, by a model of a screen.
    check_top.py TREK_TOP ncurses|plain"""
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import urllib.request

program = sys.argv[1]
failures = []


def check(what, right):
    if not right:
        failures.append(what)


# --- runs, as processes write them ------------------------------------------------------------------

folder = tempfile.mkdtemp(prefix="trek-top-")
now = time.time()
gone = subprocess.Popen(["true"])
gone.wait()


def write(run, process, *records):
    os.makedirs(f"{folder}/runs/{run}", exist_ok=True)
    with open(f"{folder}/runs/{run}/process-{process}.jsonl", "a") as file:
        for record in records:
            file.write(json.dumps({"time": now, **record}) + "\n")


def head(run, pid, started, **more):
    return {"kind": "run", "version": 1, "run": run, "program": "./mnist", "arguments": ["--lr", "0.1"], "host": os.uname().nodename, "pid": pid,
            "process": 0, "processes": 1, "epochs": 4, "trek": "0.1.0", "started": started, "parameters": 12345,
            "ranks": [{"rank": 0, "device": "cpu:0", "name": "a CPU"}, {"rank": 1, "device": "cpu:1", "name": "a CPU"}], **more}


write("running", 0, head("running", os.getpid(), now),
      *({"kind": "scalars", "step": k, "epoch": 0, "values": {"loss": 8.0 - k, "lr": 0.001}} for k in range(8)),
      {"kind": "progress", "epoch": 1, "epochs": 4, "batch": 50, "batches": 100, "step": 150, "eta_s": 90, "seconds": 60},
      {"kind": "ranks", "anchor": 0, "windows": False, "window": 0, "drift": 0, "ranks": [
          {"rank": 0, "computing_s": 0.5, "waiting_s": 0.25, "reducing_s": 0.25, "interval_s": 1, "share": 0.75, "samples_per_s": 1500,
           "samples": 100, "steps": 10, "state": "computing"},
          {"rank": 1, "computing_s": 1, "waiting_s": 0, "reducing_s": 0, "interval_s": 1, "share": 0.25, "samples_per_s": 500,
           "samples": 100, "steps": 10, "state": "waiting"}]},
      {"kind": "system", "memory_bytes": 3 << 30, "memory_peak_bytes": 4 << 30, "cpu_percent": 180, "temperature_c": 54, "power_w": 80,
       "devices": [{"device": "cuda:0", "memory_bytes": 1 << 30, "memory_total_bytes": 8 << 30, "temperature_c": 70, "power_w": 250,
                    "utilization_percent": 95, "throttled": "power"}]},
      {"kind": "log", "level": "warning", "text": "a rank is \x1b[31mslow\n", "rank": 1})
write("done", 0, head("done", gone.pid, now - 600), {"kind": "scalars", "step": 1, "epoch": 3, "at": "epoch", "values": {"loss": 0.25}},
      {"kind": "end", "status": "done"})
write("died", 0, head("died", gone.pid, now - 1200), {"kind": "progress", "epoch": 0, "epochs": 4, "batch": 1, "batches": 2, "step": 1})

# --- as text and JSON ---------------------------------------------------------------------------------

plain = {**os.environ, "LC_ALL": "C", "TERM": "xterm", "COLUMNS": "", "XDG_RUNTIME_DIR": f"{folder}/runtime"}
for name in ("TREK_LOG_DIR", "NO_COLOR"):
    plain.pop(name, None)


def call(*arguments, **env):
    return subprocess.run([program, *arguments], env={**plain, **env}, capture_output=True, timeout=60, stdin=subprocess.DEVNULL)


said = call("--help")
check("--help is printed on standard output", said.returncode == 0 and said.stdout.startswith(b"usage: trek-top") and not said.stderr)
for wrong in (["--fast"], ["-i"], ["-i", "0"], ["-s", "size"]):
    check(f"{wrong} is refused", call(*wrong).returncode == 2)
check("a folder that is not there is told", call("--once", f"{folder}/none").returncode == 1)

once = call("--once", f"{folder}/runs")
text = once.stdout.decode()
lines = text.splitlines()
check("--once is well", once.returncode == 0 and not once.stderr)
check("no character of ASCII C locale cannot show", text.isascii() and "\x1b" not in text)
check("the newest first", [line.split()[0] for line in lines[1:4]] == ["running", "done", "died"])
check("a running one: " + lines[1], re.fullmatch(r"running +running +2/4 +37% +1 +0\.001 +2k +1m 30s  #\*\+=-,\._|running .*", lines[1])
      and lines[1].split()[:8] == ["running", "running", "2/4", "37%", "1", "0.001", "2k", "1m"] and lines[1].endswith("#*+=-,._"))
check("one that is done: " + lines[2], lines[2].split()[1:5] == ["done", "-", "100%", "0.25"])
check("one that died: " + lines[3], lines[3].split()[1:4] == ["died", "1/4", "12%"])
check("lanes", "rank 0    cpu:0    [##########+++++.....]  75%     1.5k/s  computing  a CPU" in text)
check("what waits", "rank 1    cpu:1    [####################]  25%      500/s  waiting" in text)
check("memory, temperature, power", "memory 3 GiB (at most 4 GiB)  CPU 180%  54 C  80 W" in text)
check("devices", "cuda:0  memory 1 GiB of 8 GiB  95%  70 C  250 W  slowed down: power" in text)
check("messages do nothing to a terminal", "warning: a rank is ?[31mslow?" in text)
check("the program's arguments", "./mnist --lr 0.1" in text)
check("blocks where the locale has them", "█▇▆▅▄▃▂▁" in call("--once", f"{folder}/runs", LC_ALL="C.UTF-8").stdout.decode())
check("by name", [line.split()[0] for line in call("--once", "-s", "name", f"{folder}/runs").stdout.decode().splitlines()[1:4]]
      == ["died", "done", "running"])

told = json.loads(call("--json", f"{folder}/runs/running").stdout)
check("JSON of one run", len(told) == 1 and told[0]["name"] == "running" and told[0]["status"] == "running" and told[0]["eta_s"] == 90)
check("JSON of values", told[0]["values"] == {"loss": 1, "lr": 0.001})
check("JSON of ranks", [(r["share"], r["state"]) for r in told[0]["ranks"]] == [(0.75, "computing"), (0.25, "waiting")])
check("JSON of devices", told[0]["ranks"][1]["name"] == "a CPU" and told[0]["processes"][0]["devices"] == [
    {"device": "cuda:0", "memory_bytes": 1 << 30, "memory_total_bytes": 8 << 30, "utilization_percent": 95, "temperature_c": 70, "power_w": 250,
     "throttled": "power"}])
check("TREK_LOG_DIR", len(json.loads(call("--json", TREK_LOG_DIR=f"{folder}/runs").stdout)) == 3)
check("nothing is running", json.loads(call("--json").stdout) == [])
os.makedirs(f"{folder}/runtime/trek", mode=0o700)
for pid, run in ((os.getpid(), "running"), (gone.pid, "done")):
    with open(f"{folder}/runtime/trek/{pid}.run", "w") as file:
        file.write(f"{folder}/runs/{run}\n")
check("what processes that are there tell of", [r["name"] for r in json.loads(call("--json").stdout)] == ["running"])
check("what one has left behind that has gone is removed", os.listdir(f"{folder}/runtime/trek") == [f"{os.getpid()}.run"])
os.chmod(f"{folder}/runtime/trek", 0o777)
refused = call("--json")
check("a registry that others can write is not read", json.loads(refused.stdout) == [])
check("that is said", refused.stderr.decode().count("is not used: others may write to it") == 1)
check("a folder that is named does not need it", call("--json", f"{folder}/runs").stderr == b"")

# --- as a page ---------------------------------------------------------------------------------------

check("a port that is none", call("--serve=x", f"{folder}/runs").returncode == 2)
server = subprocess.Popen([program, "--serve=0", f"{folder}/runs"], env=plain, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
where = re.match(r"trek-top: (http://127\.0\.0\.1:\d+/) shows ", server.stdout.readline())
if where:
    with urllib.request.urlopen(where[1] + "api/runs", timeout=10) as answer:
        check("the page's server knows the runs", all(f'"{name}"' in answer.read().decode() for name in ("running",)))
    server.send_signal(signal.SIGTERM)
    check("a signal ends the server", server.wait(timeout=10) == 0)
else:
    check("no page without libmicrohttpd, which is named", server.wait(timeout=10) == 1 and "libmicrohttpd" in server.stderr.read())

# --- on a terminal --------------------------------------------------------------------------------------


class Screen:
    """As much of a terminal as ncurses uses of TERM=xterm."""

    def __init__(self, rows, columns):
        self.pending = b""
        self.resize(rows, columns)

    def resize(self, rows, columns):
        self.rows, self.columns, self.y, self.x, self.last = rows, columns, 0, 0, " "
        self.cells = [[" "] * columns for _ in range(rows)]

    def put(self, character):
        if self.x >= self.columns:
            self.x, self.y = 0, min(self.y + 1, self.rows - 1)
        self.cells[self.y][self.x] = self.last = character
        self.x += 1

    def sequence(self, numbers, final):
        n = numbers[0] if numbers and numbers[0] else 1
        if final in "Hf":
            self.y, self.x = min(n, self.rows) - 1, min(numbers[1] if len(numbers) > 1 and numbers[1] else 1, self.columns) - 1
        elif final in "ABCD":
            self.y = max(0, min(self.rows - 1, self.y + {"A": -n, "B": n}.get(final, 0)))
            self.x = max(0, min(self.columns - 1, self.x + {"D": -n, "C": n}.get(final, 0)))
        elif final == "G":
            self.x = min(n, self.columns) - 1
        elif final == "d":
            self.y = min(n, self.rows) - 1
        elif final == "J":
            whole = bool(numbers) and numbers[0] == 2
            for row in range(0 if whole else self.y, self.rows):
                for column in range(self.x if row == self.y and not whole else 0, self.columns):
                    self.cells[row][column] = " "
        elif final == "K":
            left = bool(numbers) and numbers[0] == 1
            for column in range(0 if left else self.x, min(self.x + 1, self.columns) if left else self.columns):
                self.cells[self.y][column] = " "
        elif final == "X":
            for column in range(self.x, min(self.x + n, self.columns)):
                self.cells[self.y][column] = " "
        elif final == "b":
            for _ in range(n):
                self.put(self.last)
        elif final in "P@":
            for _ in range(n):
                self.cells[self.y].pop(self.x if final == "P" else -1)
                self.cells[self.y].insert(self.columns - 1 if final == "P" else self.x, " ")
        elif final in "LM":
            for _ in range(n):
                self.cells.insert(self.y, [" "] * self.columns) if final == "L" else self.cells.pop(self.y)
                self.cells.pop() if final == "L" else self.cells.append([" "] * self.columns)
        elif final not in "mhlrtn":
            failures.append(f"the screen's model does not know CSI {numbers} {final}")

    def feed(self, data):
        text = (self.pending + data).decode("utf-8", "surrogateescape")
        self.pending = b""
        at = 0
        while at < len(text):
            found = re.compile(r"\x1b\[([?>!]?)([0-9;]*)([@-~])").match(text, at)
            other = re.compile(r"\x1b(?:[()][A-Z0-9]|[=>78M])").match(text, at)
            if found:
                if not found[1]:
                    self.sequence([int(n or 0) for n in found[2].split(";")], found[3])
                at = found.end()
            elif other:
                at = other.end()
            elif text[at] == "\x1b":
                self.pending = text[at:].encode("utf-8", "surrogateescape")
                return
            else:
                character = text[at]
                if character == "\r":
                    self.x = 0
                elif character == "\n":
                    self.y = min(self.y + 1, self.rows - 1)
                elif character == "\b":
                    self.x = max(0, self.x - 1)
                elif character >= " ":
                    self.put(character)
                at += 1

    def text(self):
        return "\n".join("".join(row).rstrip() for row in self.cells)


class Terminal:
    def __init__(self, rows, columns, *arguments, **env):
        self.screen = Screen(rows, columns)
        pid, self.fd = pty.fork()
        if pid == 0:
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.execve(program, [program, "-i", "0.1", *arguments], {**plain, **env})
        self.pid = pid

    def wait_for(self, what, seconds=10):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if select.select([self.fd], [], [], 0.05)[0]:
                try:
                    self.screen.feed(os.read(self.fd, 65536))
                except OSError:
                    return False
            elif what(self.screen.text()):
                return True
        return False

    def expect(self, name, what):
        if not self.wait_for(what):
            failures.append(f"{name}; the screen shows:\n{self.screen.text()}")

    def key(self, keys):
        os.write(self.fd, keys.encode())

    def resize(self, rows, columns):
        self.screen.resize(rows, columns)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.kill(self.pid, signal.SIGWINCH)

    def end(self, name):
        self.key("q")
        end = time.monotonic() + 10
        while time.monotonic() < end:
            if select.select([self.fd], [], [], 0.05)[0]:
                try:
                    os.read(self.fd, 65536)
                except OSError:
                    pass
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                check(f"{name} ends with 0", os.waitstatus_to_exitcode(status) == 0)
                return os.close(self.fd)
        os.kill(self.pid, signal.SIGKILL)
        failures.append(f"{name} does not end by q")


def first_rows(text):
    return [line.split()[0] for line in text.splitlines()[2:5] if line.split()]


check("without a terminal it prints", call(f"{folder}/runs").stdout.decode().splitlines()[0] == lines[0])
if sys.argv[2] != "ncurses":
    print("built without ncurses: its view is not looked at")
else:
    t = Terminal(30, 120, f"{folder}/runs", LC_ALL="C.UTF-8")
    t.expect("three runs, of which the first is chosen", lambda s: "3 runs, 1 running  by newest" in s and first_rows(s) == ["running", "done", "died"]
             and "rank 1    cpu:1" in s and "█▇▆▅▄▃▂▁" in s)
    write("running", 0, {"kind": "scalars", "step": 9, "epoch": 1, "values": {"loss": 0.125}})
    t.expect("what is new appears", lambda s: " 0.125 " in s)
    t.key("\x1bOB")  # down
    t.expect("the next run is chosen", lambda s: "rank 1    cpu:1" in s and "done  step" in s)
    t.key("s")
    t.expect("runs by name; the chosen one stays chosen", lambda s: "by name" in s and first_rows(s) == ["died", "done", "running"] and "done  step" in s)
    t.key("\r")
    t.expect("the chosen one alone", lambda s: "SAMPLES/S" not in s and s.splitlines()[1].startswith("done"))
    t.key("\r?")
    t.expect("help", lambda s: "q        ends" in s and "SAMPLES/S" not in s)
    t.key("?")
    t.expect("and back", lambda s: "SAMPLES/S" in s)
    t.resize(12, 50)
    t.expect("a smaller terminal", lambda s: "trek-top  3 runs" in s and "SAMPLES/S" not in s and "STATUS" in s)
    shutil.rmtree(f"{folder}/runs/died")
    t.expect("a run that is removed goes", lambda s: "2 runs, 1 running" in s)
    t.end("the view")
    for rows, columns in ((1, 1), (2, 10), (3, 400), (5, 20)):
        t = Terminal(rows, columns, f"{folder}/runs", NO_COLOR="1", TERM="vt100" if rows == 5 else "xterm")
        t.expect(f"{rows} rows of {columns}", lambda s: s.startswith("t" if columns == 1 else "trek-top"[:columns]))
        t.key("jks\r?")
        t.end(f"{rows} rows of {columns}")
    t = Terminal(24, 80)
    t.expect("no runs", lambda s: "no runs: trek-top FOLDER" in s)
    t.end("no runs")

shutil.rmtree(folder)
print("\n".join(failures) or "trek-top does as it should")
sys.exit(bool(failures))
