#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every public header compiles alone, as strict C11 and as C++."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

root = pathlib.Path(sys.argv[1])
public = [root / "trek.h"]
for build in sorted(root.glob("[a-z]*/**/meson.build")):
    for listed in re.findall(r"trek_headers\s*\+=\s*\{([^}]*)\}", build.read_text()):
        public += [build.parent / name for name in re.findall(r"'([\w/]+\.h)'", listed)]
compilers = [("C11", [os.environ.get("CC", "gcc"), "-xc", "-std=c11"])]
cxx = shutil.which("g++") or shutil.which("c++")
if cxx:
    compilers.append(("C++11", [cxx, "-xc++", "-std=c++11"]))
failures = []
for header in public:
    for language, command in compilers:
        source = f'#include "{header.relative_to(root)}"\n#include "{header.relative_to(root)}"\nint trek_test_of_headers;\n'
        done = subprocess.run(command + ["-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{root}", "-fsyntax-only", "-"],
                              input=source, capture_output=True, text=True)
        if done.returncode:
            failures.append(f"{header.relative_to(root)} as {language}:\n{done.stderr}")
    text = header.read_text()
    for name in re.findall(r'#include "([^"]+)"', text):
        if (root / name) not in public:
            failures.append(f"{header.relative_to(root)} includes {name}, which is not installed")
print("\n".join(failures) or f"{len(public)} headers, {len(compilers)} languages")
if not cxx:
    print("no C++ compiler: C only")
sys.exit(bool(failures))
