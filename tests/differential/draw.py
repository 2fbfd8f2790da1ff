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


@shaped("reshape")
def draw_reshape(d):
    shape = d.shape()
    x = d.tensor(d.dtype(), shape)
    rest, made = math.prod(shape), []
    for _ in range(d.rng.randrange(0, 4)):
        parts = [k for k in (1, 2, 3, 4, 5, 7) if rest and rest % k == 0] or [1, 2]
        made.append(d.pick(*parts))
        rest //= made[-1]
    made.append(rest)
    if d.chance(0.3):
        made[d.rng.randrange(len(made))] = -1
    if d.bad:
        made = made[:-1]
    return {"x": x, "shape": made if made != [1] or d.chance(0.5) else []}


@shaped("flatten")
def draw_flatten(d):
    shape = d.shape()
    return {"x": d.tensor(d.dtype(), shape), "start_dim": d.dim(len(shape)), "end_dim": d.dim(len(shape))}


@shaped("expand")
def draw_expand(d):
    shape = d.shape(0, 4, 100)
    x = d.tensor(d.dtype(), [1 if d.chance(0.4) else size for size in shape])
    made = [d.pick(1, 2, 3) for _ in range(d.pick(0, 0, 1))] + [-1 if d.chance(0.2) else size for size in shape]
    return {"x": x, "shape": made}


@shaped("permute")
def draw_permute(d):
    shape = d.shape()
    order = list(range(len(shape)))
    d.rng.shuffle(order)
    if d.bad and order:
        order[0] = order[-1]
    return {"x": d.tensor(d.dtype(), shape), "dims": [k - len(shape) if d.chance(0.2) else k for k in order]}


@shaped("narrow")
def draw_narrow(d):
    shape = d.shape(0 if d.bad else 1)
    dim = d.dim(len(shape))
    size = shape[dim] if -len(shape) <= dim < len(shape) else 3
    start = d.rng.randrange(0, size + 1)
    length = d.rng.randrange(0, size - start + 1)
    if d.bad:
        start, length = d.pick(start, -1, size + 1, -size), d.pick(length, -1, size + 1)
    elif d.chance(0.1) and start < size:
        start -= size
    return {"x": d.tensor(d.dtype(), shape), "dim": dim, "start": start, "length": length}


@shaped("select")
def draw_select(d):
    shape = d.shape(0 if d.bad else 1)
    dim = d.dim(len(shape))
    size = shape[dim] if -len(shape) <= dim < len(shape) else 3
    index = d.rng.randrange(-size, max(size, 1)) if not d.bad else d.pick(size, -size - 1)
    return {"x": d.tensor(d.dtype(), shape), "dim": dim, "index": index}


@shaped("to")
def draw_to(d):
    return {"x": d.tensor(d.dtype(), d.shape()), "device": [1, d.pick(0, 1, 3)]}


@shaped("cat", "stack")
def draw_list(d):
    shape, dtype = d.shape(1), d.dtype()
    dim, parts = d.dim(len(shape)), []
    for _ in range(d.pick(1, 2, 2, 3, 5)):
        own = list(shape)
        if d.name == "cat" and -len(shape) <= dim < len(shape):
            own[dim] = d.size(0.1)
        elif d.bad and d.chance(0.5):
            own[0] += 1
        parts.append(parts[0] if parts and d.chance(0.05) else d.tensor(d.companion(dtype), own))
    if d.name == "cat" and d.chance(0.03):
        parts.append(d.tensor(dtype, [0]))
    return {"list": parts, "dim": dim}


@shaped("split", "chunk", "split_sections")
def draw_parts(d):
    shape = d.shape(1)
    numbers = {"split": "size", "chunk": "chunks", "split_sections": "sections"}
    return {"x": d.tensor(d.dtype(), shape), numbers[d.name]: d.rng.randrange(0 if d.bad else 1, 6), "dim": d.dim(len(shape))}


@shaped("unbind")
def draw_unbind(d):
    shape = d.shape(1)
    return {"x": d.tensor(d.dtype(), shape), "dim": d.dim(len(shape))}


@shaped("index_select")
def draw_index_select(d):
    shape = d.shape(1)
    dim = d.dim(len(shape))
    size = shape[dim] if -len(shape) <= dim < len(shape) else 3
    x = d.tensor(d.dtype(), shape)
    return {"x": x, "index": d.indices([d.size(0.1) if size else 0], size), "dim": dim}


@shaped("index_add")
def draw_index_add(d):
    shape, dtype = d.shape(1), d.dtype()
    dim = d.dim(len(shape))
    at = dim if -len(shape) <= dim < len(shape) else 0
    count = d.size(0.1) if shape[at] else 0
    source = list(shape)
    source[at] = count
    return {"x": d.tensor(dtype, shape), "index": d.indices([count], shape[at], ("i64", "i64", "i32")),
            "source": d.tensor(d.companion(dtype) if d.bad else dtype, source), "dim": dim}


@shaped("gather", "scatter_add")
def draw_gather(d):
    shape, dtype = d.shape(1), d.dtype()
    dim = d.dim(len(shape))
    at = dim % len(shape) if -len(shape) <= dim < len(shape) else 0
    index = [size if d.chance(0.6) else d.rng.randrange(0, size + 1) for size in shape]
    index[at] = d.size(0.1) if shape[at] else 0
    x = d.tensor(dtype, shape)
    ref = d.indices(index, shape[at], ("i64", "i64", "i32"))
    if d.name == "gather":
        return {"x": x, "index": ref, "dim": dim}
    source = [size + (d.pick(0, 0, 1)) for size in index]
    return {"x": x, "index": ref, "source": d.tensor(d.companion(dtype) if d.bad else dtype, source), "dim": dim}


# --- order and places ------------------------------------------------------------------------------------------


