# SPDX-License-Identifier: Apache-2.0
"""PyTorch's counterpart of each function: by default what has the same name in torch, torch.nn.functional or
Tensor, called with the arguments in their order. What differs in name or arguments is in the table here."""
import math

import torch
import torch.nn.functional as F

from headers import ZERO
from trek import DTYPE_OF, DTYPES


class Refuses(Exception):
    """What trek's declaration refuses and PyTorch does not."""


def need(holds, what):
    if not holds:
        raise Refuses(what)


def whole(x, value):
    """A number as it stands for an integer tensor: 2.0 is 2."""
    return int(value) if not x.is_floating_point() and math.isfinite(value) and value == int(value) else value


def every(x, dims):
    return tuple(dims) if dims else tuple(range(x.ndim))


def index_of(t):
    need(not t.is_floating_point() and t.dtype != torch.bool, "indices are integers")
    return t.long()


def two(given, default):
    """[h, w] of an option."""
    h = given[0] if given[0] else default
    w = given[1] if given[1] else h
    return (0 if h == ZERO else h, 0 if w == ZERO else w)


def prod(x, dims, keepdim):
    if not dims:
        made = torch.prod(x)
        return made.reshape([1] * x.ndim) if keepdim else made
    places = [torch._prims_common.canonicalize_dim(x.ndim, d) for d in dims]
    need(len(set(places)) == len(places), "a dimension twice")
    for d in sorted(places, reverse=True):
        x = torch.prod(x, d, keepdim)
    return x


def arg(function):
    def call(x, dims, keepdim):
        need(len(dims) < 2, "one dimension or all")
        made = function(x, dims[0] if dims else None, keepdim=keepdim and bool(dims))
        return made.reshape([1] * x.ndim) if keepdim and not dims else made
    return call


def some(function):
    return lambda x, dims, keepdim: function(x, dim=every(x, dims), keepdim=keepdim) if x.ndim or dims else function(x)


def norm(x, p, dims, keepdim):
    return torch.linalg.vector_norm(x, p, tuple(dims) or None, keepdim)


def padding_of(opts, numbers):
    """A convolution's, which may be a kind and no numbers."""
    kind = (opts or {}).get("padding_kind", 0)
    need(not kind or not any(v not in (0, ZERO) for v in opts["padding"]), "a kind of padding or numbers")
    return ("valid", "same")[kind - 1] if kind else numbers


def conv2d(x, weight, bias, opts):
    need(x.ndim == 4, "x [N, C, H, W]")
    o = opts or {"stride": [0, 0], "padding": [0, 0], "dilation": [0, 0], "groups": 1}
    return F.conv2d(x, weight, bias, two(o["stride"], 1), padding_of(opts, two(o["padding"], 0)), two(o["dilation"], 1), o["groups"] or 1)


def conv2d_activation(x, weight, bias, opts, activation):
    return (lambda y: y, F.relu, F.gelu)[activation](conv2d(x, weight, bias, opts))


def channels_last(x):
    need(x.ndim == 4, "x [N, C, H, W]")
    return x.contiguous(memory_format=torch.channels_last)


def conv_transpose2d(x, weight, bias, opts):
    need(x.ndim == 4, "x [N, C, H, W]")
    o = opts or {name: [0, 0] for name in ("stride", "padding", "output_padding", "dilation", "output_size")} | {"groups": 1}
    stride, padding, dilation = two(o["stride"], 1), two(o["padding"], 0), two(o["dilation"], 1)
    more = two(o["output_padding"], 0)
    if o["output_size"][0]:
        least = [(x.shape[2 + d] - 1) * stride[d] - 2 * padding[d] + dilation[d] * (weight.shape[2 + d] - 1) + 1 for d in (0, 1)]
        more = [size - low for size, low in zip(two(o["output_size"], 0), least)]
        need(all(0 <= m < s for m, s in zip(more, stride)), "an output size that none gives")
    return F.conv_transpose2d(x, weight, bias, stride, padding, tuple(more), o["groups"] or 1, dilation)


def max_pool2d(x, opts):
    need(x.ndim == 4, "x [N, C, H, W]")
    kernel = two(opts["kernel"], 0)
    stride = two(opts["stride"], 0) if opts["stride"][0] else kernel
    return F.max_pool2d(x, kernel, stride, two(opts["padding"], 0), two(opts["dilation"], 1), opts["ceil_mode"])


def avg_pool2d(x, opts):
    need(x.ndim == 4, "x [N, C, H, W]")
    kernel = two(opts["kernel"], 0)
    stride = two(opts["stride"], 0) if opts["stride"][0] else kernel
    return F.avg_pool2d(x, kernel, stride, two(opts["padding"], 0), opts["ceil_mode"], not opts["exclude_padding"],
                        opts.get("divisor_override") or None)


