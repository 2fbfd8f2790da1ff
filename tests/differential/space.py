# SPDX-License-Identifier: Apache-2.0
"""Pools with places, of given sizes and undone, power means, places of a grid: how they are drawn, and PyTorch's."""
import torch
import torch.nn.functional as F

from counterparts import TABLE, need, three
from draw import shaped
from draw_windows import only_padding
from headers import ZERO

NAMES = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}


def dims_of(name):
    return int(name.split("pool")[1][0])


def few(values, dims):
    """The numbers of an option of so many dimensions, as a list of three."""
    return (list(values)[:dims] + [0, 0, 0])[:3]


def first(values, dims, default):
    """An option's numbers as PyTorch takes them."""
    return tuple(three(few(values, dims), default)[:dims])


def image(d, dims, *of):
    return [d.pick(0, 1, 2, 2) if dims < 3 else d.pick(1, 2), d.pick(1, 2, 3)] + [d.pick(*of) for _ in range(dims)]


@shaped("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices", "lp_pool1d", "lp_pool2d", "lp_pool3d")
def draw_pools(d):
    dims, maximum = dims_of(d.name), d.name.startswith("max")
    numbers = lambda *of: few([d.pick(*of), d.pick(0, *of), d.pick(0, *of)], dims)
    opts = {"kernel": numbers(1, 2, 3), "stride": d.pick([0, 0, 0], numbers(1, 2, 3)), "padding": [0, 0, 0], "dilation": [0, 0, 0],
            "ceil_mode": d.chance(0.3), "exclude_padding": False}
    x = d.tensor(d.float_dtype(), image(d, dims, 3, 4, 5, 7), kinds=None if maximum else ("positive", "positive", "zeros"))
    if not maximum:
        return {"x": x, "norm": d.pick(1.0, 2.0, 2.0, 3.0, 0.5, 0.0 if d.bad else 4.0), "opts": opts}
    if min(first(opts["kernel"], dims, 1)) > 1 and d.chance(0.4):
        opts["padding"] = few([1, ZERO, d.pick(0, 1)], dims)
    opts["dilation"] = d.pick([0, 0, 0], numbers(1, 2))
    sizes = {"shape": [1, 1] + d.shape_of(x)[2:4]} if dims == 2 else None
    if dims == 3 or any(opts["padding"]) or sizes and only_padding(sizes, opts):
        opts["dilation"] = [0, 0, 0]
    return {"x": x, "opts": opts}


@shaped("fractional_max_pool2d", "fractional_max_pool3d")
def draw_fractional(d):
    dims, dtype = dims_of(d.name), d.pick("f32", "f64")
    shape = image(d, dims, 3, 4, 5, 7)
    sized = d.chance(0.6)
    opts = {"kernel": few([d.pick(1, 2, 3), d.pick(0, 1, 2), d.pick(0, 1, 2)], dims), "output_size": few([d.pick(1, 2, 3), d.pick(0, 1, 2), 0], dims) if sized else [0, 0, 0],
            "output_ratio": [0.0, 0.0, 0.0] if sized and not d.bad else [d.pick(0.4, 0.5, 0.7), d.pick(0.0, 0.6), 0.0],
            "random_samples": d.tensor(dtype, shape[:2] + [dims], plain=True, grad=False)}
    drawn = d.tensors[opts["random_samples"]["tensor"]]
    drawn["values"] = [d.rng.randrange(0, 64) / 64 for _ in range(shape[0] * shape[1] * dims)]
    return {"x": d.tensor(dtype, shape, kinds=("normal", "grid")), "opts": opts}


