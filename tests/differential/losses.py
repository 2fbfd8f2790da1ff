# SPDX-License-Identifier: Apache-2.0
"""Losses with options: how they are drawn, and PyTorch's."""
import math

import torch
import torch.nn.functional as F

from counterparts import NO_REDUCTION, REDUCTIONS, TABLE, cross_entropy, index_of, need
from draw import shaped
from draw_layers import labels_for, loss_opts
from headers import ZERO

PLAIN = ("normal", "grid")


def reduction_of(opts):
    return REDUCTIONS[opts["reduction"]] if opts else "mean"


def given(opts, name, default=None):
    """An option as it counts: 0 stands for the default, ZERO for 0."""
    value = opts[name] if opts else None
    if default is None:
        return value
    return 0.0 if value == ZERO else value if value else default


def signs(d, dtype, shape):
    """A tensor of -1 and 1."""
    ref = d.tensor(dtype, shape, grad=False)
    count = 1
    for size in shape:
        count *= size
    d.tensors[ref["tensor"]]["values"] = [d.pick(-1, 1) for _ in range(count)]
    return ref


def pair(d, kinds=PLAIN, second=PLAIN):
    shape, dtype = d.shape(), d.float_dtype()
    return shape, dtype, d.tensor(dtype, shape, kinds=kinds), d.tensor(dtype, shape, kinds=second)


def weighted(d, shape, dtype):
    if not d.chance(0.6):
        return None
    return {"reduction": d.pick(0, 0, 1, NO_REDUCTION), "weight": d.tensor(dtype, shape, kinds=("positive",), grad=False) if d.chance(0.5) else None}


@shaped("mse_loss_with", "l1_loss_with", "smooth_l1_loss_with", "huber_loss")
def draw_distances(d):
    shape, dtype, x, target = pair(d)
    args = {"x": x, "target": target, "opts": weighted(d, shape, dtype)}
    if d.name in ("smooth_l1_loss_with", "huber_loss"):
        args["beta" if d.name[0] == "s" else "delta"] = d.pick(1.0, 0.5, 2.0)
    return args


@shaped("bce", "bce_with_logits_with", "multilabel_soft_margin_loss")
def draw_binary(d):
    shape, dtype = d.shape(1 if d.name[0] == "m" else 0), d.float_dtype()
    x = d.tensor(dtype, shape, kinds=("unit",) if d.name == "bce" else PLAIN)
    opts = weighted(d, shape, dtype)
    if d.name == "bce_with_logits_with" and opts:
        opts["pos_weight"] = d.tensor(dtype, shape[-1:], kinds=("positive",), grad=False) if d.chance(0.5) else None
    return {"probabilities" if d.name == "bce" else "x": x, "target": d.tensor(dtype, shape, kinds=("unit",), grad=False), "opts": opts}


@shaped("focal_loss")
def draw_focal(d):
    _, _, x, target = pair(d, second=("unit",))
    opts = {"alpha": d.pick(0.0, 0.5, -1.0, ZERO), "gamma": d.pick(0.0, 1.0, 3.0, ZERO), "reduction": d.pick(0, 1, NO_REDUCTION)}
    return {"x": x, "target": target, "opts": opts if d.chance(0.7) else None}


@shaped("poisson_nll_loss")
def draw_poisson(d):
    rates = d.chance(0.5)
    _, _, x, target = pair(d, ("positive",) if rates else PLAIN, ("positive",))
    opts = {"rates": rates, "full": d.chance(0.5), "eps": d.pick(0.0, 0.1), "reduction": d.pick(0, 1, NO_REDUCTION)}
    return {"x": x, "target": target, "opts": opts if rates or d.chance(0.7) else None}


@shaped("gaussian_nll_loss")
def draw_gaussian(d):
    shape, dtype, x, target = pair(d)
    opts = {"full": d.chance(0.5), "eps": d.pick(0.0, 0.5), "reduction": d.pick(0, 1, NO_REDUCTION)}
    return {"x": x, "target": target, "variance": d.tensor(dtype, shape, kinds=("positive",)), "opts": opts if d.chance(0.7) else None}


@shaped("kl_div_with")
def draw_kl(d):
    logs = d.chance(0.5)
    _, _, x, target = pair(d, second=PLAIN if logs else ("unit",))
    opts = {"log_target": logs, "per_element": d.chance(0.5), "reduction": d.pick(0, 0, 1, NO_REDUCTION)}
    return {"log_probabilities": x, "target": target, "opts": opts if logs or d.chance(0.7) else None}