def add_layer_norm(x, branch, count, weight, bias, eps):
    need(x.shape == branch.shape, "x and branch of one shape")
    residual = x + branch
    return [F.layer_norm(residual, x.shape[x.ndim - count:], weight, bias, eps), residual]


def batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps):
    need((running_mean is None) == (running_var is None), "both or none")
    return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)


def instance_norm(x, running_mean, running_var, weight, bias, use_input_stats, momentum, eps):
    need((running_mean is None) == (running_var is None), "both or none")
    return F.instance_norm(x, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)


def attention(q, k, v, opts):
    o = opts or {"causal": False, "scale": 0.0, "mask": None, "dropout": 0.0}
    need(q.ndim == 4 and k.ndim == 4 and v.ndim == 4 and k.shape == v.shape and q.dtype.is_floating_point, "shapes")
    mask = o["mask"]
    groups = q.shape[1] // max(k.shape[1], 1)
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    if o["causal"]:
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
        mask = seen if mask is None else mask & seen if mask.dtype == torch.bool else mask.masked_fill(~seen, -math.inf)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # the others have no second derivative
        return F.scaled_dot_product_attention(q, k, v, mask, 0.0, False, scale=o["scale"] or None)


def attention_weights(q, k, opts):
    """The result for values that are the unit matrix; 0 for a query that sees none, of which torch's gradients are NaN."""
    need(q.ndim == 4 and k.ndim == 4 and q.dtype == k.dtype and q.shape[3] == k.shape[3], "shapes")
    low = q.dtype
    wide = lambda t: t.float() if t.dtype.itemsize == 2 else t
    unit = torch.eye(k.shape[2], dtype=wide(q).dtype).expand(*k.shape[:2], -1, -1)
    o = opts or {"causal": False, "scale": 0.0, "mask": None}
    mask, groups = o["mask"], q.shape[1] // max(k.shape[1], 1)
    need(k.shape[1] and q.shape[1] % k.shape[1] == 0, "heads")
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(unit.dtype)
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
    if o["causal"]:
        mask = seen if mask is None else mask & seen if mask.dtype == torch.bool else mask.masked_fill(~seen, -math.inf)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(wide(q), wide(k).repeat_interleave(groups, 1), unit.repeat_interleave(groups, 1), mask, 0.0, False,
                                              scale=o["scale"] or None).to(low)


def turned(x, lengths):
    """Each row's first steps in the other order; [T, N, ...]."""
    if lengths is None:
        return x.flip(0)
    t, n = torch.arange(x.shape[0])[:, None], lengths[None, :]
    index = torch.where(t < n, n - 1 - t, t)
    return x.gather(0, index[:, :, None].expand(x.shape))


def recurrent(kind):
    """torch's fused layers know no single direction that is the reverse one, and their oneDNN way has no second derivative."""
    def run(x, weight_ih, weight_hh, bias_ih, bias_hh, opts):
        o = opts or {"h0": None, "c0": None, "lengths": None, "reverse": False}
        need(x.ndim == 3 and weight_hh.ndim == 2, "x [T, N, in]")
        lengths = None if o["lengths"] is None else o["lengths"].long()
        need(lengths is None or lengths.shape == (x.shape[1],), "a length for each row")
        zeros = x.new_zeros(x.shape[1], weight_hh.shape[1])
        weights = [weight_ih, weight_hh]
        if bias_ih is not None or bias_hh is not None:
            weights += [x.new_zeros(weight_hh.shape[0]) if b is None else b for b in (bias_ih, bias_hh)]
        states = [(zeros if s is None else s)[None] for s in ([o["h0"], o["c0"]] if kind == "lstm" else [o["h0"]])]
        run_whole = torch._VF.lstm if kind == "lstm" else torch._VF.gru
        given = turned(x, lengths) if o["reverse"] else x
        with torch.backends.mkldnn.flags(enabled=False):
            if lengths is None:
                y, *ends = run_whole(given, states if kind == "lstm" else states[0], weights, len(weights) > 2, 1, 0.0, False, False, False)
            else:
                need(bool((lengths <= x.shape[0]).all()), "lengths of at most T")
                packed = torch.nn.utils.rnn.pack_padded_sequence(given, lengths, enforce_sorted=False)
                states = [s.index_select(1, packed.sorted_indices) for s in states]
                y, *ends = run_whole(packed.data, packed.batch_sizes, states if kind == "lstm" else states[0], weights, len(weights) > 2, 1, 0.0,
                                     False, False)
                y = torch.nn.utils.rnn.pad_packed_sequence(packed._replace(data=y), total_length=x.shape[0])[0]
                ends = [e.index_select(1, packed.unsorted_indices) for e in ends]
        return [turned(y, lengths) if o["reverse"] else y] + [e[0] for e in ends]
    return run


