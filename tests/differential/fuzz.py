# SPDX-License-Identifier: Apache-2.0
"""Draws calls of trek's public functions and compares them with PyTorch's: see run.sh."""
import argparse
import json
import math
import mmap
import os
import random
import re
import select
import signal
import struct
import sys
import time
import warnings

import torch

import differences
import kinds
import samples
from shrink import shrink
from trek import Library

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
BOARD = struct.Struct("QQQQ")  # the case at work, cases done, refused by both, known differences


def options():
    p = argparse.ArgumentParser(prog="run.sh", description=__doc__)
    p.add_argument("--library", required=True, help="libtrek.so")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--seconds", type=float, default=0, help="stop after that many (0: by --cases)")
    p.add_argument("--cases", type=int, default=0, help="stop after that many (0: by --seconds; neither: 20000)")
    p.add_argument("--only", action="append", default=[], metavar="NAME", help="only functions of that name (may be given again)")
    p.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--replay", metavar="SEED:CASE", help="runs that case again, and shows it")
    p.add_argument("--case", metavar="JSON", help="runs a case that is written out")
    p.add_argument("--samples", action="store_true", help="runs the samples that PyTorch's own suite has (samples.py), and draws none")
    p.add_argument("--no-shrink", action="store_true")
    p.add_argument("--stop", action="store_true", help="at the first difference")
    p.add_argument("--list", action="store_true", help="shows what is covered, and how")
    return p.parse_args()


def key_of(name, complaint):
    """Complaints of one kind."""
    return f"{name}/{complaint[0]}/" + re.sub(r"\[[^\]]*\]|-?\d[\d.]*(e[+-]?\d+)?|-?\b(nan|inf)\b", "#", complaint[1])[:70]


class Worker:
    """What a child does: its share of the cases, each announced on the board before it runs."""

    def __init__(self, args, places):
        self.args, self.places = args, places
        self.lib = None

    def check(self, case):
        """(complaint or None, whether both refused)"""
        if self.lib is None:
            self.lib = Library(self.args.library)
        return kinds.run(self.lib, case)

    def drawn(self, seed, number):
        return kinds.draw(random.Random(f"{seed}:{number}"), self.places)

    def work(self, first, step, board, out, end, limit):
        done = refused = known = 0
        seen = {}
        number = first
        while number < limit and time.time() < end:
            board[:BOARD.size] = BOARD.pack(number, done, refused, known)
            case = self.drawn(self.args.seed, number)
            complaint, both = self.check(case)
            done, refused = done + 1, refused + both
            if not both and not complaint:
                seen[case["name"]] = seen.get(case["name"], 0) + 1
            if complaint:
                if differences.known(case, complaint):
                    known += 1
                else:
                    send(out, {"case": case, "number": number, "complaint": complaint})
            number += step
        board[:BOARD.size] = BOARD.pack(2**63, done, refused, known)
        send(out, {"seen": seen})


def send(out, what):
    os.write(out, (json.dumps(what) + "\n").encode())


def child(task):
    """Runs task(out) in a process of its own; gives (its id, the end of the pipe to read)."""
    read, write = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    os.close(read)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    status = 1
    try:
        task(write)
        status = 0
    except BaseException:  # reported by the parent as what it is
        import traceback
        send(write, {"broken": traceback.format_exc()})
    os._exit(status)


def collect(pid, pipe, timeout):
    """All messages of a child, and its status (None: it hung and was killed)."""
    data, end = b"", time.time() + timeout
    while True:
        ready = select.select([pipe], [], [], max(0, end - time.time()))[0]
        if not ready:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(pipe)
            return [], None
        piece = os.read(pipe, 1 << 16)
        if not piece:
            break
        data += piece
    os.close(pipe)
    return [json.loads(line) for line in data.decode().splitlines()], os.waitpid(pid, 0)[1]


def how_it_died(status):
    if status is None:
        return "does not return"
    return f"killed by {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else f"ended with status {os.WEXITSTATUS(status)}"


