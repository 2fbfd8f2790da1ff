#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The C programs of the README compile as printed, without warnings, and train, on files in the format of MNIST.

Usage: check_readme.py <source root> <libtrek.so>
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
    (folder / "train-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 0x803, count, 28, 28) + images)
    (folder / "train-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + bytes(labels))


def try_program(text, root, library, place, environment):
    source, program = place / "program.c", place / "program"
    source.write_text(text)
    include = place / "include"
    if not include.exists():
        include.mkdir()
        (include / "trek").symlink_to(root, target_is_directory=True)
    command = [os.environ.get("CC", "cc"), "-std=c11", "-Wall", "-Wpedantic", "-Werror", f"-I{include}", f"-I{root}", str(source), "-o",
               str(program), str(library), f"-Wl,-rpath,{library.parent}"]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode:
        return built.stderr
    done = subprocess.run([str(program)], capture_output=True, text=True, cwd=place, env={**os.environ, **environment}, timeout=120)
    return f"ended with {done.returncode}: {done.stdout}{done.stderr}" if done.returncode else ""


def main():
    root, library = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    blocks = re.findall(r"^```c\n(.*?)^```", (root / "README.md").read_text(), flags=re.S | re.M)
    programs = [block for block in blocks if "int main(" in block]
    failures = [] if programs else ["README.md: no C program was found"]
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        write_digits(place / "data" / "mnist")
        for number, text in enumerate(programs):
            for environment in ({}, {"TREK_DEVICES": "cpu:0,cpu:1"}, {"TREK_DEBUG": "1"}):
                said = try_program(text, root, library, place, environment)
                if said:
                    failures.append(f"README.md, program {number + 1} {environment}: {said}")
                    break
    print("\n".join(failures) or f"{len(programs)} program(s) of the README run as printed")
    return bool(failures)


sys.exit(main())
