#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The C of the README and of docs/ compiles as printed, without warnings; whole programs run, the README's on files in the
format of MNIST.

The examples of docs/snippets.md run, too, and print what a comment behind each call that prints says.

A block without main() is definitions (what begins at the margin with static, typedef or #) and statements, which see the names of
PRELUDE. What else it needs stands in a comment of the page before it: <!-- with: ... -->. One that begins with a dot is fields of
trek_run_opts.

The pages of CORE are those that people read first: their blocks see core.h alone, and their programs include nothing else of trek.

Usage: check_code_blocks.py <source root> <libtrek.so> [<folder of headers>...]
With folders (of an installed trek: check_install.sh) against what they hold, else against the tree's headers.
"""
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile


def write_digits(folder, count=256):
    """Bright bars, whose place is their label."""
    folder.mkdir(parents=True)
    labels = [random.randrange(10) for _ in range(count)]
    images = bytearray()
    for label in labels:
        image = bytearray(784)
        image[label * 78:label * 78 + 40] = b"\xff" * 40
        images += image
    for part in ("train", "t10k"):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 0x803, count, 28, 28) + images)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + bytes(labels))


CORE = ("README.md", "first-model.md", "from-pytorch.md", "graph-or-modules.md", "scopes-and-errors.md")
PRELUDE = """#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trek/{header}.h>
"""
NAMES = """trek_graph *graph, trek_module *model, trek_module *module, trek_loader *loader, trek_dataset *dataset,
    trek_optimizer *optimizer, trek_batch *batch, trek_var *x, trek_var *y, trek_var *logits, trek_var *labels, trek_var *loss,
    trek_var *mean, trek_tensor *tensor, trek_device device, int64_t epoch, int64_t epochs, int64_t steps"""
BLOCK = re.compile(r"(?:^<!-- with:\n(?P<with>.*?)-->\n+)?^```c\n(?P<code>.*?)^```", re.S | re.M)
DEFINITION = re.compile(r"^(?:static|typedef|struct|enum)\b(?:[^;{]*;[^\n]*$|[^;{]*\{[^\n]*\};?$|[^;]*?\{.*?^\}[^\n]*$)|^#[^\n]*$", re.S | re.M)


def unit(code, extra, header):
    """What a block without main() stands in."""
    if code.lstrip().startswith("."):
        code = "trek_run_opts opts = {\n" + code + "};\nprintf(\"%d\", (int)opts.epochs);\n"
    definitions = []
    statements = DEFINITION.sub(lambda m: definitions.append(m.group()) or "", code)
    return PRELUDE.format(header=header) + extra + "\n".join(definitions) + f"\nvoid block({NAMES});\nvoid block({NAMES})\n{{\n{{\n{statements}\n}}\n}}\n"


def header_folders(root, place, given):
    """What is given, or a folder in which the tree is called trek."""
    if given:
        return [f"-I{folder}" for folder in given]
    (place / "include").mkdir()
    (place / "include" / "trek").symlink_to(root, target_is_directory=True)
    return [f"-I{place / 'include'}", f"-I{root}"]


def compiled(text, folders, place, arguments, whole):
    """What the compiler says against it; "" if nothing."""
    source = place / "program.c"
    source.write_text(text)
    warnings = ["-Wall", "-Wpedantic", "-Werror"] + ([] if whole else ["-Wno-unused", "-Wno-override-init", "-Wno-override-init-side-effects"])
    return subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-D_GNU_SOURCE", *warnings, *folders, str(source), *arguments],
                          capture_output=True, text=True).stderr


def try_program(text, folders, library, place, environments):
    """Compiles and runs it in each environment; what is wrong."""
    program = place / "program"
    said = compiled(text, folders, place, ["-o", str(program), str(library), f"-Wl,-rpath,{library.parent}", "-lm"], True)
    for environment in [] if said else environments:
        done = subprocess.run([str(program)], capture_output=True, text=True, cwd=place, env={**os.environ, **environment}, timeout=120)
        if done.returncode:
            said += f"{environment} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return said


SHOWN = re.compile(r'\b(?:trek_var_print|printf)\((?:[^;"]|"[^"]*")*;[^\n]*?/\*(.*?)\*/')


def try_snippets(page, folders, library, place):
    """Compiles the blocks of a page to one program and runs it; what is wrong."""
    blocks = [found["code"] for found in BLOCK.finditer(page.read_text())]
    definitions = []
    bodies = [DEFINITION.sub(lambda m: definitions.append(m.group()) or "" if "(" in m.group().split("{")[0] else m.group(), code) for code in blocks]
    text = PRELUDE.format(header="trek") + "\n".join(definitions) + "".join(f"""
static void block_{k}(void)
{{
    trek_scope scope = trek_scope_begin();
    {{
{code}
    }}
    trek_scope_end(scope);
}}
""" for k, code in enumerate(bodies))
    runs = "".join(f"    block_{k}();\n    printf(\"%s\\n--\\n\", trek_error());\n    trek_error_clear();\n" for k in range(len(blocks)))
    source, program = place / "snippets.c", place / "snippets"
    source.write_text(text + "\nint main(void)\n{\n" + runs + "    return 0;\n}\n")
    done = subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Werror", "-Wno-unused", *folders, str(source), "-o",
                           str(program), str(library), f"-Wl,-rpath,{library.parent}", "-lm"], capture_output=True, text=True, check=False)
    if done.returncode:
        return [f"{page.name}: {done.stderr}"]
    done = subprocess.run([str(program)], capture_output=True, text=True, cwd=place, timeout=120, check=False)
    printed = done.stdout.split("\n--\n")[:-1]
    failures = [] if not done.returncode and len(printed) == len(blocks) else [f"{page.name}: {done.stdout[-300:]}{done.stderr[-300:]}"]
    for code, have in zip(blocks, printed):
        want = "".join(SHOWN.findall(code))
        if "".join(want.split()) != "".join(have.split()):
            failures.append(f"{page.name}, the block that begins {code[:60]!r}: prints {have!r}, its comments say {want!r}")
    return failures


def main():
    root, library = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    failures, programs, blocks = [], 0, 0
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        write_digits(place / "data" / "mnist")
        folders = header_folders(root, place, sys.argv[3:])
        pages = [page for page in sorted((root / "docs").rglob("*.md")) if page.parent.name != "examples"]  # excerpts: check_excerpts.py
        for page in [root / "README.md", *pages]:
            ways = [{}, {"TREK_DEVICES": "cpu:0,cpu:1"}, {"TREK_DEBUG": "1"}] if page.name == "README.md" else [{}]
            for found in BLOCK.finditer(page.read_text()):
                code, whole, header = found["code"], "int main(" in found["code"], "core" if page.name in CORE else "trek"
                if whole and f"#include <trek/{header}.h>" not in code and header == "core":
                    failures.append(f"{page.name} is one of the first pages: its programs include <trek/core.h>")
                programs, blocks = programs + whole, blocks + 1
                said = try_program(code, folders, library, place, ways) if whole else compiled(unit(code, found["with"] or "", header), folders, place,
                                                                                               ["-fsyntax-only"], False)
                if said:
                    failures.append(f"{page.name}, the block that begins {code[:60]!r}:\n{said}")
        failures += try_snippets(root / "docs" / "snippets.md", folders, library, place)
    if not programs:
        failures.append("no C program was found")
    print("\n".join(failures) or f"{blocks} blocks of C, {programs} of them programs that run")
    return bool(failures)


sys.exit(main())
