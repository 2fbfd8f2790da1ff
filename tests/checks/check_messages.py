#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Messages that docs/troubleshooting.md quotes are still what the sources say. The first cell of a row of a table that is headed "message"
is a quote; "..." in it stands for what is filled in. A quote is found where one text of the sources (literals that follow each other are one)
has its parts in order, with something filled in, or left out at the ends, where the dots are.

Usage: check_messages.py <source root>
"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
FOLDERS = ["tensor", "autograd", "nn", "data", "optim", "graph", "onnx", "distributed", "monitor", "tools"]
LITERAL = r'"(?:[^"\\\n]|\\.)*"'
TEXT = re.compile(rf'{LITERAL}(?:\s*(?:PRI\w+\s*)?{LITERAL})*')
FORMAT = re.compile(r"%[-+ #0-9.*]*(?:hh|h|ll|l|z|j)?[diouxXsgGfeEcp]")
HOLE = "\0"


def texts():
    """What the sources say, each with a HOLE where something is filled in."""
    found = set()
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".c", ".h", ".cu", ".cuh", ".cc"):
                code = re.sub(r"/\*.*?\*/|(?<!:)//[^\n]*", "", path.read_text(), flags=re.S)
                for whole in TEXT.findall(code):
                    whole = re.sub(r'"\s*PRI\w+\s*"', "d", whole)
                    text = "".join(part[1:-1] for part in re.findall(LITERAL, whole)).replace('\\"', '"')
                    found.add(FORMAT.sub(HOLE, text))
    return found


def quotes(page):
    """(line, quote) of the rows under a head "message"."""
    in_table = False
    for number, line in enumerate(page.split("\n"), 1):
        if not line.startswith("|"):
            in_table = False
        elif line.startswith("| message |"):
            in_table = True
        elif in_table and not line.startswith("|---"):
            quote = re.match(r"\| `([^`]+)` \|", line)
            yield number, quote and quote.group(1)


def pattern(quote):
    """Its parts in order; between them at least one HOLE."""
    parts = [re.escape(part.strip()) for part in re.split(r"\.\.\.+", quote)]
    between = rf"[^{HOLE}]{{0,4}}{HOLE}.*?"
    return re.compile(between.join(part for part in parts if part), re.S)


said = texts()
failures, n = [], 0
for number, quote in quotes((root / "docs/troubleshooting.md").read_text()):
    n += 1
    if not quote or len(re.sub(r"[\W_]|\.\.\.", "", quote)) < 6:
        failures.append(f"docs/troubleshooting.md:{number}: the first cell is to be a message between backticks")
    elif not any(pattern(quote).search(text) for text in said):
        failures.append(f"docs/troubleshooting.md:{number}: no source says {quote!r}")
if n < 60 or len(said) < 1000:
    failures.append(f"only {n} quotes and {len(said)} texts were found: is this check reading the tree?")
print("\n".join(failures) or f"{n} messages")
sys.exit(bool(failures))
