#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every public header compiles alone, as strict C11 and as C++, and trek.h includes all of them but those for authors of classes;
what their comments name is there. trek.h brings no header of the C library that a program may want to do without, and no macro in
lower case but trek_dims, which is a list of any length. core.h reaches no more functions than a newcomer can look through, and these
are named with --names."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

import public

root = pathlib.Path(sys.argv[1])
installed = [root / "core.h", root / "trek.h", *public.headers(root)]
MOST = 156  # functions that core.h may have
compilers = [("C11", [os.environ.get("CC", "gcc"), "-xc", "-std=c11"])]
cxx = shutil.which("g++") or shutil.which("c++")
if cxx:
    compilers.append(("C++11", [cxx, "-xc++", "-std=c++11"]))
umbrella = re.findall(r'#include "([^"]+)"', (root / "trek.h").read_text())
apart = ["optim/update_element.h"]  # for the files that define classes of optimizers
failures = [f"trek.h does not include {header.relative_to(root)}" for header in installed[2:]
            if str(header.relative_to(root)) not in umbrella + apart]


def dragged_in(name):
    """What trek.h or core.h gives to a program beside declarations: headers of <math.h>'s kind, and macros in lower case."""
    text = subprocess.run(compilers[0][1] + ["-E", "-dD", f"-I{root}", "-"], input=f'#include "{name}"\n', capture_output=True, text=True,
                          check=True).stdout
    file = ""
    for line in text.splitlines():
        marker = re.match(r'# \d+ "([^"]+)"', line)
        if marker and marker.group(1) != file:
            file = marker.group(1)
            if pathlib.Path(file).name in ("math.h", "float.h", "string.h", "stdlib.h"):
                yield f"{name} reaches <{pathlib.Path(file).name}>"
        macro = re.match(r"#define ([a-z]\w*)", line)
        if macro and pathlib.Path(file).is_relative_to(root) and macro.group(1) != "trek_dims":
            yield f"{file}: {macro.group(1)} is a macro in lower case, which {name} gives to every program"


failures += sorted({*dragged_in("trek.h"), *dragged_in("core.h")})
first = public.first(root)
if len(first) > MOST:
    failures.append(f"core.h reaches {len(first)} functions, more than {MOST}: " + " ".join(sorted(first)))
core = re.findall(r'#include "([^"]+)"', (root / "core.h").read_text())
if core != sorted(core):
    failures.append("core.h: the headers are not in order")
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
print("\n".join(failures) or f"{len(installed)} headers, {len(compilers)} languages, {len(first)} functions in core.h")
if "--names" in sys.argv:
    print(*sorted(first), sep="\n")
if not cxx:
    print("no C++ compiler: C only")
sys.exit(bool(failures))
