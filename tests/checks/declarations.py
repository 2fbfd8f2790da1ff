# SPDX-License-Identifier: Apache-2.0
"""Reads a header's declarations and the comment of each. The reference (docs/site) and check_declarations.py share this reader.

A comment belongs to a declaration if it stands directly above it: it begins and ends on lines of its own, at the margin, with no
blank line between. The comment of a field or of an enumerator may also stand behind it, on its line. No other comment belongs to
a declaration.
"""
import re
from dataclasses import dataclass, field

TOKEN = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
LINKAGE = re.compile(r"^(?:TREK_BEGIN|TREK_END)\b", re.M)


@dataclass
class Comment:
    start: int
    end: int
    text: str
    role: str = ""  # licence, file, section, above, behind; "": it belongs to nothing

    def words(self):
        """Its text on one line."""
        return " ".join(line.strip(" *\t") for line in self.text[2:-2].split("\n")).strip()


@dataclass
class Declaration:
    kind: str  # function, type, opaque, enum, variable, macro, field, enumerator
    name: str
    start: int
    code: str  # without comments and directives
    comment: Comment = None
    fields: list = field(default_factory=list)


def blank(text, spans, letter=" "):
    """The text with these spans blank, line ends aside."""
    shown = list(text)
    for start, end in spans:
        shown[start:end] = [c if c == "\n" else letter for c in shown[start:end]]
    return "".join(shown)


def closing(code, at):
    """The place of the brace that closes the one at `at`."""
    depth = 0
    for k in range(at, len(code)):
        depth += (code[k] == "{") - (code[k] == "}")
        if not depth:
            return k
    raise ValueError("a brace is not closed")


class Header:
    """A header's comments and declarations, in its order."""

    def __init__(self, text):
        self.text = text
        tokens = list(TOKEN.finditer(text))
        self.comments = [Comment(t.start(), t.end(), t[0]) for t in tokens if t[0].startswith("/*")]
        code = blank(text, [(c.start, c.end) for c in self.comments])
        code = blank(code, [t.span() for t in tokens if not t[0].startswith("/*")], "0")
        directives = list(DIRECTIVE.finditer(code))
        self.code = blank(code, [d.span() for d in directives] + [m.span() for m in LINKAGE.finditer(code)])
        self.heads()
        self.declarations = self.scan(0, len(self.code)) + [d for d in map(self.macro, directives) if d]
        self.declarations.sort(key=lambda d: d.start)

    def heads(self):
        """Roles of the comments that belong to no declaration: the licence, the file's, sections'."""
        told = False
        for comment in self.comments:
            if "SPDX" in comment.text:
                comment.role = "licence"
            elif not told:
                comment.role, told = "file", True
            elif re.match(r"/\*\s*-{2,3} ", comment.text) and self.column(comment.start) == 0:
                comment.role = "section"

    def column(self, at):
        return at - (self.text.rfind("\n", 0, at) + 1)

    def line(self, at):
        return self.text.count("\n", 0, at) + 1

    def alone(self, comment):
        return not self.text[comment.start - self.column(comment.start):comment.start].strip()

    def attached(self, start, end=None, margin=False):
        """The comment of what stands from start to end; with an end one behind it is taken, too."""
        for comment in self.comments:
            if comment.role:
                continue
            between = self.text[comment.end:start] if comment.end <= start else None
            if between is not None and not between.strip() and between.count("\n") == 1 and self.alone(comment) and \
                    not (margin and self.column(comment.start)):
                comment.role = "above"
                return comment
            if end is not None and comment.start >= end and re.fullmatch(r"[ \t]*,?[ \t]*", self.text[end:comment.start]):
                comment.role = "behind"
                return comment
        return None

    def macro(self, directive):
        match = re.match(r"\s*#\s*define\s+(\w+)", directive[0])
        if not match or re.search(r"_H$", match[1]):
            return None
        return Declaration("macro", match[1], directive.start(), directive[0], self.attached(directive.start(), margin=True))

    def scan(self, at, end):
        """Declarations outside of braces."""
        found = []
        while True:
            at += len(self.code[at:end]) - len(self.code[at:end].lstrip())
            if at >= end:
                return found
            start, depth, body = at, 0, None
            while at < end:
                c = self.code[at]
                depth += (c == "(") - (c == ")")
                if c == "{" and not depth:
                    close = closing(self.code, at)
                    aggregate = re.match(r"[^(]*\b(struct|union|enum)\b[^(]*$", self.code[start:at])
                    body = (at + 1, close, aggregate[1]) if aggregate else None
                    at = close
                    if not aggregate:
                        break
                elif c == ";" and not depth:
                    break
                at += 1
            at += 1
            found.append(self.declaration(start, at, body))

    def declaration(self, start, end, body):
        code = self.code[start:end]
        comment = self.attached(start, margin=True)
        if body:
            name = re.search(r"(\w+)\s*;$", code) or re.search(r"\b(?:struct|union|enum)\s+(\w+)", code)
            made = Declaration("enum" if body[2] == "enum" else "type", name[1] if name else "", start, code, comment)
            made.fields = self.enumerators(*body[:2]) if body[2] == "enum" else self.members(*body[:2])
            return made
        pointer = re.search(r"^typedef\b[^(]*\(\s*\*\s*(\w+)\s*\)", code)
        if pointer:
            return Declaration("type", pointer[1], start, code, comment)
        called = re.search(r"\b(\w+)\s*\((?!\()", code)
        if called and not code.startswith("typedef"):
            return Declaration("function", called[1], start, code, comment)
        name = re.search(r"(\w+)\s*(?:\[[^]]*\]\s*)*(?:=[^;]*)?;$", code)
        kind = "opaque" if re.match(r"typedef struct (\w+) \1;|struct \w+;", code) else "type" if code.startswith("typedef") else "variable"
        return Declaration(kind, name[1] if name else "", start, code, comment)

    def members(self, at, end):
        """Fields of a struct or union; what stands in a nested one comes before it."""
        found = []
        while True:
            at += len(self.code[at:end]) - len(self.code[at:end].lstrip())
            if at >= end:
                return found
            start, depth = at, 0
            while at < end and (self.code[at] != ";" or depth):
                depth += (self.code[at] == "(") - (self.code[at] == ")")
                if self.code[at] == "{":
                    close = closing(self.code, at)
                    found += self.members(at + 1, close)
                    at = close
                at += 1
            at += 1
            code = self.code[start:at]
            name = re.search(r"\(\s*\*\s*(\w+)\s*\)", code) or re.search(r"(\w+)\s*(?:\[[^]]*\]\s*)*;$", code)
            found.append(Declaration("field", name[1] if name else "", start, code, self.attached(start, at)))

    def enumerators(self, at, end):
        return [Declaration("enumerator", m[1], at + m.start(1), m[1], self.attached(at + m.start(1), at + m.end()))
                for m in re.finditer(r"\b([A-Z]\w+)\b[^,{}]*", self.code[at:end])]
