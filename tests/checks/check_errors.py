#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Messages of errors have one form: "function: argument: what it was; what is allowed". The text of each trek_fail begins with the
name of the function as its caller knows it, without "trek_", or with a "%s" that holds it, and says what it says in plain words.
A text that is "%s" alone, or "%s; ...", hands on an error that has this form already.

Usage: check_errors.py <source root>
"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
FOLDERS = ["tensor", "autograd", "nn", "data", "optim", "graph", "onnx", "distributed", "monitor", "tools"]
LITERAL = r'"(?:[^"\\\n]|\\.)*"'
TEXT = re.compile(rf'{LITERAL}(?:\s*(?:PRI\w+\s*)?{LITERAL})*')
CALL = re.compile(r"\b(trek_fail(?:_null|_after)?|trek_transform_refused)\s*\(")
BEGINNING = re.compile(r"(?:backward of %s|out of memory(?: on cuda:%d)?|%s/%s|rank %d|%s|[a-zA-Z][\w.]*(?: (?:%s|\w+))?)(?:\(%s\))?: |"
                       r"%(?:\.\d+)?s(?:$|%s$|; )")
PREFIXED = re.compile(r"(?:^|\(\"|, )trek_\w+: ")
# What is no plain English, or is told better: "is not a scalar", "otherwise", "does not exist", "is not available".
DIALECT = re.compile(r"\b(?<!there )(?:is|are) no (?!longer)|\bis none\b|\bof none\b|\belse\b|\bfor dead\b|\bstood still\b|\bgoodbye\b|"
                     r"\bwants\b|\bin place of\b|\bis taken\b|\b(?:was|is|are) not there\b|\bleft out\b|\bbeside\b|"
                     r"\b(?<!writing in )place(?:s|\b)|\b(?:there are|it has) none\b|\bmust stay\b|\b(?:dtypes?|images|rows|f32|derivatives) alone\b|"
                     r"\bonce more\b|\banew\b|\bnewcomers?\b|\bcannot take it\b|\bto be had\b|\bso many\b|\bgoes? on\b|\broom for\b")


def arguments(code, start):
    """The arguments of a call from behind its bracket, as text."""
    depth, found, k, begin = 0, [], start, start
    while True:
        c = code[k]
        if c in "\"'":
            k += 1
            while code[k] != c:
                k += 2 if code[k] == "\\" else 1
        elif c in "([{":
            depth += 1
        elif c in ")]}" and depth:
            depth -= 1
        elif c == ")" or c == "," and not depth:
            found.append(code[begin:k].strip())
            begin = k + 1
            if c == ")":
                return found
        k += 1


def texts(path):
    """(line, text) of each call whose text is written where it is called."""
    code = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group()), path.read_text(), flags=re.S)
    for call in CALL.finditer(code):
        if code[:call.start()].rpartition("\n")[2].lstrip().startswith(("#", "trek_status trek_fail")):
            continue
        for argument in arguments(code, call.end()):
            if TEXT.match(argument):
                whole = re.sub(r'"\s*PRI\w+\s*"', "d", argument)
                yield code.count("\n", 0, call.start()) + 1, "".join(part[1:-1] for part in re.findall(LITERAL, whole))
                break


failures, n = [], 0
for folder in FOLDERS:
    for path in sorted((root / folder).rglob("*")):
        if path.suffix not in (".c", ".h", ".cu", ".cuh", ".cc"):
            continue
        for line, text in texts(path):
            n += 1
            where = f"{path.relative_to(root)}:{line}"
            if not BEGINNING.match(text):
                failures.append(f"{where}: {text!r} does not begin with a function: name: argument: value; what is allowed")
            if PREFIXED.match(text):
                failures.append(f"{where}: {text!r}: the function is named without trek_")
            if dialect := DIALECT.search(text):
                failures.append(f"{where}: {text!r}: {dialect.group()!r} can be said plainly")
if n < 100:
    failures.append(f"only {n} texts were found: is this check reading the tree?")
print("\n".join(failures) or f"{n} errors")
sys.exit(bool(failures))
