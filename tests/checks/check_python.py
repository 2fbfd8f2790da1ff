#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python and C of docs/python.md run, one piece after another, each section in a folder of its own. The Python of a section is one program,
which goes on where it left off; a piece of C is a function with an open scope. A section whose packages are not there, or that asks for what this
library was built without, is passed over and named.
    usage: check_python.py <source root> <libtrek.so>      (needs numpy; more with safetensors, torch, tokenizers, onnxruntime)"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

root, library = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
os.environ.update(TREK_LIBRARY=str(library), TOKENIZERS_PARALLELISM="false")
AROUND = """#include <stdio.h>
#include <string.h>
#include <trek/trek.h>

int main(void)
{
    trek_scope scope = trek_scope_begin();
    {
%s    }
    trek_scope_end(scope);
    if (trek_error_status() != TREK_OK)
        fprintf(stderr, "%%s: %%s\\n", trek_status_name(trek_error_status()), trek_error());
    return trek_error_status() == TREK_ERR_UNSUPPORTED ? 77 : trek_error_status() != TREK_OK;
}
"""


class Missing(Exception):
    """What a section needs and is not there."""


def run_c(code, place):
    include = place / "include"
    include.mkdir(exist_ok=True)
    if not (include / "trek").exists():
        (include / "trek").symlink_to(root, target_is_directory=True)
    (place / "piece.c").write_text(AROUND % code)
    subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-Wall", "-Werror", f"-I{include}", f"-I{root}", "piece.c", "-o", "piece", str(library),
                    f"-Wl,-rpath,{library.parent}"], cwd=place, check=True)
    done = subprocess.run(["./piece"], cwd=place, stderr=subprocess.PIPE, text=True, timeout=60)
    if done.returncode == 77:
        raise Missing(done.stderr.strip())
    assert done.returncode == 0, f"a piece of C ended with {done.returncode}: {done.stderr}"


def run_section(text, place):
    """Runs its pieces in order; how many there were."""
    pieces, names = re.findall(r"^```(c|python)\n(.*?)^```", text, re.S | re.M), {}
    os.chdir(place)
    for language, code in pieces:
        if language == "c":
            run_c(code, place)
            continue
        try:
            exec(compile(code, "docs/python.md", "exec"), names)
        except ModuleNotFoundError as error:
            raise Missing(str(error)) from error
    return len(pieces)


def main():
    sections = re.split(r"^## ", (root / "docs/python.md").read_text(), flags=re.M)[1:]
    ran, failures = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number, text in enumerate(sections):
            title, place = text.split("\n", 1)[0], pathlib.Path(folder) / str(number)
            place.mkdir()
            try:
                run_section(text, place)
                ran.append(title)
            except Missing as why:
                print(f"passed over: {title}: {why}")
            except Exception as error:  # whatever a piece raises
                failures.append(f"docs/python.md, {title}: {type(error).__name__}: {error}")
        os.chdir(root)
    if len(ran) < 2 and not failures:
        failures.append(f"only {len(ran)} sections of {len(sections)} ran")
    print("\n".join(failures) or f"{len(ran)} of {len(sections)} sections ran: {', '.join(ran)}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
