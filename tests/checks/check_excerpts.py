#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pages of the examples: what they quote in C stands so in a source that the page names, the index lists every page, and options
that their calls use are there.

Usage: check_excerpts.py <source root>
"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
pages = sorted(path for path in (root / "docs" / "examples").glob("*.md") if path.name != "README.md")
index = (root / "docs" / "examples" / "README.md").read_text()
shared = "".join((root / "examples" / name).read_text() for name in ("arguments.h", "training.h"))
failures, blocks = [], 0
for page in pages:
    text = page.read_text()
    names = set(re.findall(r"[\w/]+\.[ch]\b", text))
    sources = [path.read_text() for name in names for path in [root / "examples" / name.split("examples/")[-1]] if path.is_file()]
    if not sources:
        failures.append(f"{page.name} names no source")
    for block in re.findall(r"^```c\n(.*?)^```", text, re.S | re.M):
        blocks += 1
        pieces = [piece for piece in re.split(r"^ *(?:/\* )?\.\.\.(?: \*/)?\n", block, flags=re.M) if piece.strip()]
        if not all(any(piece.strip("\n") in source for source in sources) for piece in pieces):
            failures.append(f"{page.name} quotes what is in none of its sources:\n{block}")
    for call in re.findall(r"\./" + page.stem + r"\b([^\n#]*)", text):
        for option in re.findall(r"--[a-z-]+", call):
            if not any(f'"{option}"' in source for source in (*sources, shared)):
                failures.append(f"{page.name} calls it with {option}, which there is not")
    if f"({page.name})" not in index:
        failures.append(f"the index has no link to {page.name}")
if blocks < 10:
    failures.append(f"only {blocks} excerpts were found: is this check reading the pages?")
print("\n".join(failures) or f"{len(pages)} pages, {blocks} excerpts")
sys.exit(bool(failures))
