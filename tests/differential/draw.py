# SPDX-License-Identifier: Apache-2.0
"""Draws a call: inputs by what a parameter is called and of which type it is, so that a function that is
new is drawn as well; functions whose inputs have to fit each other have a drawing of their own (SHAPED).

A case is plain data (lists, numbers, strings), so that it can be printed, made smaller and run again:
  name      the function without `trek_`
  tensors   [{dtype, shape, values, layout, own, grad, way} or None]
  args      by the names of the parameters; a tensor is {"tensor": its place in tensors}
  plan      how gradients are taken"""
import math

import numpy
import torch

from headers import ZERO
from trek import DTYPES, FLOATS, headers

INTEGERS = ("i64", "i32", "u8")
LIMITS = {"i64": 2**63 - 1, "i32": 2**31 - 1, "u8": 255, "bool": 1}


class Draw:
    def __init__(self, rng):
        self.rng = rng
        self.tensors = []
        self.pointwise = False
        self.bad = rng.random() < 0.05  # something about the call may be wrong

    # --- numbers -----------------------------------------------------------------------

    def chance(self, p):
        return self.rng.random() < p

    def pick(self, *of):
        return of[int(self.rng.random() * len(of))]

    def size(self, zero=0.05):
        if self.chance(zero):
            return 0
        return self.pick(1, 1, 2, 2, 3, 3, 4, 5, 5, 7, 8) if self.chance(0.95) else self.pick(9, 15, 16, 17, 31, 33, 65)

    def shape(self, low=0, high=5, limit=800):
        if self.chance(0.02) and low <= 1 <= high:
            return [self.pick(100, 257, 1000, 1025, 4099)]
        n = min(max(self.pick(0, 1, 1, 2, 2, 2, 3, 3, 4, 5), low), high)
        sizes = [self.size() for _ in range(n)]
        while math.prod(sizes) > limit:
            sizes[sizes.index(max(sizes))] = self.pick(1, 2, 3)
        return sizes

    def broadcast(self, shape):
        """A shape that broadcasts with `shape`, mostly."""
        if self.chance(0.5):
            return list(shape)
        made = [1 if self.chance(0.3) else size for size in shape]
        made = made[self.rng.randrange(len(made) + 1):] if self.chance(0.5) else made
        if self.chance(0.2) and len(made) < 5:
            made = [self.pick(1, 2, 3)] + made
        if self.bad and made and self.chance(0.5):
            made[-1] += 1
        return made

    def expandable(self, shape):
        """A shape that x may have instead of `shape` when the other one has it: some sizes 1."""
        return [1 if self.chance(0.15) else size for size in shape] if self.chance(0.4) else list(shape)

    def dim(self, n, more=0):
        span = max(n + more, 1)
        if self.bad and self.chance(0.3):
            return self.pick(span, -span - 1, span + 3)
        return self.rng.randrange(-span, span)

    def dims(self, n):
        if n == 0 or self.chance(0.35):
            return []
        made = self.rng.sample(range(n), self.rng.randrange(1, n + 1))
        if self.bad and self.chance(0.3):
            made[0] = self.pick(n, -n - 1, made[-1])
        return [d - n if self.chance(0.3) else d for d in made][:8]

    def number(self):
        return self.pick(0.0, 1.0, -1.0, 2.0, 3.0, 0.5, -0.5, 2.5, -2.0, 0.1, 1e-3, 7.0, 100.0) if self.chance(0.93) else \
            self.pick(math.inf, -math.inf, math.nan, 1e10, 1e38, -0.0, 2.0**53 + 1, 1e-40)

    def integer(self):
        return self.rng.randrange(-6, 9)

    # --- tensors -----------------------------------------------------------------------

    def dtype(self, of=None):
        if of:
            return self.pick(*of)
        r = self.rng.random()
        return "f32" if r < 0.42 else "f64" if r < 0.57 else "bf16" if r < 0.68 else "f16" if r < 0.79 else \
            "i64" if r < 0.86 else "i32" if r < 0.9 else "u8" if r < 0.95 else "bool"

    def float_dtype(self):
        return self.pick("f32", "f32", "f32", "f64", "f64", "bf16", "bf16", "f16")

    def companion(self, dtype):
        """The dtype of an input beside one of `dtype`."""
        return dtype if self.chance(0.72) else self.dtype()

    def layout(self, n):
        if n == 0 or self.chance(0.5):
            return None
        order = list(range(n))
        made = {"order": order, "step": [1] * n, "before": [0] * n, "after": [0] * n, "expand": [False] * n, "flip": [False] * n}
        if self.chance(0.6):
            self.rng.shuffle(order)
        for d in range(n):
            if self.chance(0.25):
                made["before"][d] = self.pick(0, 1, 2)
                made["after"][d] = self.pick(0, 1, 3)
            if self.chance(0.12):
                made["step"][d] = self.pick(2, 3)
            if self.chance(0.1):
                made["expand"][d] = True
            elif self.chance(0.06):
                made["flip"][d] = True
        return made

    def values(self, dtype):
        seed = self.rng.getrandbits(32)
        if dtype in FLOATS:
            r = self.rng.random()
            kind = "normal" if r < 0.5 else "grid" if r < 0.74 else ("extreme" if self.pointwise else "special") if r < 0.77 else "special" if r < 0.82 else "wide" if r < 0.87 else \
                "positive" if r < 0.94 else "zeros" if r < 0.96 else "same"
        else:
            kind = "small" if self.chance(0.85) else "limits"
        return {"draw": kind, "seed": seed}

    def tensor(self, dtype, shape, kinds=None, plain=False, grad=None):
        """Adds a tensor; gives its reference."""
        made = {"dtype": dtype, "shape": list(shape), "values": self.values(dtype), "layout": None if plain else self.layout(len(shape)),
                "own": self.chance(0.7), "grad": bool(dtype in FLOATS and self.chance(0.65)) if grad is None else grad, "way": None}
        if kinds:
            made["values"]["draw"] = self.pick(*kinds)
        if made["grad"] and self.chance(0.12):
            made["way"] = self.pick("scale", "turn")
        self.tensors.append(made)
        return {"tensor": len(self.tensors) - 1}

    def indices(self, shape, limit, dtypes=("i64", "i64", "i32", "u8"), floor=0):
        low, high = (floor, limit) if not self.bad or self.chance(0.5) else (floor - 1, limit + 2)
        dtype = self.dtype(dtypes)
        values = [self.rng.randrange(max(low, 0) if dtype == "u8" else low, max(high, 1)) for _ in range(math.prod(shape))]
        ref = self.tensor(dtype, shape)
        self.tensors[ref["tensor"]]["values"] = values
        return ref

    def shape_of(self, ref):
        return self.tensors[ref["tensor"]]["shape"]


