#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A header as Doxygen reads it, to standard output: the tree's plain comments become its comments.

* The first comment tells of the file.
* One that begins with dashes heads a section (a member group).
* One before a declaration is for it and, as what they were declared with, for those after it without a blank line and without a
  comment of their own.
* One behind a declaration or a field, or indented below it, or at the margin below it with nothing but a blank line after it, is
  for that.

Usage: doxygen_filter.py HEADER, which is what Doxygen's INPUT_FILTER calls; docs/site/build.py calls filtered().
"""
import re
import sys
import textwrap

TOKEN = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*', re.S | re.M)
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
        else:
            alone = run == k + 1 and re.match(r"    ", lines[k])
            shown += ["", escaped(lines[k].strip())] if alone else ["<br>" + escaped(line.strip()) for line in lines[k:run]]
            k = run
    return "\n".join(shown).strip("\n")


def pieces(text):
    """(kind, text) of all of it, in order: comment, directive, code."""
    at = 0
    for token in TOKEN.finditer(text):
        kind = "comment" if token[0].startswith("/*") else "directive" if token[0].lstrip().startswith("#") else None
        if kind:
            if token.start() > at:
                yield "code", text[at:token.start()]
            if kind == "directive" and "/*" in token[0] and not token[0].endswith("\\"):  # with a comment behind it
                start = token[0].index("/*")
                yield kind, token[0][:start]
                end = text.index("*/", token.start()) + 2
                yield "comment", text[token.start() + start:end]
                at = end
                continue
            yield kind, token[0]
            at = token.end()
    yield "code", text[at:]


def declarations(code):
    """Splits code at the ends of declarations and fields, and at braces; the line ends between them stay with what follows."""
    parts, start, depth = [], 0, 0
    for k, c in enumerate(code):
        depth += (c == "(") - (c == ")")
        if depth == 0 and (c in ";{}" or c == ","):
            parts.append(code[start:k + 1])
            start = k + 1
    return parts + [code[start:]]


class Filter:
    """Reads pieces, and writes those declarations that want a comment behind a comment."""

    def __init__(self):
        self.out, self.before, self.shared, self.first, self.in_section, self.told = [], None, None, None, False, False
        self.braces, self.macros = 0, set()

    def code(self, text):
        for part in declarations(text):
            self.declaration(part)

    def declaration(self, part):
        blank = re.search(r"\n[ \t]*\n", part)
        if blank and not self.before:
            self.shared = None
        if not part.strip():
            self.out.append(part)
            return
        named = re.search(r"\(\*(\w+)\)\s*\(", part) or re.search(r"\b(\w+)\s*\(", part) or re.search(r"\b(\w+)\s*[;,{]", part)
        opens, closes = part.endswith("{"), "}" in part
        if closes and not opens:
            self.out.append(part)
        elif self.before:
            lead = re.match(r"\s*", part)[0]
            self.out += [lead, f"/** {self.before} */ ", part[len(lead):]]
            if not self.braces:
                self.shared, self.first = self.before, named and named[1]
            self.before = None
        elif self.shared and not self.braces and re.search(r"TREK_API|^\s*typedef [^{]*\(\*", part) and self.first and self.first.lower().startswith("trek"):
            lead = re.match(r"\s*", part)[0]
            self.out += [lead, ("shared", f"/** With {self.first}: {self.shared} */ "), part[len(lead):]]
        else:
            self.out.append(part)
        self.braces += opens - part.count("}")

    def directive(self, text):
        if self.before and re.match(r"\s*#\s*define\b", text):
            self.out.append(f"/** {self.before} */\n")
            self.shared, self.first = self.before, re.match(r"\s*#\s*define\s+(\w+)", text)[1]
            self.macros.add(self.first)
            self.before = None
        elif self.shared and re.match(r"\s*#\s*define\b", text) and self.first in self.macros:
            self.out.append(f"/** With {self.first}: {self.shared} */\n")
        if not re.match(r"\s*#\s*(define|undef)\b", text):
            self.shared = None
        self.out.append(text)

    def comment(self, text, rest):
        line = self.above(4000).rsplit("\n", 1)[-1]
        heads = re.match(r"/\*\s*-{2,3} ", text)
        if "SPDX" in text:
            self.out.append(text)
        elif not self.told:
            self.told = True
            self.out.append(f"/** @file\n{body(text)} */")
        elif heads and not self.braces:
            self.section(text)
        elif heads:
            self.out.append(" ")
        elif (line.strip() or self.follows(line, rest)) and any(isinstance(p, str) and re.search(r"[;,]", p) for p in self.out[-4:]) or \
                re.search(r"#define|[\w{]\s*$", line):
            self.behind(text)
        else:
            self.before = body(text)

    def above(self, most):
        """The end of what was written."""
        return "".join(part for part in self.out[-40:] if isinstance(part, str))[-most:]

    def follows(self, line, rest):
        """Whether a comment on a line of its own is for what stands above it."""
        joined = re.search(r"[;,]\n$", self.above(4000).rstrip(" "))
        return bool(joined) and not self.braces and (line.strip(" ") == "" and len(line) >= 4 or re.match(r"\n[ \t]*\n", rest))

    def behind(self, text):
        for k in range(len(self.out) - 1, max(len(self.out) - 4, -1), -1):
            if isinstance(self.out[k], tuple):
                self.out[k] = ""  # it has its own, and so do those after it
                self.shared = None
        self.out.append(f"/**< {body(text)} */")

    def section(self, text):
        words = " ".join(line.strip(" *") for line in text[2:-2].split("\n"))
        words = escaped(re.sub(r"^[ -]+|[ -]+$", "", words))
        title = re.match(r"[^.;:\n]*", words)[0].strip()
        rest = words[len(title):].lstrip(".;: \n")
        self.shared = None
        self.out.append(("/** @} */ " if self.in_section else "") + f"/** @name {title}\n{rest}\n@{{ */")
        self.in_section = True

    def text(self):
        done = "".join(part[1] if isinstance(part, tuple) else part for part in self.out)
        return re.sub(r"(\nTREK_END\b(?!.*\nTREK_END\b))", "\n/** @} */\\1", done, flags=re.S) if self.in_section else done


def filtered(text):
    """The header's text with comments of Doxygen."""
    reader, at = Filter(), 0
    for kind, piece in pieces(text):
        at += len(piece)
        if kind == "comment":
            reader.comment(piece, text[at:at + 200])
        else:
            getattr(reader, kind)(piece)
    return reader.text()


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as header:
        sys.stdout.write(filtered(header.read()))