REDUCTIONS = ("mean", "sum", "amax", "amin", "prod", "norm", "none")  # trek_reduction; losses take MEAN, SUM and the last
NO_REDUCTION = 6


def cross_entropy(logits, labels, opts=None):
    o = opts or {"weight": None, "ignore_index": 0, "label_smoothing": 0.0, "reduction": 0}
    need(logits.ndim >= 2, "logits [N, C, ...]")
    ignore = {0: -100, ZERO: 0}.get(o["ignore_index"], o["ignore_index"])
    if not labels.is_floating_point():
        need(labels.dtype != torch.bool, "labels of an integer dtype")
        labels = labels.long()
    return F.cross_entropy(logits, labels, o["weight"], None, ignore, None, REDUCTIONS[o["reduction"]], o["label_smoothing"])


def linear_cross_entropy(x, weight, bias, labels, opts):
    need(x.dtype == weight.dtype and (bias is None or bias.dtype == x.dtype), "one dtype")
    if x.dtype in (torch.bfloat16, torch.float16):
        x, weight, bias = x.float(), weight.float(), None if bias is None else bias.float()
    if weight.ndim > 2:
        need(x.ndim == 2 and (bias is None or bias.shape == weight.shape[:-1]), "x [N, D]")
        logits = F.linear(x, weight.reshape(-1, weight.shape[-1]), None if bias is None else bias.reshape(-1))
        return cross_entropy(logits.reshape(x.shape[0], *weight.shape[:-1]), labels, opts)
    logits = F.linear(x, weight, bias)
    if labels.is_floating_point():
        need(logits.shape == labels.shape, "labels of the logits' shape")
        n = math.prod(labels.shape[:-1])
        made = cross_entropy(logits.reshape(n, -1) if labels.numel() else logits.reshape(n, labels.shape[-1]), labels.reshape(n, labels.shape[-1]), opts)
        return made.reshape(labels.shape[:-1]) if opts and opts["reduction"] == NO_REDUCTION else made
    need(x.ndim >= 1 and x.shape[:-1] == labels.shape, "labels of x's leading dimensions")
    made = cross_entropy(logits.reshape(-1, weight.shape[0]) if weight.shape[0] else logits.reshape(labels.numel(), 0), labels.reshape(-1), opts)
    return made.reshape(labels.shape) if opts and opts["reduction"] == NO_REDUCTION else made


def nll_loss(log_probabilities, labels):
    need(log_probabilities.ndim >= 2, "[N, C, ...]")
    return F.nll_loss(log_probabilities, index_of(labels))


def accuracy(logits, labels):
    need(logits.ndim == 2 and labels.ndim == 1, "logits [N, C], labels [N]")
    need(logits.shape[0] == labels.shape[0], "as many")
    if logits.shape[0] == 0:
        return torch.zeros((), dtype=torch.float64)
    return (logits.detach().argmax(1) == labels).double().mean()


def one_hot(x, classes):
    return F.one_hot(index_of(x), classes)


def cast(x, dtype):
    return x.to(DTYPES[DTYPE_OF[dtype]])


def repeat(x, function):
    need(x.ndim > 0, "dimensions")
    return list(function())


def floating(name, function):
    """For functions of floating inputs in trek, which a wrong dtype would not fail in PyTorch."""
    def call(x, *rest):
        need(x.is_floating_point(), "floating dtypes")
        return function(x, *rest)
    return call


def condition(c):
    need(c.dtype == torch.bool, "bool")
    return c


# --- order and places ------------------------------------------------------------------------------------------


def in_order(x, dim, descending):
    """Values and places, equal ones as they lie; on the tape."""
    return torch.sort(x, dim=dim, descending=descending, stable=True)


def topk(x, k, dim, largest):
    need(0 <= k <= (x.shape[dim] if x.ndim else 1), "k within the dimension")
    need(x.ndim > 0 or k == 1 or k == 0, "one element")
    values, places = in_order(x, dim, largest)
    return [values, places] if x.ndim == 0 else [values.narrow(dim, 0, k), places.narrow(dim, 0, k)]


def at_place(x, dim, keepdim, choose):
    """What a stable order has at a place of each line."""
    values, places = in_order(x, dim, False)
    if x.ndim == 0:
        return [values, places]
    at = choose(values).unsqueeze(dim)
    made = [values.gather(dim, at), places.gather(dim, at)]
    return made if keepdim else [m.squeeze(dim) for m in made]


