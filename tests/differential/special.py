# SPDX-License-Identifier: Apache-2.0
"""Rarer functions of elements, of matrices and over frequencies: how they are drawn, and PyTorch's."""
import torch

from counterparts import INTERPOLATIONS, TABLE, need
from draw import shaped
from linalg import fourier, matrices


@shaped("lerp_var")
def draw_lerp_var(d):
    dtype, shape = d.float_dtype(), d.shape(0, 4, 300)
    return {"x": d.tensor(dtype, d.expandable(shape), kinds=("normal", "grid")), "y": d.tensor(dtype, d.broadcast(shape), kinds=("normal", "grid")),
            "weight": d.tensor(dtype, d.broadcast(shape), kinds=("unit", "unit", "grid"))}


@shaped("round_decimals")
def draw_round_decimals(d):
    return {"x": d.tensor(d.pick("f32", "f64"), d.shape(), kinds=("normal", "grid")), "decimals": d.pick(0, 1, 2, 3, -1, -2)}


@shaped("logaddexp2")
def draw_logaddexp2(d):
    dtype, shape = d.pick("f32", "f64"), d.shape(0, 4, 300)
    return {"x": d.tensor(dtype, shape, kinds=("normal", "grid")), "y": d.tensor(dtype, d.broadcast(shape), kinds=("normal", "grid"))}


@shaped("ldexp")
def draw_ldexp(d):
    shape = d.shape(0, 4, 300)
    return {"x": d.tensor(d.float_dtype(), shape, kinds=("normal", "grid")), "exponent": d.indices(d.broadcast(shape), 5, ("i64", "i32"), floor=-5)}


@shaped("frexp")
def draw_frexp(d):
    return {"x": d.tensor(d.float_dtype() if d.chance(0.95) else "i64", d.shape(), kinds=("normal", "grid", "zeros"))}


@shaped("i0", "i0e", "i1", "i1e", "log_ndtr")
def draw_special(d):
    return {"x": d.tensor(d.float_dtype() if d.chance(0.9) else d.pick("i64", "u8"), d.shape(), kinds=("normal", "normal", "positive"))}


@shaped("igamma", "igammac")
def draw_igamma(d):
    """The gradient is that of x alone."""
    dtype, shape = d.pick("f32", "f64"), d.shape(0, 4, 300)
    return {"a": d.tensor(dtype, d.broadcast(shape), kinds=("positive",), grad=False), "x": d.tensor(dtype, shape, kinds=("positive", "positive", "normal"))}


@shaped("unique_dim")
def draw_unique_dim(d):
    shape = d.shape(1, 4, 300)
    return {"x": d.tensor(d.dtype(), shape, kinds=("zeros", "same", "grid")), "dim": d.dim(len(shape))}


@shaped("histogram", "histogram_edges")
def draw_histogram(d):
    dtype, shape, low = d.pick("f32", "f64"), d.shape(), d.pick(-2.0, 0.0, 1.0)
    x = d.tensor(dtype, shape, kinds=("normal", "grid"), grad=False)
    weight = d.tensor(dtype, shape, kinds=("grid", "positive"), grad=False) if d.chance(0.4) else None
    if d.name == "histogram":
        return {"x": x, "bins": d.pick(1, 3, 10, 0 if d.bad else 4), "low": low, "high": low + d.pick(0.0, 1.0, 2.5, -1.0 if d.bad else 4.0), "weight": weight,
                "density": d.chance(0.3)}
    n = d.pick(1, 2, 5)
    edges = d.tensor(dtype, [n], plain=True, grad=False)
    d.tensors[edges["tensor"]]["values"] = [low + k * k / 4 for k in range(n)]
    return {"x": x, "edges": edges, "weight": weight, "density": d.chance(0.3)}


@shaped("entr", "ndtr")
def draw_entr(d):
    return {"x": d.tensor(d.float_dtype() if d.chance(0.9) else d.pick("i64", "u8"), d.shape(), kinds=("positive",) if d.name == "entr" else ("normal",))}


@shaped("xlog1py")
def draw_xlog1py(d):
    dtype, shape = d.float_dtype(), d.shape(0, 4, 300)
    return {"x": d.tensor(dtype, shape, kinds=("normal", "grid")), "y": d.tensor(dtype, d.broadcast(shape), kinds=("positive", "unit"))}


