#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The shared library exports trek_* and nothing else, and everything that a public header declares."""
import pathlib
import re
import subprocess
import sys

root, library = pathlib.Path(sys.argv[1]), sys.argv[2]
symbols = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
exported = {line.split()[-1].split("@")[0] for line in symbols.splitlines()}
failures = [f"exported: {name}" for name in sorted(exported) if not name.startswith("trek_")]

public = []
for build in sorted(root.glob("[a-z]*/**/meson.build")):
    if build.parent.name in ("tests", "examples"):
        continue
    for listed in re.findall(r"trek_headers\s*\+=\s*\{([^}]*)\}", build.read_text()):
        public += [build.parent / name for name in re.findall(r"'([\w/]+\.h)'", listed)]
declared = {}
for header in public:
    text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)
    for declaration in re.findall(r"TREK_API\b([^;{]*);", text):
        match = re.search(r"\b(trek_\w+)\s*\(", declaration) or re.search(r"\b(trek_\w+)\s*(?:\[[^]]*\])?\s*$", declaration)
        if match:
            declared[match.group(1)] = header.relative_to(root)
failures += [f"{header} declares {name}, which is not exported" for name, header in sorted(declared.items()) if name not in exported]
if len(declared) < 100:
    failures.append(f"only {len(declared)} declarations were found: is this check reading the headers?")
print("\n".join(failures) or f"{len(exported)} symbols exported, {len(declared)} declared")
sys.exit(bool(failures))
