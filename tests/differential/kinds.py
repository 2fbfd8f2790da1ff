# SPDX-License-Identifier: Apache-2.0
"""The kinds of cases: calls of ops, layers, optimizers and schedules. Each has a part of the public functions, which it
finds in the headers, and knows how to draw, run and describe its cases."""
import importlib

import layers
import ops
import optimizers
import schedules

KINDS = {"op": ops, "layer": layers, "optimizer": optimizers, "schedule": schedules}


def covered(only):
    """{function: kind} of all that are drawn, and complaints about those that nothing covers."""
    places, missing = {}, []
    for name, kind in KINDS.items():
        mine, lost = kind.covered()
        places.update({n: name for n in mine})
        missing += lost
    if only:
        unknown = [n for n in only if n not in places]
        if unknown:
            raise SystemExit(f"no such function: {', '.join(unknown)}")
        return {n: places[n] for n in only}, []
    return places, missing


def draw(rng, places):
    name = rng.choice(list(places))
    case = KINDS[places[name]].draw(rng, name)
    return {"kind": places[name], **case}


def run(lib, case):
    """(complaint or None, whether both sides refused the call)."""
    if case["kind"] == "load":
        return None, False
    return KINDS[case["kind"]].run(lib, case)


def candidates(case):
    """Simpler forms of a case."""
    return KINDS[case["kind"]].candidates(case)


def describe(case):
    return KINDS[case["kind"]].describe(case)


def how(name):
    return next(kind.how(name) for kind in KINDS.values() if name in kind.covered()[0])


def warm():
    """Imports what PyTorch imports late, once for all children."""
    for name in ("torch._refs", "torch._prims_common", "torch._decomp", "torch.optim.lr_scheduler", "torch._dynamo"):
        try:
            importlib.import_module(name)
        except ImportError:
            pass
