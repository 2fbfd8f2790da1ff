# SPDX-License-Identifier: Apache-2.0
"""Draws calls of what layers and losses are made of, and of what takes numbers of a certain range."""
import math

from draw import shaped
from draw_windows import draw_products
from headers import ZERO
from trek import FLOATS


def draw_norm(d):
    dtype, shape = d.float_dtype(), d.shape(1, 4, 700)
    count = d.rng.randrange(1, len(shape) + 1)
    other = lambda: dtype if d.chance(0.6) else d.pick("f32", "f32", d.float_dtype())
    return dtype, shape, count, other


@shaped("layer_norm")
def draw_layer_norm(d):
    dtype, shape, count, other = draw_norm(d)
    affine = other()
    return {"x": d.tensor(dtype, shape), "weight": d.tensor(affine, shape[-count:]) if d.chance(0.7) else None,
            "bias": d.tensor(affine if d.chance(0.9) else other(), shape[-count:]) if d.chance(0.6) else None,
            "normalized_dims": count, "eps": d.pick(1e-5, 1e-5, 1e-3, 1e-6)}


@shaped("add_layer_norm")
def draw_add_layer_norm(d):
    args = draw_layer_norm(d)
    x = d.tensors[args["x"]["tensor"]]
    branch = d.tensor(x["dtype"] if d.chance(0.9) else d.float_dtype(), x["shape"])
    return {"x": args.pop("x"), "branch": branch, **args}


@shaped("rms_norm")
def draw_rms_norm(d):
    dtype, shape, count, other = draw_norm(d)
    return {"x": d.tensor(dtype, shape), "weight": d.tensor(other(), shape[-count:]) if d.chance(0.7) else None,
            "normalized_dims": count, "eps": d.pick(1e-5, 1e-5, 1e-3, 1e-6)}


@shaped("batch_norm")
def draw_batch_norm(d):
    dtype, shape = d.float_dtype(), d.shape(2, 4, 400)
    other = dtype if d.chance(0.7) else d.pick("f32", d.float_dtype())
    channel = lambda p, **more: d.tensor(other, [shape[1]], **more) if d.chance(p) else None
    running, plain = d.chance(0.6), d.chance(0.7)
    statistics = lambda kinds: d.tensor(other, [shape[1]], kinds=kinds, plain=plain, grad=False) if running else None
    return {"x": d.tensor(dtype, shape), "weight": channel(0.6), "bias": channel(0.6), "running_mean": statistics(("normal",)),
            "running_var": statistics(("positive",)), "training": d.chance(0.6) or not running, "momentum": d.pick(0.1, 0.5, 1.0, 0.0),
            "eps": d.pick(1e-5, 1e-5, 1e-3)}


@shaped("group_norm", "instance_norm")
def draw_group_norm(d):
    groups, dtype = d.pick(1, 1, 2, 3), d.float_dtype()
    shape = [d.size(), groups * d.pick(1, 2, 3)] + d.shape(0, 2, 60)
    other = dtype if d.chance(0.7) else d.pick("f32", d.float_dtype())
    channel = lambda p, **more: d.tensor(other, [shape[1]], **more) if d.chance(p) else None
    x = d.tensor(dtype, shape)
    layout = d.tensors[x["tensor"]]["layout"]
    if layout:  # numbers that are all alike leave a norm nothing but rounding
        layout["expand"] = [layout["expand"][0]] + [False] * (len(shape) - 1)
    args = {"x": x, "weight": channel(0.6), "bias": channel(0.6), "eps": d.pick(1e-5, 1e-5, 1e-3)}
    if d.name == "group_norm":
        return {**args, "groups": groups + (1 if d.bad else 0)}
    running = d.chance(0.5)  # no number of theirs twice: they are written
    statistics = lambda kinds: d.tensor(other, [shape[1]], kinds=kinds, plain=True, grad=False) if running else None
    return {**args, "running_mean": statistics(("normal",)), "running_var": statistics(("positive",)),
            "use_input_stats": d.chance(0.7) or not running, "momentum": d.pick(0.1, 0.5, 1.0, 0.0)}


