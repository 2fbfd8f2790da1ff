# SPDX-License-Identifier: Apache-2.0
"""Rows of tables, bags of them, positions, bilinear forms: how they are drawn, and PyTorch's, or their formulas."""
import math

import torch
import torch.nn.functional as F

from counterparts import TABLE, index_of, need
from draw import shaped
from headers import OFF, ZERO
from trek import DTYPE_NUMBER, DTYPES


def table_options(d, rows):
    return {"padding_idx": d.pick(0, 0, OFF, ZERO, *([rows - 1] if rows > 1 else []), *([-rows] if rows > 2 else []), *([rows + 1] if d.bad else [])),
            "max_norm": d.pick(0.0, 0.0, 0.0, 1.0, 0.5, ZERO), "norm_type": d.pick(0.0, 0.0, 1.0, 3.0), "scale_grad_by_freq": d.chance(0.3)}


def plain_leaf(d, args, opts):
    """PyTorch writes to its leaf; a copy of it is not seen."""
    if opts and opts["max_norm"]:
        t = d.tensors[args["weight"]["tensor"]]
        t["way"], t["layout"], t["own"] = None, None, True
    return args


@shaped("embedding_with")
def draw_embedding_with(d):
    rows = d.pick(1, 2, 5, 9)
    opts = table_options(d, rows) if d.chance(0.9) else None
    args = {"weight": d.tensor(d.float_dtype(), [rows, d.size()], kinds=("normal", "grid")), "indices": d.indices(d.shape(0, 3, 60), rows)}
    return plain_leaf(d, args, opts) | {"opts": opts}


@shaped("embedding_bag")
def draw_embedding_bag(d):
    rows, dtype = d.pick(1, 2, 5, 9), d.float_dtype()
    opts = {"offsets": None, "per_sample_weights": None, "mode": d.pick(0, 1, 1, 2, 3 if d.bad else 1), "include_last_offset": d.chance(0.3)}
    opts |= table_options(d, rows)
    lines = d.chance(0.4)
    shape = [d.pick(0, 1, 2, 5), d.pick(0, 1, 3, 7)] if lines else [d.pick(0, 1, 4, 9, 30)]
    indices = d.indices(shape, rows, ("i64", "i64", "i32"))
    if not lines or (d.bad and d.chance(0.2)):
        bags = d.pick(1, 2, 3, 8)
        ends = sorted(d.rng.randrange(0, shape[0] + 1) for _ in range(bags - 1))
        made = [0] + ends + ([shape[0]] if opts["include_last_offset"] else [])
        if d.bad and d.chance(0.3):
            made[d.rng.randrange(len(made))] += d.pick(-1, 1, 50)
        ref = d.tensor(d.tensors[indices["tensor"]]["dtype"], [len(made)], grad=False)
        d.tensors[ref["tensor"]]["values"] = made
        opts["offsets"] = ref
    if d.chance(0.4 if opts["mode"] == 1 else 0.05):
        opts["per_sample_weights"] = d.tensor(dtype, shape, kinds=("normal", "grid"))
    opts["scale_grad_by_freq"] = opts["scale_grad_by_freq"] and (opts["mode"] != 2 or d.bad)
    args = {"weight": d.tensor(dtype, [rows, d.pick(1, 2, 3, 8)], kinds=("normal", "grid")), "indices": indices}
    return plain_leaf(d, args, opts) | {"opts": opts}


@shaped("rotary")
def draw_rotary(d):
    dtype, shape = d.float_dtype(), d.shape(0 if d.bad else 1, 4, 300)
    if shape:
        shape[-1] = d.pick(2, 4, 6, 10, 3 if d.bad else 2)
    opts = {"positions": None, "offset": d.pick(0, 0, 3), "dim": d.pick(0, 0, 2), "base": d.pick(0.0, 0.0, 100.0, -1.0 if d.bad else 0.0),
            "interleaved": d.chance(0.5), "table": None}
    if d.chance(0.4):
        opts["positions"] = d.indices(d.broadcast(shape[:-1]), 40, ("i64", "i32", "u8"))
    return {"x": d.tensor(dtype, shape, kinds=("normal", "grid")), "opts": opts if d.chance(0.9) else None}


@shaped("rotary_table", "sinusoidal_positions")
def draw_table(d):
    dtypes = ("f32", "f64") if d.name == "rotary_table" else ("f32", "f64", "bf16", "f16")
    return {"positions": d.indices(d.shape(0, 3, 60), 50), "dim": d.pick(2, 4, 10, 3 if d.bad or d.name != "rotary_table" else 6),
            "base": d.pick(10000.0, 100.0, 0.0 if d.bad else 10.0), "dtype": DTYPE_NUMBER[d.pick(*dtypes)]}


