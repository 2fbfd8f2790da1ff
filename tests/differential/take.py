# SPDX-License-Identifier: Apache-2.0
"""Elements by their places, tensors made of others', statistics, bits: how they are drawn, and PyTorch's."""
import torch

from counterparts import TABLE, need
from draw import FLOATS, shaped


@shaped("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "gcd", "lcm")
def draw_bits(d):
    dtype, shape = d.dtype() if d.chance(0.1) else d.pick("i64", "i64", "i32", "u8", "bool"), d.shape(0, 4, 300)
    kinds = ("small",) if d.name == "lcm" else None  # PyTorch divides the least number by -1: SIGFPE
    return {"x": d.tensor(dtype, shape, kinds), "y": d.tensor(d.companion(dtype) if d.chance(0.3) else dtype, d.broadcast(shape), kinds)}


@shaped("bitwise_not")
def draw_not(d):
    return {"x": d.tensor(d.dtype() if d.chance(0.1) else d.pick("i64", "i64", "i32", "u8", "bool"), d.shape(0, 4, 300))}


@shaped("nextafter", "fmax", "fmin")
def draw_beside(d):
    dtype, shape = d.dtype(), d.shape(0, 4, 300)
    return {"x": d.tensor(dtype, shape), "y": d.tensor(dtype, d.broadcast(shape))}


@shaped("logit")
def draw_logit(d):
    return {"x": d.tensor(d.float_dtype(), d.shape(), kinds=("unit", "unit", "special")), "eps": d.pick(-1.0, 0.25, 1e-3, 0.0)}


@shaped("isin")
def draw_isin(d):
    dtype = d.dtype()
    return {"x": d.tensor(dtype, d.shape(), kinds=("grid", "special") if dtype in FLOATS else None, grad=False),
            "of": d.tensor(dtype, d.shape(0, 2, 20), kinds=("grid", "special") if dtype in FLOATS else None, grad=False), "invert": d.chance(0.5)}


@shaped("take", "put")
def draw_take(d):
    shape, dtype, accumulate = d.shape(), d.dtype(), d.chance(0.5)
    n = 1
    for size in shape:
        n *= size
    places = d.shape(0, 2, 12) if n else [0]
    if d.name == "put" and not accumulate:
        places = [min(n, 1)]
    x, index = d.tensor(dtype, shape), d.indices(places, n, ("i64",), floor=-n)
    if d.name == "take":
        return {"x": x, "index": index}
    return {"x": x, "index": index, "source": d.tensor(dtype if d.chance(0.97) else d.companion(dtype), places), "accumulate": accumulate}


@shaped("take_along_dim")
def draw_take_along_dim(d):
    shape = d.shape(1)
    dim = d.dim(len(shape))
    at = dim % len(shape)
    index = [d.size() if k == at else 1 if d.chance(0.3) else n for k, n in enumerate(shape)]
    own = [n if k == at or d.chance(0.8) else 1 for k, n in enumerate(shape)]
    return {"x": d.tensor(d.dtype(), own), "index": d.indices(index, max(shape[at], 1) if not shape[at] else shape[at], ("i64",)), "dim": dim}


@shaped("index_copy")
def draw_index_copy(d):
    shape, dtype = d.shape(1), d.dtype()
    dim = d.dim(len(shape))
    at = dim % len(shape)
    count = min(d.pick(0, 1, 1), shape[at])  # each place once: with several PyTorch's gradients are those of all
    source = [count if k == at else n for k, n in enumerate(shape)]
    return {"x": d.tensor(dtype, shape), "index": d.indices([count], shape[at], ("i64", "i64", "i32")), "source": d.tensor(dtype, source), "dim": dim}


@shaped("masked_scatter")
def draw_masked_scatter(d):
    shape, dtype = d.shape(), d.dtype()
    n = 1
    for size in shape:
        n *= size
    return {"x": d.tensor(dtype, d.expandable(shape)), "mask": d.tensor("bool", d.broadcast(shape)),
            "source": d.tensor(dtype if d.chance(0.97) else d.companion(dtype), [n // 2 if d.bad else 2 * n + 1])}


@shaped("rot90")
def draw_rot90(d):
    shape = d.shape(2)
    return {"x": d.tensor(d.dtype(), shape), "k": d.integer(), "dims": d.rng.sample(range(len(shape)), 2) if not d.bad else d.dims(len(shape))}


@shaped("diag_embed")
def draw_diag_embed(d):
    shape = d.shape(1, 3, 60)
    n = len(shape) + 1
    first, second = d.rng.sample(range(n), 2) if not d.bad else (d.dim(n), d.dim(n))
    return {"x": d.tensor(d.dtype(), shape), "offset": d.pick(0, 0, 1, -1, 3), "dim1": first - (n if d.chance(0.3) else 0), "dim2": second}


@shaped("block_diag")
def draw_block_diag(d):
    dtype = d.dtype()
    shapes = [[size or 1 for size in d.shape(0, 2, 30)] for _ in range(d.pick(1, 2, 3))]  # PyTorch's gradients beside empty ones are off
    mixed = all(shapes)  # PyTorch's scalars of another dtype give way
    return {"list": [d.tensor(d.companion(dtype) if mixed and d.chance(0.2) else dtype, shape) for shape in shapes]}


@shaped("cartesian_prod")
def draw_cartesian_prod(d):
    dtype = d.dtype()
    return {"list": [d.tensor(dtype, [d.size()]) for _ in range(d.pick(1, 2, 2, 3))]}


@shaped("vander")
def draw_vander(d):
    return {"x": d.tensor(d.dtype(), [d.pick(0, 1, 3, 5)]), "columns": d.pick(-1, -1, 0, 1, 2, 4, -2 if d.bad else 3), "increasing": d.chance(0.5)}


@shaped("cov", "corrcoef")
def draw_cov(d):
    dtype, n = d.float_dtype(), d.pick(2, 3, 5, 9)
    shape = d.pick([n], [1, n], [2, n], [4, n], [3, 2, n] if d.bad else [n])
    if d.name == "corrcoef":  # what does not vary, and lines of two, leave rounding alone
        return {"x": d.tensor(dtype, shape[:-1] + [d.pick(5, 9, 12)], kinds=("normal",), plain=True)}
    x = d.tensor(dtype, shape, kinds=("normal", "grid", "positive"))
    repetitions = d.indices([n], 4, ("i64", "i32"), floor=1) if d.chance(0.3) else None
    return {"x": x, "correction": d.pick(1, 1, 0), "repetitions": repetitions,
            "weights": d.tensor(dtype, [n], kinds=("positive",)) if d.chance(0.3) else None}


@shaped("histc")
def draw_histc(d):
    low = d.pick(-2.0, 0.0, 1.0)
    return {"x": d.tensor(d.pick("f32", "f64"), d.shape(), kinds=("normal", "grid"), grad=False), "bins": d.pick(1, 3, 10, 0 if d.bad else 4),
            "low": low, "high": low + d.pick(0.0, 1.0, 2.5)}


@shaped("mode")
def draw_mode(d):
    shape = d.shape()
    return {"x": d.tensor(d.dtype(), shape, kinds=("grid", "zeros")), "dim": d.dim(len(shape)), "keepdim": d.chance(0.5)}


@shaped("renorm")
def draw_renorm(d):
    shape = d.shape(2, 4, 300)
    return {"x": d.tensor(d.float_dtype(), shape, kinds=("normal", "positive")), "p": d.pick(1.0, 2.0, 2.0, 3.0), "dim": d.dim(len(shape)),
            "max": d.pick(0.5, 1.0, 3.0)}


@shaped("cumulative_trapezoid")
def draw_cumulative_trapezoid(d):
    dtype, shape = d.float_dtype(), d.shape(1, 4, 300)
    dim = d.dim(len(shape))
    points = [shape[dim]] if d.chance(0.5) and -len(shape) <= dim < len(shape) else shape
    return {"y": d.tensor(dtype, shape), "x": d.tensor(dtype, points) if d.chance(0.5) else None, "dx": d.pick(1.0, 1.0, 0.5, 2.0), "dim": dim}


# -- PyTorch's --------------------------------------------------------------------------


def bits(function):
    def call(x, y):
        need(not torch.result_type(x, y).is_floating_point, "integers")
        return function(x, y)
    return call


def shift(function):
    def call(x, y):
        need(torch.result_type(x, y) in (torch.int64, torch.int32, torch.uint8), "integers")
        return function(x, y)
    return call


def isin(x, of, invert):
    need(x.dtype != torch.bool, "numbers")
    wide = lambda t: t.double().contiguous() if t.dtype.itemsize == 2 else t.contiguous()
    made = torch.isin(wide(x), wide(of))
    return ~made if invert else made




def aminmax(x, dims, keepdim):
    return [torch.amin(x, tuple(dims), keepdim), torch.amax(x, tuple(dims), keepdim)]


def statistics(function):
    return lambda x, dims, keepdim: list(function(x, dim=tuple(dims) or None, keepdim=keepdim))


def histc(x, bins, low, high):
    need(bins > 0, "bins")
    return torch.histc(x.detach(), bins, low, high)


def mode(x, dim, keepdim):
    """With the last place: PyTorch's is any."""
    values = torch.mode(x, dim, True).values
    last = (x == values).cumsum(dim).argmax(dim, True) if x.ndim else values.long() * 0
    return [values, last] if keepdim or not x.ndim else [values.squeeze(dim), last.squeeze(dim)]


def take_along_dim(x, index, dim):
    read = x.ndim == index.ndim and all(n for k, n in enumerate(x.shape) if k != dim % x.ndim)  # else no place is looked for
    need(x.ndim == index.ndim and (not read or bool(((index >= -x.shape[dim]) & (index < x.shape[dim])).all())), "places that there are")
    return torch.take_along_dim(x, index, dim)


def vander(x, columns, increasing):
    """torch.vander's own derivative fails: it writes into what is saved."""
    need(columns >= -1 and x.ndim == 1, "columns")
    count = len(x) if columns < 0 else columns
    x = x.long() if x.dtype in (torch.bool, torch.uint8, torch.int32) else x
    powers = torch.ones_like(x)[:, None][:, :count]
    if count > 1:
        powers = torch.cat([powers, x[:, None].expand(len(x), count - 1).cumprod(1)], 1)
    return powers if increasing else powers.flip(1)


TABLE.update({
    "bitwise_and": bits(torch.bitwise_and), "bitwise_or": bits(torch.bitwise_or), "bitwise_xor": bits(torch.bitwise_xor),
    "bitwise_left_shift": shift(torch.bitwise_left_shift), "bitwise_right_shift": shift(torch.bitwise_right_shift),
    "gcd": shift(torch.gcd), "lcm": shift(torch.lcm),
    "nextafter": lambda x, y: torch.nextafter(x.detach(), y.detach()),
    "logit": lambda x, eps: torch.logit(x, None if eps < 0 else eps), "isin": isin,
    "put": lambda x, index, source, accumulate: torch.put(x, index, source, accumulate),
    "index_copy": lambda x, dim, index, source: torch.index_copy(x, dim, index.long(), source),
    "rot90": lambda x, k, dims: torch.rot90(x, k, tuple(dims)),
    "block_diag": lambda parts: torch.block_diag(*parts), "cartesian_prod": lambda parts: torch.cartesian_prod(*parts), "vander": vander,
    "cov": lambda x, correction, repetitions, weights: torch.cov(x, correction=correction, fweights=repetitions, aweights=weights),
    "histc": histc, "mode": mode, "take_along_dim": take_along_dim,
    "aminmax": aminmax, "variance_mean": statistics(torch.var_mean), "std_mean": statistics(torch.std_mean),
    "cumulative_trapezoid": lambda y, x, dx, dim: torch.cumulative_trapezoid(y, dx=dx, dim=dim) if x is None else torch.cumulative_trapezoid(y, x, dim=dim),
})
