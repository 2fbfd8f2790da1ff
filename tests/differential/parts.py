# SPDX-License-Identifier: Apache-2.0
"""Parts of tensors, cut out and replaced: how they are drawn, and PyTorch's."""
import torch

from counterparts import REDUCTIONS, TABLE, need
from draw import shaped

FAR = 2**63 - 1


def places(d, size):
    """start, stop and step of a slice."""
    return {"start": d.pick(0, 0, 1, -2, -size - 1, size), "stop": d.pick(FAR, FAR, size - 1, -1, size + 2, 1), "step": d.pick(1, 2, 2, 3, 7, 0 if d.bad else 2)}


def number(d, low=1):
    """A shape, one of its dimensions, and how long that is."""
    shape = d.shape(0 if d.bad else low)
    dim = d.dim(len(shape))
    return shape, dim, shape[dim] if -len(shape) <= dim < len(shape) else 3


@shaped("slice", "slice_scatter")
def draw_slice(d):
    shape, dim, size = number(d)
    at, dtype = places(d, size), d.dtype()
    args = {"x": d.tensor(dtype, shape), "dim": dim, **at}
    if d.name == "slice":
        return args
    part = list(shape)
    if -len(shape) <= dim < len(shape):
        part[dim] = len(range(size)[at["start"]:at["stop"]:max(at["step"], 1)]) + (1 if d.bad and d.chance(0.3) else 0)
    return {"x": args.pop("x"), "source": d.tensor(dtype, part), **args}


@shaped("variance_with", "std_with")
def draw_spread(d):
    shape = [max(n, 1) for n in d.shape()]
    dims = d.dims(len(shape))
    n = 1
    for k in dims if all(-len(shape) <= k < len(shape) for k in dims) else []:
        n *= shape[k]
    whole = [1.0, 0.5, 2.0] if not dims or n > 2 else [0.5]  # of too few PyTorch's gradients are NaN or formulas, each in a way of its own
    total = 1
    for size in shape:
        total *= size
    return {"x": d.tensor(d.float_dtype(), shape), "dims": dims, "keepdim": d.chance(0.5), "correction": d.pick(0.0, 0.0, *(whole if total > 2 else [0.5]))}


@shaped("unfold_dim")
def draw_unfold_dim(d):
    shape, dim, size = number(d)
    return {"x": d.tensor(d.dtype(), shape), "dim": dim, "size": d.rng.randrange(0, size + (2 if d.bad else 1)), "step": d.pick(1, 1, 2, 3, size or 1, 0 if d.bad else 4)}


@shaped("squeeze_dims")
def draw_squeeze_dims(d):
    shape = [1 if d.chance(0.4) else n for n in d.shape()]
    return {"x": d.tensor(d.dtype(), shape), "dims": d.dims(len(shape))}


@shaped("select_scatter")
def draw_select_scatter(d):
    shape, dim, size = number(d)
    part, dtype = list(shape), d.dtype()
    if -len(shape) <= dim < len(shape) and part:
        del part[dim]
    return {"x": d.tensor(dtype, shape), "source": d.tensor(dtype, part), "dim": dim, "index": d.rng.randrange(-size, max(size, 1)) if not d.bad else d.pick(size, -size - 1)}


@shaped("diagonal_scatter")
def draw_diagonal_scatter(d):
    shape, dtype = d.shape(2, 4, 200), d.dtype()
    dim1, dim2 = d.rng.sample(range(len(shape)), 2)
    offset = d.pick(0, 0, 1, -1, 2)
    length = max(min(shape[dim1] + min(offset, 0), shape[dim2] - max(offset, 0)), 0)
    part = [n for k, n in enumerate(shape) if k not in (dim1, dim2)] + [length + (1 if d.bad else 0)]
    return {"x": d.tensor(dtype, shape), "source": d.tensor(dtype, part), "offset": offset, "dim1": dim1 - (len(shape) if d.chance(0.3) else 0), "dim2": dim2}


@shaped("index_reduce")
def draw_index_reduce(d):
    shape, dim, size = number(d)
    dtype = d.pick("f32", "f64", "f32", "f64", "i64", "i32")
    part, n = list(shape), d.pick(0, 1, 2, 3, 5) if size else 0
    if -len(shape) <= dim < len(shape):
        part[dim] = n
    plain = ("normal", "positive") if dtype in ("f32", "f64") else ("small",)
    return {"x": d.tensor(dtype, shape, kinds=plain), "index": d.indices([n], max(size, 1), ("i64", "i32")), "source": d.tensor(dtype, part, kinds=plain), "dim": dim,
            "reduction": d.pick(0, 2, 3, 4), "include_self": d.chance(0.5)}


def slice_of(x, dim, start, stop, step):
    need(x.ndim > 0 and step > 0 and -x.ndim <= dim < x.ndim, "a dimension and a step")
    return x[(slice(None),) * (dim % x.ndim) + (slice(start, stop, step),)]


def unfold_dim(x, dim, size, step):
    need(x.ndim > 0, "a dimension")
    return x.unfold(dim, size, step)


def slice_scatter(x, source, dim, start, stop, step):
    need(source.dtype == x.dtype, "one dtype")
    return torch.slice_scatter(x, source, dim, start, stop, step)


def index_reduce(x, dim, index, source, reduction, include_self):
    need(x.ndim > 0 and source.shape[dim] == index.numel(), "as many slices as places")
    return torch.index_reduce(x, dim, index.long(), source, REDUCTIONS[reduction], include_self=include_self)


def spread(function):
    return lambda x, dims, correction, keepdim: list(function(x, dim=tuple(dims) or None, correction=correction, keepdim=keepdim))


TABLE.update({
    "variance_with": spread(torch.var_mean), "std_with": spread(torch.std_mean), "slice": slice_of, "unfold_dim": unfold_dim,
    "squeeze_dims": lambda x, dims: x.squeeze(tuple(dims)) if dims else x.squeeze(), "slice_scatter": slice_scatter,
    "select_scatter": lambda x, source, dim, index: need(x.dtype == source.dtype and x.ndim > 0, "one dtype") or torch.select_scatter(x, source, dim, index),
    "diagonal_scatter": lambda x, source, offset, dim1, dim2: torch.diagonal_scatter(x, source, offset, dim1, dim2), "index_reduce": index_reduce,
})
