#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What library sources must not do: end the program, allocate around trek's allocator; and what they must carry."""
import pathlib
import re
import sys

floors = ["tensor", "autograd", "nn", "data", "optim", "graph", "onnx", "distributed", "monitor"]
root = pathlib.Path(sys.argv[1])
# abort() is what TREK_ON_ERROR=abort asks for, in status.c alone.
ending = re.compile(r"(?<![>.*\w])\b(abort|exit|_exit|_Exit|quick_exit|assert|raise)\s*\(")
allocating = re.compile(r"(?<![>.*\w])\b(malloc|calloc|realloc|strdup|strndup|asprintf|vasprintf|aligned_alloc|posix_memalign|free)\s*\(")
# Where memory comes from, and what a thread keeps for good: it would count as in use when the allocator is replaced.
home_of_memory = {"tensor/memory.c", "tensor/status.c", "tensor/rank_context.c", "tensor/ranges.c", "tensor/trace.c", "tensor/intern.c", "tensor/debug.c", "autograd/autocast.c",
                  "autograd/tape.c", "autograd/offload_values.c", "autograd/offload_move.c"}
failures, files = [], 0
for folder in floors:
    for source in sorted((root / folder).rglob("*.[ch]")):
        name, text = str(source.relative_to(root)), source.read_text()
        files += 1
        if not text.startswith("/* SPDX-License-Identifier: Apache-2.0 */"):
            failures.append(f"{name}: no licence line")
        # keep line numbers while comments and strings go
        blank = lambda m: re.sub(r"[^\n]", " ", m.group(0))
        code = re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', blank, text, flags=re.S)
        for number, line in enumerate(code.split("\n"), 1):
            call = ending.search(line)
            if call and not (name == "tensor/status.c" and call.group(1) == "abort"):
                failures.append(f"{name}:{number}: {call.group(1)}()")
            call = allocating.search(line)
            if call and name not in home_of_memory and "cuda" not in name:
                failures.append(f"{name}:{number}: {call.group(1)}() instead of trek's allocator")
if files < 40:
    failures.append(f"only {files} sources were found: is this check reading the tree?")
print("\n".join(failures) or f"{files} sources")
sys.exit(bool(failures))