def fill(kind, seed, dtype, shape):
    """The numbers of a draw, as a contiguous torch tensor."""
    rng, n = numpy.random.Generator(numpy.random.PCG64(seed)), math.prod(shape)
    if dtype in FLOATS:
        real = DTYPES[dtype]
        if kind == "normal":
            made = rng.standard_normal(n)
        elif kind == "grid":
            made = rng.integers(-4, 5, n) / 2
        elif kind == "wide":
            made = rng.standard_normal(n) * 10.0 ** rng.integers(-3, 4, n)
        elif kind == "positive":
            made = numpy.abs(rng.standard_normal(n)) + 0.1
        elif kind == "unit":
            made = rng.random(n)
        elif kind == "zeros":
            made = numpy.zeros(n)
        elif kind == "same":
            made = numpy.full(n, float(rng.choice([1.0, 2.0, -1.0, 100.1, 0.1])))
        else:  # special
            info = torch.finfo(real)
            few = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 0.5, 30.0, -30.0]
            if kind == "extreme":
                few += [info.max, -info.max, info.tiny, -info.tiny, info.tiny / 4]
            usual = rng.standard_normal(n)
            made = numpy.where(rng.random(n) < 0.35, rng.choice(few, n), usual)
        return torch.from_numpy(made).to(real).reshape(shape)
    top = LIMITS[dtype]
    if dtype == "bool":
        made = rng.integers(0, 2, n)
    elif kind == "limits":
        few = [top, top - 1, 0, 1, 2] + ([-top - 1, -1, 2**53 + 1 if dtype == "i64" else 2**24 + 1] if dtype != "u8" else [128])
        made = numpy.array([few[k] for k in rng.integers(0, len(few), n)], dtype=numpy.int64)
    else:
        made = rng.integers(0 if dtype == "u8" else -4, 5, n)
    return torch.from_numpy(numpy.ascontiguousarray(made, dtype=numpy.int64)).to(DTYPES[dtype]).reshape(shape)


