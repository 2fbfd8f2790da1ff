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


def conv2d(x, weight, bias, opts):
    need(x.ndim == 4, "x [N, C, H, W]")
    o = opts or {"stride": [0, 0], "padding": [0, 0], "dilation": [0, 0], "groups": 1}
    return F.conv2d(x, weight, bias, two(o["stride"], 1), two(o["padding"], 0), two(o["dilation"], 1), o["groups"] or 1)


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
    return F.avg_pool2d(x, kernel, stride, two(opts["padding"], 0), opts["ceil_mode"], not opts["exclude_padding"])


def add_layer_norm(x, branch, weight, bias, count, eps):
    need(x.shape == branch.shape, "x and branch of one shape")
    residual = x + branch
    return [F.layer_norm(residual, x.shape[x.ndim - count:], weight, bias, eps), residual]


def batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps):
    need((running_mean is None) == (running_var is None), "both or none")
    return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)


def attention(q, k, v, opts):
    o = opts or {"causal": False, "scale": 0.0, "mask": None, "dropout": 0.0}
    need(q.ndim == 4 and k.ndim == 4 and v.ndim == 4 and k.shape == v.shape and q.dtype.is_floating_point, "shapes")
    mask = o["mask"]
    need(mask is None or not mask.requires_grad, "a mask that requires a gradient")
    groups = q.shape[1] // max(k.shape[1], 1)
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    if o["causal"]:
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
        mask = seen if mask is None else mask & seen if mask.dtype == torch.bool else mask.masked_fill(~seen, -math.inf)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # the others have no second derivative
        return F.scaled_dot_product_attention(q, k, v, mask, 0.0, False, scale=o["scale"] or None)


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


REDUCTIONS = ("mean", "sum", "none")


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
    need(x.ndim >= 1 and x.shape[:-1] == labels.shape, "labels of x's leading dimensions")
    if x.dtype in (torch.bfloat16, torch.float16):
        x, weight, bias = x.float(), weight.float(), None if bias is None else bias.float()
    logits = F.linear(x, weight, bias)
    made = cross_entropy(logits.reshape(-1, weight.shape[0]) if weight.shape[0] else logits.reshape(labels.numel(), 0), labels.reshape(-1), opts)
    return made.reshape(labels.shape) if opts and opts["reduction"] == 2 else made


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


TABLE = {
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
    "unbind": lambda x, dim: repeat(x, lambda: torch.unbind(x, dim)),
    "index_select": lambda x, index, dim: torch.index_select(x, dim, index_of(index)),
    "index_add": lambda x, index, source, dim: torch.index_add(x, dim, index_of(index), source),
    "gather": lambda x, index, dim: torch.gather(x, dim, index_of(index)),
    "scatter_add": lambda x, index, source, dim: torch.scatter_add(x, dim, index_of(index), source),
    "one_hot": one_hot,
    "linear_activation": lambda x, w, b, a: (lambda y: y, F.relu, F.gelu)[a](F.linear(x, w, b)),
    "conv2d": conv2d, "conv_transpose2d": conv_transpose2d, "max_pool2d": max_pool2d, "avg_pool2d": avg_pool2d,
    "adaptive_avg_pool2d": lambda x, h, w: F.adaptive_avg_pool2d(x, (h, w)),
    "layer_norm": lambda x, w, b, n, eps: F.layer_norm(x, x.shape[x.ndim - n:], w, b, eps),
    "add_layer_norm": add_layer_norm,
    "rms_norm": lambda x, w, n, eps: F.rms_norm(x, x.shape[x.ndim - n:], w, eps),
    "batch_norm": batch_norm,
    "embedding": lambda w, i, p: F.embedding(index_of(i), w, None if p == -1 else p),
    "dropout": lambda x, p, training: F.dropout(floating("dropout", lambda t: t)(x), p, training),
    "attention": attention, "lstm": recurrent("lstm"), "gru": recurrent("gru"),
    "cross_entropy": cross_entropy, "cross_entropy_with": cross_entropy, "linear_cross_entropy": linear_cross_entropy,
    "nll_loss": nll_loss,
    "bce_with_logits": lambda x, t: F.binary_cross_entropy_with_logits(x, t),
    "kl_div": lambda x, t: F.kl_div(x, t, reduction="batchmean"),
    "smooth_l1_loss": lambda x, t, beta: F.smooth_l1_loss(x, t, beta=beta),
    "accuracy": accuracy,
}


def softplus(x):
    return torch.logaddexp(x, torch.zeros_like(x))


def linear_activation_truth(x, weight, bias, activation):
    y = TABLE["linear_activation"](x, weight, bias, 0)
    return TRUTHS["gelu"](y) if activation == 2 else TABLE["linear_activation"](x, weight, bias, activation)


# The truth in f64, where PyTorch's own formula loses it far out.
TRUTHS = {
    "bce_with_logits": lambda x, t: ((1 - t) * softplus(x) + t * softplus(-x)).mean(),
    "linear_activation": linear_activation_truth,
    "gelu": lambda x: x * 0.5 * torch.erfc(-x * math.sqrt(0.5)),
    "gelu_tanh": lambda x: x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)),
}

# Compared elsewhere: with what they are for.
ELSEWHERE = {"loss_weight": "losses, after each loss", "loss_set_weight": "losses, after each loss"}


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
