#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every public function is named by a test: in the code of tests/, not in a comment or a message, and not in a benchmark alone."""
import pathlib
import re
import sys

import public

root = pathlib.Path(sys.argv[1])
declared = public.declared(root)
named = set()
for source in sorted((root / "tests").rglob("*")):
    if source.suffix in (".c", ".h", ".cc") and "bench" not in source.relative_to(root).parts:
        code = re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', " ", source.read_text(), flags=re.S)
        named |= set(re.findall(r"\btrek_\w+", code))
failures = [f"{header} declares {name}, which no test names" for name, header in sorted(declared.items()) if name not in named]
if len(declared) < 100:
    failures.append(f"only {len(declared)} declarations were found: is this check reading the headers?")
print("\n".join(failures) or f"{len(declared)} public functions, all named by tests")
sys.exit(bool(failures))
