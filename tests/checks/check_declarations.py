#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Comments of public headers: each declaration has one of its own, directly above it (a field also behind it), whose first
sentence says what it does, in words that a reader of English as a second language knows. Arguments: options are passed by
pointer, a count stands behind its array, and a capacity is called so. Enumerators begin with the name of their type.

Usage: check_declarations.py <source root> [<header>...]

Without headers all are read.
"""
import pathlib
import re
import sys

import declarations
import public

# What the words of a comment may not be, and what to write. Names in code (with an underscore) are not looked at.
DIALECT = [
    (r"(?<!thing )\belse\b", "write 'otherwise'"),
    (r"\b(?:is|are|there is|there are) none\b", "say what is missing: 'if x has no ...'"),
    (r"^Of ", "begin with what it does, as a whole sentence"),
    (r"\b(?:The same|Likewise)\b(?! \w+ (?:as|of)\b)(?! (?:as|shape|dtype|device|number|size|length|value)\b)", "say wholly what it does; name the other function where the details are equal"),
    (r"^(?:As|Like) (?:trek|torch)", "begin with what it does; then 'as torch.x does'"),
    (r"\bof NULL\b", "write 'if x is NULL'"),
    (r"\bNULL in\b", "write 'Returns NULL if an input is NULL'"),
    (r"\b(?:of|over) nothing\b", "write 'of an empty tensor' or 'over no elements'"),
    (r"\b(?:what|all|as many as) there (?:is|are)\b", "name it"),
    (r"\b(?:is|are|was|were) (?:not )?there(?=[\s,.;:)])", "write 'exists' or 'is available'"),
    (r"\banew\b", "write 'again'"),
    (r"\bbut for\b", "write 'except'"),
    (r"\bbeside\b", "write 'with', 'next to' or 'in addition to'"),
    (r"\bin place of\b", "write 'instead of'"),
    (r"\bwaited for\b|\bwaits for (?:a|the) GPU\b", "write 'synchronises with the GPU'"),
    (r"\btold\b", "write 'reported', 'said' or 'informed'"),
    (r"(?<!there )\bis no (?!longer|more)\w+", "write 'is not a ...'"),
    (r"\b(?:not )?to be had\b|\bbe (?:they|it)\b|\ball the same\b|\bwhichever\b|\bone's own\b|\bin turns\b", "say it plainly"),
    (r"\b(?:rooms?|lobby|door|newcomer|nudge)\b", "write 'capacity', 'folder' or the field's word"),
    (r"\bon the way\b", "write 'intermediate'"),
    (r"\bso many\b", "name the number"),
    (r"\b(?<!decimal )places\b", "write 'indices', 'positions' or 'elements'"),
    (r"\bpresent (?:scope|thread|device|rank|process)\b", "write 'current'"),
    (r"\b(?:ARGUMENT|SHAPE|DTYPE|STATE|DEVICE|MEMORY|UNSUPPORTED|SCOPE|PEER|TIMEOUT|IO|NAME|FORMAT): ", "write 'Fails with ARGUMENT if ...'"),
    (r"[a-z,;.] {2,}[a-z(]", "two blanks between words"),
    (r" $", "a blank at the end"),
]
DIALECT = [(re.compile(pattern), hint) for pattern, hint in DIALECT]
STRUNG = (re.compile(r"(?:^|[.!?] )[^.!?]*;[^.!?;]*;"), "at most one semicolon in a sentence: write sentences, or a list")  # not of a field
NOT_VERBS = {"As", "Its", "Is", "This", "Has", "Whether", "Gradients", "Sums", "Means", "Places", "Parts", "Elements", "Values", "Bits", "Rows", "Losses",
             "Pairs", "Windows", "Slices", "Samples", "Channels", "Bytes", "Samples", "Names", "Results", "Options", "Devices", "Weights", "Indices",
             "Always", "Was", "Does", "Numbers", "Powers", "Errors", "Statistics"}
SHORT = {"trek_dtype", "trek_status", "trek_device_type"}  # everybody writes their values all the time: TREK_F32, TREK_OK, TREK_CPU
ENDS = re.compile(r"[.:]$")


def sentences(comment):
    """The words of a comment without code in backquotes and without indented examples."""
    lines = [re.sub(r"^\s*\* ?", "", line) for line in comment.text[2:-2].split("\n")]
    told, listed = [], False
    for line in lines:
        item = re.match(r" +- ", line)
        listed = bool(item) or listed and line.startswith("    ")
        if listed or not line.startswith("    "):  # others are code
            told.append(". " + line.strip(" -;") if item else line)
    text = " ".join(line.strip() if re.search(r"\S", line) else "." for line in told).strip()
    return re.sub(r"`[^`]*`", "`code`", re.sub(r"\.(?=\d)|\b(?:e\.g|i\.e|et al)\.|\.\.\.?(?=[\s,\])])|\btorch(?:\.\w+)+|\w\.(?=\w)", "·", text))


class Check:
    """Faults of a header."""

    def __init__(self, header, name):
        self.header, self.name, self.faults, self.seen = header, name, [], set()
        for declaration in header.declarations:
            self.declaration(declaration)
            for member in declaration.fields:
                if member.kind == "field":
                    self.field(member, declaration)
        of_fields = [member.comment for d in header.declarations for member in d.fields]
        for comment in header.comments:
            if comment.role != "licence":
                self.words(comment, DIALECT if comment in of_fields else [*DIALECT, STRUNG])

    def fault(self, at, text):
        line = self.header.line(at)
        self.faults.append((line, f"{self.name}:{line}: {text}"))

    def declaration(self, d):
        if d.kind == "macro" and (d.name in self.seen or d.name in ("TREK_API", "TREK_PRINTF", "TREK_BEGIN", "TREK_END") or
                                  re.search(r"^[ \t]*#\s*undef\s+" + d.name + r"\b", self.header.text, re.M)):
            return
        again = d.name in self.seen and d.kind in ("function", "opaque")  # another form of it, in another language
        self.seen.add(d.name)
        if again:
            return
        if d.kind == "function":
            self.arguments(d)
        if d.kind == "enum":
            self.enumerators(d)
        if d.kind != "macro" and re.match(r"[^(;{]*\n[^(;{]*[(;]", d.code) and not re.match(r"template\b", d.code):
            self.fault(d.start, f"{d.name}: the line breaks between its type and its name")
        if not d.comment:
            self.fault(d.start, f"{d.name}: it has no comment of its own directly above it")
            return
        text = sentences(d.comment)
        first = re.match(r"\w+", text)
        if not ENDS.search(text):
            self.fault(d.comment.start, f"{d.name}: its comment does not end a sentence")
        if not re.match(r"[A-Z0-9`\"({X]", text) and not text.startswith("trek"):
            self.fault(d.comment.start, f"{d.name}: its comment does not begin with a capital letter")
        elif d.kind == "function" and not (first and re.fullmatch(r"[A-Z][a-z]+s", first[0]) and first[0] not in NOT_VERBS):
            self.fault(d.comment.start, f"{d.name}: its comment does not begin with a verb in the third person (Returns, Computes, Writes, ...)")

    def arguments(self, d):
        params = [" ".join(part.split()) for part in re.sub(r"^[^(]*\(|\)[^)]*$", "", d.code).split(",")]
        arrays = [bool(re.search(r"const \*|^const \w+ \*", part)) and not re.search(r"_opts \*", part) for part in params]
        for k, part in enumerate(params):
            if re.match(r"(?:const )?trek_\w+_opts \w", part):
                self.fault(d.start, f"{d.name}: '{part}': options are passed by pointer")
            if re.match(r"(?:int|int64_t|size_t) room$", part):
                self.fault(d.start, f"{d.name}: '{part}': call it capacity")
            if re.match(r"(?:int|int64_t|size_t) n(?:dim|_\w+)?$", part) and arrays[k + 1:k + 2] == [True] and not (k and arrays[k - 1]):
                self.fault(d.start, f"{d.name}: '{part}': a count stands behind its array")

    def enumerators(self, d):
        if re.search(r"\benum\b\s*\{", d.code) and not d.code.startswith("typedef"):
            return  # constants without a type
        for value in d.fields:
            if d.name not in SHORT and not value.name.startswith(d.name.upper() + "_"):
                self.fault(value.start, f"{d.name}: '{value.name}': an enumerator begins with the name of its type: {d.name.upper()}_...")

    def field(self, member, of):
        if "\n" in re.sub(r"\([^()]*\)|\{.*\}", "", member.code, flags=re.S).rstrip():
            self.fault(member.start, f"{of.name}.{member.name}: the line breaks between its type and its name")
        if re.search(r",", re.sub(r"\([^()]*\)|\{.*\}", "", member.code, flags=re.S)):
            self.fault(member.start, f"{of.name}.{member.name}: declare one field at a time, each with its comment")
        elif not member.comment and "{" not in member.code:
            self.fault(member.start, f"{of.name}.{member.name}: it has no comment, behind it or directly above it")
        elif member.comment and member.comment.text.count("\n") > 2:
            self.fault(member.comment.start, f"{of.name}.{member.name}: its comment has more than three lines")

    def words(self, comment, patterns):
        text = sentences(comment)
        for pattern, hint in patterns:
            for match in pattern.finditer(text):
                line = comment.start + max(0, comment.text.find(match[0].split(" ")[0].strip("·.")))
                self.fault(line, f"'{match[0].strip()[-60:]}': {hint}")
        if comment.text.count("\n") and not comment.text.rsplit("\n", 1)[1].strip(" *\t/"):
            self.fault(comment.end - 1, "the end of a comment stands on a line of its own")


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    given = [str(pathlib.Path(name)) for name in sys.argv[2:]]
    names = [str(path.relative_to(root)) for path in public.headers(root)]
    failures = [f"{name}: no public header" for name in given if name not in names]
    checked = 0
    for name in names:
        if given and name not in given:
            continue
        header = declarations.Header((root / name).read_text())
        faults = [text for _, text in sorted(Check(header, name).faults)]
        failures += faults
        checked += len(header.declarations)
    print("\n".join(failures) or f"{checked} declarations")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