def kthvalue(x, k, dim, keepdim):
    need(x.dtype != torch.bool, "numbers")
    need(1 <= k <= (x.shape[dim] if x.ndim else 1), "k within the dimension")
    return at_place(x, dim, keepdim, lambda v: torch.full(v.select(dim, 0).shape, k - 1, dtype=torch.int64))


def median(skip):
    def call(x, dim, keepdim):
        need(x.dtype != torch.bool, "numbers")
        need(x.ndim == 0 or x.shape[dim] > 0, "elements")

        def choose(values):
            numbers = (~values.isnan()).sum(dim)
            middle = torch.clamp(numbers - 1, min=0) // 2
            return middle if skip else torch.where(numbers < values.shape[dim], numbers, middle)
        return at_place(x, dim, keepdim, choose)
    return call


INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


def quantile(x, q, dim, keepdim, interpolation):
    need(bool(((q >= 0) & (q <= 1)).all()), "q in [0, 1]")
    return torch.quantile(x, q, dim, keepdim, interpolation=INTERPOLATIONS[interpolation])


def searchsorted(lines, x, right):
    need(lines.ndim > 0 and lines.dtype == x.dtype and x.dtype != torch.bool, "lines of x's dtype")
    return torch.searchsorted(lines.detach().contiguous(), x.detach().contiguous(), right=right)


def bucketize(x, boundaries, right):
    need(boundaries.ndim == 1, "1-D")
    return searchsorted(boundaries, x, right)


def narrowed(source, index):
    for d in range(index.ndim if source.ndim == index.ndim else 0):
        if index.shape[d] < source.shape[d]:
            source = source.narrow(d, 0, index.shape[d])
    return source


def scatter(x, dim, index, source):
    need(source.shape == index.shape if source.ndim != index.ndim else all(s >= i for s, i in zip(source.shape, index.shape)), "a source as large")
    need(index.ndim == x.ndim and all(i <= s for k, (i, s) in enumerate(zip(index.shape, x.shape)) if k != dim % x.ndim), "an index that fits")
    return torch.scatter(x, dim, index_of(index), narrowed(source, index))


def scatter_value(x, dim, index, value):
    need(index.ndim == x.ndim and all(i <= s for k, (i, s) in enumerate(zip(index.shape, x.shape)) if k != dim % x.ndim), "an index that fits")
    return torch.scatter(x, dim, index_of(index), whole(x, value))


def scatter_reduce(x, dim, index, source, reduction, include_self):
    need(source.ndim == index.ndim and x.dtype == source.dtype, "a source of x's dtype")
    need(index.ndim == x.ndim and all(i <= s for k, (i, s) in enumerate(zip(index.shape, x.shape)) if k != dim % x.ndim), "an index that fits")
    need(all(i <= s for i, s in zip(index.shape, source.shape)), "an index that fits the source, also one of no elements")
    index, source = index_of(index), narrowed(source, index)
    if REDUCTIONS[reduction] in ("amax", "amin") and not include_self and x.is_floating_point():  # x has no part, also where it equals the result
        x, include_self = x.scatter(dim, index, -math.inf if REDUCTIONS[reduction] == "amax" else math.inf), True
    return torch.scatter_reduce(x, dim, index, source, REDUCTIONS[reduction], include_self=include_self)


def index_put(x, parts, values, accumulate):
    need(len(parts) <= x.ndim and all(p.dtype in (torch.int64, torch.int32) for p in parts), "integer indices")
    return torch.index_put(x, tuple(p.long() for p in parts), values, accumulate)


def unique(x):
    return list(torch.unique(x.detach(), sorted=True, return_inverse=True, return_counts=True))


def bincount(x, weights, minlength):
    need(not x.is_floating_point() and x.dtype != torch.bool and x.ndim == 1, "integers")
    need(weights is None or weights.shape == x.shape, "a weight for each, of nothing, too")
    made = torch.bincount(x, None if weights is None else weights.detach(), minlength)
    return made if weights is None else made.to(torch.float32 if weights.dtype == torch.float32 else torch.float64)  # of nothing, too


def repeat_interleave_by(x, repeats, dim):
    need(repeats.ndim == 1 and repeats.numel() == (x.shape[dim] if x.ndim else 1), "a number for each")
    return torch.repeat_interleave(x, repeats, dim)


def masked_select(x, mask):
    return torch.masked_select(x, condition(mask))


