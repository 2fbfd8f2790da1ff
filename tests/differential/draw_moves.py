# SPDX-License-Identifier: Apache-2.0
"""Draws calls of what moves elements, finds them, and counts them."""
import math

from draw import shaped
from trek import FLOATS


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