@shaped("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def draw_adaptive_max(d):
    dims = dims_of(d.name)
    return {"x": d.tensor(d.float_dtype(), image(d, dims, 1, 2, 5, 7))} | {name: d.pick(1, 2, 3, 5) for name in NAMES[dims]}


@shaped("max_unpool1d", "max_unpool2d", "max_unpool3d")
def draw_unpool(d):
    """Places that differ within a channel: PyTorch's order of equal ones is not told."""
    dims = dims_of(d.name)
    kernel, stride = few([d.pick(1, 2, 3)], dims), few([d.pick(0, 1, 2, 3)], dims)
    step, shape = stride[0] or kernel[0], image(d, dims, 1, 2, 3)
    shape[0] = max(shape[0], 1)
    padding = few([d.pick(0, 0, 1) if kernel[0] > 1 and min(shape[2:]) > 2 else 0], dims)
    usual = [(n - 1) * step - 2 * padding[0] + kernel[0] for n in shape[2:]]
    wanted = [n + d.pick(0, 0, 1 if step > 1 else 0) + (step if d.bad else 0) for n in usual] if d.chance(0.5) else None
    area, count = 1, 1
    for n, out in zip(shape[2:], wanted or usual):
        area, count = area * max(out, 1), count * n
    x = d.tensor(d.float_dtype(), shape)
    places = d.indices(shape, max(area, 1), ("i64",))
    rows = shape[0] * shape[1]
    d.tensors[places["tensor"]]["layout"] = None  # of others PyTorch's backward takes no view
    d.tensors[places["tensor"]]["values"] = [v for _ in range(rows) for v in d.rng.sample(range(max(area, count)), count)]
    return {"x": x, "indices": places, "opts": {"kernel": kernel, "stride": stride, "padding": padding, "output_size": few(wanted or [0], dims)
                                                 if wanted else [0, 0, 0]}}


@shaped("grid_sample")
def draw_grid_sample(d):
    dims, dtype = d.pick(2, 2, 2, 3), d.float_dtype()
    mode = d.pick(0, 0, 1, 2) if dims == 2 else d.pick(0, 1)
    shape = image(d, dims, 1, 2, 3, 5)
    places = [shape[0] + (1 if d.bad and d.chance(0.3) else 0)] + [d.pick(1, 2, 3, 4) for _ in range(dims)] + [dims]
    other = dtype if d.chance(0.95) else d.float_dtype()
    opts = {"mode": mode, "padding": d.pick(0, 1, 2), "align_corners": d.chance(0.5)} if mode or d.chance(0.8) else None
    return {"x": d.tensor(dtype, shape, kinds=("normal", "positive", "grid")), "grid": d.tensor(other, places, kinds=("normal", "unit")), "opts": opts}


@shaped("affine_grid")
def draw_affine_grid(d):
    dims = d.pick(2, 2, 3)
    size = [d.pick(1, 2, 3), d.pick(1, 4)] + [d.pick(1, 2, 3, 5) for _ in range(dims)]
    theta = d.tensor(d.float_dtype(), [size[0] + (1 if d.bad else 0), dims, dims + 1], kinds=("normal", "grid", "positive"))
    return {"theta": theta, "size": size, "align_corners": d.chance(0.5)}


def max_pool(dims):
    def call(x, opts):
        need(x.ndim == 2 + dims, "a batch of channels")
        kernel = first(opts["kernel"], dims, 0)
        stride = first(opts["stride"], dims, 0) if opts["stride"][0] else kernel
        return list(getattr(F, f"max_pool{dims}d")(x, kernel, stride, first(opts["padding"], dims, ZERO), first(opts["dilation"], dims, 1),
                                                   opts["ceil_mode"], return_indices=True))
    return call


def lp_pool(dims):
    def call(x, norm, opts):
        need(x.ndim == 2 + dims and x.is_floating_point() and norm != 0, "a batch of channels, floating, and a norm")
        kernel = first(opts["kernel"], dims, 0)
        stride = first(opts["stride"], dims, 0) if opts["stride"][0] else kernel
        one = lambda v: v[0] if dims == 1 else v
        return getattr(F, f"lp_pool{dims}d")(x, norm, one(kernel), one(stride), opts["ceil_mode"])
    return call


def unpool(dims):
    def call(x, indices, opts):
        need(x.ndim == 2 + dims, "a batch of channels")
        kernel = first(opts["kernel"], dims, 0)
        stride = first(opts["stride"], dims, 0) if opts["stride"][0] else kernel
        padding, wanted = first(opts["padding"], dims, ZERO), opts["output_size"]
        usual = [(n - 1) * s - 2 * p + k for n, s, p, k in zip(x.shape[2:], stride, padding, kernel)]
        need(min(usual) > 0, "a result")
        return getattr(F, f"max_unpool{dims}d")(x, indices, kernel, stride, padding, first(wanted, dims, 0) if wanted[0] else None)
    return call


def grid_sample(x, grid, opts):
    need(x.dtype == grid.dtype, "one dtype")
    o = opts or {"mode": 0, "padding": 0, "align_corners": False}
    return F.grid_sample(x, grid, ("bilinear", "nearest", "bicubic")[o["mode"]], ("zeros", "border", "reflection")[o["padding"]], o["align_corners"])


def fractional(function, dims):
    def call(x, opts):
        sized, ratio = opts["output_size"][0], opts["output_ratio"]
        need(x.ndim == 2 + dims and bool(sized) != bool(ratio[0]), "a size or a ratio")
        size = first(opts["output_size"], dims, 0) if sized else tuple(
            int(n * r) for n, r in zip(x.shape[2:], (ratio[0], ratio[1] or ratio[0], ratio[2] or ratio[1] or ratio[0])))
        need(min(size) > 0, "windows")
        return list(function(x, first(opts["kernel"], dims, 0), output_size=size, return_indices=True, _random_samples=opts["random_samples"].detach()))
    return call


TABLE.update({f"max_pool{n}d_with_indices": max_pool(n) for n in NAMES})
TABLE.update({f"lp_pool{n}d": lp_pool(n) for n in NAMES})
TABLE.update({f"max_unpool{n}d": unpool(n) for n in NAMES})
TABLE.update({
    "fractional_max_pool2d": fractional(F.fractional_max_pool2d, 2), "fractional_max_pool3d": fractional(F.fractional_max_pool3d, 3),
    "adaptive_max_pool1d": lambda x, *sizes: list(F.adaptive_max_pool1d(x, sizes[0], True)),
    "adaptive_max_pool2d": lambda x, *sizes: list(F.adaptive_max_pool2d(x, sizes, True)),
    "adaptive_max_pool3d": lambda x, *sizes: list(F.adaptive_max_pool3d(x, sizes, True)),
    "grid_sample": grid_sample,
    "affine_grid": lambda theta, size, align: F.affine_grid(theta, list(size), align),
})