def meshgrid(parts, xy):
    return list(torch.meshgrid(*parts, indexing="xy" if xy else "ij"))


def roll(x, shifts, dims):
    need(not dims or all(-max(x.ndim, 1) <= d < max(x.ndim, 1) for d in dims), "dimensions that x has, of nothing, too")
    return torch.roll(x, tuple(shifts), tuple(dims))


# --- space -----------------------------------------------------------------------------------------------------

PAD_MODES = ("constant", "reflect", "replicate", "circular")


def pad(x, sizes, mode, value):
    if mode == 0:
        return F.pad(x, tuple(sizes), "constant", whole(x, value))
    return F.pad(x, tuple(sizes), PAD_MODES[mode])


def one(given, default):
    """[0] of an option."""
    return 0 if given[0] == ZERO else given[0] or default


def conv1d(x, weight, bias, opts):
    need(x.ndim == 3, "x [N, C, L]")
    o = opts or {"stride": [0], "padding": [0], "dilation": [0], "groups": 1}
    return F.conv1d(x, weight, bias, one(o["stride"], 1), padding_of(opts, one(o["padding"], 0)), one(o["dilation"], 1), o["groups"] or 1)


def conv_transpose1d(x, weight, bias, opts):
    need(x.ndim == 3, "x [N, C, L]")
    o = opts or {name: [0] for name in ("stride", "padding", "output_padding", "dilation", "output_size")} | {"groups": 1}
    stride, padding, dilation, more = one(o["stride"], 1), one(o["padding"], 0), one(o["dilation"], 1), one(o["output_padding"], 0)
    if o["output_size"][0]:
        more = one(o["output_size"], 0) - ((x.shape[2] - 1) * stride - 2 * padding + dilation * (weight.shape[2] - 1) + 1)
        need(0 <= more < stride, "an output size that none gives")
    return F.conv_transpose1d(x, weight, bias, stride, padding, more, o["groups"] or 1, dilation)


def max_pool1d(x, opts):
    need(x.ndim == 3, "x [N, C, L]")
    kernel = one(opts["kernel"], 0)
    return F.max_pool1d(x, kernel, one(opts["stride"], kernel), one(opts["padding"], 0), one(opts["dilation"], 1), opts["ceil_mode"])


def avg_pool1d(x, opts):
    need(x.ndim == 3, "x [N, C, L]")
    kernel = one(opts["kernel"], 0)
    return F.avg_pool1d(x, kernel, one(opts["stride"], kernel), one(opts["padding"], 0), opts["ceil_mode"], not opts["exclude_padding"]) if not opts.get("divisor_override") else \
        F.avg_pool2d(x.unsqueeze(2), (1, kernel), (1, one(opts["stride"], kernel)), (0, one(opts["padding"], 0)), opts["ceil_mode"],
                     divisor_override=opts["divisor_override"]).squeeze(2)


def three(given, default):
    """[d, h, w] of an option."""
    first = given[0] or default
    second = given[1] or first
    return tuple(0 if v == ZERO else v for v in (first, second, given[2] or second))


def conv3d(x, weight, bias, opts):
    need(x.ndim == 5, "x [N, C, D, H, W]")
    o = opts or {name: [0] * 3 for name in ("stride", "padding", "dilation")} | {"groups": 1}
    return F.conv3d(x, weight, bias, three(o["stride"], 1), padding_of(opts, three(o["padding"], ZERO)), three(o["dilation"], 1), o["groups"] or 1)


def conv_transpose3d(x, weight, bias, opts):
    need(x.ndim == 5, "x [N, C, D, H, W]")
    o = opts or {name: [0] * 3 for name in ("stride", "padding", "output_padding", "dilation", "output_size")} | {"groups": 1}
    stride, padding, dilation = three(o["stride"], 1), three(o["padding"], ZERO), three(o["dilation"], 1)
    more = three(o["output_padding"], ZERO)
    if o["output_size"][0]:
        more = tuple(size - ((x.shape[2 + d] - 1) * stride[d] - 2 * padding[d] + dilation[d] * (weight.shape[2 + d] - 1) + 1)
                     for d, size in enumerate(three(o["output_size"], 0)))
        need(all(0 <= m < s for m, s in zip(more, stride)), "an output size that none gives")
    return F.conv_transpose3d(x, weight, bias, stride, padding, more, o["groups"] or 1, dilation)


def max_pool3d(x, opts):
    need(x.ndim == 5, "x [N, C, D, H, W]")
    kernel = three(opts["kernel"], 0)
    return F.max_pool3d(x, kernel, three(opts["stride"], 0) if opts["stride"][0] else kernel, three(opts["padding"], ZERO),
                        three(opts["dilation"], 1), opts["ceil_mode"])


