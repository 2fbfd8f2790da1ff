#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The shared library can be loaded late: by dlopen from a C program and by Python's ctypes, after libraries that have
taken most of what there is of static TLS, before and after NumPy and PyTorch where they are installed.

Usage: check_load.py <source root> <libtrek.so> <load_late> <filler> [plug-in...]
"""
import importlib.util
import os
import struct
import subprocess
import sys

BOUND = 256  # bytes of static TLS that the core may take: all libraries of a process share about 1600
PT_DYNAMIC, PT_TLS, DT_NULL, DT_FLAGS, DF_STATIC_TLS = 2, 7, 0, 30, 0x10


def look(path):
    """Size of the TLS segment, and whether it must be static."""
    with open(path, "rb") as file:
        elf = file.read()
    assert elf[:5] == b"\x7fELF\x02", path
    at, = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    tls, static = 0, False
    for k in range(count):
        kind, _, offset, _, _, in_file, in_memory, _ = struct.unpack_from("<IIQQQQQQ", elf, at + k * size)
        if kind == PT_TLS:
            tls = in_memory
        for place in range(offset, offset + in_file, 16) if kind == PT_DYNAMIC else ():
            tag, value = struct.unpack_from("<QQ", elf, place)
            if tag == DT_NULL:
                break
            static |= tag == DT_FLAGS and bool(value & DF_STATIC_TLS)
    return tls, static


PYTHON = """
import ctypes, sys
for name in sys.argv[1:]:
    if "/" in name:
        library = ctypes.CDLL(name)
        if "trek" in name: trek = library
    else:
        __import__(name)
trek.trek_version.restype = ctypes.c_char_p
assert trek.trek_version(), "no version"
trek.trek_error.restype = ctypes.c_char_p
assert trek.trek_error() == b""
"""


def orders(library, filler):
    """What ctypes is to load, in which order."""
    there = [name for name in ("numpy", "torch") if importlib.util.find_spec(name)]
    yield [library]
    yield [filler, library]
    for name in there:
        yield [name, library]
        yield [library, name]


def main():
    library, program, filler, plugins = sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5:]
    failures = []
    tls, _ = look(library)
    if tls > BOUND:
        failures.append(f"{library}: {tls} bytes of thread-local memory, more than {BOUND}: see tensor/thread_end.h")
    for plugin in plugins:
        if os.path.exists(plugin) and look(plugin)[1]:
            failures.append(f"{plugin}: wants static TLS; plug-ins are loaded late and have -ftls-model=global-dynamic")
    # a sanitizer's runtime has to be there first: such a build is for other tests
    with open(library, "rb") as file:
        sanitized = b"libasan.so" in (text := file.read()) or b"libtsan.so" in text
    commands = [] if sanitized else [[program, library, filler]]
    commands += [] if sanitized else [[sys.executable, "-c", PYTHON, *names] for names in orders(library, filler)]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            failures.append(f"{' '.join(c for c in command if c != PYTHON)}: {done.stdout}{done.stderr}")
    for failure in failures:
        print(failure)
    return bool(failures)


sys.exit(main())