@shaped("local_response_norm")
def draw_local_response_norm(d):
    return {"x": d.tensor(d.float_dtype(), d.shape(3, 5, 300)), "size": d.pick(1, 2, 3, 5), "alpha": d.pick(1e-4, 0.5, 0.0),
            "beta": d.pick(0.75, 0.5, 2.0), "k": d.pick(1.0, 2.0)}


@shaped("normalize")
def draw_normalize(d):
    shape = [size + (size == 1) for size in d.shape(1, 4, 150)]  # a number by itself is 1, and the rest rounding
    return {"x": d.tensor(d.float_dtype(), shape), "p": d.pick(2.0, 2.0, 1.0, 3.0, math.inf), "dim": d.dim(len(shape)), "eps": d.pick(1e-12, 1e-12, 1e-3, 0.5)}


@shaped("dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
def draw_channel_dropout(d):
    n = {"dropout1d": (2, 3), "dropout2d": (3, 4), "dropout3d": (4, 5), "alpha_dropout": (0, 4)}.get(d.name, (2, 5))
    return {"x": d.tensor(d.float_dtype(), d.shape(*n)), "p": d.pick(0.0, 1.0, -0.5 if d.bad else 0.0), "training": d.chance(0.7)}


@shaped("embedding")
def draw_embedding(d):
    rows = d.pick(1, 2, 5, 9)
    return {"weight": d.tensor(d.float_dtype(), [rows, d.size()]), "indices": d.indices(d.shape(0, 3, 60), rows),
            "padding_idx": d.pick(-1, -1, -1, d.rng.randrange(0, rows))}


@shaped("dropout")
def draw_dropout(d):
    return {"x": d.tensor(d.float_dtype(), d.shape()), "p": d.pick(0.0, 1.0, 0.5, -0.5 if d.bad else 0.0), "training": d.chance(0.7)}


@shaped("attention", "attention_weights")
def draw_attention(d):
    dtype = d.float_dtype()
    b, groups, repeat, t, s, depth = d.pick(0, 1, 2), d.pick(1, 1, 2), d.pick(1, 1, 2), d.size(0.03), d.size(0.03), d.pick(1, 2, 4, 5, 8, 16)
    other = lambda: dtype if d.chance(0.97) else d.float_dtype()
    args = {"q": d.tensor(dtype, [b, groups * repeat, t, depth]), "k": d.tensor(other(), [b, groups, s, depth]),
            "v": d.tensor(other(), [b, groups, s, depth]), "opts": None}
    if d.chance(0.7):
        mask = d.broadcast([b, groups * repeat, t, s])
        mask = d.tensor(d.pick("bool", "bool", dtype), mask[-4:], kinds=None, grad=False) if d.chance(0.5) else None
        args["opts"] = {"causal": d.chance(0.5), "scale": d.pick(0.0, 0.0, 0.5), "mask": mask, "dropout": 0.0}
    if d.name == "attention_weights":  # of nothing torch's have no gradient
        del args["v"]
        args["opts"] = args["opts"] if b and t and s else None
    return args


@shaped("lstm", "gru")
def draw_recurrent(d):
    dtype, lines = d.float_dtype(), 4 if d.name == "lstm" else 3
    steps, rows, features, hidden = d.pick(1, 2, 3, 5), d.pick(1, 2, 3, 4), d.pick(1, 2, 4), d.pick(1, 2, 3, 5)
    tensor = lambda sizes, p=1: d.tensor(dtype if d.chance(0.98) else d.float_dtype(), sizes, kinds=("normal", "grid", "unit")) if d.chance(p) else None
    args = {"x": tensor([steps, rows, features]), "weight_ih": tensor([lines * hidden, features]),
            "weight_hh": tensor([lines * hidden, hidden]), "bias_ih": tensor([lines * hidden], 0.7), "bias_hh": tensor([lines * hidden], 0.7), "opts": None}
    if d.chance(0.7):
        args["opts"] = {"h0": tensor([rows, hidden], 0.5), "c0": tensor([rows, hidden], 0.5) if lines == 4 else None,
                        "lengths": d.indices([rows], steps + 1, floor=1) if d.chance(0.5) else None, "reverse": d.chance(0.5)}
    return args


def labels_for(d, rows, classes, ignore):
    """Labels of those rows, some ignored."""
    ref = d.indices(rows, classes, ("i64", "i64", "i64", "i32", "u8"))
    t = d.tensors[ref["tensor"]]
    if d.chance(0.35) and (t["dtype"] != "u8" or ignore >= 0):
        t["values"] = [ignore if d.chance(d.pick(0.2, 1.0)) else v for v in t["values"]]
    return ref


def loss_opts(d, classes, weight):
    ignore = d.pick(0, 0, 0, 1, ZERO)
    opts = {"weight": weight() if weight and d.chance(0.4) else None, "ignore_index": ignore,
            "label_smoothing": d.pick(0.0, 0.0, 0.1, 1.0), "reduction": d.pick(0, 0, 1, 6)}
    return opts, {0: -100, ZERO: 0}.get(ignore, ignore)


@shaped("cross_entropy", "cross_entropy_with")
def draw_cross_entropy(d):
    dtype, shape = d.float_dtype(), d.shape(2, 4, 200)
    logits = d.tensor(dtype, shape)
    args = {"logits": logits, "labels": None}
    ignore = -100
    if d.name == "cross_entropy_with":
        args["opts"], ignore = loss_opts(d, shape[1], lambda: d.tensor(dtype, [shape[1]], kinds=("positive",), grad=False))
    if d.chance(0.25):
        args["labels"] = d.tensor(d.companion(dtype) if d.chance(0.3) else dtype, shape, kinds=("unit",))
    else:
        args["labels"] = labels_for(d, shape[:1] + shape[2:], shape[1], ignore)
    return args


@shaped("linear_cross_entropy")
def draw_linear_cross_entropy(d):
    x, weight, bias, lead, out = draw_products(d)
    dtype, more = d.tensors[x["tensor"]]["dtype"], []
    if d.chance(0.15):  # several losses for each row
        lead, more, into = [d.size()], [d.pick(1, 2, 3)] * d.pick(1, 2), d.pick(1, 3)
        x, weight = d.tensor(dtype, lead + [into]), d.tensor(dtype, [out, *more, into])
        bias = d.tensor(dtype, [out, *more]) if d.chance(0.7) else None
    of_classes = lambda: d.tensor("f32" if dtype in ("bf16", "f16") else dtype, [out], kinds=("positive",), grad=False)
    opts, ignore = loss_opts(d, out, of_classes) if d.chance(0.6) else (None, -100)
    if d.chance(0.2) and dtype in FLOATS:
        labels = d.tensor(dtype, lead + [out, *more], kinds=("unit",))
    else:
        labels = labels_for(d, lead + more, out, ignore)
    return {"x": x, "weight": weight, "bias": bias, "labels": labels, "opts": opts}


@shaped("nll_loss")
def draw_nll(d):
    shape = d.shape(2, 4 if d.chance(0.3) else 2, 200)
    return {"log_probabilities": d.tensor(d.float_dtype(), shape), "labels": labels_for(d, shape[:1] + shape[2:], shape[1], -100)}


@shaped("softplus")
def draw_softplus(d):
    return {"x": d.tensor(d.dtype(), d.shape()), "beta": d.pick(1.0, 1.0, 2.0, 0.5), "threshold": d.pick(20.0, 20.0, 1.0)}


@shaped("elu", "leaky_relu")
def draw_slope(d):
    return {"x": d.tensor(d.dtype(), d.shape()), {"elu": "alpha", "leaky_relu": "negative_slope"}[d.name]: d.pick(1.0, 0.5, 0.01, 0.0, 2.0)}


@shaped("hardshrink", "softshrink", "celu", "threshold", "hardtanh", "nan_to_num")
def draw_bends(d):
    """Numbers that every dtype holds."""
    x = {"x": d.tensor(d.dtype(), d.shape())}
    return x | {"hardshrink": lambda: {"lambda": d.pick(0.5, 1.0, 0.0)}, "softshrink": lambda: {"lambda": d.pick(0.5, 1.0, 0.0)},
                "celu": lambda: {"alpha": d.pick(1.0, 0.5, 2.0)}, "threshold": lambda: {"threshold": d.pick(0.0, 1.0, -0.5), "value": d.pick(0.0, 2.0, -1.5)},
                "hardtanh": lambda: {"low": d.pick(-1.0, 0.0, -0.5), "high": d.pick(1.0, 0.5, 6.0, 0.0)},
                "nan_to_num": lambda: {"nan": d.pick(0.0, 1.5), "positive_infinity": d.pick(1000.0, 2.0), "negative_infinity": d.pick(-1000.0, 0.0)}}[d.name]()


@shaped("addcmul", "addcdiv", "lerp")
def draw_three(d):
    dtype, shape = d.dtype(), d.shape(0, 4, 300)
    args = {name: d.tensor(d.companion(dtype) if d.chance(0.1) else dtype, d.broadcast(shape) if d.chance(0.4) else shape) for name in ("x", "y", "z")}
    if d.name == "lerp":
        del args["z"]
    return args | {"weight" if d.name == "lerp" else "value": d.pick(1.0, 0.25, -1.5, 0.75)}


@shaped("polygamma")
def draw_polygamma(d):
    return {"n": d.pick(0, 1, 1, 2, 3), "x": d.tensor(d.dtype(), d.shape())}


@shaped("clamp")
def draw_clamp(d):
    return {"x": d.tensor(d.dtype(), d.shape()), "low": d.pick(-1.0, 0.0, -math.inf, -0.5, 1.0), "high": d.pick(1.0, 0.5, 0.0, math.inf, 2.0)}


@shaped("norm")
def draw_p_norm(d):
    shape = d.shape()
    return {"x": d.tensor(d.dtype(), shape), "p": d.pick(2.0, 2.0, 1.0, 0.0, 3.0, 0.5, -1.0, 1.5, math.inf, -math.inf), "dims": d.dims(len(shape)),
            "keepdim": d.chance(0.5)}


@shaped("argmax", "argmin")
def draw_arg(d):
    shape = d.shape()
    return {"x": d.tensor(d.dtype(), shape), "dims": d.dims(len(shape))[:1 if not d.bad else 8], "keepdim": d.chance(0.5)}


@shaped("smooth_l1_loss")
def draw_smooth(d):
    shape, dtype = d.shape(), d.float_dtype()
    return {"x": d.tensor(dtype, shape), "target": d.tensor(d.companion(dtype), shape),
            "beta": d.pick(1.0, 0.5, 2.0, 0.0)}


@shaped("accuracy")
def draw_accuracy(d):
    rows, classes = d.size(), d.pick(1, 3, 5)
    return {"logits": d.tensor(d.dtype(), [rows, classes]), "labels": d.indices([rows], classes)}


@shaped("add_", "sub_", "mul_", "div_", "copy_")
def draw_in_place(d):
    """x and y may be views of one memory: `shared` says so; then y's place in it is its offset."""
    dtype, shape = d.dtype(), d.shape(0, 4, 300)
    if d.chance(0.25) and shape and shape[0] > 1:
        base = d.tensor(dtype, [d.rng.randrange(2, 9)], plain=True, grad=False)
        d.tensors[base["tensor"]]["own"] = True
        n = d.shape_of(base)[0]
        length = d.rng.randrange(1, n + 1)
        d.shared = [[d.rng.randrange(0, n - length + 1), length], [d.rng.randrange(0, n - length + 1), length]]
        return {"x": base, "y": base}
    x = d.tensor(dtype, shape, grad=False)
    y = d.tensor(d.companion(dtype), d.broadcast(shape) if d.chance(0.4) else shape, grad=False)
    for t in d.tensors:  # PyTorch has no negative strides: a copy would not overlap
        if t["layout"] and any(t["layout"]["expand"]):
            t["layout"]["flip"] = [False] * len(t["shape"])
    return {"x": x, "y": x if d.chance(0.05) else y}


@shaped("fill_")
def draw_fill(d):
    return {"x": d.tensor(d.dtype(), d.shape(), grad=False), "value": d.number()}