def avg_pool3d(x, opts):
    need(x.ndim == 5, "x [N, C, D, H, W]")
    kernel = three(opts["kernel"], 0)
    return F.avg_pool3d(x, kernel, three(opts["stride"], 0) if opts["stride"][0] else kernel, three(opts["padding"], ZERO),
                        opts["ceil_mode"], not opts["exclude_padding"], opts.get("divisor_override") or None)


RESAMPLE_MODES = ("nearest", "nearest-exact", "linear", "bicubic", "area")


def spread(given, count):
    """The first numbers of a list where 0 is the one before."""
    made = []
    for k in range(count):
        made.append(given[k] or made[-1] if k else given[0])
    return made


def interpolate(x, opts):
    mode, count = RESAMPLE_MODES[opts["mode"]], x.ndim - 2
    mode = {2: "bilinear", 3: "trilinear"}.get(count, mode) if mode == "linear" else mode
    sizes, scales = (spread(opts[k], count) if opts[k][0] else None for k in ("size", "scale"))
    align = (opts["align_corners"] or None) if opts["mode"] not in (2, 3) else opts["align_corners"]
    return F.interpolate(x, sizes, scales, mode, align, True if opts["recompute_scale"] else None, opts["antialias"])


def windows(opts):
    return [pair(opts["kernel"], 0), pair(opts["dilation"], 1), pair(opts["padding"], 0), pair(opts["stride"], 1)]


def pair(given, default):
    h = given[0] or default
    w = given[1] or h
    return (0 if h == ZERO else h, 0 if w == ZERO else w)


def floats(function, x, *rest):
    need(x.is_floating_point(), "floating dtypes")
    return function(x, *rest)


