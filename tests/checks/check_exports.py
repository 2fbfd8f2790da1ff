#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The shared library exports trek_* and nothing else, and everything that a public header declares."""
import pathlib
import subprocess
import sys

import public

root, library = pathlib.Path(sys.argv[1]), sys.argv[2]
symbols = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
exported = {line.split()[-1].split("@")[0] for line in symbols.splitlines()}
failures = [f"exported: {name}" for name in sorted(exported) if not name.startswith("trek_")]

declared = public.declared(root)
failures += [f"{header} declares {name}, which is not exported" for name, header in sorted(declared.items()) if name not in exported]
if len(declared) < 100:
    failures.append(f"only {len(declared)} declarations were found: is this check reading the headers?")
print("\n".join(failures) or f"{len(exported)} symbols exported, {len(declared)} declared")
sys.exit(bool(failures))