class Parent:
    def __init__(self, args):
        self.args = args
        self.places, self.missing = kinds.covered(args.only)
        self.worker = Worker(args, self.places)
        self.found, self.seen = {}, {}
        self.failed = self.done = self.refused = self.known = 0
        self.began = time.time()

    def alone(self, case, timeout=60):
        """The case in a process of its own: a complaint, or None."""
        messages, status = collect(*child(lambda out: send(out, {"complaint": self.worker.check(case)[0]})), timeout)
        for m in messages:
            if "complaint" in m:
                return tuple(m["complaint"]) if m["complaint"] else None
            return ("broken", m["broken"])
        return ("crash", how_it_died(status))

    def smaller(self, case, complaint):
        name = case["name"]
        same = key_of(name, complaint)

        def fails(candidate, run):
            got = run(candidate)
            if not got or got[0] != complaint[0] or differences.known(candidate, got):
                return False
            return got[0] not in ("refusal", "rules") or key_of(name, got)[:60] == same[:60]

        if complaint[0] == "crash":
            return shrink(case, kinds.candidates, lambda c: fails(c, self.alone), 30)
        # In a process of its own, which shrinks by itself: many runs
        def task(out):
            def run(candidate):
                try:
                    return self.worker.check(candidate)[0]
                except Exception:
                    return None
            send(out, {"smaller": shrink(case, kinds.candidates, lambda c: fails(c, run), 15)})
        messages, _ = collect(*child(task), 60)
        return messages[0]["smaller"] if messages and "smaller" in messages[0] else case

    def report(self, case, complaint, number):
        self.failed += 1
        key = key_of(case["name"], complaint)
        if key in self.found:
            self.found[key] += 1
            return
        self.found[key] = 1
        small = case if self.args.no_shrink else self.smaller(case, complaint)
        again = self.alone(small) or complaint
        replay = f"--replay {self.args.seed}:{number}" + "".join(f" --only {n}" for n in self.args.only)
        print(f"DIFFERENCE {case['name']}: {again[0]}: {again[1]}\n    {kinds.describe(small)}\n    {replay}\n    --case '{json.dumps(small)}'\n", flush=True)

    def handle(self, message, board):
        if "broken" in message:
            self.failed += 1
            key = "broken: " + message["broken"].splitlines()[-1][:100]
            self.found[key] = self.found.get(key, 0) + 1
            if self.found[key] == 1:
                print(f"BROKEN at case {self.args.seed}:{BOARD.unpack(board[:BOARD.size])[0]}: {message['broken']}", flush=True)
        elif "seen" in message:
            for name, n in message["seen"].items():
                self.seen[name] = self.seen.get(name, 0) + n
        else:
            self.report(message["case"], tuple(message["complaint"]), message["number"])

    def run(self):
        args = self.args
        end = self.began + args.seconds if args.seconds else math.inf
        limit = args.cases or (2**62 if args.seconds else 20000)
        workers = {}
        for k in range(max(args.jobs, 1)):
            self.start(workers, k, k, limit, end)
        while workers:
            for pipe in select.select(list(workers), [], [])[0]:
                w = workers[pipe]
                piece = os.read(pipe, 1 << 16)
                w["data"] += piece
                *lines, w["data"] = w["data"].split(b"\n")
                for line in lines:
                    self.handle(json.loads(line), w["board"])
                if not piece:
                    self.ended(workers, pipe, limit, end)
            if args.stop and self.failed:
                for w in workers.values():
                    os.kill(w["pid"], signal.SIGKILL)
                break

    def start(self, workers, place, first, limit, end):
        board = mmap.mmap(-1, BOARD.size)
        pid, pipe = child(lambda out: self.worker.work(first, max(self.args.jobs, 1), board, out, end, limit))
        workers[pipe] = {"pid": pid, "place": place, "board": board, "data": b""}

    def ended(self, workers, pipe, limit, end):
        w = workers.pop(pipe)
        os.close(pipe)
        status = os.waitpid(w["pid"], 0)[1]
        number, done, refused, known = BOARD.unpack(w["board"][:BOARD.size])
        self.done, self.refused, self.known = self.done + done, self.refused + refused, self.known + known
        if number == 2**63:
            return
        if os.WIFSIGNALED(status) or os.WEXITSTATUS(status) != 1:
            self.crashed(number, how_it_died(status))
        if time.time() < end:
            self.start(workers, w["place"], number + max(self.args.jobs, 1), limit, end)

    def crashed(self, number, how):
        """Alone it may live: then what came before has done the damage."""
        case = self.worker.drawn(self.args.seed, number)
        complaint = self.alone(case)
        if complaint is None:
            self.failed += 1
            print(f"CRASH {case['name']}: {how}, but not alone: memory was damaged before case {self.args.seed}:{number}\n"
                  f"    {kinds.describe(case)}\n", flush=True)
        else:
            self.report(case, complaint, number)

    def end(self):
        for line in self.missing:
            print(f"not covered: {line}")
        unwritten = differences.unwritten()
        for line in unwritten:
            print(f"differences.py: not written there: {line}")
        never = [] if self.done < 150 * len(self.places) or self.args.case else sorted(n for n in self.places if not self.seen.get(n))
        for name in never:
            print(f"never compared: {name}: all calls were refused or differed")
        for key, n in self.found.items():
            if n > 1:
                print(f"{n} times: {key}")
        failed = self.failed + len(self.missing) + len(unwritten) + len(never)
        seconds = max(time.time() - self.began, 1e-9)
        print(f"seed {self.args.seed}: {self.done} calls of {len(self.places)} functions in {seconds:.0f} s ({self.done / seconds:.0f} a second), "
              f"{self.known} known differences")
        print(f"{self.done - self.failed - self.refused} passed, {failed} failed, {self.refused} skipped")
        return failed


def main():
    args = options()
    kinds.warm()
    parent = Parent(args)
    if args.list:
        for name in sorted(parent.places):
            print(name, kinds.how(name))
        return 0
    if args.replay or args.case:
        if args.case:
            case = json.loads(args.case)
        else:
            seed, number = args.replay.split(":")
            case = parent.worker.drawn(int(seed), int(number))
        print(kinds.describe(case) + "\n" + json.dumps(case))
        complaint = parent.alone(case)
        known = complaint and differences.known(case, complaint)
        print(f"known: {known.phrase}" if known else f"{complaint[0]}: {complaint[1]}" if complaint else "no difference")
        return 1 if complaint and not known else 0
    problem = parent.alone({"kind": "load", "name": "load"})
    if problem:
        print(f"the library does not load: {problem[1]}\n0 passed, 1 failed, 0 skipped")
        return 1
    if args.samples:
        passed, failed, skipped = samples.run(parent.worker.check, kinds.describe, args.only)
        print(f"{passed} passed, {failed} failed, {skipped} skipped")
        return 1 if failed else 0
    parent.run()
    return 1 if parent.end() else 0


if __name__ == "__main__":
    sys.exit(main())