@shaped("relative_position_bucket")
def draw_bucket(d):
    shape = d.shape(0, 3, 60)
    ref = d.tensor(d.pick("i64", "i32"), shape)
    d.tensors[ref["tensor"]]["values"] = [d.rng.randrange(-200, 201) for _ in range(math.prod(shape))]
    return {"relative": ref, "bidirectional": d.chance(0.5), "buckets": d.pick(32, 8, 12, 1 if d.bad else 32), "max_distance": d.pick(128, 20, 1 if d.bad else 100)}


@shaped("bilinear")
def draw_bilinear(d):
    dtype, lead = d.float_dtype(), d.shape(0, 2, 30)
    n, m, out = d.pick(1, 2, 5), d.pick(1, 3, 4), d.pick(1, 2, 6)
    tensor = lambda sizes: d.tensor(dtype if not d.bad or d.chance(0.8) else d.float_dtype(), sizes, kinds=("normal", "grid"))
    return {"x": tensor(lead + [n + (d.bad and d.chance(0.3))]), "y": tensor(lead + [m]), "weight": tensor([out, n, m]),
            "bias": tensor([out]) if d.chance(0.6) else None}


@shaped("unflatten")
def draw_unflatten(d):
    shape = d.shape(1, 3, 300)
    at = d.rng.randrange(len(shape))
    parts = [d.pick(1, 2, 3) for _ in range(d.rng.randrange(1, 4))]
    shape[at] = math.prod(parts) if d.chance(0.9) or not d.bad else shape[at]
    if d.chance(0.3):
        parts[d.rng.randrange(len(parts))] = -1
    return {"x": d.tensor(d.dtype(), shape), "dim": at - (len(shape) if d.chance(0.3) else 0), "sizes": parts}


# -- PyTorch's --------------------------------------------------------------------------


def padding_of(o, rows):
    p = {0: None, OFF: None, ZERO: 0}.get(o["padding_idx"], o["padding_idx"])
    need(p is None or -rows <= p < rows, "a row")
    return p


def real(value, default):
    return 0.0 if value == ZERO else value or default


def norms_of(o):
    return {"max_norm": None if o["max_norm"] == 0 else real(o["max_norm"], 0), "norm_type": real(o["norm_type"], 2.0)}


def embedding_with(indices, weight, o):
    if o is None:
        return F.embedding(index_of(indices), weight)
    return F.embedding(index_of(indices), weight, padding_of(o, weight.shape[0]), scale_grad_by_freq=bool(o["scale_grad_by_freq"]), **norms_of(o))


def embedding_bag(indices, weight, o):
    need(0 <= o["mode"] < 3, "a mode")
    need(o["per_sample_weights"] is None or o["per_sample_weights"].shape == indices.shape, "weights for all")
    offsets = o["offsets"]
    if offsets is not None:
        rises = [0] + offsets.tolist()
        need(indices.ndim == 1 and offsets[0] == 0 and all(a <= b for a, b in zip(rises, rises[1:])) and rises[-1] <= indices.shape[0], "offsets")
    need(bool(((indices >= 0) & (indices < weight.shape[0])).all()), "indices")
    mode = ("mean", "sum", "max")[o["mode"]]
    padding = padding_of(o, weight.shape[0])
    norms = norms_of(o)
    if norms["max_norm"] is not None and indices.numel():
        with torch.no_grad():
            torch.embedding_renorm_(weight.detach(), index_of(indices).reshape(-1).long(), norms["max_norm"], norms["norm_type"])
    need(mode == "sum" or o["per_sample_weights"] is None, "weights are for sums")
    need(mode != "max" or not o["scale_grad_by_freq"], "frequencies are not for maxima")
    return by_bags(weight, indices.long(), offsets, o, mode, padding)


class ByFrequency(torch.autograd.Function):
    """Rows; what each gets is divided by how often it is there."""

    @staticmethod
    def forward(ctx, weight, index):
        ctx.save_for_backward(index)
        ctx.rows = weight.shape[0]
        return weight[index]

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        counts = torch.bincount(index, minlength=ctx.rows)[index].to(grad.dtype)
        return torch.zeros(ctx.rows, grad.shape[1], dtype=grad.dtype).index_add(0, index, grad / counts[:, None]), None