@shaped("topk", "kthvalue")
def draw_topk(d):
    shape = d.shape()
    dim = d.dim(len(shape))
    size = (shape[dim] if -len(shape) <= dim < len(shape) else 3) if shape else 1
    k = d.rng.randrange(0 if d.name == "topk" else min(1, size), size + 1) if not d.bad else d.pick(-1, 0, size, size + 1)
    rest = {"largest": d.chance(0.6)} if d.name == "topk" else {"keepdim": d.chance(0.5)}
    return {"x": d.tensor(d.dtype(), shape), "k": 1 if not shape and not d.bad else k, "dim": dim, **rest}


@shaped("quantile")
def draw_quantile(d):
    shape, dtype = d.shape(), d.pick("f32", "f32", "f64", "f64", d.float_dtype())  # no two equal: PyTorch's sort there is not stable
    q = d.tensor(dtype if d.chance(0.95) else d.float_dtype(), d.pick([], [], [1], [3]), kinds=("unit", "unit", "zeros") if not d.bad else None)
    return {"x": d.tensor(dtype, shape, kinds=("normal", "positive"), plain=True), "q": q, "dim": d.dim(len(shape)), "keepdim": d.chance(0.5), "interpolation": d.pick(0, 0, 1, 2, 3, 4)}


def sorted_values(d, dtype, shape):
    """A tensor of sorted lines."""
    n, width = math.prod(shape), shape[-1] if shape else 1
    low = 0 if dtype == "u8" else -4
    values = [v / 2 if dtype in FLOATS else v for _ in range(n // width if width else 0) for v in sorted(d.rng.randrange(low, 9) for _ in range(width))]
    ref = d.tensor(dtype, shape, grad=False)
    d.tensors[ref["tensor"]].update(values=values, layout=None)
    return ref


@shaped("searchsorted", "bucketize")
def draw_search(d):
    shape, dtype = d.shape(0, 3), d.dtype()
    lines = shape[:-1] + [d.size()] if shape and d.name == "searchsorted" and d.chance(0.5) else [d.size()]
    if d.bad and d.chance(0.3):
        lines = [lines[0] + 1] + lines
    dtype = "i64" if dtype == "bool" and not d.bad else dtype
    sorted_ref = sorted_values(d, dtype, lines)
    x = d.tensor(dtype if d.chance(0.97) else d.companion(dtype), shape, grad=False)
    return {"sorted": sorted_ref, "x": x, "right": d.chance(0.5)} if d.name == "searchsorted" else {"x": x, "boundaries": sorted_ref, "right": d.chance(0.5)}


def draw_index_space(d):
    """x's shape, a dimension, and an index's shape that fits beside it."""
    shape = d.shape(1)
    dim = d.dim(len(shape))
    at = dim % len(shape)
    index = [d.size() if k == at else d.rng.randrange(1, n + 1) if n and d.chance(0.3) else n for k, n in enumerate(shape)]
    return shape, dim, at, index


@shaped("scatter", "scatter_value", "scatter_reduce")
def draw_scatter(d):
    shape, dim, at, index = draw_index_space(d)
    dtype = d.dtype()
    if d.name != "scatter_reduce" and d.chance(0.7):  # each place once: with several PyTorch's gradients are those of all
        index[at] = min(index[at], 1)
    x, places = d.tensor(dtype, shape), d.indices(index, shape[at], ("i64", "i64", "i32"))
    if d.name == "scatter_value":
        return {"x": x, "index": places, "value": d.number() if dtype in FLOATS else float(d.rng.randrange(0, 9)), "dim": dim}
    source = [n + (1 if d.chance(0.1) else 0) for n in index] if not d.bad else [n + d.pick(0, 1) - d.pick(0, 1) if n else n for n in index]
    rest = {"reduction": d.pick(0, 1, 2, 3, 4), "include_self": d.chance(0.6)} if d.name == "scatter_reduce" else {}
    return {"x": x, "index": places, "source": d.tensor(dtype if d.chance(0.97) else d.companion(dtype), source), "dim": dim, **rest}


@shaped("index_fill")
def draw_index_fill(d):
    shape, dtype = d.shape(1), d.dtype()
    dim = d.dim(len(shape))
    return {"x": d.tensor(dtype, shape), "index": d.indices([d.size()], shape[dim % len(shape)], ("i64", "i64", "i32")),
            "value": d.number() if dtype in FLOATS else float(d.rng.randrange(0, 2)), "dim": dim}


@shaped("index_put")
def draw_index_put(d):
    shape, dtype, accumulate = d.shape(1, 4), d.dtype(), d.chance(0.5)
    count, places = d.rng.randrange(1, len(shape) + 1), d.pick([], [1], [3], [2, 2]) if accumulate else []
    list_ = [d.indices(places if d.chance(0.8) else places[-1:], max(shape[k], 1), ("i64", "i64", "i32"), floor=-shape[k]) for k in range(count)]
    longest = max((d.shape_of(ref) for ref in list_), key=len)
    values = d.expandable(longest + shape[count:])
    return {"x": d.tensor(dtype, shape), "list": list_, "values": d.tensor(dtype if d.chance(0.97) else d.companion(dtype), values), "accumulate": accumulate}


@shaped("masked_select")
def draw_masked_select(d):
    shape = d.shape()
    return {"x": d.tensor(d.dtype(), d.expandable(shape)), "mask": d.tensor("bool" if d.chance(0.97) else d.dtype(), d.broadcast(shape))}


@shaped("bincount")
def draw_bincount(d):
    n = d.size()
    weights = d.tensor(d.pick("f32", "f64", "i64", "i32"), [n + (1 if d.bad and d.chance(0.3) else 0)], grad=False) if d.chance(0.5) else None
    return {"x": d.indices([n], d.pick(1, 3, 9)), "weights": weights, "minlength": d.pick(0, 0, 1, 5, 12, -1 if d.bad else 0)}


@shaped("repeat_interleave", "repeat_interleave_by")
def draw_repeat_interleave(d):
    shape = d.shape(0, 4, 100)
    dim = d.dim(len(shape))
    n = (shape[dim] if -len(shape) <= dim < len(shape) else 3) if shape else 1
    repeats = d.pick(0, 1, 2, 3, -1 if d.bad else 1) if d.name == "repeat_interleave" else d.indices([n], 4, ("i64", "i64", "i32"))
    return {"x": d.tensor(d.dtype(), shape), "repeats": repeats, "dim": dim}


@shaped("repeat", "tile")
def draw_repeat(d):
    shape = d.shape(0, 4, 60)
    n = max(len(shape) + d.pick(0, 0, 0, 1), 0) if not d.bad and d.name == "repeat" else max(len(shape) + d.pick(0, 0, 1, -1), 0)
    return {"x": d.tensor(d.dtype(), shape), "repeats": [d.pick(1, 1, 2, 3, 0, -1 if d.bad else 1) for _ in range(n)]}


@shaped("roll")
def draw_roll(d):
    shape = d.shape(0 if d.bad else 1)
    dims = d.dims(len(shape))
    return {"x": d.tensor(d.dtype(), shape), "shifts": [d.integer() for _ in range(len(dims) or 1)], "dims": dims}


@shaped("movedim")
def draw_movedim(d):
    shape = d.shape()
    source = d.dims(len(shape))
    destination = d.rng.sample(range(len(shape)), len(source)) if not d.bad else d.dims(len(shape))
    return {"x": d.tensor(d.dtype(), shape), "source": source, "destination": destination}


@shaped("diagonal")
def draw_diagonal(d):
    shape = d.shape(0 if d.bad else 2)
    first, second = d.rng.sample(range(max(len(shape), 2)), 2) if not d.bad else (d.dim(len(shape)), d.dim(len(shape)))
    return {"x": d.tensor(d.dtype(), shape), "offset": d.pick(0, 0, 1, -1, 2, -3, 9), "dim1": first - (len(shape) if d.chance(0.3) else 0), "dim2": second}


@shaped("diag")
def draw_diag(d):
    return {"x": d.tensor(d.dtype(), d.shape(0 if d.bad else 1, 3 if d.bad else 2, 60)), "diagonal": d.pick(0, 0, 1, -1, 3, -4)}


@shaped("meshgrid")
def draw_meshgrid(d):
    dtype = d.dtype()
    return {"list": [d.tensor(dtype if d.chance(0.97) else d.companion(dtype), d.pick([], [1], [2], [3], [0] if d.chance(0.1) else [4])) for _ in range(d.pick(1, 2, 2, 3))],
            "xy": d.chance(0.5)}


@shaped("unique")
def draw_unique(d):
    return {"x": d.tensor(d.dtype(), d.shape(), kinds=("grid", "grid", "normal", "zeros", "same"))}  # of NaNs each is one, in no order


@shaped("full_like")
def draw_full_like(d):
    dtype = d.dtype()
    return {"x": d.tensor(dtype, d.shape()), "value": d.number() if dtype in FLOATS else float(d.rng.randrange(0, 2))}


@shaped("one_hot")
def draw_one_hot(d):
    classes = d.pick(1, 3, 5)
    return {"x": d.indices(d.shape(0, 3, 60), classes, ("i64", "i64", "i32", "u8")), "classes": d.pick(-1, classes, classes, classes + 2)}


@shaped("matmul")
def draw_matmul(d):
    batch, dtype = d.shape(0, 2, 12), d.dtype()
    m, k, n = d.size(), d.size(), d.size()
    if d.chance(0.1):
        m, k, n = d.pick(16, 33, 64), d.pick(7, 64, 65), d.pick(16, 31)
    x = [k] if d.chance(0.12) else d.expandable(batch) + [m, k]
    y = [k + (1 if d.bad else 0)] if d.chance(0.12) else (d.broadcast(batch) if d.chance(0.6) else []) + [k, n]
    return {"x": d.tensor(dtype, x), "y": d.tensor(d.companion(dtype), y)}


def draw_products(d):
    """x, weight and bias of a linear layer."""
    dtype = d.float_dtype() if d.chance(0.95) else d.dtype()
    lead = d.shape(0, 3, 40)
    if d.chance(0.2):
        lead = d.pick([], [1], [1, 1])
    into, out = d.size(0.06), d.size(0.04)
    if d.chance(0.1):
        lead, into, out = [d.pick(5, 16, 33)], d.pick(16, 31, 64), d.pick(16, 33)
    other = lambda: dtype if d.chance(0.93) else d.float_dtype()
    x = d.tensor(dtype, lead + [into])
    weight = d.tensor(other(), [out, into + (1 if d.bad and d.chance(0.3) else 0)])
    bias = d.tensor(other(), [out]) if d.chance(0.7) else None
    return x, weight, bias, lead, out


@shaped("linear")
def draw_linear(d):
    x, weight, bias, _, _ = draw_products(d)
    return {"x": x, "weight": weight, "bias": bias}


@shaped("linear_activation")
def draw_linear_activation(d):
    return {**draw_linear(d), "activation": d.pick(0, 1, 1, 2, 2)}


def pair(d, *of):
    return [d.pick(*of), d.pick(0, 0, *of)]


def kind_of_padding(d, opts):
    """Sometimes a kind of padding instead of numbers."""
    if opts is not None:
        opts["padding_kind"] = d.pick(0, 0, 0, 1, 2, 2)
        if opts["padding_kind"] and not d.bad:
            opts["padding"] = [0] * len(opts["padding"])
        if opts["padding_kind"] == 2 and not d.bad:
            opts["stride"] = [d.pick(0, 1)] + [0] * (len(opts["stride"]) - 1)
    return opts


@shaped("conv2d")
def draw_conv2d(d):
    dtype = d.float_dtype()
    groups, n = d.pick(1, 1, 1, 2, 3), d.pick(0, 1, 1, 2, 3)
    channels, out = groups * d.pick(1, 1, 2, 3, 4), groups * d.pick(1, 1, 2, 3)
    h, w, kh, kw = d.pick(1, 3, 4, 5, 7), d.pick(1, 2, 4, 5, 8), d.pick(1, 1, 2, 3, 3, 5), d.pick(1, 1, 2, 3, 3)
    opts = {"stride": pair(d, 1, 1, 2, 3), "padding": pair(d, 0, 0, 1, 2), "dilation": pair(d, 1, 1, 1, 2), "groups": groups} \
        if groups > 1 or d.chance(0.7) else None
    other = lambda: dtype if d.chance(0.95) else d.float_dtype()
    return {"x": d.tensor(dtype, [n, channels, h, w]), "weight": d.tensor(other(), [out, channels // groups, kh, kw]),
            "bias": d.tensor(other(), [out]) if d.chance(0.6) else None, "opts": kind_of_padding(d, opts)}


@shaped("conv2d_activation")
def draw_conv2d_activation(d):
    return {**draw_conv2d(d), "activation": d.pick(0, 1, 1, 2, 2)}


@shaped("conv_transpose2d")
def draw_conv_transpose2d(d):
    dtype = d.float_dtype()
    groups, n = d.pick(1, 1, 1, 2, 3), d.pick(0, 1, 1, 2, 3)
    channels, out = groups * d.pick(1, 1, 2, 3, 4), groups * d.pick(1, 1, 2, 3)
    h, w, kh, kw = d.pick(1, 2, 3, 4, 5), d.pick(1, 2, 4, 5), d.pick(1, 1, 2, 3, 3, 4), d.pick(1, 1, 2, 3, 4)
    opts = {"stride": pair(d, 1, 1, 2, 3), "padding": pair(d, 0, 0, 1, 2), "dilation": pair(d, 1, 1, 1, 2, 3), "groups": groups,
            "output_padding": pair(d, 0, 0, 0, 1, 2), "output_size": d.pick([0, 0], [0, 0], [0, 0], pair(d, 3, 4, 5, 6, 7))} \
        if groups > 1 or d.chance(0.7) else None
    other = lambda: dtype if d.chance(0.95) else d.float_dtype()
    return {"x": d.tensor(dtype, [n, channels, h, w]), "weight": d.tensor(other(), [channels, out // groups, kh, kw]),
            "bias": d.tensor(other(), [out]) if d.chance(0.6) else None, "opts": opts}


def only_padding(x, opts):
    """Whether a dilated window can lie wholly in the padding: there PyTorch's gradient goes elsewhere, out of bounds, too."""
    for size, k in zip(x["shape"][2:], (0, 1)):
        kernel, padding, dilation = (opts[name][k] or opts[name][0] for name in ("kernel", "padding", "dilation"))
        dilation = dilation or 1
        if any(all(not 0 <= start + j * dilation < size for j in range(kernel)) for start in range(-padding, size)):
            return True
    return False


@shaped("max_pool2d", "avg_pool2d")
def draw_pool(d):
    kernel = [d.pick(1, 2, 3), d.pick(0, 1, 2, 3)]
    opts = {"kernel": kernel, "stride": d.pick([0, 0], pair(d, 1, 2, 3)), "padding": d.pick([0, 0], [0, 0], pair(d, 0, 1)),
            "dilation": d.pick([0, 0], [0, 0], pair(d, 1, 2)) if d.name == "max_pool2d" else [0, 0], "ceil_mode": d.chance(0.3),
            "exclude_padding": d.name == "avg_pool2d" and d.chance(0.4), "divisor_override": d.pick(1, 3, -2) if d.name == "avg_pool2d" and d.chance(0.3) else 0}
    x = d.tensor(d.float_dtype(), [d.pick(0, 1, 2), d.pick(1, 2, 3), d.pick(1, 2, 4, 5, 7), d.pick(1, 3, 4, 6, 8)])
    if only_padding(d.tensors[x["tensor"]], opts):
        opts["dilation"] = [0, 0]
    return {"x": x, "opts": opts}


# --- space -----------------------------------------------------------------------------------------------------


@shaped("pad")
def draw_pad(d):
    mode = d.pick(0, 0, 1, 2, 3)
    if mode == 0:
        dtype, shape = d.dtype(), d.shape(1, 5, 300)
        count = d.pick(*range(1, min(len(shape), 4) + 1))
        sizes = [d.pick(0, 1, 2, 3, -1 if shape[-1 - k // 2] > 1 or d.bad else 0) for k in range(2 * count)]
        value = d.number() if dtype in FLOATS else d.pick(0.0, 1.0)
    else:
        dtype, count = d.float_dtype(), d.pick(1, 1, 2, 2, 3)
        shape = [d.pick(1, 2, 3) for _ in range(2)] + [d.pick(2, 3, 4, 5) for _ in range(count)]
        most = lambda k: shape[-1 - k // 2] - (0 if mode != 1 else 1)
        sizes = [d.rng.randrange(0, most(k) + 1 + (2 if mode == 2 or d.bad else 0)) for k in range(2 * count)]
        value = 0.0
    return {"x": d.tensor(dtype, shape), "sizes": sizes, "mode": mode, "value": value}


@shaped("pixel_shuffle", "pixel_unshuffle", "channel_shuffle")
def draw_shuffle(d):
    r, lead = d.pick(1, 2, 3), [d.pick(0, 1, 2) for _ in range(d.pick(0, 1, 2))]
    c, h, w = d.pick(1, 2, 3), d.pick(1, 2, 3), d.pick(1, 2, 4)
    off = 1 if d.bad else 0
    if d.name == "channel_shuffle":
        return {"x": d.tensor(d.dtype(), [d.pick(1, 2), c * r + off, h, w][:d.pick(3, 4)]), "groups": r}
    shape = [c * r * r + off, h, w] if d.name == "pixel_shuffle" else [c, h * r + off, w * r]
    lead = [max(n, 1) for n in lead] if d.name == "pixel_unshuffle" else lead  # torch leaves an empty one as it is
    return {"x": d.tensor(d.dtype(), lead[:1] + shape), "factor": r}


@shaped("interpolate")
def draw_interpolate(d):
    mode = d.pick(0, 1, 2, 2, 3, 3, 4)
    count = 2 if mode == 3 and not d.bad else d.pick(1, 2, 2, 3)
    by_size, scale = d.chance(0.6), lambda: d.pick(0.5, 0.7, 1.0, 1.3, 2.0, 2.5)
    opts = {"size": [d.pick(1, 2, 3, 5, 8) if by_size and k < count else 0 for k in range(3)],
            "scale": [scale() if not by_size and k < count else 0.0 for k in range(3)], "mode": mode,
            "align_corners": mode in (2, 3) and d.chance(0.4), "recompute_scale": not by_size and d.chance(0.3),
            "antialias": mode in (2, 3) and count == 2 and d.chance(0.5)}
    shape = [d.pick(2, 3, 4, 7) for _ in range(count)]
    if opts["antialias"] and (int(shape[1] * (opts["scale"][1] or opts["scale"][0])) or opts["size"][1] or opts["size"][0]) == 1:
        opts["antialias"] = False  # where rows have one element, torch gives all of them the weights of the first
    for size, factor in zip(shape, opts["scale"]):  # where torch's gradient takes other places than its result did
        if (mode != 2 or opts["antialias"]) and (int(size * factor) == size != size * factor or int(size * factor) == 2 * size != size * factor):
            opts["recompute_scale"] = True
    return {"x": d.tensor(d.float_dtype(), [d.pick(0, 1, 2), d.pick(1, 2, 3)] + shape), "opts": opts}


@shaped("unfold", "fold")
def draw_windows(d):
    numbers = lambda *of: [d.pick(*of), d.pick(0, *of)]
    opts = {"kernel": numbers(1, 2, 3), "dilation": numbers(0, 1, 2), "padding": numbers(0, 1, 2), "stride": numbers(0, 1, 2)}
    n, c, h, w = d.pick(1, 2), d.pick(1, 2, 3), d.pick(3, 4, 5, 6), d.pick(3, 4, 7)
    if d.name == "unfold":
        return {"x": d.tensor(d.float_dtype(), [n, c, h, w][d.pick(0, 0, 1):]), "opts": opts}
    kernel, dilation, padding, stride = (opts[k][:1] + [opts[k][1] or opts[k][0]] for k in ("kernel", "dilation", "padding", "stride"))
    places = [(size + 2 * p - (e or 1) * (k - 1) - 1) // (s or 1) + 1 for size, k, e, p, s in zip((h, w), kernel, dilation, padding, stride)]
    length = max(places[0], 0) * max(places[1], 0) + (1 if d.bad else 0)
    x = d.tensor(d.float_dtype(), [n, c * kernel[0] * kernel[1], length or 1][d.pick(0, 0, 1):])
    return {"x": x, "height": h, "width": w, "opts": opts}


@shaped("conv1d", "conv_transpose1d")
def draw_conv1d(d):
    dtype, transposed = d.float_dtype(), d.name == "conv_transpose1d"
    groups = d.pick(1, 1, 1, 2, 3)
    channels, out, kernel = groups * d.pick(1, 1, 2, 3), groups * d.pick(1, 1, 2, 3), d.pick(1, 1, 2, 3, 3)
    opts = {"stride": [d.pick(0, 1, 2, 3), 0], "padding": [d.pick(0, 0, 1, ZERO), 0], "dilation": [d.pick(0, 1, 2), 0], "groups": groups}
    if transposed:
        opts |= {"output_padding": [d.pick(0, 0, 0, 1), 0], "output_size": [d.pick(0, 0, 0, 5, 6, 7), 0]}
    else:
        kind_of_padding(d, opts)
    shape = [channels, out // groups, kernel] if transposed else [out, channels // groups, kernel]
    return {"x": d.tensor(dtype, [d.pick(1, 2, 3), channels, d.pick(1, 3, 4, 5, 8)]), "weight": d.tensor(dtype, shape),
            "bias": d.tensor(dtype, [out]) if d.chance(0.6) else None, "opts": opts if groups > 1 or d.chance(0.7) else None}


@shaped("conv3d", "conv_transpose3d")
def draw_conv3d(d):
    dtype, transposed = d.float_dtype(), d.name == "conv_transpose3d"
    groups = d.pick(1, 1, 1, 2)
    channels, out, kernel = groups * d.pick(1, 1, 2), groups * d.pick(1, 1, 2), [d.pick(1, 1, 2, 3) for _ in range(3)]
    opts = {"stride": [d.pick(0, 1, 2, 3), 0, d.pick(0, 1)], "padding": [d.pick(0, 0, 1, ZERO), d.pick(0, 1), 0],
            "dilation": [d.pick(0, 1, 2), d.pick(0, 1), 0], "groups": groups}
    if transposed:
        opts |= {"output_padding": [d.pick(0, 0, 0, 1), 0, d.pick(0, ZERO)],
                 "output_size": [d.pick(0, 0, 0, 0, 4, 5), d.pick(0, 5), 0]}
    else:
        kind_of_padding(d, opts)
    shape = [channels, out // groups] if transposed else [out, channels // groups]
    return {"x": d.tensor(dtype, [d.pick(1, 2), channels, d.pick(1, 3, 4), d.pick(1, 2, 3), d.pick(2, 3, 5)]),
            "weight": d.tensor(dtype, shape + kernel), "bias": d.tensor(dtype, [out]) if d.chance(0.6) else None,
            "opts": opts if groups > 1 or d.chance(0.7) else None}


@shaped("max_pool3d", "avg_pool3d")
def draw_pool3d(d):
    maximum = d.name == "max_pool3d"
    opts = {"kernel": [d.pick(1, 2, 3), d.pick(0, 2), d.pick(0, 1, 2)], "stride": [d.pick(0, 1, 2), 0, d.pick(0, 1)], "padding": [0, 0, 0],
            "dilation": [0, 0, 0], "ceil_mode": d.chance(0.3), "exclude_padding": not maximum and d.chance(0.4), "divisor_override": d.pick(1, 3, -2) if not maximum and d.chance(0.3) else 0}
    if min(k or 2 for k in opts["kernel"]) > 1 and d.chance(0.4):
        opts["padding"] = [1, 0, d.pick(0, ZERO)]
    return {"x": d.tensor(d.float_dtype(), [d.pick(1, 2), d.pick(1, 2), d.pick(3, 4, 5), d.pick(3, 4), d.pick(3, 5)]), "opts": opts}


@shaped("adaptive_avg_pool3d")
def draw_adaptive3d(d):
    return {"x": d.tensor(d.float_dtype(), [d.pick(1, 2), d.pick(1, 2), d.pick(1, 2, 5), d.pick(1, 3), d.pick(2, 4)]), "depth": d.pick(1, 2, 3),
            "height": d.pick(1, 2, 5), "width": d.pick(1, 3)}


@shaped("max_pool1d", "avg_pool1d")
def draw_pool1d(d):
    kernel = d.pick(1, 2, 3)
    opts = {"kernel": [kernel, 0], "stride": [d.pick(0, 1, 2, 3), 0], "padding": [d.pick(0, 0, 1), 0],
            "dilation": [d.pick(0, 1, 2) if d.name == "max_pool1d" else 0, 0], "ceil_mode": d.chance(0.3),
            "exclude_padding": d.name == "avg_pool1d" and d.chance(0.4), "divisor_override": d.pick(1, 3, -2) if d.name == "avg_pool1d" and d.chance(0.3) else 0}
    x = d.tensor(d.float_dtype(), [d.pick(1, 2), d.pick(1, 2, 3), d.pick(1, 2, 4, 5, 7, 8)])
    if only_padding(d.tensors[x["tensor"]], opts):
        opts["dilation"] = [0, 0]
    return {"x": x, "opts": opts}


@shaped("adaptive_avg_pool1d")
def draw_adaptive1d(d):
    return {"x": d.tensor(d.float_dtype(), [d.pick(1, 2), d.pick(1, 2, 3), d.pick(1, 2, 5, 7)]), "length": d.pick(1, 2, 3, 5)}


@shaped("adaptive_avg_pool2d")
def draw_adaptive(d):
    return {"x": d.tensor(d.float_dtype(), [d.pick(0, 1, 2), d.pick(1, 2, 3), d.pick(1, 2, 5, 7), d.pick(1, 3, 4, 6)]),
            "height": d.pick(1, 2, 3, 5), "width": d.pick(1, 2, 3, 8)}


def draw_norm(d):
    dtype, shape = d.float_dtype(), d.shape(1, 4, 700)
    count = d.rng.randrange(1, len(shape) + 1)
    other = lambda: dtype if d.chance(0.6) else d.pick("f32", "f32", d.float_dtype())
    return dtype, shape, count, other


@shaped("layer_norm")
def draw_layer_norm(d):
    dtype, shape, count, other = draw_norm(d)
    affine = other()
    return {"x": d.tensor(dtype, shape), "weight": d.tensor(affine, shape[-count:]) if d.chance(0.7) else None,
            "bias": d.tensor(affine if d.chance(0.9) else other(), shape[-count:]) if d.chance(0.6) else None,
            "normalized_dims": count, "eps": d.pick(1e-5, 1e-5, 1e-3, 1e-6)}


@shaped("add_layer_norm")
def draw_add_layer_norm(d):
    args = draw_layer_norm(d)
    x = d.tensors[args["x"]["tensor"]]
    branch = d.tensor(x["dtype"] if d.chance(0.9) else d.float_dtype(), x["shape"])
    return {"x": args.pop("x"), "branch": branch, **args}


@shaped("rms_norm")
def draw_rms_norm(d):
    dtype, shape, count, other = draw_norm(d)
    return {"x": d.tensor(dtype, shape), "weight": d.tensor(other(), shape[-count:]) if d.chance(0.7) else None,
            "normalized_dims": count, "eps": d.pick(1e-5, 1e-5, 1e-3, 1e-6)}


@shaped("batch_norm")
def draw_batch_norm(d):
    dtype, shape = d.float_dtype(), d.shape(2, 4, 400)
    other = dtype if d.chance(0.7) else d.pick("f32", d.float_dtype())
    channel = lambda p, **more: d.tensor(other, [shape[1]], **more) if d.chance(p) else None
    running, plain = d.chance(0.6), d.chance(0.7)
    statistics = lambda kinds: d.tensor(other, [shape[1]], kinds=kinds, plain=plain, grad=False) if running else None
    return {"x": d.tensor(dtype, shape), "weight": channel(0.6), "bias": channel(0.6), "running_mean": statistics(("normal",)),
            "running_var": statistics(("positive",)), "training": d.chance(0.6) or not running, "momentum": d.pick(0.1, 0.5, 1.0, 0.0),
            "eps": d.pick(1e-5, 1e-5, 1e-3)}


@shaped("group_norm", "instance_norm")
def draw_group_norm(d):
    groups, dtype = d.pick(1, 1, 2, 3), d.float_dtype()
    shape = [d.size(), groups * d.pick(1, 2, 3)] + d.shape(0, 2, 60)
    other = dtype if d.chance(0.7) else d.pick("f32", d.float_dtype())
    channel = lambda p, **more: d.tensor(other, [shape[1]], **more) if d.chance(p) else None
    x = d.tensor(dtype, shape)
    layout = d.tensors[x["tensor"]]["layout"]
    if layout:  # numbers that are all alike leave a norm nothing but rounding
        layout["expand"] = [layout["expand"][0]] + [False] * (len(shape) - 1)
    args = {"x": x, "weight": channel(0.6), "bias": channel(0.6), "eps": d.pick(1e-5, 1e-5, 1e-3)}
    if d.name == "group_norm":
        return {**args, "groups": groups + (1 if d.bad else 0)}
    running = d.chance(0.5)  # no number of theirs twice: they are written
    statistics = lambda kinds: d.tensor(other, [shape[1]], kinds=kinds, plain=True, grad=False) if running else None
    return {**args, "running_mean": statistics(("normal",)), "running_var": statistics(("positive",)),
            "use_input_stats": d.chance(0.7) or not running, "momentum": d.pick(0.1, 0.5, 1.0, 0.0)}


@shaped("local_response_norm")
def draw_local_response_norm(d):
    return {"x": d.tensor(d.float_dtype(), d.shape(3, 5, 300)), "size": d.pick(1, 2, 3, 5), "alpha": d.pick(1e-4, 0.5, 0.0),
            "beta": d.pick(0.75, 0.5, 2.0), "k": d.pick(1.0, 2.0)}


@shaped("normalize")
def draw_normalize(d):
    shape = [size + (size == 1) for size in d.shape(1, 4, 150)]  # a number by itself is 1, and the rest rounding
    return {"x": d.tensor(d.float_dtype(), shape), "p": d.pick(2.0, 2.0, 1.0, 3.0, math.inf), "dim": d.dim(len(shape)), "eps": d.pick(1e-12, 1e-12, 1e-3, 0.5)}


@shaped("dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
def draw_channel_dropout(d):
    n = {"dropout1d": (2, 3), "dropout2d": (3, 4), "dropout3d": (4, 5), "alpha_dropout": (0, 4)}.get(d.name, (2, 5))
    return {"x": d.tensor(d.float_dtype(), d.shape(*n)), "p": d.pick(0.0, 1.0, -0.5 if d.bad else 0.0), "training": d.chance(0.7)}


@shaped("embedding")
def draw_embedding(d):
    rows = d.pick(1, 2, 5, 9)
    return {"weight": d.tensor(d.float_dtype(), [rows, d.size()]), "indices": d.indices(d.shape(0, 3, 60), rows),
            "padding_idx": d.pick(-1, -1, -1, d.rng.randrange(0, rows))}


@shaped("dropout")
def draw_dropout(d):
    return {"x": d.tensor(d.float_dtype(), d.shape()), "p": d.pick(0.0, 1.0, 0.5, -0.5 if d.bad else 0.0), "training": d.chance(0.7)}


@shaped("attention", "attention_weights")
def draw_attention(d):
    dtype = d.float_dtype()
    b, groups, repeat, t, s, depth = d.pick(0, 1, 2), d.pick(1, 1, 2), d.pick(1, 1, 2), d.size(0.03), d.size(0.03), d.pick(1, 2, 4, 5, 8, 16)
    other = lambda: dtype if d.chance(0.97) else d.float_dtype()
    args = {"q": d.tensor(dtype, [b, groups * repeat, t, depth]), "k": d.tensor(other(), [b, groups, s, depth]),
            "v": d.tensor(other(), [b, groups, s, depth]), "opts": None}
    if d.chance(0.7):
        mask = d.broadcast([b, groups * repeat, t, s])
        mask = d.tensor(d.pick("bool", "bool", dtype), mask[-4:], kinds=None, grad=False) if d.chance(0.5) else None
        args["opts"] = {"causal": d.chance(0.5), "scale": d.pick(0.0, 0.0, 0.5), "mask": mask, "dropout": 0.0}
    if d.name == "attention_weights":  # of nothing torch's have no gradient
        del args["v"]
        args["opts"] = args["opts"] if b and t and s else None
    return args


@shaped("lstm", "gru")
def draw_recurrent(d):
    dtype, lines = d.float_dtype(), 4 if d.name == "lstm" else 3
    steps, rows, features, hidden = d.pick(1, 2, 3, 5), d.pick(1, 2, 3, 4), d.pick(1, 2, 4), d.pick(1, 2, 3, 5)
    tensor = lambda sizes, p=1: d.tensor(dtype if d.chance(0.98) else d.float_dtype(), sizes, kinds=("normal", "grid", "unit")) if d.chance(p) else None
    args = {"x": tensor([steps, rows, features]), "weight_ih": tensor([lines * hidden, features]),
            "weight_hh": tensor([lines * hidden, hidden]), "bias_ih": tensor([lines * hidden], 0.7), "bias_hh": tensor([lines * hidden], 0.7), "opts": None}
    if d.chance(0.7):
        args["opts"] = {"h0": tensor([rows, hidden], 0.5), "c0": tensor([rows, hidden], 0.5) if lines == 4 else None,
                        "lengths": d.indices([rows], steps + 1, floor=1) if d.chance(0.5) else None, "reverse": d.chance(0.5)}
    return args


def labels_for(d, rows, classes, ignore):
    """Labels of those rows, some ignored."""
    ref = d.indices(rows, classes, ("i64", "i64", "i64", "i32", "u8"))
    t = d.tensors[ref["tensor"]]
    if d.chance(0.35) and (t["dtype"] != "u8" or ignore >= 0):
        t["values"] = [ignore if d.chance(d.pick(0.2, 1.0)) else v for v in t["values"]]
    return ref


def loss_opts(d, classes, weight):
    ignore = d.pick(0, 0, 0, 1, ZERO)
    opts = {"weight": weight() if weight and d.chance(0.4) else None, "ignore_index": ignore,
            "label_smoothing": d.pick(0.0, 0.0, 0.1, 1.0), "reduction": d.pick(0, 0, 1, 6)}
    return opts, {0: -100, ZERO: 0}.get(ignore, ignore)


@shaped("cross_entropy", "cross_entropy_with")
def draw_cross_entropy(d):
    dtype, shape = d.float_dtype(), d.shape(2, 4, 200)
    logits = d.tensor(dtype, shape)
    args = {"logits": logits, "labels": None}
    ignore = -100
    if d.name == "cross_entropy_with":
        args["opts"], ignore = loss_opts(d, shape[1], lambda: d.tensor(dtype, [shape[1]], kinds=("positive",), grad=False))
    if d.chance(0.25):
        args["labels"] = d.tensor(d.companion(dtype) if d.chance(0.3) else dtype, shape, kinds=("unit",))
    else:
        args["labels"] = labels_for(d, shape[:1] + shape[2:], shape[1], ignore)
    return args


@shaped("linear_cross_entropy")
def draw_linear_cross_entropy(d):
    x, weight, bias, lead, out = draw_products(d)
    dtype, more = d.tensors[x["tensor"]]["dtype"], []
    if d.chance(0.15):  # several losses for each row
        lead, more, into = [d.size()], [d.pick(1, 2, 3)] * d.pick(1, 2), d.pick(1, 3)
        x, weight = d.tensor(dtype, lead + [into]), d.tensor(dtype, [out, *more, into])
        bias = d.tensor(dtype, [out, *more]) if d.chance(0.7) else None
    of_classes = lambda: d.tensor("f32" if dtype in ("bf16", "f16") else dtype, [out], kinds=("positive",), grad=False)
    opts, ignore = loss_opts(d, out, of_classes) if d.chance(0.6) else (None, -100)
    if d.chance(0.2) and dtype in FLOATS:
        labels = d.tensor(dtype, lead + [out, *more], kinds=("unit",))
    else:
        labels = labels_for(d, lead + more, out, ignore)
    return {"x": x, "weight": weight, "bias": bias, "labels": labels, "opts": opts}


@shaped("nll_loss")
def draw_nll(d):
    shape = d.shape(2, 4 if d.chance(0.3) else 2, 200)
    return {"log_probabilities": d.tensor(d.float_dtype(), shape), "labels": labels_for(d, shape[:1] + shape[2:], shape[1], -100)}


@shaped("softplus")
def draw_softplus(d):
    return {"x": d.tensor(d.dtype(), d.shape()), "beta": d.pick(1.0, 1.0, 2.0, 0.5), "threshold": d.pick(20.0, 20.0, 1.0)}


@shaped("elu", "leaky_relu")
def draw_slope(d):
    return {"x": d.tensor(d.dtype(), d.shape()), {"elu": "alpha", "leaky_relu": "negative_slope"}[d.name]: d.pick(1.0, 0.5, 0.01, 0.0, 2.0)}


@shaped("hardshrink", "softshrink", "celu", "threshold", "hardtanh", "nan_to_num")
def draw_bends(d):
    """Numbers that every dtype holds."""
    x = {"x": d.tensor(d.dtype(), d.shape())}
    return x | {"hardshrink": lambda: {"lambda": d.pick(0.5, 1.0, 0.0)}, "softshrink": lambda: {"lambda": d.pick(0.5, 1.0, 0.0)},
                "celu": lambda: {"alpha": d.pick(1.0, 0.5, 2.0)}, "threshold": lambda: {"threshold": d.pick(0.0, 1.0, -0.5), "value": d.pick(0.0, 2.0, -1.5)},
                "hardtanh": lambda: {"low": d.pick(-1.0, 0.0, -0.5), "high": d.pick(1.0, 0.5, 6.0, 0.0)},
                "nan_to_num": lambda: {"nan": d.pick(0.0, 1.5), "positive_infinity": d.pick(1000.0, 2.0), "negative_infinity": d.pick(-1000.0, 0.0)}}[d.name]()


@shaped("addcmul", "addcdiv", "lerp")
def draw_three(d):
    dtype, shape = d.dtype(), d.shape(0, 4, 300)
    args = {name: d.tensor(d.companion(dtype) if d.chance(0.1) else dtype, d.broadcast(shape) if d.chance(0.4) else shape) for name in ("x", "y", "z")}
    if d.name == "lerp":
        del args["z"]
    return args | {"weight" if d.name == "lerp" else "value": d.pick(1.0, 0.25, -1.5, 0.75)}


@shaped("polygamma")
def draw_polygamma(d):
    return {"n": d.pick(0, 1, 1, 2, 3), "x": d.tensor(d.dtype(), d.shape())}


@shaped("clamp")
def draw_clamp(d):
    return {"x": d.tensor(d.dtype(), d.shape()), "low": d.pick(-1.0, 0.0, -math.inf, -0.5, 1.0), "high": d.pick(1.0, 0.5, 0.0, math.inf, 2.0)}


@shaped("norm")
def draw_p_norm(d):
    shape = d.shape()
    return {"x": d.tensor(d.dtype(), shape), "p": d.pick(2.0, 2.0, 1.0, 0.0, 3.0, 0.5, -1.0, 1.5, math.inf, -math.inf), "dims": d.dims(len(shape)),
            "keepdim": d.chance(0.5)}


@shaped("argmax", "argmin")
def draw_arg(d):
    shape = d.shape()
    return {"x": d.tensor(d.dtype(), shape), "dims": d.dims(len(shape))[:1 if not d.bad else 8], "keepdim": d.chance(0.5)}


@shaped("smooth_l1_loss")
def draw_smooth(d):
    shape, dtype = d.shape(), d.float_dtype()
    return {"x": d.tensor(dtype, shape), "target": d.tensor(d.companion(dtype), shape),
            "beta": d.pick(1.0, 0.5, 2.0, 0.0)}


@shaped("accuracy")
def draw_accuracy(d):
    rows, classes = d.size(), d.pick(1, 3, 5)
    return {"logits": d.tensor(d.dtype(), [rows, classes]), "labels": d.indices([rows], classes)}


@shaped("add_", "sub_", "mul_", "div_", "copy_")
def draw_in_place(d):
    """x and y may be views of one memory: `shared` says so; then y's place in it is its offset."""
    dtype, shape = d.dtype(), d.shape(0, 4, 300)
    if d.chance(0.25) and shape and shape[0] > 1:
        base = d.tensor(dtype, [d.rng.randrange(2, 9)], plain=True, grad=False)
        d.tensors[base["tensor"]]["own"] = True
        n = d.shape_of(base)[0]
        length = d.rng.randrange(1, n + 1)
        d.shared = [[d.rng.randrange(0, n - length + 1), length], [d.rng.randrange(0, n - length + 1), length]]
        return {"x": base, "y": base}
    x = d.tensor(dtype, shape, grad=False)
    y = d.tensor(d.companion(dtype), d.broadcast(shape) if d.chance(0.4) else shape, grad=False)
    for t in d.tensors:  # PyTorch has no negative strides: a copy would not overlap
        if t["layout"] and any(t["layout"]["expand"]):
            t["layout"]["flip"] = [False] * len(t["shape"])
    return {"x": x, "y": x if d.chance(0.05) else y}


@shaped("fill_")
def draw_fill(d):
    return {"x": d.tensor(d.dtype(), d.shape(), grad=False), "value": d.number()}


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