@shaped("nanquantile")
def draw_nanquantile(d):
    shape, dtype = d.shape(), d.pick("f32", "f64")
    q = d.tensor(dtype, d.pick([], [], [1], [3]), kinds=("unit", "unit", "zeros"))
    x = d.tensor(dtype, shape, kinds=("normal", "positive"), plain=True, grad=False)
    t = d.tensors[x["tensor"]]
    if isinstance(t["values"], list) and d.chance(0.7):
        t["values"] = [float("nan") if d.chance(0.3) else v for v in t["values"]]
    return {"x": x, "q": q, "dim": d.dim(len(shape)), "keepdim": d.chance(0.5), "interpolation": d.pick(0, 0, 1, 2, 3, 4)}


@shaped("searchsorted_by")
def draw_searchsorted_by(d):
    dtype, n = d.pick("f32", "f64", "i64", "i32"), d.pick(1, 2, 3, 5, 9)
    lead = d.shape(0, 2, 20) if d.chance(0.5) else []
    lead = [size or 1 for size in lead]
    return {"sequence": d.tensor(dtype, lead + [n], kinds=("small",) if dtype[0] == "i" else ("normal", "grid"), grad=False, plain=True),
            "sorter": d.indices(lead + [n], n, ("i64",)), "x": d.tensor(dtype, (lead + [d.pick(1, 2, 4)]) if lead else d.shape(0, 2, 20), kinds=("small",) if dtype[0] == "i" else ("normal",), grad=False), "right": d.chance(0.5)}


@shaped("unique_consecutive")
def draw_unique_consecutive(d):
    return {"x": d.tensor(d.dtype(), d.shape(), kinds=("grid", "zeros", "same"))}


@shaped("solve_right", "lu", "pinv_with", "lstsq_with", "matrix_rank_with", "matrix_exp")
def draw_matrices(d):
    dtype, n, k = d.pick("f32", "f64", "f64"), d.pick(1, 2, 3, 4, 5), d.pick(1, 2, 3)
    batch = [d.pick(1, 2, 3) for _ in range(d.pick(0, 0, 1, 2))]
    if d.name == "solve_right":
        return {"a": matrices(d, dtype, batch, n, n), "b": matrices(d, dtype, d.broadcast(batch) if d.chance(0.3) else batch, k, n)}
    if d.name == "lu":
        return {"a": matrices(d, dtype, batch, n, d.pick(n, 1, 2, 4))}
    if d.name == "matrix_exp":
        return {"a": d.tensor(dtype, batch + [n, n], kinds=("unit", "normal", "grid"))}
    m = d.pick(1, 2, 3, 4, 5)
    a, rtol, atol = matrices(d, dtype, batch, m, n), d.pick(-1.0, 0.0, 1e-3), d.pick(0.0, 0.0, 0.25)
    if d.name == "lstsq_with":
        return {"a": a, "b": matrices(d, dtype, batch, m, k), "rcond": rtol}
    return {"a": a, "rtol": rtol, "atol": atol}


@shaped("fftn", "ifftn", "rfftn", "irfftn", "hfft", "ihfft")
def draw_fftn(d):
    pairs, one = d.name in ("fftn", "ifftn", "irfftn", "hfft"), d.name.endswith("hfft")
    shape, dtype = d.shape(1, 3, 200), d.pick("f32", "f64")
    x = d.tensor(dtype, shape + [2] * pairs, kinds=("normal", "grid"))
    if one:
        return {"x": x, "n": d.pick(0, 0, 1, 2, 3, 4, 7), "dim": d.dim(len(shape)), "norm": d.pick(0, 1, 2)}
    dims = d.dims(len(shape))
    sizes = [d.pick(1, 2, 3, 5) for _ in range(len(dims) or d.pick(1, len(shape)))] if d.chance(0.4) else []
    return {"x": x, "sizes": sizes, "dims": dims, "norm": d.pick(0, 1, 2)}


@shaped("fftshift", "ifftshift")
def draw_fftshift(d):
    shape, pairs = d.shape(), d.chance(0.3)
    return {"x": d.tensor(d.dtype(), shape[:6] + [2] * pairs), "dims": d.dims(len(shape)) if len(shape) < 7 else [], "pairs": pairs}


# -- PyTorch's --------------------------------------------------------------------------


def nanquantile(x, q, dim, keepdim, interpolation):
    need(bool(((q >= 0) & (q <= 1)).all()), "q in [0, 1]")
    return torch.nanquantile(x, q, dim, keepdim, interpolation=INTERPOLATIONS[interpolation])


