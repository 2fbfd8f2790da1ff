#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A header as Doxygen reads it, to standard output: the tree's plain comments become its comments.

* The first comment is the file's.
* One that begins with dashes heads a section (a member group).
* One that belongs to a declaration (tests/checks/declarations.py says which) is the declaration's. Others are not shown.

Usage: doxygen_filter.py HEADER, which is what Doxygen's INPUT_FILTER calls; docs/site/build.py calls filtered().
"""
import pathlib
import re
import sys
import textwrap

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "checks"))
import declarations  # noqa: E402

CODE = re.compile(r"[;{})]$|^\s*(?:if|for|while|else|#)\b")


def escaped(text):
    """Nothing of it is a command of Doxygen; `code` is code."""
    text = re.sub(r'([\\@<>&#%"])', r"\\\1", text)
    return re.sub(r"`([^`\n]+)`", r"<tt>\1</tt>", text)


def body(comment):
    """Its text as Doxygen's: paragraphs, indented code as code, other indented lines each a line."""
    lines = [line.rstrip() for line in comment[2:-2].strip("\n").split("\n")]
    if not any(re.match(r"\s*\*", line) for line in lines[1:]):
        lines = lines[:1] + textwrap.dedent("\n".join(lines[1:])).split("\n")
    lines = [re.sub(r"^\s*\* ?", "", line) for line in lines]
    lines[0] = lines[0].strip()
    shown, k = [], 0
    while k < len(lines):
        run = k
        while run < len(lines) and re.match(r"  +\S", lines[run]) and k:
            run += 1
        if run == k:
            shown.append(re.sub(r"^-(?= )", r"\\-", escaped(lines[k].strip())))
            k += 1
        elif re.match(r"    ", lines[k]) and any(CODE.search(line) for line in lines[k:run]):
            shown += ["", "@code{.c}", *[line[4:] if line.startswith("    ") else line for line in lines[k:run]], "@endcode"]
            k = run
        elif lines[k].startswith("  - "):
            items = re.sub(r"\n +(?![ -])", " ", "\n".join(lines[k:run])).split("\n")
            shown += ["<br>" + escaped(item.strip()) for item in items]
            k = run
        else:
            alone = run == k + 1 and re.match(r"    ", lines[k])
            shown += ["", escaped(lines[k].strip())] if alone else ["<br>" + escaped(line.strip()) for line in lines[k:run]]
            k = run
    return "\n".join(shown).strip("\n")


def section(comment, inside):
    """The head of a member group, which ends the one before."""
    words = escaped(re.sub(r"^[ -]+|[ -]+$", "", comment.words()))
    title = re.match(r"[^.;:\n]*", words)[0].strip()
    rest = words[len(title):].lstrip(".;: \n")
    return ("/** @} */ " if inside else "") + f"/** @name {title}\n{rest}\n@{{ */"


def filtered(text):
    """The header's text with comments of Doxygen."""
    shown, at, inside = "", 0, False
    for comment in declarations.Header(text).comments:
        shown += text[at:comment.start]
        at = comment.end
        if comment.role == "section":
            shown += section(comment, inside)
            inside = True
        else:
            opening = {"file": "/** @file\n", "above": "/** ", "behind": "/**< "}.get(comment.role)
            shown += f"{opening}{body(comment.text)} */" if opening else comment.text
    shown += text[at:]
    return re.sub(r"(\nTREK_END\b(?!.*\nTREK_END\b))", "\n/** @} */\\1", shown, flags=re.S) if inside else shown


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as header:
        sys.stdout.write(filtered(header.read()))