@shaped("nll_loss_with")
def draw_nll_with(d):
    shape, dtype = d.shape(2, 4 if d.chance(0.3) else 2, 200), d.float_dtype()
    opts, ignore = loss_opts(d, shape[1], lambda: d.tensor(dtype, [shape[1]], kinds=("positive",), grad=False))
    opts["label_smoothing"] = 0.0
    return {"log_probabilities": d.tensor(dtype, shape), "labels": labels_for(d, shape[:1] + shape[2:], shape[1], ignore), "opts": opts}


@shaped("cosine_similarity", "pairwise_distance")
def draw_pairs(d):
    shape, dtype = d.shape(1), d.float_dtype()
    args = {"x": d.tensor(dtype, shape, kinds=PLAIN), "y": d.tensor(dtype, d.broadcast(shape), kinds=PLAIN), "eps": d.pick(1e-8, 1e-6, 0.5)}
    if d.name == "cosine_similarity":
        return {**args, "dim": d.rng.randrange(-len(shape), len(shape))}
    return {**args, "p": d.pick(2.0, 2.0, 1.0, 3.0), "keepdim": d.chance(0.5)}


def margin_opts(d, **more):
    opts = {"margin": d.pick(0.0, 0.3, 1.5, ZERO), "p": 0.0, "eps": 0.0, "swap": False, "weight": None, "reduction": d.pick(0, 1, NO_REDUCTION), **more}
    return opts if d.chance(0.7) else None


@shaped("cosine_embedding_loss")
def draw_cosine(d):
    shape, dtype = d.shape(1, 2), d.float_dtype()
    opts = margin_opts(d)
    if opts:
        opts["margin"] = d.pick(0.0, 0.3, -0.5)
    x, y = (d.tensor(dtype, shape, kinds=("normal",)) for _ in range(2))  # none at right angles, where the margin begins
    return {"x": x, "y": y, "target": signs(d, "i64", shape[:-1]), "opts": opts}


@shaped("margin_ranking_loss", "hinge_embedding_loss", "soft_margin_loss")
def draw_margins(d):
    shape, dtype, x, y = pair(d)
    if d.name == "soft_margin_loss":
        opts = weighted(d, shape, dtype)
        return {"x": x, "target": signs(d, dtype, shape), "opts": {**opts, "weight": None} if opts else None}
    args = {"x": x, "target": signs(d, dtype, shape), "opts": margin_opts(d)}
    return args if d.name[0] == "h" else {**args, "y": y}


@shaped("triplet_margin_loss")
def draw_triplet(d):
    shape, dtype = d.shape(1, 3, 200), d.float_dtype()
    a, p, n = (d.tensor(dtype, shape, kinds=("normal",)) for _ in range(3))  # of a grid some lie on the hinge, as rounding has it
    opts = margin_opts(d, p=d.pick(0.0, 1.0, 3.0), eps=d.pick(0.0, 0.1), swap=d.chance(0.4))
    if opts:  # what distances and a small margin leave of each other is rounding; where the hinge is: tests/autograd/test_losses.c
        opts["margin"] += 20.0
    return {"anchor": a, "positive": p, "negative": n, "opts": opts}


@shaped("multi_margin_loss")
def draw_multi_margin(d):
    rows, classes, dtype = d.size(0.1), d.pick(1, 3, 5), d.float_dtype()
    weight = d.tensor(dtype, [classes], kinds=("positive",), grad=False) if d.chance(0.4) else None
    opts = margin_opts(d, p=d.pick(0.0, 2.0), weight=weight) if weight is None else \
        {"margin": 0.5, "p": 0.0, "eps": 0.0, "swap": False, "weight": weight, "reduction": d.pick(0, 1, NO_REDUCTION)}
    return {"logits": d.tensor(dtype, [rows, classes], kinds=PLAIN), "labels": d.indices([rows], classes), "opts": opts}


@shaped("info_nce")
def draw_info_nce(d):
    shape, dtype = d.shape(2, 2, 200), d.float_dtype()
    return {"query": d.tensor(dtype, shape, kinds=PLAIN), "key": d.tensor(dtype, shape, kinds=PLAIN), "temperature": d.pick(1.0, 0.5),
            "reduction": d.pick(0, 1, NO_REDUCTION)}


