#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The example whose processes kill themselves: whoever has died, all that get to the end print the hash of one undisturbed process.

Usage: check_deaths.py <folder of the programs> <trek-run>
"""
import pathlib
import re
import subprocess
import sys

program, launcher = pathlib.Path(sys.argv[1]).resolve() / "deaths", pathlib.Path(sys.argv[2]).resolve()
SIZE = ["--epochs", "4", "--samples", "1024"]
MOST_TRIES = 40


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
    if done.returncode:
        sys.exit(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return re.findall(r"hash ([0-9a-f]{16})$", done.stdout, re.M), done.stdout + done.stderr


(expected,), _ = run(program, *SIZE)
outlived, tries = 0, 0
while outlived < 2 and tries < MOST_TRIES: # deaths come when they come
    hashes, said = run(launcher, "-n", 3, "-m", 1, "--restarts", 20, program, *SIZE, "--kill", 0.5)
    if not hashes or set(hashes) != {expected}:
        sys.exit(f"{hashes} instead of {expected}:\n{said}")
    outlived += "is lost" in said or "are lost" in said
    tries += 1
if outlived < 2:
    sys.exit(f"in {MOST_TRIES} runs nobody has died")
others, _ = run(program, *SIZE, "--seed", 2)
if others == [expected]:
    sys.exit("another seed has the same hash")
print(f"{tries} runs, {outlived} with deaths: hash {expected}")