# --- calls ---------------------------------------------------------------------------------------


def generic(d, function):
    """Arguments by the types and names of the parameters."""
    args, first = {}, None
    for kind, name in function.params:
        n = len(first) if first is not None else 0
        if kind == "trek_var *" and first is None:
            dtype, first = d.dtype(), d.shape()
            if name == "condition":
                args[name] = d.tensor("bool" if d.chance(0.95) else d.dtype(), d.broadcast(first))
            else:
                args[name] = d.tensor(dtype, d.expandable(first))
        elif kind == "trek_var *":
            if name == "mask":
                args[name] = d.tensor("bool" if d.chance(0.95) else d.dtype(), d.broadcast(first))
            elif name in ("target", "branch"):
                args[name] = d.tensor(d.companion(dtype), d.shape_of(args[function.params[0][1]]) if d.chance(0.9) else d.broadcast(first),
                                      kinds=("unit", "normal", "grid", "zeros") if d.chance(0.8) else None)
            elif d.chance(0.05) and "x" in args:
                args[name] = args["x"]
            else:
                args[name] = d.tensor(d.companion(dtype), d.broadcast(first))
        elif kind == "trek_dims_list":
            args[name] = d.dims(n)
        elif kind == "bool":
            args[name] = d.chance(0.5)
        elif kind == "double":
            args[name] = d.number()
        elif kind == "int":
            args[name] = d.dim(n, 1 if function.name == "trek_unsqueeze" else 0)
        elif kind == "int64_t":
            args[name] = d.integer()
        elif kind == "trek_var * *":  # more results
            continue
        elif kind in headers.enums:
            args[name] = d.pick(*headers.enums[kind].values())
        else:
            raise NotImplementedError(kind)
    return args


SHAPED = {}


def shaped(*names):
    def note(function):
        for name in names:
            SHAPED[name] = function
        return function
    return note


def each_said(opts):
    """With a padding for each dimension: what is left out behind another is refused, and here it is the one before."""
    for name in ("padding", "output_padding"):
        numbers = opts.get(name)
        for d in range(1, len(numbers) if isinstance(numbers, list) else 0):
            numbers[d] = numbers[d] or numbers[d - 1]
    return opts


def draw_case(rng, function, pointwise):
    """A case of the function."""
    d = Draw(rng)
    d.name = function.name[5:]
    d.shared, d.pointwise = None, pointwise
    args = SHAPED[d.name](d) if d.name in SHAPED else generic(d, function)
    if isinstance(args.get("opts"), dict):
        each_said(args["opts"])
    if d.chance(0.1):  # gradients for everything: the usual way of training
        for t in d.tensors:
            t["grad"] = t["dtype"] in FLOATS and not d.name.endswith("_") and t["grad"] is not None and "running" not in str(t.get("role"))
    if any(t["dtype"] not in FLOATS for t in d.tensors):  # beyond their range the meaning of a number is C's
        args = {k: 2.0 if isinstance(v, float) and math.isfinite(v) and abs(v) > 2**54 else v for k, v in args.items()}
    create = d.chance(0.45)
    plan = {"head": d.pick("seed", "seed", "sum", "mean"), "way": d.pick("leaf", "leaf", "grad"), "create": create, "retain": d.chance(0.2),
            "second": create and d.chance(0.8), "twice": d.chance(0.1), "seed_grad": create and d.chance(0.3), "seed": rng.getrandbits(32),
            "seed_layout": d.chance(0.3), "write": d.chance(0.7), "shared": d.shared}
    for ref in ("running_mean", "running_var"):
        if args.get(ref):
            d.tensors[args[ref]["tensor"]]["grad"] = False
    if d.name == "attention" and args["opts"] and args["opts"]["mask"]:
        d.tensors[args["opts"]["mask"]["tensor"]]["grad"] = d.chance(0.4) and d.tensors[args["opts"]["mask"]["tensor"]]["dtype"] in FLOATS
    return {"name": d.name, "tensors": d.tensors, "args": args, "plan": plan}
