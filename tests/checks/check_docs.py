#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the pages name is there: paths and links, and functions, types and variables that begin with trek_ or TREK_. The changelog may
name what is gone. Loops that train, in pages and examples, end at an error: what they would print after it is no result. A page of docs/
begins with whom it is for, and the words of pages are those of comments (check_declarations.py). The programs of docs/three-programs.md
are as long as its table says, and those in C at most half as long again as those in Python.

Usage: check_docs.py <source root>
"""
import pathlib
import re
import sys

import check_declarations

root = pathlib.Path(sys.argv[1])
skipped = re.compile(r"^(build|\.)")
files = {}
for place in root.rglob("*"):
    parts = place.relative_to(root).parts
    if not any(skipped.match(p) and p not in (".ci", ".clang-format", ".clang-tidy") for p in parts) and "__pycache__" not in parts:
        files["/" + "/".join(parts)] = place
sources = [p for p in files.values() if p.suffix in (".c", ".h", ".cc", ".cu", ".cuh", ".def", ".py", ".sh", ".build", ".txt") and p.is_file()]
words = {w for p in sources for w in re.findall(rb"\b(?:trek|TREK)_\w+", p.read_bytes())}
words = {w.decode() for w in words}


def is_there(path):
    """A file or folder, by the end of its path; with wildcards, one at least."""
    pattern = re.escape("/" + re.sub(r"^(\.\./)+", "", path).strip("/")).replace(r"\*", r"[^/]*") + "$"
    return any(re.search(pattern, name) for name in files)


def named(page):
    """(line, what is wrong) of a page."""
    in_code = False
    for number, line in enumerate(page.read_text().split("\n"), 1):
        in_code ^= line.startswith("```")
        for link in re.findall(r"\]\(([^)#:]+)\)", line):
            if not (page.parent / link).exists():
                yield number, f"the link {link} leads nowhere"
        for code in [] if in_code else re.findall(r"`([^`]+)`", line):
            for name in re.findall(r"\b(?:trek|TREK)_\w+", code):
                if name not in words and not name.endswith("_") and not re.match(r"(?i)trek_x\b|trek_x_", name):
                    yield number, f"there is no {name}"
            if re.fullmatch(r"[\w.*-]+(/[\w.*-]+)*/?", code) and ("/" in code or re.search(r"\.(c|h|md|py|sh|def|cu|cuh)$", code)):
                if not re.search(r"[A-Z]{3}", re.sub(r"\b[A-Z]+\.md", "", code)) and not code.startswith(("logs/", "bench.md", "gpu-PART")) and not is_there(code):
                    yield number, f"there is no {code}"


def training(page):
    """(line, what is wrong) of its loops over epochs or steps."""
    text = page.read_text()
    for loop in re.finditer(r"^( *)for \([^;\n]*;[^;\n]*\b(?:epoch|step)\w* <.*\{\n(?:.*\n)*?\1\}", text, re.M):
        if re.search(r"backward\(|train_batch\(", loop[0]) and "trek_error_status()" not in loop[0]:
            yield text[:loop.start()].count("\n") + 1, "a loop that trains goes on after an error"


NOT_OF_PAGES = ("The same", "else", "places", "present", "ARGUMENT", "is no", r" $", "{2,}")  # parts of patterns that serve comments only
DIALECT = [(pattern, hint) for pattern, hint in check_declarations.DIALECT if not any(part in pattern.pattern for part in NOT_OF_PAGES)]


def prose(page):
    """(line, what is wrong) of its words; pages of the lab keep theirs."""
    place = page.relative_to(root).parts
    if place[0] == "docs" and "lab" not in place and page.name not in ("index.md", "README.md") and "This page is for" not in page.read_text()[:400]:
        yield 1, "it does not begin with whom it is for ('This page is for ...')"
    text = re.sub(r"^```.*?^```", lambda m: "\n" * m[0].count("\n"), page.read_text(), flags=re.S | re.M) if "lab" not in place else ""
    text = re.sub(r"`[^`\n]*`", lambda m: "`" + "·" * (len(m[0]) - 2) + "`", text)
    for pattern, hint in DIALECT:
        for match in pattern.finditer(text):
            yield text.count("\n", 0, match.start()) + 1, f"'{match[0]}': {hint}"


ERROR_PRINT = re.compile(r"^ *if \(trek_error_status\(\) != TREK_OK\)\n *fprintf\(stderr, [^\n]*\n", re.M)


def compared(page):
    """(line, what is wrong) of the table of a page that has pairs of programs, in C and in Python, each pair below its own heading."""
    text = page.read_text()
    rows = {row[2]: row for row in re.finditer(r"^\| \[([^]]+)\]\(#([\w-]+)\) \| (.*) \|$", text, re.M)}
    for title, section in re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", text, re.M):
        pair = [re.findall(rf"^```{language}\n(.*?)^```", section, re.S | re.M) for language in ("c", "python")]
        row = rows.pop(re.sub(r"[^\w-]", "", title.lower().replace(" ", "-")), None)
        if [len(programs) for programs in pair] != [1, 1] or row is None:
            yield text[:text.index(section)].count("\n"), f"'{title}' is not a program in C and one in Python with a row in the table"
            continue
        lines = [[line for line in ERROR_PRINT.sub("", programs[0]).split("\n") if line.strip()] for programs in pair]
        have = f"{len(lines[0])} | {len(lines[1])} | {len(lines[0]) / len(lines[1]):.2f}"
        number = text[:row.start()].count("\n") + 1
        if row[3] != have:
            yield number, f"the table says {row[3]}; counted are {have}"
        if len(lines[0]) > 1.5 * len(lines[1]):
            yield number, f"'{title}': the program in C is more than half as long again as the one in Python"
        for line in lines[0] + lines[1]:
            if len(line) > 130 or re.match(r" *(#(?!include)|/\*)", line):
                yield number, f"'{title}': a line wider than 130 columns or a comment, which the counts do not allow: {line}"
    for anchor in rows:
        yield 1, f"the table has a row #{anchor}, the page no such programs"
    if text.count("```c\n") != 3:
        yield 1, "it does not have three programs in C"


pages = sorted(p for p in files.values() if p.suffix == ".md" and p.name != "CHANGELOG.md")
failures = [f"{page.relative_to(root)}:{number}: {what}" for page in pages for look in (named, prose) for number, what in look(page)]
programs = sorted((root / "examples").glob("*.[ch]")) + pages
failures += [f"{program.relative_to(root)}:{number}: {what}" for program in programs for number, what in training(program)]
three = root / "docs" / "three-programs.md"
failures += [f"{three.relative_to(root)}:{number}: {what}" for number, what in compared(three)]
if len(pages) < 20:
    failures.append(f"only {len(pages)} pages were found: is this check reading the tree?")
print("\n".join(failures) or f"{len(pages)} pages")
sys.exit(bool(failures))