@shaped("multilabel_margin_loss")
def draw_multilabel_margin(d):
    shape, dtype = [d.size(0)] * d.pick(0, 1) + [d.pick(1, 3, 5)], d.float_dtype()
    target = d.indices(shape, shape[-1], ("i64", "i64", "i32"), floor=-1)
    return {"x": d.tensor(dtype, shape, kinds=("normal",)), "target": target, "reduction": d.pick(0, 1, NO_REDUCTION)}


@shaped("ctc_loss")
def draw_ctc(d):
    steps, rows, classes, longest, dtype = d.pick(1, 3, 5, 8), d.pick(1, 1, 2, 3), d.pick(2, 3, 5), d.pick(1, 2, 3), d.pick("f32", "f32", "f64")
    alone, joined, blank = d.chance(0.15), d.chance(0.3), d.pick(0, 0, classes - 1)
    rows = 1 if alone else rows
    d.bad = False  # what is refused is in tests/autograd/test_ctc.c: PyTorch reads out of bounds
    inputs, lengths = d.indices([rows], steps + 1), d.indices([rows], longest + 1)
    d.tensors[lengths["tensor"]]["values"][0] = max(d.tensors[lengths["tensor"]]["values"][0], 1)  # PyTorch divides by no labels at all
    total = sum(d.tensors[lengths["tensor"]]["values"])
    shape = [longest] if alone and not joined else [total] if alone or joined else [rows, longest]
    targets = d.indices(shape, classes - 1, ("i64", "i32"))
    labels = d.tensors[targets["tensor"]]
    labels["values"] = [v + (v >= blank) for v in labels["values"]]
    if alone:  # all of them
        d.tensors[lengths["tensor"]]["values"] = [math.prod(shape)]
    opts = {"blank": blank, "zero_infinity": d.chance(0.5), "reduction": d.pick(0, 1, NO_REDUCTION)}
    return {"log_probs": d.tensor(dtype, [steps, classes] if alone else [steps, rows, classes], kinds=("normal", "grid")), "targets": targets,
            "input_lengths": inputs, "target_lengths": lengths, "opts": opts if blank or d.chance(0.8) else None}


# -- PyTorch's --------------------------------------------------------------------------


def margin_of(opts, default):
    return given(opts, "margin", default) if default else 0.0 if not opts or opts["margin"] == ZERO else opts["margin"]


def focal(x, target, opts):
    alpha, gamma = given(opts, "alpha", 0.25), given(opts, "gamma", 2.0)
    p = x.sigmoid()
    loss = F.binary_cross_entropy_with_logits(x, target, reduction="none") * (1 - (p * target + (1 - p) * (1 - target))) ** gamma
    loss = loss if alpha < 0 else loss * (alpha * target + (1 - alpha) * (1 - target))
    return {"mean": torch.mean, "sum": torch.sum, "none": lambda t: t}[reduction_of(opts)](loss)


def kl(x, target, opts):
    way = reduction_of(opts)
    way = "batchmean" if way == "mean" and not (opts and opts["per_element"]) else way
    need(x.ndim > 0 or way != "batchmean", "rows")
    return F.kl_div(x, target, reduction=way, log_target=bool(opts and opts["log_target"]))


def nll(log_probabilities, labels, opts):
    need(log_probabilities.ndim >= 2, "[N, C, ...]")
    ignore = {0: -100, ZERO: 0}.get(opts["ignore_index"], opts["ignore_index"])
    return F.nll_loss(log_probabilities, index_of(labels), opts["weight"], ignore_index=ignore, reduction=reduction_of(opts))


def info_nce(query, key, temperature, reduction):
    logits = F.normalize(query, dim=1) @ F.normalize(key, dim=1).T / temperature
    return cross_entropy(logits, torch.arange(query.shape[0]), {"weight": None, "ignore_index": 0, "label_smoothing": 0.0, "reduction": reduction})


def ctc(log_probs, targets, input_lengths, target_lengths, opts):
    """The gradient by log_probs itself: PyTorch's has exp(log_probs) added, which is taken off again."""
    blank, zero = (opts["blank"], opts["zero_infinity"]) if opts else (0, False)
    x = log_probs if log_probs.ndim == 3 else log_probs.unsqueeze(1)
    inputs, lengths, targets = index_of(input_lengths).reshape(-1), index_of(target_lengths).reshape(-1), index_of(targets).contiguous()  # PyTorch reads others out of bounds
    need(0 <= blank < x.shape[-1] and bool(((targets >= 0) & (targets < x.shape[-1]) & (targets != blank)).all()), "classes")
    need(bool((inputs >= 0).all() and (inputs <= x.shape[0]).all() and (lengths >= 0).all()), "lengths")
    targets = targets if log_probs.ndim == 3 or targets.ndim == 1 else targets.reshape(1, -1)
    losses = F.ctc_loss(x, targets, inputs, lengths, blank, "none", zero)
    there = torch.arange(x.shape[0])[:, None] < inputs[None, :]
    there = there & F.ctc_loss(x, targets, inputs, lengths, blank, "none").isfinite() if zero else there
    surplus = (x.exp().sum(-1) * there).sum(0)
    losses = losses - surplus + surplus.detach()
    if reduction_of(opts) == "mean":
        return (losses / lengths.clamp(min=1)).mean() if losses.numel() else losses.sum()
    return losses.sum() if reduction_of(opts) == "sum" else losses if log_probs.ndim == 3 else losses[0]


