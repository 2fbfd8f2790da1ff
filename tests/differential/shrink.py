# SPDX-License-Identifier: Apache-2.0
"""Makes a failing case smaller, as long as it fails in the same way."""
import copy
import math
import time

from draw import FLOATS


def is_ref(value):
    return isinstance(value, dict) and "tensor" in value


def refit(t):
    """Listed values for a shape that has changed."""
    if isinstance(t["values"], list):
        n = math.prod(t["shape"])
        old = t["values"] or [0]
        t["values"] = [old[k % len(old)] for k in range(n)]


def simpler_plan(case):
    plain = {"second": False, "twice": False, "retain": False, "seed_grad": False, "seed_layout": False, "write": False, "create": False,
             "way": "leaf", "head": "seed"}
    for key, value in plain.items():
        if case["plan"][key] != value:
            new = copy.deepcopy(case)
            new["plan"][key] = value
            if key == "create":
                new["plan"]["second"] = False
            yield new
    if case["plan"]["head"] == "mean":
        new = copy.deepcopy(case)
        new["plan"]["head"] = "sum"
        yield new


def simpler_tensors(case):
    for k, t in enumerate(case["tensors"]):
        for key, value in (("layout", None), ("way", None), ("own", True), ("grad", False)):
            if t[key] != value:
                new = copy.deepcopy(case)
                new["tensors"][k][key] = value
                yield new
        if t["layout"]:
            n = len(t["shape"])
            for key, value in (("order", list(range(n))), ("step", [1] * n), ("before", [0] * n), ("after", [0] * n), ("expand", [False] * n),
                               ("flip", [False] * n)):
                if t["layout"][key] != value:
                    new = copy.deepcopy(case)
                    new["tensors"][k]["layout"][key] = value
                    yield new
        if t["dtype"] in FLOATS and isinstance(t["values"], dict):
            for kind in ("zeros", "same", "grid", "positive", "normal"):
                if t["values"]["draw"] == kind:
                    break
                new = copy.deepcopy(case)
                new["tensors"][k]["values"]["draw"] = kind
                yield new
    for dtype in ("f64", "bf16", "f16", "i64", "i32", "u8", "bool"):
        if dtype in FLOATS and any(t["dtype"] == dtype for t in case["tensors"]):
            new = copy.deepcopy(case)
            for t in new["tensors"]:
                t["dtype"] = "f32" if t["dtype"] == dtype else t["dtype"]
            yield new


def smaller_shapes(case):
    tensors = case["tensors"]
    if any(isinstance(t["shape"], list) and len(t["shape"]) > 1 for t in tensors):
        new = copy.deepcopy(case)  # no leading dimension
        most = max(len(t["shape"]) for t in tensors)
        for t in new["tensors"]:
            if len(t["shape"]) == most:
                t["shape"], t["layout"] = t["shape"][1:], None
                refit(t)
        yield new
    for size in sorted({s for t in tensors for s in t["shape"] if s > 0}, reverse=True):
        for less in sorted({0, 1, 2, size // 2, size - 1}):
            if less >= size:
                continue
            new = copy.deepcopy(case)
            for t in new["tensors"]:
                t["shape"] = [less if s == size else s for s in t["shape"]]
                if isinstance(t["values"], list):
                    t["values"] = [min(v, less - 1) if v == size - 1 and less else v for v in t["values"]]
                refit(t)
            for name, value in new["args"].items():
                if isinstance(value, list) and name == "shape":
                    new["args"][name] = [less if s == size else s for s in value]
            yield new
    for k, t in enumerate(tensors):  # one tensor alone
        for d, size in enumerate(t["shape"]):
            for less in (1, size - 1):
                if 0 <= less < size:
                    new = copy.deepcopy(case)
                    new["tensors"][k]["shape"][d] = less
                    refit(new["tensors"][k])
                    yield new


def simpler_arguments(case):
    for name, value in case["args"].items():
        options = []
        if isinstance(value, bool):
            options = [False]
        elif isinstance(value, float):
            options = [0.0, 1.0, 2.0]
        elif isinstance(value, int):
            options = [0, 1]
        elif is_ref(value) and name in ("bias", "weight", "mask", "running_mean"):
            options = [None]
        elif isinstance(value, dict) and not is_ref(value):
            options = [None] + [{**value, k: type(v)() if not isinstance(v, list) else [0] * len(v)} for k, v in value.items() if v and not is_ref(v)]
            options += [{**value, k: None} for k, v in value.items() if is_ref(v)]
        elif name == "device":
            continue
        elif isinstance(value, list) and value and not is_ref(value[0]):
            options = [[], value[:1]]
        elif isinstance(value, list) and len(value) > 1:
            options = [value[:1], value[:-1]]
        for option in options:
            if option == value and type(option) is type(value):
                break
            new = copy.deepcopy(case)
            new["args"][name] = option
            yield new


def without_unused(case):
    """Drops tensors that no argument names."""
    used, new = [], copy.deepcopy(case)

    def walk(value):
        if is_ref(value):
            if value["tensor"] not in used:
                used.append(value["tensor"])
        elif isinstance(value, dict):
            for v in value.values():
                walk(v)
        elif isinstance(value, list):
            for v in value:
                walk(v)

    def rename(value):
        if is_ref(value):
            return {"tensor": used.index(value["tensor"])}
        if isinstance(value, dict):
            return {k: rename(v) for k, v in value.items()}
        return [rename(v) for v in value] if isinstance(value, list) else value

    walk(new["args"])
    new["args"] = rename(new["args"])
    new["tensors"] = [new["tensors"][k] for k in used]
    return new


def candidates(case):
    """Simpler calls of an op."""
    for kind in (simpler_plan, smaller_shapes, simpler_arguments, simpler_tensors):
        yield from map(without_unused, kind(case))


def shrink(case, simpler, fails, seconds=20):
    """The smallest form found for which `fails` holds."""
    end, progress = time.time() + seconds, True
    while progress and time.time() < end:
        progress = False
        for candidate in simpler(case):
            if time.time() > end:
                break
            if fails(candidate):
                case, progress = candidate, True
                break
    return case
