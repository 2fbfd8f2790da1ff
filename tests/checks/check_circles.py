#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Inside a folder, too, files call downwards: those that call each other in a circle are listed here, with the reason.

Usage: check_circles.py <libtrek.a>
"""
import re
import subprocess
import sys

CIRCLES = {
    # an op makes tensors, and copying a tensor is an op; backends are its kernels; an op asks pages for what it reads
    "tensor": ["backend cpu_backend cpu_optim_update device_memory infer infer_fp8 infer_fused infer_nn infer_order infer_recurrent infer_resample op overlap pages plugin ranges storage "
               "tensor types view"],
    # the derivative of an op is made of ops; a variable holds the node that holds variables
    "autograd": ["apply arithmetic autocast composite composite_fused composite_recurrent engine engine_leaves engine_rules functional functional_scatter grid_sample groups "
                 "pointwise rules rules_embedding rules_fused rules_math rules_nn rules_order rules_recurrent rules_shape slice_grad", "tape var"],
    # a weight is made by modules, and a module's forward has its weights made
    "nn": ["forward parametrize"],
    "data": [],
    "optim": [],
    "graph": [],
    "onnx": [],
    "monitor": [],
    # the thread drives communicators, which give it work; what cannot be sent ends a group, and its end is sent
    "distributed": ["comm_async_async comm_async_async_call comm_async_channel comm_async_thread", "control_end control_process_state control_wire"],
}


def symbols():
    """(object, kind, name) of all that the library's objects define and use."""
    for line in subprocess.run(["nm", "-A", sys.argv[1]], capture_output=True, text=True, check=True).stdout.splitlines():
        found = re.match(r".*?:(\w+)\.c\.o:\s*[0-9a-f]*\s+(\w) (\S+)$", line)
        if found:
            yield found.groups()


def reached(calls, start):
    seen, left = set(), [start]
    while left:
        for callee in calls.get(left.pop(), ()):
            if callee not in seen:
                seen.add(callee)
                left.append(callee)
    return seen


def circles(room, defined, used):
    """Sets of files of a room that reach each other."""
    calls = {}
    for caller, name in used:
        callee = defined.get(name)
        if callee and callee != caller and caller.startswith(room + "_") and callee.startswith(room + "_"):
            calls.setdefault(caller, set()).add(callee)
    reach = {caller: reached(calls, caller) for caller in calls}
    return {frozenset(b for b in reach[a] if a in reach.get(b, ())) for a in reach if a in reach[a]}


defined, used = {}, set()
for place, kind, name in symbols():
    if kind == "U":
        used.add((place, name))
    elif kind.isupper():
        defined[name] = place
failures = []
for room, known in CIRCLES.items():
    found = {" ".join(sorted(name[len(room) + 1:] for name in circle)) for circle in circles(room, defined, used)}
    failures += [f"{room}/: a circle that is not listed: {circle}" for circle in sorted(found - set(known))]
    failures += [f"{room}/: no longer a circle, to be struck out: {circle}" for circle in sorted(set(known) - found)]
if len(defined) < 500:
    failures.append(f"only {len(defined)} symbols were found: is this the library?")
print("\n".join(failures) or f"{len(defined)} symbols, {sum(map(len, CIRCLES.values()))} circles, all known")
sys.exit(bool(failures))
