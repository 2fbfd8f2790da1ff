#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sources keep to .clang-format: no line is wider than it says, and clang-format agrees about the spaces between tokens and
about the indentation of statements. Where a line is broken, and what stands in columns, is the writer's.

Usage: check_format.py <source root> [--fix]    --fix breaks lines that are too wide
"""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

root = pathlib.Path(sys.argv[1]).resolve()
style = (root / ".clang-format").read_text()
width = int(re.search(r"^ColumnLimit: (\d+)", style, flags=re.M).group(1))
newline = b"\n"
tool = shutil.which("clang-format")


def sources():
    for place in sorted(root.rglob("*")):
        parts = place.relative_to(root).parts
        if place.suffix in (".c", ".h", ".cc", ".cu", ".cuh") and not any(p.startswith(("build", ".")) for p in parts[:-1]):
            yield place


def too_wide(text):
    return [number for number, line in enumerate(text.split("\n"), 1) if len(line) > width]


def places_to_break(line):
    """(depth of brackets, end of the first part, column under which the second belongs or None), outside of texts and comments."""
    stack, k = [], 0
    while k < min(len(line), width + 1):
        c = line[k]
        if c in "\"'":
            k += 1
            while k < len(line) and line[k] != c:
                k += 2 if line[k] == "\\" else 1
        elif line.startswith(("/*", "//"), k):
            return
        elif c in "([{":
            stack.append(k + 2 if line.startswith("{ ", k) else k + 1)
        elif c in ")]}":
            stack = stack[:-1]
        column = stack[-1] if stack else None
        if line.startswith((", ", "; "), k) and k < width:
            yield len(stack), k + 1, column
        elif line.startswith((" && ", " || "), k) and k + 3 <= width:
            yield len(stack), k + 3, column
        elif line.startswith(" : ", k) and "?" in line[:k]:
            yield len(stack) + 0.5, k, column # rather between arguments
        k += 1


def break_line(line, before):
    """As the sources are written: after a comma or an operator, the rest under the open bracket. None: not by these rules."""
    body = re.match(r"(\w.*\)) \{ (.*) \}$", line)
    if body:
        return [body[1], "{", "    " + body[2], "}"]
    if line.endswith("\\") or before.endswith("\\") or re.match(r"\s*(#|/?\*|case )", line):
        return None
    indent = len(line) - len(line.lstrip())
    found = [(depth, -end, column) for depth, end, column in places_to_break(line) if end > indent + (width - indent) // 3]
    if not found:
        return None
    _, end, column = min(found, key=lambda f: f[:2])
    if column is None:
        column = indent + 4 if before.rstrip().endswith((";", "{", "}", ":", "*/", ")")) or not before.strip() else indent
    rest = " " * column + line[-end:].lstrip()
    return [line[:-end], rest] if len(rest) < len(line) else None


def fix(place):
    """What the rules above do not break, comments and texts, clang-format does."""
    lines = place.read_text().split("\n")
    k = 0
    while k < len(lines):
        parts = break_line(lines[k], lines[k - 1] if k else "") if len(lines[k]) > width else None
        lines[k:k + 1] = parts or [lines[k]]
        k += 0 if parts else 1
    if "\n".join(lines) != place.read_text():
        place.write_text("\n".join(lines))
    for _ in range(3): # a comment or a text may not fit after the first time
        left = too_wide(place.read_text())
        if left and tool:
            subprocess.run([tool, "-i", "--style=file", *(f"--lines={k}:{k}" for k in left), str(place)], check=True)


# What clang-format takes for something else: bodies of macros, rows of tables, names of ours that C++ has as operators.
foreign = re.compile(r"\\\s*$|TREK_R\(|__VA_ARGS__|^\s*#|^\s*[A-Z0-9_]+\(|\bnot\b|sizeof \(|\)~|\)\(\)|^(?!.*/\*).*\*/")


def is_ours(old, new, before, after, line):
    """Whether a replacement is one that this check asks for."""
    if foreign.search(line):
        return False
    if old in ("", " ") and new in ("", " "):
        pointer_or_product = re.search(r"[\w)\]]$", before) and re.match(r"[*&]", after) or before.endswith("*")
        return not (pointer_or_product or after.startswith(")") and before.endswith(";"))
    if after.startswith("/*"): # comments stand where their writer put them
        return False
    return old.startswith("\n") and not (old + new).strip() and old.count("\n") == new.count("\n") and before.endswith(";")


def is_plain_c(place):
    source = place.read_bytes()
    return b"std::" not in source and b"constexpr" not in source # C++ has other habits


def differences(places, plain):
    """Of some files at once: clang-format takes longer to start than to read one."""
    said = subprocess.run([tool, f"--style=file:{plain}", "--output-replacements-xml", *map(str, places)], capture_output=True)
    answers = said.stdout.split(b"<?xml")[1:]
    if len(answers) != len(places):
        return [f"clang-format has answered for {len(answers)} of {len(places)} files: {said.stderr.decode(errors='replace')[:300]}"]
    return [line for place, answer in zip(places, answers) for line in differences_of(place, b"<?xml" + answer)]


def differences_of(place, answer):
    source, found = place.read_bytes(), []
    for one in xml.fromstring(answer).findall("replacement"):
        at, length = int(one.get("offset")), int(one.get("length"))
        old, new = source[at:at + length].decode(), one.text or ""
        end = at + length
        first = source.rfind(b"\n", 0, end) + 1
        last = source.find(b"\n", end)
        line = source[first:last if last >= 0 else len(source)].decode()
        before, after = source[max(0, at - 100):at].decode(errors="replace"), source[end:end + 20].decode(errors="replace")
        in_comment = source.count(b"/*", 0, end) > source.count(b"*/", 0, end)
        if not in_comment and is_ours(old, new, before, after, line):
            found.append(f"{place.relative_to(root)}:{source.count(newline, 0, end) + 1}: spaces: {line.strip()[:100]}")
    return found


def main():
    if "--fix" in sys.argv:
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(fix, sources()))
    failures, files = [], list(sources())
    for place in files:
        failures += [f"{place.relative_to(root)}:{k}: wider than {width} columns" for k in too_wide(place.read_text())]
    if tool:
        with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            plain = pathlib.Path(folder) / "style"
            plain.write_text(style.replace(f"ColumnLimit: {width}", "ColumnLimit: 0").replace("SortIncludes: true", "SortIncludes: Never"))
            looked_at = [f for f in files if f.suffix in (".c", ".h") and is_plain_c(f)]
            batches = [looked_at[k:k + 40] for k in range(0, len(looked_at), 40)]
            for found in pool.map(lambda batch: differences(batch, plain), batches):
                failures += found
    if len(files) < 200:
        failures.append(f"only {len(files)} sources were found: is this check reading the tree?")
    print("\n".join(failures) or f"{len(files)} sources" + ("" if tool else "; without clang-format: their width alone"))
    if failures:
        print(f"{len(failures)} in all; tests/checks/check_format.py . --fix breaks what is too wide")
    return bool(failures)


sys.exit(main())