TABLE = {
    "interpolate": interpolate, "unfold": lambda x, opts: F.unfold(x, *windows(opts)),
    "fold": lambda x, height, width, opts: F.fold(x, (height, width), *windows(opts)),
    "conv3d": conv3d, "conv_transpose3d": conv_transpose3d, "max_pool3d": max_pool3d, "avg_pool3d": avg_pool3d,
    "adaptive_avg_pool3d": lambda x, depth, height, width: F.adaptive_avg_pool3d(x, (depth, height, width)),
    "pad": pad, "conv1d": conv1d, "conv_transpose1d": conv_transpose1d, "max_pool1d": max_pool1d, "avg_pool1d": avg_pool1d,
    "channel_shuffle": lambda x, groups: F.channel_shuffle(x, groups),
    "max_with_indices": lambda x, dim, keepdim: list(torch.max(x, dim, keepdim)),
    "min_with_indices": lambda x, dim, keepdim: list(torch.min(x, dim, keepdim)),
    "sort": lambda x, dim, descending: list(in_order(x, dim, descending)),
    "argsort": lambda x, dim, descending: torch.argsort(x.detach(), dim=dim, descending=descending, stable=True),
    "topk": topk, "kthvalue": kthvalue, "median": median(False), "nanmedian": median(True), "quantile": quantile,
    "cummax": lambda x, dim: list(torch.cummax(x, dim)), "cummin": lambda x, dim: list(torch.cummin(x, dim)),
    "searchsorted": searchsorted, "bucketize": bucketize, "nonzero": lambda x: torch.nonzero(x.detach()), "masked_select": masked_select,
    "unique": unique, "bincount": bincount, "repeat_interleave_by": repeat_interleave_by,
    "repeat_interleave": lambda x, repeats, dim: torch.repeat_interleave(x, repeats, dim),
    "scatter": scatter, "scatter_value": scatter_value, "scatter_reduce": scatter_reduce, "index_put": index_put,
    "index_fill": lambda x, dim, index, value: torch.index_fill(x, dim, index_of(index), whole(x, value)),
    "repeat": lambda x, repeats: x.repeat(tuple(repeats)), "tile": lambda x, repeats: torch.tile(x, tuple(repeats)),
    "roll": roll, "movedim": lambda x, source, destination: torch.movedim(x, tuple(source), tuple(destination)),
    "meshgrid": meshgrid, "full_like": lambda x, value: torch.full_like(x.detach(), whole(x, value)),
    "gelu": lambda x: F.gelu(x),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "clamp": lambda x, low, high: torch.clamp(x, whole(x, low), whole(x, high)),
    "add_scalar": lambda x, v: x + whole(x, v),
    "sub_scalar": lambda x, v: torch.sub(x, whole(x, v)),
    "mul_scalar": lambda x, v: x * whole(x, v),
    "div_scalar": lambda x, v: x / whole(x, v),
    "pow_scalar": lambda x, v: torch.pow(x, whole(x, v)),
    "eq_scalar": lambda x, v: torch.eq(x, whole(x, v)),
    "ne_scalar": lambda x, v: torch.ne(x, whole(x, v)),
    "lt_scalar": lambda x, v: torch.lt(x, whole(x, v)),
    "le_scalar": lambda x, v: torch.le(x, whole(x, v)),
    "gt_scalar": lambda x, v: torch.gt(x, whole(x, v)),
    "ge_scalar": lambda x, v: torch.ge(x, whole(x, v)),
    "where": lambda c, x, y: torch.where(condition(c), x, y),
    "masked_fill": lambda x, mask, v: x.masked_fill(condition(mask), whole(x, v)),
    "add_": lambda x, y: x.add_(y), "sub_": lambda x, y: x.sub_(y), "mul_": lambda x, y: x.mul_(y), "div_": lambda x, y: x.div_(y),
    "copy_": lambda x, y: x.copy_(y), "fill_": lambda x, v: x.fill_(whole(x, v)),
    "sum": lambda x, dims, keepdim: torch.sum(x, dims or None, keepdim),
    "mean": lambda x, dims, keepdim: torch.mean(x, dims or None, keepdim),
    "prod": prod,
    "max": lambda x, dims, keepdim: torch.amax(x, dims, keepdim),
    "min": lambda x, dims, keepdim: torch.amin(x, dims, keepdim),
    "argmax": arg(torch.argmax), "argmin": arg(torch.argmin),
    "any": some(torch.any), "all": some(torch.all),
    "variance": lambda x, dims, keepdim: torch.var(x, dims or None, correction=1, keepdim=keepdim),
    "std": lambda x, dims, keepdim: torch.std(x, dims or None, correction=1, keepdim=keepdim),
    "norm": norm,
    "logsumexp": lambda x, dims, keepdim: torch.logsumexp(x, every(x, dims) or 0, keepdim),
    "expand": lambda x, shape: x.expand(shape),
    "contiguous": lambda x: x.contiguous(),
    "cast": cast,
    "to": lambda x, device: x.clone(),
    "cat": lambda parts, dim: torch.cat(parts, dim),
    "stack": lambda parts, dim: torch.stack(parts, dim),
    "split": lambda x, size, dim: repeat(x, lambda: torch.split(x, size, dim)),
    "chunk": lambda x, chunks, dim: repeat(x, lambda: torch.chunk(x, chunks, dim)),
    "split_sections": lambda x, sections, dim: repeat(x, lambda: torch.tensor_split(x, sections, dim)),
    "unbind": lambda x, dim: repeat(x, lambda: torch.unbind(x, dim)),
    "index_select": lambda x, dim, index: torch.index_select(x, dim, index_of(index)),
    "index_add": lambda x, dim, index, source: torch.index_add(x, dim, index_of(index), source),
    "gather": lambda x, dim, index: torch.gather(x, dim, index_of(index)),
    "scatter_add": lambda x, dim, index, source: torch.scatter_add(x, dim, index_of(index), source),
    "one_hot": one_hot,
    "linear_activation": lambda x, w, b, a: (lambda y: y, F.relu, F.gelu)[a](F.linear(x, w, b)),
    "conv2d": conv2d, "conv2d_activation": conv2d_activation, "channels_last": channels_last, "conv_transpose2d": conv_transpose2d, "max_pool2d": max_pool2d, "avg_pool2d": avg_pool2d,
    "adaptive_avg_pool2d": lambda x, h, w: need(x.ndim == 4, "x [N, C, H, W]") or F.adaptive_avg_pool2d(x, (h, w)),
    "layer_norm": lambda x, n, w, b, eps: F.layer_norm(x, x.shape[x.ndim - n:], w, b, eps),
    "add_layer_norm": add_layer_norm,
    "rms_norm": lambda x, n, w, eps: F.rms_norm(x, x.shape[x.ndim - n:], w, eps),
    "batch_norm": batch_norm, "instance_norm": instance_norm,
    "group_norm": lambda x, groups, weight, bias, eps: F.group_norm(x, groups, weight, bias, eps),
    "normalize": lambda x, p, dim, eps: F.normalize(x, p, dim, eps),
    "embedding": lambda i, w, p: F.embedding(index_of(i), w, None if p == -1 else p),
    "dropout": lambda x, p, training: F.dropout(floating("dropout", lambda t: t)(x), p, training),
    "attention": attention, "attention_weights": attention_weights, "lstm": recurrent("lstm"), "gru": recurrent("gru"),
    "cross_entropy": cross_entropy, "cross_entropy_with": cross_entropy, "linear_cross_entropy": linear_cross_entropy,
    "nll_loss": nll_loss,
    "bce_with_logits": lambda x, t: F.binary_cross_entropy_with_logits(x, t),
    "kl_div": lambda x, t: F.kl_div(x, t, reduction="batchmean"),
    "smooth_l1_loss": lambda x, t, beta: F.smooth_l1_loss(x, t, beta=beta),
    "accuracy": accuracy,
    "relu6": lambda x: floats(F.relu6, x), "hardtanh": lambda x, low, high: floats(F.hardtanh, x, low, high),
    "threshold": lambda x, s, t: floats(F.threshold, x, s, t), "tanhshrink": lambda x: floats(F.tanhshrink, x),
    "softsign": lambda x: floats(F.softsign, x),
    "swiglu": lambda x, dim: F.silu(x.chunk(2, dim)[0]) * x.chunk(2, dim)[1] if x.shape[dim] % 2 == 0 else need(False, "an odd size"),
    "addcmul": lambda x, y, z, value: need(all(t.is_floating_point() for t in (x, y, z)), "floating dtypes") or torch.addcmul(x, y, z, value=value),
    "addcdiv": lambda x, y, z, value: need(all(t.is_floating_point() for t in (x, y, z)), "floating dtypes") or torch.addcdiv(x, y, z, value=value),
    "count_nonzero": lambda x, dims: torch.count_nonzero(x, tuple(dims) or None),
}


