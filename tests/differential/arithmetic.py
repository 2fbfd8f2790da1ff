# SPDX-License-Identifier: Apache-2.0
"""Rounded quotients, functions of two numbers, differences along lines: how they are drawn, and PyTorch's."""
import torch

from counterparts import TABLE, need
from draw import shaped


@shaped("fmod", "floor_divide", "div_mode", "hypot", "copysign", "xlogy", "heaviside", "clamp_var")
def draw_pairs(d):
    dtype, shape = d.dtype(), d.shape(0, 4, 300)
    other = lambda: d.tensor(d.companion(dtype) if d.chance(0.4) else dtype, d.broadcast(shape) if d.chance(0.4) else shape)
    if d.name == "clamp_var":
        return {"x": d.tensor(dtype, shape), "low": other() if d.chance(0.8) else None, "high": other() if d.chance(0.8) else None}
    args = {"x": d.tensor(dtype, shape), "y": other()}
    return args | {"rounding": d.pick(0, 1, 1, 2, 2, 3 if d.bad else 1)} if d.name == "div_mode" else args


@shaped("diff")
def draw_diff(d):
    dtype, shape = d.dtype(), d.shape(1, 4, 300)
    dim = d.dim(len(shape))
    def end():
        sizes = list(shape)
        if sizes and -len(sizes) <= dim < len(sizes):
            sizes[dim] = d.pick(1, 2)
        return d.tensor(dtype, sizes) if d.chance(0.25) else None
    n = d.pick(1, 1, 1, 2, 3, 0, -1 if d.bad else 1)
    dim = 0 if n == 0 else dim  # PyTorch does not look at it
    return {"x": d.tensor(dtype, shape), "n": n, "dim": dim, "before": end(), "after": end()}


@shaped("trapezoid")
def draw_trapezoid(d):
    dtype, shape = d.float_dtype(), d.shape(1, 4, 300)
    dim = d.dim(len(shape))
    points = [shape[dim]] if d.chance(0.5) and -len(shape) <= dim < len(shape) else shape
    return {"y": d.tensor(dtype, shape), "x": d.tensor(dtype, points) if d.chance(0.5) else None, "dx": d.pick(1.0, 1.0, 0.5, 2.0), "dim": dim}


# -- PyTorch's --------------------------------------------------------------------------

ROUNDINGS = (None, "trunc", "floor")


def div_mode(x, y, rounding):
    need(0 <= rounding < 3, "a rounding")
    if not rounding or torch.result_type(x, y) not in (torch.int32, torch.int64) or y.dtype == torch.uint8:
        return torch.div(x, y, rounding_mode=ROUNDINGS[rounding])
    made = torch.div(x, torch.where(y == -1, 1, y).to(y.dtype), rounding_mode=ROUNDINGS[rounding])  # the least number by -1: SIGFPE
    return torch.where(y == -1, -made, made) if made.dtype != torch.bool else made


def clamp_var(x, low, high):
    return torch.clamp(x, low, high)


def trapezoid(y, x, dx, dim):
    return torch.trapezoid(y, dx=dx, dim=dim) if x is None else torch.trapezoid(y, x, dim=dim)


TABLE.update({
    "div_mode": div_mode, "floor_divide": lambda x, y: div_mode(x, y, 2), "clamp_var": clamp_var, "trapezoid": trapezoid,
    "heaviside": lambda x, y: torch.heaviside(x.detach(), y.detach()), "diff": lambda x, n, dim, before, after: torch.diff(x, n, dim, before, after),
    "nansum": lambda x, dims, keepdim: torch.nansum(x, dims or None, keepdim), "nanmean": lambda x, dims, keepdim: torch.nanmean(x, dims or None, keepdim),
})
