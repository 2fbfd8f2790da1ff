# SPDX-License-Identifier: Apache-2.0
"""Sums of products, products of vectors and matrices, distances: how they are drawn, and PyTorch's."""
import math

import torch
import torch.nn.functional as F

from counterparts import TABLE, need, whole
from draw import shaped

EQUATIONS = ("ij,jk->ik", "ij,kj->ik", "bij,bjk->bik", "bij,bkj->bik", "bhtd,bhsd->bhts", "bthd,bshd->bhts", "...ij,...jk->...ik", "i,j->ij",
             "ij,ij->ij", "ij,ij->i", "ii->i", "ii", "ij->ji", "ij->", "i,i->", "bi,ijk,bk->bj", "ij,jk,kl->il", "ab,ab,ab->a", "...i,i->...",
             "...i,...i", "ijkl,klm->ijm", "abc,cd->adb", "aab,bc->ac", "ba,c", "b...,b...->...", "ijk,jil->kl", "i...->...", "aB,Bc", "ij,k->ikj",
             "nlhd,hdo->nlo")


def operands(d, equation):
    """Shapes that fit an equation: now and then a size of 1, and something that does not."""
    sizes = {letter: d.size(0.03) for letter in equation if letter.isalpha()}
    more = [d.pick(1, 2, 3) for _ in range(d.pick(0, 1, 2))]
    made = []
    for term in equation.split("->")[0].split(","):
        shape = []
        for part in term.replace("...", "."):
            shape += [1 if d.chance(0.2) else n for n in more[d.rng.randrange(len(more) + 1):]] if part == "." else [sizes[part]]
        if "." not in term and len(set(term)) == len(term):
            shape = [1 if d.chance(0.05) else n for n in shape]
        if d.bad and shape and d.chance(0.3):
            shape[0] += 1
        made.append(shape)
    return made


@shaped("einsum")
def draw_einsum(d):
    equation = d.pick(*EQUATIONS)
    dtype = d.float_dtype() if d.chance(0.9) else "i64"
    shapes = operands(d, equation)
    if d.bad and d.chance(0.3):
        equation = d.pick(equation + "z", equation.replace(",", ""), equation + "->", "-" + equation, equation.replace("j", "1"))
    elif d.chance(0.2):
        equation = equation.replace(",", " , ").replace("->", " -> ")
    plain = ("normal", "grid", "positive", "zeros")
    return {"equation": equation, "list": [d.tensor(dtype, s, kinds=plain) for s in shapes]}


@shaped("tensordot")
def draw_tensordot(d):
    dtype, n = d.float_dtype(), d.pick(0, 1, 1, 2)
    shared = [d.size(0.03) for _ in range(n)]
    x, y, dims_x, dims_y = d.shape(0, 2, 30) + shared, shared + d.shape(0, 2, 30), [], []
    for k in range(n):
        dims_x.append(len(x) - n + k - (len(x) if d.chance(0.3) else 0))
        dims_y.append(k - (len(y) if d.chance(0.3) else 0))
    if d.bad and n:
        d.pick(dims_x, dims_y).append(0)
    return {"x": d.tensor(dtype, x, kinds=("normal", "grid")), "y": d.tensor(dtype, y, kinds=("normal", "grid")), "dims_x": dims_x, "dims_y": dims_y}


@shaped("outer_product", "dot", "inner", "kron")
def draw_two(d):
    dtype, n = d.float_dtype(), d.size()
    if d.name == "kron":
        return {"x": d.tensor(dtype, d.shape(0, 3, 30)), "y": d.tensor(dtype, d.shape(0, 3, 30))}
    if d.name == "inner":
        return {"x": d.tensor(dtype, d.shape(0, 2, 30) + [n], kinds=("normal", "grid")), "y": d.tensor(dtype, d.shape(0, 2, 30) + [n], kinds=("normal", "grid"))}
    other = d.size() if d.name == "outer_product" or d.bad else n
    return {"x": d.tensor(dtype, [n], kinds=("normal", "grid")), "y": d.tensor(d.companion(dtype), [other], kinds=("normal", "grid"))}


