#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The shared library exports what its public headers declare, and nothing else: a name that no user should call is hidden. Plug-ins
link nothing of the library; each exports the one function by which it is opened."""
import pathlib
import subprocess
import sys

import public

root, library = pathlib.Path(sys.argv[1]), sys.argv[2]
symbols = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
exported = {line.split()[-1].split("@")[0] for line in symbols.splitlines()}
declared = public.declared(root)
failures = [f"exported, but no public header declares it: {name}" for name in sorted(exported - set(declared))]
failures += [f"{header} declares {name}, which does not begin with trek_" for name, header in sorted(declared.items()) if not name.startswith("trek_")]
failures += [f"{header} declares {name}, which is not exported" for name, header in sorted(declared.items()) if name not in exported]
for plugin in sorted(pathlib.Path(library).parent.rglob("libtrek-*.so")):
    found = subprocess.run(["nm", "-D", "--defined-only", plugin], capture_output=True, text=True, check=True).stdout
    opened_by = [line.split()[-1] for line in found.splitlines() if line.split()[-2] not in "WVu"]  # those are of the C++ library
    if len(opened_by) != 1 or not opened_by[0].startswith("trek_") or not opened_by[0].endswith("_open"):
        failures.append(f"{plugin.name} exports {opened_by}; one function is what it is opened by")
if len(declared) < 100:
    failures.append(f"only {len(declared)} declarations were found: is this check reading the headers?")
print("\n".join(failures) or f"{len(exported)} symbols exported, {len(declared)} declared")
sys.exit(bool(failures))
