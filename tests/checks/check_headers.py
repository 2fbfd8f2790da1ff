#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every public header compiles alone, as strict C11 and as C++, and trek.h includes all of them; what their
comments name is there."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

import public

root = pathlib.Path(sys.argv[1])
installed = [root / "trek.h", *public.headers(root)]
compilers = [("C11", [os.environ.get("CC", "gcc"), "-xc", "-std=c11"])]
cxx = shutil.which("g++") or shutil.which("c++")
if cxx:
    compilers.append(("C++11", [cxx, "-xc++", "-std=c++11"]))
umbrella = re.findall(r'#include "([^"]+)"', (root / "trek.h").read_text())
failures = [f"trek.h does not include {header.relative_to(root)}" for header in installed[1:] if str(header.relative_to(root)) not in umbrella]
if umbrella != sorted(umbrella):
    failures.append("trek.h: the headers are not in order")
floors = ["tensor", "autograd", "nn", "data", "optim", "graph", "onnx", "distributed", "monitor"]
code = "".join(source.read_text() for floor in floors for source in sorted((root / floor).rglob("*.[ch]")))
known = set(re.findall(r"\btrek_\w+", re.sub(r"/\*.*?\*/", "", code, flags=re.S)))
for header in installed:
    for language, command in compilers:
        source = f'#include "{header.relative_to(root)}"\n#include "{header.relative_to(root)}"\nint trek_test_of_headers;\n'
        done = subprocess.run(command + ["-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{root}", "-fsyntax-only", "-"],
                              input=source, capture_output=True, text=True)
        if done.returncode:
            failures.append(f"{header.relative_to(root)} as {language}:\n{done.stderr}")
    text = header.read_text()
    for comment in re.findall(r"/\*.*?\*/", text, flags=re.S):
        failures += [f"{header.relative_to(root)} names {name}, which does not exist"
                     for name in re.findall(r"\btrek_\w*[a-z0-9]\b", comment) if name not in known]
    for name in re.findall(r'#include "([^"]+)"', text):
        if (root / name) not in installed:
            failures.append(f"{header.relative_to(root)} includes {name}, which is not installed")
print("\n".join(failures) or f"{len(installed)} headers, {len(compilers)} languages")
if not cxx:
    print("no C++ compiler: C only")
sys.exit(bool(failures))