@shaped("addmm", "baddbmm")
def draw_add_product(d):
    dtype = d.float_dtype() if d.chance(0.9) else "i64"
    m, k, n = d.size(), d.size(0.1), d.size()
    batch = [d.size()] if d.name == "baddbmm" else []
    x = d.broadcast(batch + [m, n])
    number = lambda: d.pick(1.0, 1.0, 0.0, 2.0, 0.5 if dtype != "i64" or d.bad else 3.0)
    return {"x": d.tensor(dtype if d.chance(0.97) else d.dtype(), x, kinds=("normal", "grid")), "y": d.tensor(dtype, batch + [m, k], kinds=("normal", "grid")),
            "z": d.tensor(dtype, batch + [k, n], kinds=("normal", "grid")), "beta": number(), "alpha": number()}


@shaped("trace")
def draw_trace(d):
    return {"x": d.tensor(d.dtype(), d.shape(2, 2 if not d.bad else 3))}


@shaped("cdist", "pdist")
def draw_distances_of_rows(d):
    dtype, width, p = d.pick("f32", "f32", "f64"), d.pick(0, 2, 3, 3, 4, 5, 8), d.pick(2.0, 2.0, 1.0, 0.0, 3.0, 1.5, float("inf"), -1.0 if d.bad else 2.0)
    if d.name == "pdist":
        return {"x": d.tensor(dtype, [d.size(), width], kinds=("normal",)), "p": p}
    batch, rows = d.shape(0, 2, 12), lambda: d.pick(1, 2, 3, 5, 27) if d.chance(0.9) else 0
    return {"x": d.tensor(dtype, d.broadcast(batch) + [rows(), width], kinds=("normal",)), "y": d.tensor(dtype, batch + [rows(), width], kinds=("normal",)), "p": p}


def matrices(d, dtype, batch, m, n):
    """Far from singular: numbers up to 1 around a diagonal of 5."""
    ref = d.tensor(dtype, batch + [m, n], plain=True)
    d.tensors[ref["tensor"]]["values"] = [d.rng.randrange(-64, 65) / 64 + 5 * (i % (m * n) % (n + 1) == 0) for i in range(math.prod(batch) * m * n)]
    return ref


@shaped("solve", "inv", "cholesky", "solve_triangular", "cholesky_solve", "svdvals", "eigvalsh", "det", "slogdet", "pinv", "lstsq", "matrix_rank",
        "matrix_power")
def draw_matrices(d):
    dtype, n, k = d.pick("f32", "f64", "f64"), d.pick(0, 1, 2, 3, 4, 5), d.pick(1, 2, 3)
    batch = [d.pick(1, 2, 3) for _ in range(d.pick(0, 0, 1, 2))]
    if d.name in ("svdvals", "pinv", "matrix_rank", "lstsq"):
        m = d.pick(1, 2, 3, 4, 5)
        a = matrices(d, dtype, batch, m, n)
        return {"a": a, "b": matrices(d, dtype, batch, m + d.bad, k)} if d.name == "lstsq" else {"a": a}
    a = matrices(d, dtype, batch, n, n + (d.bad and d.chance(0.5)))
    b = lambda rows, cols: matrices(d, dtype, d.broadcast(batch) if d.chance(0.3) else batch, rows, cols)
    if d.name == "solve":
        return {"a": a, "b": d.tensor(dtype, batch + [n], kinds=("normal",)) if d.chance(0.3) else b(n, k)}
    if d.name == "solve_triangular":
        right = d.chance(0.5)
        return {"a": a, "b": b(k, n) if right else b(n, k), "upper": d.chance(0.5), "right": right, "unit": d.chance(0.3)}
    if d.name == "cholesky_solve":
        return {"b": b(n, k), "factor": a, "upper": d.chance(0.5)}
    if d.name == "cholesky":
        return {"a": a, "upper": d.chance(0.5)}
    return {"a": a, "n": d.pick(0, 1, 2, 3, 5, -1, -2)} if d.name == "matrix_power" else {"a": a}


