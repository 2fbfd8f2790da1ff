#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A public function that returns NULL has set an error, unless its declaration says when it returns NULL without one. Every function
whose parameters can be made up is called with objects that are right, and with numbers, names and choices that mostly are not.

Usage: check_nulls.py <source root> <libtrek.so>
"""
import ctypes
import itertools
import os
import pathlib
import re
import sys
import tempfile

root = pathlib.Path(sys.argv[1]).resolve()
library = pathlib.Path(sys.argv[2]).resolve()
sys.path[:0] = [str(root / "tests/differential"), str(root / "tests/checks")]
import headers  # noqa: E402
import public  # noqa: E402

MOST = 12  # calls of a function
SAYS_SO = re.compile(r"NULL without an error|or NULL (if|when)|[Rr]eturns NULL (if|when|for)")
declared = headers.Headers()
left = [str(h.relative_to(root)) for h in public.headers(root)]
while left:  # one whose structs need another's comes after it
    unread = []
    for name in left:
        try:
            declared.read(name)
        except (headers.Unknown, AttributeError, KeyError):  # a struct that nothing here makes
            unread.append(name)
    left = unread if len(unread) < len(left) else []
structs, enums = declared.structs, declared.enums


def choices(kind):
    """(type, value) of what a parameter gets; a value may be a function that makes it. None: it cannot be made up."""
    kind = kind.replace("const ", "").strip()
    if kind in ("int", "int64_t", "uint64_t", "uint32_t", "size_t"):
        return [(ctypes.c_int64, v) for v in (-1, 0, 7)]
    if kind in enums:
        return [(ctypes.c_int, 99)]
    if kind in structs:
        return [(structs[kind], lambda lib: structs[kind]())]
    if kind.endswith("_opts *"):
        return [(ctypes.c_void_p, None)]
    return {"double": [(ctypes.c_double, -1.0), (ctypes.c_double, 0.5)], "bool": [(ctypes.c_bool, False)], "char *": [(ctypes.c_char_p, b"nothing")],
            "trek_module *": [(ctypes.c_void_p, linear)], "trek_flow *": [(ctypes.c_void_p, flow)], "trek_var *": [(ctypes.c_void_p, var)],
            "trek_graph *": [(ctypes.c_void_p, lambda lib: call(lib, "trek_flow_build", (ctypes.c_void_p, flow(lib))))],
            "trek_tensor *": [(ctypes.c_void_p, tensor)], "trek_state *": [(ctypes.c_void_p, lambda lib: call(lib, "trek_state_new"))]}.get(kind)


def call(lib, name, *arguments, result=ctypes.c_void_p):
    function = getattr(lib, name)
    function.restype, function.argtypes = result, [kind for kind, _ in arguments]
    return function(*(value for _, value in arguments))


def linear(lib):
    return call(lib, "trek_nn_linear", (ctypes.c_int64, 3), (ctypes.c_int64, 2), (structs["trek_device"], structs["trek_device"]()))


def flow(lib):
    return call(lib, "trek_flow_from", (ctypes.c_void_p, linear(lib)))


def tensor(lib):
    shape = structs["trek_shape"](ndim=2)
    shape.sizes[0], shape.sizes[1] = 2, 3
    return call(lib, "trek_tensor_ones", (structs["trek_shape"], shape), (ctypes.c_int, enums["trek_dtype"]["TREK_F32"]),
                (structs["trek_device"], structs["trek_device"]()))


def var(lib):
    return call(lib, "trek_var_from", (ctypes.c_void_p, tensor(lib)))


def silent(function, parameters):
    """In a process of its own: whether a call gives NULL and no error. Ends the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    lib = ctypes.CDLL(str(library))
    call(lib, "trek_scope_begin", result=structs["trek_scope"])
    for combination in itertools.islice(itertools.product(*parameters), MOST):
        call(lib, "trek_error_clear", result=None)
        made = [(kind, value(lib) if callable(value) else value) for kind, value in combination]
        if call(lib, "trek_error_status", result=ctypes.c_int) != 0:
            os._exit(3)
        if call(lib, function.name, *made) is None and call(lib, "trek_error_status", result=ctypes.c_int) == 0:
            os._exit(2)
    os._exit(0)


def comment_of(function):
    text = headers.text_of(function.header)
    before = text[:text.index(f"{function.name}(")] if f" {function.name}(" not in text and f"*{function.name}(" not in text else \
        text[:re.search(r"TREK_API[^;]*?\b%s\(" % function.name, text).start()]
    return " ".join(before[before.rindex("/*"):].replace("\n *", " ").split())


checked = failed = 0
elsewhere = tempfile.TemporaryDirectory()  # what some functions write
os.chdir(elsewhere.name)
for function in declared.functions.values():
    parameters = [choices(kind) for kind, _ in function.params]
    if not function.result.endswith("*") or None in parameters:
        continue
    child = os.fork()
    if child == 0:
        silent(function, parameters)
    status = os.waitpid(child, 0)[1]
    checked += 1
    if os.WIFSIGNALED(status) or os.WEXITSTATUS(status) not in (0, 2):
        failed += 1
        print(f"{function.header}: {function.name}: a call ends the program or cannot be prepared ({status})")
    elif os.WEXITSTATUS(status) == 2 and not SAYS_SO.search(comment_of(function)):
        failed += 1
        print(f"{function.header}: {function.name} returns NULL without an error, of which its comment says nothing")
print(f"{checked} functions called")
os.chdir(root)
elsewhere.cleanup()
sys.exit(1 if failed or checked < 300 else 0)