def several(function, pairs_in, pairs_out):
    named = lambda x, sizes, dims, norm: function(x, list(sizes) or None, list(dims) or None, norm=norm)
    return lambda x, sizes, dims, norm: fourier(lambda x, norm: named(x, sizes, dims, norm), pairs_in, pairs_out)(x, norm)


def shifted(function):
    def call(x, dims, pairs):
        n = x.ndim - pairs
        need(all(-n <= k < n for k in dims) and len({k % n for k in dims}) == len(dims) and (not dims or n), "dimensions, each once")
        return function(x, [k % n for k in dims] or list(range(n))) if n else x.clone()
    return call


def tolerance(rtol, atol):
    """Ours of a negative rtol: the default, or beside an atol 0."""
    return {"rtol": None if rtol < 0 and not atol else max(rtol, 0.0), "atol": atol}


def solve_right(a, b):
    """Never vectors, as which torch takes some of matrices."""
    return torch.linalg.solve(a, b.expand(*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:]), left=False)


def searchsorted_by(sequence, x, right, sorter):
    """Of what is in order: the sorter that is drawn is none, so that it is taken first."""
    return torch.searchsorted(sequence.gather(-1, sorter).contiguous(), x.contiguous(), right=right)


def lu(a):
    """P alone: L and U multiply to the rest, tests/autograd/test_factorise.c."""
    return torch.linalg.lu(a.detach()).P


def histogram(x, bins, low, high, weight, density):
    need(bins > 0 and low <= high, "bins")
    made = torch.histogram(x.contiguous(), bins, range=None if low == high else (low, high), weight=None if weight is None else weight.contiguous(), density=density)
    return [made.hist, made.bin_edges]


def histogram_edges(x, edges, weight, density):
    return torch.histogram(x.contiguous(), edges, weight=None if weight is None else weight.contiguous(), density=density).hist


def igamma(function):
    def call(a, x):
        need(a.is_floating_point() and x.is_floating_point(), "floating dtypes")
        return function(a.detach(), x)
    return call


def ldexp(x, exponent):
    wide = x.double() * torch.pow(torch.tensor(2.0, dtype=torch.float64), exponent)
    return wide.to(x.dtype if x.is_floating_point() else torch.float32)


def frexp(x):
    need(x.is_floating_point(), "a floating dtype")
    return torch.frexp(x).mantissa


TABLE.update({name: several(getattr(torch.fft, name), not name.startswith("r"), not name.startswith("ir")) for name in ("fftn", "ifftn", "rfftn", "irfftn")})
TABLE.update({
    "hfft": fourier(torch.fft.hfft, True, False), "ihfft": fourier(torch.fft.ihfft, False, True), "fftshift": shifted(torch.fft.fftshift),
    "ifftshift": shifted(torch.fft.ifftshift), "lerp_var": torch.lerp, "round_decimals": lambda x, decimals: torch.round(x, decimals=decimals), "ldexp": ldexp,
    "i0": torch.special.i0, "i0e": torch.special.i0e, "i1": torch.special.i1, "i1e": torch.special.i1e, "log_ndtr": torch.special.log_ndtr,
    "igamma": igamma(torch.special.gammainc), "igammac": igamma(torch.special.gammaincc), "histogram": histogram, "histogram_edges": histogram_edges,
    "unique_dim": lambda x, dim: list(torch.unique(x.detach(), dim=dim, return_inverse=True, return_counts=True)),
    "frexp": frexp, "entr": torch.special.entr, "ndtr": torch.special.ndtr, "xlog1py": torch.special.xlog1py, "nanquantile": nanquantile,
    "unique_consecutive": lambda x: list(torch.unique_consecutive(x.detach(), return_inverse=True, return_counts=True)),
    "solve_right": solve_right, "lu": lu, "searchsorted_by": searchsorted_by, "pinv_with": lambda a, atol, rtol: torch.linalg.pinv(a, **tolerance(rtol, atol)),
    "lstsq_with": lambda a, b, rcond: torch.linalg.pinv(a, **tolerance(rcond, 0.0)) @ b,
    "matrix_rank_with": lambda a, atol, rtol: torch.linalg.matrix_rank(a.detach(), **tolerance(rtol, atol)), "matrix_exp": lambda a: torch.linalg.matrix_exp(a.contiguous()),
})