def multilabel_margin(x, target, reduction):
    need(not target.is_floating_point() and target.dtype != torch.bool, "labels")
    return F.multilabel_margin_loss(x, target.long(), reduction=REDUCTIONS[reduction])


TABLE.update({
    "ctc_loss": ctc, "multilabel_margin_loss": multilabel_margin,
    "mse_loss_with": lambda x, t, o: F.mse_loss(x, t, reduction=reduction_of(o), weight=given(o, "weight")),
    "l1_loss_with": lambda x, t, o: F.l1_loss(x, t, reduction=reduction_of(o), weight=given(o, "weight")),
    "smooth_l1_loss_with": lambda x, t, beta, o: scaled(F.smooth_l1_loss(x, t, reduction="none", beta=beta), o),
    "huber_loss": lambda x, t, delta, o: F.huber_loss(x, t, reduction_of(o), delta, given(o, "weight")),
    "bce": lambda x, t, o: F.binary_cross_entropy(x, t, given(o, "weight"), reduction=reduction_of(o)),
    "bce_with_logits_with": lambda x, t, o: F.binary_cross_entropy_with_logits(x, t, given(o, "weight"), reduction=reduction_of(o),
                                                                              pos_weight=o.get("pos_weight") if o else None),
    "multilabel_soft_margin_loss": lambda x, t, o: F.multilabel_soft_margin_loss(x, t, given(o, "weight"), reduction=reduction_of(o)),
    "focal_loss": focal,
    "soft_margin_loss": lambda x, t, o: F.soft_margin_loss(x, t, reduction=reduction_of(o)),
    "poisson_nll_loss": lambda x, t, o: F.poisson_nll_loss(x, t, not (o and o["rates"]), bool(o and o["full"]), eps=given(o, "eps", 1e-8),
                                                           reduction=reduction_of(o)),
    "gaussian_nll_loss": lambda x, t, v, o: F.gaussian_nll_loss(x, t, v, bool(o and o["full"]), given(o, "eps", 1e-6), reduction_of(o)),
    "kl_div_with": kl, "nll_loss_with": nll, "info_nce": info_nce,
    "cosine_similarity": lambda x, y, dim, eps: F.cosine_similarity(x, y, dim, eps),
    "pairwise_distance": lambda x, y, p, eps, keepdim: F.pairwise_distance(x, y, p, eps, keepdim),
    "cosine_embedding_loss": lambda x, y, t, o: F.cosine_embedding_loss(x, y, t, margin_of(o, 0.0), reduction=reduction_of(o)),
    "margin_ranking_loss": lambda x, y, t, o: F.margin_ranking_loss(x, y, t, margin_of(o, 0.0), reduction=reduction_of(o)),
    "hinge_embedding_loss": lambda x, t, o: F.hinge_embedding_loss(x, t, margin_of(o, 1.0), reduction=reduction_of(o)),
    "triplet_margin_loss": lambda a, p, n, o: F.triplet_margin_loss(
        a, p, n, margin_of(o, 1.0), given(o, "p", 2.0), given(o, "eps", 1e-6), bool(o and o["swap"]),
        reduction=reduction_of(o)),
    "multi_margin_loss": lambda x, labels, o: F.multi_margin_loss(x, index_of(labels), int(given(o, "p", 1.0)), margin_of(o, 1.0),
                                                                  given(o, "weight"), reduction=reduction_of(o)),
})


def scaled(losses, opts):
    """Weighted, and reduced: smooth_l1_loss has no weights in PyTorch."""
    losses = losses * opts["weight"] if opts and opts["weight"] is not None else losses
    return {"mean": torch.mean, "sum": torch.sum, "none": lambda t: t}[reduction_of(opts)](losses)