def by_bags(weight, indices, offsets, o, mode, padding):
    """PyTorch's own op, where it has derivatives; it has neither second ones nor 16-bit ones everywhere: then its formula."""
    if offsets is None:
        offsets = torch.arange(indices.shape[0] + 1) * indices.shape[1]
        flat = indices.reshape(-1)
    else:
        flat = indices
        offsets = offsets.long() if o["include_last_offset"] else torch.cat([offsets.long(), torch.tensor([flat.shape[0]])])
    weights = None if o["per_sample_weights"] is None else o["per_sample_weights"].reshape(-1)
    padding = None if padding is None else padding % weight.shape[0]
    rows = ByFrequency.apply(weight, flat) if o["scale_grad_by_freq"] else weight[flat]
    rows = rows.float() if weight.dtype.itemsize == 2 else rows
    rows = rows if weights is None else rows * weights.to(rows.dtype)[:, None]
    made = []
    for begin, end in zip(offsets.tolist(), offsets.tolist()[1:]):
        kept = rows[begin:end]
        kept = kept if padding is None else kept[flat[begin:end] != padding]
        if kept.shape[0] == 0:
            made.append((rows.sum() * 0 if rows.numel() else rows.sum()).expand(weight.shape[1]))
        elif mode == "max":
            made.append(kept.gather(0, kept.detach().argmax(0, keepdim=True))[0])
        else:
            made.append(kept.sum(0) / (kept.shape[0] if mode == "mean" else 1))
    out = torch.stack(made) if made else (rows.sum() * 0).expand(0, weight.shape[1])
    out = out.to(weight.dtype)
    with torch.no_grad():
        if weight.dtype.itemsize > 2 and made and not (o["include_last_offset"] and offsets[-1] < flat.shape[0]):
            theirs = F.embedding_bag(flat, weight.contiguous(), offsets, mode=mode, per_sample_weights=None if weights is None else weights.contiguous(),
                                     include_last_offset=True, padding_idx=padding)
            assert torch.allclose(theirs, out, rtol=1e-4, atol=1e-5), "the formula is not PyTorch's"
    return out


def angles(positions, dim, base, n):
    need(base > 0, "a base")
    return positions.double()[..., None] * base ** (-2 * torch.arange(n, dtype=torch.float64) / dim)


def rotary(x, o):
    o = o or {"positions": None, "offset": 0, "dim": 0, "base": 0.0, "interleaved": False}
    need(x.ndim > 0, "dimensions")
    dim = o["dim"] or x.shape[-1]
    need(dim % 2 == 0 and 2 <= dim <= x.shape[-1], "pairs")
    positions = o["positions"]
    if positions is None:
        positions = torch.arange(x.shape[-2] if x.ndim > 1 else 1) + o["offset"]
        positions = positions if x.ndim > 1 else positions[0]
    need(positions.ndim < x.ndim, "positions")
    angle = angles(positions, dim, o["base"] or 10000.0, dim // 2)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    c, s, y = angle.cos().to(wide), angle.sin().to(wide), x.to(wide)
    need(torch.broadcast_shapes(positions.shape, x.shape[:-1]) == x.shape[:-1], "positions")
    a, b = (y[..., 0:dim:2], y[..., 1:dim:2]) if o["interleaved"] else (y[..., :dim // 2], y[..., dim // 2:dim])
    p, q = a * c - b * s, b * c + a * s
    turned = torch.stack([p, q], -1).flatten(-2) if o["interleaved"] else torch.cat([p, q], -1)
    return torch.cat([turned, y[..., dim:]], -1).to(x.dtype)


def dtype_of(number):
    return next(DTYPES[k] for k, v in DTYPE_NUMBER.items() if v == number)


def rotary_table(positions, dim, base, dtype):
    need(dim % 2 == 0, "even")
    angle = angles(positions, dim, base, dim // 2)
    return torch.cat([angle.cos(), angle.sin()], -1).to(dtype_of(dtype))


def sinusoidal_positions(positions, dim, base, dtype):
    angle = angles(positions, dim, base, (dim + 1) // 2)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[..., :dim].to(dtype_of(dtype))


def relative_position_bucket(relative, bidirectional, buckets, max_distance):
    """transformers' T5Attention._relative_position_bucket."""
    side = buckets // 2 if bidirectional else buckets
    need(side // 2 >= 1 and max_distance > side // 2, "buckets")
    result = (relative > 0).long() * side if bidirectional else torch.zeros_like(relative).long()
    distance = relative.long().abs() if bidirectional else -torch.min(relative.long(), torch.zeros_like(relative).long())
    exact = side // 2
    far = exact + (torch.log(distance.float() / exact) / math.log(max_distance / exact) * (side - exact)).long()
    return result + torch.where(distance < exact, distance, torch.min(far, torch.full_like(far, side - 1)))


TABLE.update({
    "embedding_with": embedding_with, "embedding_bag": embedding_bag, "rotary": rotary, "rotary_table": rotary_table,
    "sinusoidal_positions": sinusoidal_positions, "relative_position_bucket": relative_position_bucket,
    "bilinear": lambda x, y, w, b: F.bilinear(x, y, w, b), "unflatten": lambda x, dim, sizes: torch.unflatten(x, dim, sizes),
})