@shaped("fft", "ifft", "rfft", "irfft", "fft2", "ifft2", "rfft2", "irfft2")
def draw_fft(d):
    plane, pairs = d.name[-1] == "2", d.name.startswith(("fft", "ifft", "irfft"))
    shape, dtype = d.shape(2 if plane else 1, 4, 300), d.pick("f32", "f32", "f64") if d.chance(0.95) or pairs else "i64"
    x = d.tensor(dtype, shape + [2] * pairs, kinds=("normal", "grid"))
    if plane:
        return {"x": x, "norm": d.pick(0, 1, 2)}
    return {"x": x, "n": d.pick(0, 0, 1, 2, 3, 4, 7, -1 if d.bad else 0), "dim": d.dim(len(shape)), "norm": d.pick(0, 1, 2)}


# -- PyTorch's --------------------------------------------------------------------------


def cdist(x, y, p):
    """Products for p = 2 as PyTorch's own; the other norms from the differences, which have second derivatives there, too."""
    need(x.ndim >= 2 and y.ndim >= 2 and x.shape[-1] == y.shape[-1] and x.dtype == y.dtype and p >= 0, "rows")
    if p == 2 and x.shape[-1] and max(x.shape[-2], y.shape[-2]) > 25:
        return torch.cdist(x, y, p)
    return distances(x.unsqueeze(-2) - y.unsqueeze(-3), p)


def distances(apart, p):
    if apart.shape[-1] == 0:
        return apart.sum(-1)
    return torch.linalg.vector_norm(apart, p, -1) if p else torch.linalg.vector_norm(apart, 0, -1) + (apart * 0).sum(-1)


def pdist(x, p):
    need(x.ndim == 2 and p >= 0, "rows")
    i, j = torch.triu_indices(x.shape[0], x.shape[0], 1)
    return distances(x[i] - x[j], p)


def addable(x, beta, alpha):
    need(x.is_floating_point() or beta == int(beta) and alpha == int(alpha), "whole numbers")
    return {"beta": whole(x, beta), "alpha": whole(x, alpha)}


def slogdet(a):
    sign, logabsdet = torch.linalg.slogdet(a)
    return [sign.detach(), logabsdet]


def fourier(function, pairs_in, pairs_out):
    def call(x, *rest):
        *given, norm = rest
        x = torch.complex(x[..., 0], x[..., 1]) if pairs_in else x
        made = function(x, *([given[0] or None, given[1]] if given else []), norm=("backward", "ortho", "forward")[norm])
        return torch.stack((made.real, made.imag), -1) if pairs_out else made
    return call


TABLE.update({name: fourier(getattr(torch.fft, name), not name.startswith("r"), not name.startswith("ir"))
              for name in ("fft", "ifft", "rfft", "irfft", "fft2", "ifft2", "rfft2", "irfft2")})
TABLE.update({
    "solve": torch.linalg.solve, "inv": torch.linalg.inv, "cholesky": lambda a, upper: torch.linalg.cholesky(a, upper=upper), "svdvals": torch.linalg.svdvals, "eigvalsh": torch.linalg.eigvalsh,
    "solve_triangular": lambda a, b, upper, right, unit: torch.linalg.solve_triangular(a, b, upper=upper, left=not right, unitriangular=unit),
    "cholesky_solve": lambda b, factor, upper: torch.cholesky_solve(b, factor.triu() if upper else factor.tril(), upper), "det": torch.linalg.det,
    "slogdet": slogdet, "pinv": torch.linalg.pinv, "lstsq": lambda a, b: torch.linalg.pinv(a) @ b,
    "matrix_rank": lambda a: torch.linalg.matrix_rank(a.detach()), "matrix_power": lambda a, n: torch.linalg.matrix_power(a, n),
    "outer_product": torch.outer, "einsum": lambda equation, parts: torch.einsum(equation, *parts),
    "tensordot": lambda x, y, dims_x, dims_y: torch.tensordot(x, y, dims=(dims_x, dims_y)),
    "addmm": lambda x, y, z, beta, alpha: torch.addmm(x, y, z, **addable(x, beta, alpha)),
    "baddbmm": lambda x, y, z, beta, alpha: torch.baddbmm(x, y, z, **addable(x, beta, alpha)),
    "kron": lambda x, y: torch.kron(*(t.clone(memory_format=torch.contiguous_format) for t in (x, y))), "cdist": cdist, "pdist": pdist,
})


# -- norms of matrices, frames of signals -----------------------------------------------


