#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All-reduce between processes of one machine: trek against Gloo (through PyTorch) and the installed MPI.

    run_processes.py --build BUILD [--python PYTHON] [--mib 100] [--rounds 3] [--worlds 2,4]

In each round every side is started, reduces the same numbers a few times and ends, one after
the other, so that all see the same machine. Of each start the first three calls are left out:
sides set themselves up in them. Goals are held against the medians of all rounds. --copied
measures trek with arrays in ordinary memory, too.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
GOALS = {"mpi": 5.0, "gloo": 9.0}
WARM_UP = 3


def run(command, environment=None, stdin=""):
    """Nanoseconds of each call; raises if a result was wrong."""
    done = subprocess.run(command, env={**os.environ, **(environment or {})}, input=stdin, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{command[0]}: exit status {done.returncode}\n{done.stderr}")
    *times, wrong = done.stdout.split()
    if float(wrong):
        raise RuntimeError(f"{' '.join(command)}: {wrong} wrong results")
    return [float(t) for t in times][WARM_UP:]


def sides(options, world):
    """name: a function that measures once."""
    launcher, bench = os.path.join(options.build, "tools", "trek-run"), os.path.join(options.build, "tests", "bench")
    size, times = str(options.mib << 20), options.times + WARM_UP
    trek = [launcher, "-n", str(world), os.path.join(bench, "trek-bench-processes"), size]
    result = {"trek": lambda: run(trek, stdin=f"{times}\n")}
    if options.copied:
        result["trek, copied"] = lambda: run([*trek, "copied"], stdin=f"{times}\n")
    if options.python:
        script = os.path.join(HERE, "processes_peer.py")
        result["gloo"] = lambda: run([launcher, "-n", str(world), options.python, script, size, str(times)])
    mpi = os.path.join(bench, "trek-bench-mpi")
    if os.path.exists(mpi) and shutil.which("mpirun"):
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        result["mpi"] = lambda: run(["mpirun", "--oversubscribe", "-n", str(world), mpi, size, str(times)], root)
    return result


def measure(options, world):
    ways = sides(options, world)
    samples = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, way in ways.items():
            samples[name] += way()
    trek = statistics.median(samples["trek"])
    good = True
    for name, values in samples.items():
        median = statistics.median(values)
        goal = GOALS.get(name)
        met = "" if not goal else "met" if median / trek >= goal else "missed"
        good &= met != "missed"
        print(f"| {world} | {name} | {median / 1e6:.2f} | {min(values) / 1e6:.2f} | {median / trek:.2f} | {goal or ''} | {met} |", flush=True)
    return samples, good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--python", help="one that imports torch")
    parser.add_argument("--mib", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--times", type=int, default=7, help="calls in each round")
    parser.add_argument("--worlds", default="2,4")
    parser.add_argument("--copied", action="store_true")
    parser.add_argument("--json", help="where to write all that was measured")
    options = parser.parse_args()
    print(f"all-reduce of {options.mib} MiB of f32\n\n| processes | side | median ms | least ms | x trek's | goal | |\n|---|---|---|---|---|---|---|")
    everything, good = {}, True
    for world in map(int, options.worlds.split(",")):
        everything[world], met = measure(options, world)
        good &= met
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(everything, file, indent=1)
    sys.exit(not good)


if __name__ == "__main__":
    main()