def softplus(x):
    return torch.logaddexp(x, torch.zeros_like(x))


def linear_activation_truth(x, weight, bias, activation):
    y = TABLE["linear_activation"](x, weight, bias, 0)
    return TRUTHS["gelu"](y) if activation == 2 else TABLE["linear_activation"](x, weight, bias, activation)


def conv2d_activation_truth(x, weight, bias, opts, activation):
    y = conv2d(x, weight, bias, opts)
    return TRUTHS["gelu"](y) if activation == 2 else conv2d_activation(x, weight, bias, opts, activation)


# The truth in f64, where PyTorch's own formula loses it far out.
TRUTHS = {
    "bce_with_logits": lambda x, t: ((1 - t) * softplus(x) + t * softplus(-x)).mean(),
    "linear_activation": linear_activation_truth, "conv2d_activation": conv2d_activation_truth,
    "gelu": lambda x: x * 0.5 * torch.erfc(-x * math.sqrt(0.5)),
    "gelu_tanh": lambda x: x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)),
}

# Compared elsewhere: with what they are for.
ELSEWHERE = {"qr": "signs are LAPACK's: tests/autograd/test_factorise.c", "svd": "signs are LAPACK's: tests/autograd/test_factorise.c",
             **{name: "some of what is orthogonal: tests/autograd/test_factorise.c" for name in ("qr_complete", "svd_full")},
             **{name: "no inputs: tests/autograd/test_fft.c" for name in ("fftfreq", "rfftfreq", "blackman_window", "bartlett_window", "kaiser_window")},
             "eigh": "signs are LAPACK's: tests/autograd/test_factorise.c",
             "bernoulli": "random: tests/autograd/test_order.c", "multinomial": "random: tests/autograd/test_order.c",
             "rand_like": "random: tests/autograd/test_order.c", "randn_like": "random: tests/autograd/test_order.c",
             "hann_window": "no inputs: tests/autograd/test_fft.c", "hamming_window": "no inputs: tests/autograd/test_fft.c",
             **{name: "lists of numbers: tests/autograd/test_parts.c" for name in ("split_with_sizes", "split_indices", "index", "index_assign")},
             **{f"subscript_{name}": "no tensor: tests/autograd/test_parts.c" for name in ("at", "range", "all", "new", "rest", "by")},
             "alibi": "no inputs: tests/autograd/test_positions.c",
             "tril_indices": "no inputs: tests/autograd/test_take.c", "triu_indices": "no inputs: tests/autograd/test_take.c",
             "empty_like": "no values: tests/autograd/test_order.c",
             "rrelu": "random: tests/autograd/test_pointwise.c", "allclose": "no tensor: tests/autograd/test_pointwise.c",
             "loss_weight": "losses, after each loss", "loss_set_weight": "losses, after each loss"}


def counterpart(name, truth=False):
    """PyTorch's function for trek_<name>, or None."""
    if truth and name in TRUTHS:
        return TRUTHS[name]
    if name in TABLE:
        return TABLE[name]
    for place in (torch, F, torch.Tensor):
        if hasattr(place, name):
            return getattr(place, name)
    return None