@shaped("matrix_norm", "logdet")
def draw_matrix_norm(d):
    dtype, batch = d.pick("f32", "f64", "f64"), [d.pick(1, 2, 3) for _ in range(d.pick(0, 0, 1, 2))]
    n = d.pick(1, 2, 3, 4)
    if d.name == "logdet":
        return {"a": matrices(d, dtype, batch, n, n + d.bad)}
    order = d.rng.randrange(0, 8)
    return {"a": d.tensor(dtype, batch + [n, d.pick(1, 2, 3, 5)] if not d.bad else [n], kinds=("normal",)), "order": order, "keepdim": d.chance(0.5)}


@shaped("cross")
def draw_cross(d):
    dtype, shape = d.dtype(), d.shape(1, 3, 60)
    dim = d.rng.randrange(0, len(shape))
    shape[dim] = 3 if not d.bad else 2
    other = [1 if d.chance(0.1) and k != dim else n for k, n in enumerate(shape)]
    return {"x": d.tensor(dtype, shape, kinds=("normal", "grid")), "y": d.tensor(dtype if not d.bad else d.dtype(), other, kinds=("normal", "grid")),
            "dim": dim - (len(shape) if d.chance(0.3) else 0)}


def stft_opts(d, dtype, n):
    length = d.pick(0, 0, n, max(1, n - 1), max(1, n // 2), n + 1 if d.bad else 0)
    return {"hop_length": d.pick(0, 0, 1, 2, 3), "win_length": length, "no_center": d.chance(0.4), "pad_mode": d.pick(0, 0, 1, 2, 3),
            "normalized": d.chance(0.3), "two_sided": d.chance(0.2),
            "window": d.tensor(dtype, [length or n], kinds=("positive",)) if d.chance(0.6) else None}


@shaped("stft", "istft")
def draw_stft(d):
    dtype, n = d.pick("f32", "f64", "f64"), d.pick(4, 5, 6, 8, 9)
    batch = [d.pick(1, 2, 3)] if d.chance(0.6) else []
    opts = stft_opts(d, dtype, n) if d.chance(0.9) else None
    if d.name == "stft":
        return {"x": d.tensor(dtype, batch + [d.pick(n, n + 1, 13, 20, 3 if d.bad else 12)], kinds=("normal", "grid")), "n_fft": n, "opts": opts}
    sides = n if opts and opts["two_sided"] else n // 2 + 1
    return {"x": d.tensor(dtype, batch + [sides + (d.bad and d.chance(0.3)), d.pick(1, 2, 3, 5), 2], kinds=("normal", "grid")), "n_fft": n,
            "length": d.pick(0, 0, 7, 9, 30), "opts": opts}


def stft_arguments(n, opts):
    o = opts or {"hop_length": 0, "win_length": 0, "window": None, "no_center": False, "pad_mode": 0, "normalized": False, "two_sided": False}
    return o["pad_mode"], {"hop_length": o["hop_length"] or n // 4, "win_length": o["win_length"] or n, "window": o["window"], "center": not o["no_center"],
                           "normalized": o["normalized"], "onesided": not o["two_sided"]}


def stft(x, n, opts):
    mode, named = stft_arguments(n, opts)
    need(x.ndim in (1, 2) and (named["window"] is None or named["window"].dtype == x.dtype), "a signal")
    return torch.view_as_real(torch.stft(x, n, pad_mode=("reflect", "constant", "replicate", "circular")[mode], return_complex=True, **named))


def istft(x, n, length, opts):
    _, named = stft_arguments(n, opts)
    need(x.ndim in (3, 4) and (named["window"] is None or named["window"].dtype == x.dtype), "pairs")
    return torch.istft(torch.view_as_complex(x.contiguous()), n, length=length or None, **named)


ORDERS = ("fro", "nuc", 2, -2, 1, -1, math.inf, -math.inf)
TABLE.update({
    "matrix_norm": lambda a, order, keepdim: torch.linalg.matrix_norm(a, ORDERS[order], keepdim=keepdim), "logdet": torch.logdet,
    "cross": lambda x, y, dim: torch.linalg.cross(x, y, dim=dim), "stft": stft, "istft": istft,
})
