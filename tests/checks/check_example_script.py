#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""examples/run.sh configures a build that has the program it starts. It is only configured here, which takes seconds; the library
and the program are compiled by the build whose tests these are.

Usage: check_example_script.py <source root>
"""
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

root = pathlib.Path(sys.argv[1])
script = (root / "examples/run.sh").read_text()
setup, target = re.search(r"meson setup \$build (.*)", script), re.search(r"^ninja -C \$build (\S+)$", script, re.M)
started = re.search(r"^exec \./\$build/(\S+)", script, re.M)
if not (setup and target and started):
    sys.exit("examples/run.sh: no line that configures, builds or starts the program is recognised")
with tempfile.TemporaryDirectory() as folder:
    done = subprocess.run(["meson", "setup", folder, str(root)] + shlex.split(setup[1]), capture_output=True, text=True)
    if done.returncode:
        sys.exit("examples/run.sh: its build cannot be configured:\n" + done.stdout[-2000:])
    listed = subprocess.run(["ninja", "-C", folder, "-t", "targets", "all"], capture_output=True, text=True, check=True).stdout
    targets = {line.partition(":")[0] for line in listed.splitlines()}
    missing = [name for name in {target[1], started[1]} if name not in targets]
    if missing:
        sys.exit("examples/run.sh: its build has no " + " and no ".join(missing))
print("examples/run.sh: its build has " + started[1])
