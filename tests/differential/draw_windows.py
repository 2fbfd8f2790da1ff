# SPDX-License-Identifier: Apache-2.0
"""Draws calls of products, convolutions, pools, and what else looks at neighbours."""
from draw import shaped
from headers import ZERO
from trek import FLOATS


@shaped("matmul")
def draw_matmul(d):
    batch, dtype = d.shape(0, 2, 12), d.dtype()
    m, k, n = d.size(), d.size(), d.size()
    if d.chance(0.1):
        m, k, n = d.pick(16, 33, 64), d.pick(7, 64, 65), d.pick(16, 31)
    x = [k] if d.chance(0.12) else d.expandable(batch) + [m, k]
    y = [k + (1 if d.bad else 0)] if d.chance(0.12) else (d.broadcast(batch) if d.chance(0.6) else []) + [k, n]
    return {"x": d.tensor(dtype, x), "y": d.tensor(d.companion(dtype), y)}


def draw_products(d):
    """x, weight and bias of a linear layer."""
    dtype = d.float_dtype() if d.chance(0.95) else d.dtype()
    lead = d.shape(0, 3, 40)
    if d.chance(0.2):
        lead = d.pick([], [1], [1, 1])
    into, out = d.size(0.06), d.size(0.04)
    if d.chance(0.1):
        lead, into, out = [d.pick(5, 16, 33)], d.pick(16, 31, 64), d.pick(16, 33)
    other = lambda: dtype if d.chance(0.93) else d.float_dtype()
    x = d.tensor(dtype, lead + [into])
    weight = d.tensor(other(), [out, into + (1 if d.bad and d.chance(0.3) else 0)])
    bias = d.tensor(other(), [out]) if d.chance(0.7) else None
    return x, weight, bias, lead, out


@shaped("linear")
def draw_linear(d):
    x, weight, bias, _, _ = draw_products(d)
    return {"x": x, "weight": weight, "bias": bias}


@shaped("linear_activation")
def draw_linear_activation(d):
    return {**draw_linear(d), "activation": d.pick(0, 1, 1, 2, 2)}


def pair(d, *of):
    return [d.pick(*of), d.pick(0, 0, *of)]


def kind_of_padding(d, opts):
    """Sometimes a kind of padding instead of numbers."""
    if opts is not None:
        opts["padding_kind"] = d.pick(0, 0, 0, 1, 2, 2)
        if opts["padding_kind"] and not d.bad:
            opts["padding"] = [0] * len(opts["padding"])
        if opts["padding_kind"] == 2 and not d.bad:
            opts["stride"] = [d.pick(0, 1)] + [0] * (len(opts["stride"]) - 1)
    return opts


@shaped("conv2d")
def draw_conv2d(d):
    dtype = d.float_dtype()
    groups, n = d.pick(1, 1, 1, 2, 3), d.pick(0, 1, 1, 2, 3)
    channels, out = groups * d.pick(1, 1, 2, 3, 4), groups * d.pick(1, 1, 2, 3)
    h, w, kh, kw = d.pick(1, 3, 4, 5, 7), d.pick(1, 2, 4, 5, 8), d.pick(1, 1, 2, 3, 3, 5), d.pick(1, 1, 2, 3, 3)
    opts = {"stride": pair(d, 1, 1, 2, 3), "padding": pair(d, 0, 0, 1, 2), "dilation": pair(d, 1, 1, 1, 2), "groups": groups} \
        if groups > 1 or d.chance(0.7) else None
    other = lambda: dtype if d.chance(0.95) else d.float_dtype()
    return {"x": d.tensor(dtype, [n, channels, h, w]), "weight": d.tensor(other(), [out, channels // groups, kh, kw]),
            "bias": d.tensor(other(), [out]) if d.chance(0.6) else None, "opts": kind_of_padding(d, opts)}


@shaped("conv2d_activation")
def draw_conv2d_activation(d):
    return {**draw_conv2d(d), "activation": d.pick(0, 1, 1, 2, 2)}


@shaped("conv_transpose2d")
def draw_conv_transpose2d(d):
    dtype = d.float_dtype()
    groups, n = d.pick(1, 1, 1, 2, 3), d.pick(0, 1, 1, 2, 3)
    channels, out = groups * d.pick(1, 1, 2, 3, 4), groups * d.pick(1, 1, 2, 3)
    h, w, kh, kw = d.pick(1, 2, 3, 4, 5), d.pick(1, 2, 4, 5), d.pick(1, 1, 2, 3, 3, 4), d.pick(1, 1, 2, 3, 4)
    opts = {"stride": pair(d, 1, 1, 2, 3), "padding": pair(d, 0, 0, 1, 2), "dilation": pair(d, 1, 1, 1, 2, 3), "groups": groups,
            "output_padding": pair(d, 0, 0, 0, 1, 2), "output_size": d.pick([0, 0], [0, 0], [0, 0], pair(d, 3, 4, 5, 6, 7))} \
        if groups > 1 or d.chance(0.7) else None
    other = lambda: dtype if d.chance(0.95) else d.float_dtype()
    return {"x": d.tensor(dtype, [n, channels, h, w]), "weight": d.tensor(other(), [channels, out // groups, kh, kw]),
            "bias": d.tensor(other(), [out]) if d.chance(0.6) else None, "opts": opts}


def only_padding(x, opts):
    """Whether a dilated window can lie wholly in the padding: there PyTorch's gradient goes elsewhere, out of bounds, too."""
    for size, k in zip(x["shape"][2:], (0, 1)):
        kernel, padding, dilation = (opts[name][k] or opts[name][0] for name in ("kernel", "padding", "dilation"))
        dilation = dilation or 1
        if any(all(not 0 <= start + j * dilation < size for j in range(kernel)) for start in range(-padding, size)):
            return True
    return False


@shaped("max_pool2d", "avg_pool2d")
def draw_pool(d):
    kernel = [d.pick(1, 2, 3), d.pick(0, 1, 2, 3)]
    opts = {"kernel": kernel, "stride": d.pick([0, 0], pair(d, 1, 2, 3)), "padding": d.pick([0, 0], [0, 0], pair(d, 0, 1)),
            "dilation": d.pick([0, 0], [0, 0], pair(d, 1, 2)) if d.name == "max_pool2d" else [0, 0], "ceil_mode": d.chance(0.3),
            "exclude_padding": d.name == "avg_pool2d" and d.chance(0.4), "divisor_override": d.pick(1, 3, -2) if d.name == "avg_pool2d" and d.chance(0.3) else 0}
    x = d.tensor(d.float_dtype(), [d.pick(0, 1, 2), d.pick(1, 2, 3), d.pick(1, 2, 4, 5, 7), d.pick(1, 3, 4, 6, 8)])
    if only_padding(d.tensors[x["tensor"]], opts):
        opts["dilation"] = [0, 0]
    return {"x": x, "opts": opts}


# --- space -----------------------------------------------------------------------------------------------------


@shaped("pad")
def draw_pad(d):
    mode = d.pick(0, 0, 1, 2, 3)
    if mode == 0:
        dtype, shape = d.dtype(), d.shape(1, 5, 300)
        count = d.pick(*range(1, min(len(shape), 4) + 1))
        sizes = [d.pick(0, 1, 2, 3, -1 if shape[-1 - k // 2] > 1 or d.bad else 0) for k in range(2 * count)]
        value = d.number() if dtype in FLOATS else d.pick(0.0, 1.0)
    else:
        dtype, count = d.float_dtype(), d.pick(1, 1, 2, 2, 3)
        shape = [d.pick(1, 2, 3) for _ in range(2)] + [d.pick(2, 3, 4, 5) for _ in range(count)]
        most = lambda k: shape[-1 - k // 2] - (0 if mode != 1 else 1)
        sizes = [d.rng.randrange(0, most(k) + 1 + (2 if mode == 2 or d.bad else 0)) for k in range(2 * count)]
        value = 0.0
    return {"x": d.tensor(dtype, shape), "sizes": sizes, "mode": mode, "value": value}


@shaped("pixel_shuffle", "pixel_unshuffle", "channel_shuffle")
def draw_shuffle(d):
    r, lead = d.pick(1, 2, 3), [d.pick(0, 1, 2) for _ in range(d.pick(0, 1, 2))]
    c, h, w = d.pick(1, 2, 3), d.pick(1, 2, 3), d.pick(1, 2, 4)
    off = 1 if d.bad else 0
    if d.name == "channel_shuffle":
        return {"x": d.tensor(d.dtype(), [d.pick(1, 2), c * r + off, h, w][:d.pick(3, 4)]), "groups": r}
    shape = [c * r * r + off, h, w] if d.name == "pixel_shuffle" else [c, h * r + off, w * r]
    lead = [max(n, 1) for n in lead] if d.name == "pixel_unshuffle" else lead  # torch leaves an empty one as it is
    return {"x": d.tensor(d.dtype(), lead[:1] + shape), "factor": r}


@shaped("interpolate")
def draw_interpolate(d):
    mode = d.pick(0, 1, 2, 2, 3, 3, 4)
    count = 2 if mode == 3 and not d.bad else d.pick(1, 2, 2, 3)
    by_size, scale = d.chance(0.6), lambda: d.pick(0.5, 0.7, 1.0, 1.3, 2.0, 2.5)
    opts = {"size": [d.pick(1, 2, 3, 5, 8) if by_size and k < count else 0 for k in range(3)],
            "scale": [scale() if not by_size and k < count else 0.0 for k in range(3)], "mode": mode,
            "align_corners": mode in (2, 3) and d.chance(0.4), "recompute_scale": not by_size and d.chance(0.3),
            "antialias": mode in (2, 3) and count == 2 and d.chance(0.5)}
    shape = [d.pick(2, 3, 4, 7) for _ in range(count)]
    if opts["antialias"] and (int(shape[1] * (opts["scale"][1] or opts["scale"][0])) or opts["size"][1] or opts["size"][0]) == 1:
        opts["antialias"] = False  # where rows have one element, torch gives all of them the weights of the first
    for size, factor in zip(shape, opts["scale"]):  # where torch's gradient takes other places than its result did
        if (mode != 2 or opts["antialias"]) and (int(size * factor) == size != size * factor or int(size * factor) == 2 * size != size * factor):
            opts["recompute_scale"] = True
    return {"x": d.tensor(d.float_dtype(), [d.pick(0, 1, 2), d.pick(1, 2, 3)] + shape), "opts": opts}


@shaped("unfold", "fold")
def draw_windows(d):
    numbers = lambda *of: [d.pick(*of), d.pick(0, *of)]
    opts = {"kernel": numbers(1, 2, 3), "dilation": numbers(0, 1, 2), "padding": numbers(0, 1, 2), "stride": numbers(0, 1, 2)}
    n, c, h, w = d.pick(1, 2), d.pick(1, 2, 3), d.pick(3, 4, 5, 6), d.pick(3, 4, 7)
    if d.name == "unfold":
        return {"x": d.tensor(d.float_dtype(), [n, c, h, w][d.pick(0, 0, 1):]), "opts": opts}
    kernel, dilation, padding, stride = (opts[k][:1] + [opts[k][1] or opts[k][0]] for k in ("kernel", "dilation", "padding", "stride"))
    places = [(size + 2 * p - (e or 1) * (k - 1) - 1) // (s or 1) + 1 for size, k, e, p, s in zip((h, w), kernel, dilation, padding, stride)]
    length = max(places[0], 0) * max(places[1], 0) + (1 if d.bad else 0)
    x = d.tensor(d.float_dtype(), [n, c * kernel[0] * kernel[1], length or 1][d.pick(0, 0, 1):])
    return {"x": x, "height": h, "width": w, "opts": opts}


@shaped("conv1d", "conv_transpose1d")
def draw_conv1d(d):
    dtype, transposed = d.float_dtype(), d.name == "conv_transpose1d"
    groups = d.pick(1, 1, 1, 2, 3)
    channels, out, kernel = groups * d.pick(1, 1, 2, 3), groups * d.pick(1, 1, 2, 3), d.pick(1, 1, 2, 3, 3)
    opts = {"stride": [d.pick(0, 1, 2, 3), 0], "padding": [d.pick(0, 0, 1, ZERO), 0], "dilation": [d.pick(0, 1, 2), 0], "groups": groups}
    if transposed:
        opts |= {"output_padding": [d.pick(0, 0, 0, 1), 0], "output_size": [d.pick(0, 0, 0, 5, 6, 7), 0]}
    else:
        kind_of_padding(d, opts)
    shape = [channels, out // groups, kernel] if transposed else [out, channels // groups, kernel]
    return {"x": d.tensor(dtype, [d.pick(1, 2, 3), channels, d.pick(1, 3, 4, 5, 8)]), "weight": d.tensor(dtype, shape),
            "bias": d.tensor(dtype, [out]) if d.chance(0.6) else None, "opts": opts if groups > 1 or d.chance(0.7) else None}


@shaped("conv3d", "conv_transpose3d")
def draw_conv3d(d):
    dtype, transposed = d.float_dtype(), d.name == "conv_transpose3d"
    groups = d.pick(1, 1, 1, 2)
    channels, out, kernel = groups * d.pick(1, 1, 2), groups * d.pick(1, 1, 2), [d.pick(1, 1, 2, 3) for _ in range(3)]
    opts = {"stride": [d.pick(0, 1, 2, 3), 0, d.pick(0, 1)], "padding": [d.pick(0, 0, 1, ZERO), d.pick(0, 1), 0],
            "dilation": [d.pick(0, 1, 2), d.pick(0, 1), 0], "groups": groups}
    if transposed:
        opts |= {"output_padding": [d.pick(0, 0, 0, 1), 0, d.pick(0, ZERO)],
                 "output_size": [d.pick(0, 0, 0, 0, 4, 5), d.pick(0, 5), 0]}
    else:
        kind_of_padding(d, opts)
    shape = [channels, out // groups] if transposed else [out, channels // groups]
    return {"x": d.tensor(dtype, [d.pick(1, 2), channels, d.pick(1, 3, 4), d.pick(1, 2, 3), d.pick(2, 3, 5)]),
            "weight": d.tensor(dtype, shape + kernel), "bias": d.tensor(dtype, [out]) if d.chance(0.6) else None,
            "opts": opts if groups > 1 or d.chance(0.7) else None}


@shaped("max_pool3d", "avg_pool3d")
def draw_pool3d(d):
    maximum = d.name == "max_pool3d"
    opts = {"kernel": [d.pick(1, 2, 3), d.pick(0, 2), d.pick(0, 1, 2)], "stride": [d.pick(0, 1, 2), 0, d.pick(0, 1)], "padding": [0, 0, 0],
            "dilation": [0, 0, 0], "ceil_mode": d.chance(0.3), "exclude_padding": not maximum and d.chance(0.4), "divisor_override": d.pick(1, 3, -2) if not maximum and d.chance(0.3) else 0}
    if min(k or 2 for k in opts["kernel"]) > 1 and d.chance(0.4):
        opts["padding"] = [1, 0, d.pick(0, ZERO)]
    return {"x": d.tensor(d.float_dtype(), [d.pick(1, 2), d.pick(1, 2), d.pick(3, 4, 5), d.pick(3, 4), d.pick(3, 5)]), "opts": opts}


@shaped("adaptive_avg_pool3d")
def draw_adaptive3d(d):
    return {"x": d.tensor(d.float_dtype(), [d.pick(1, 2), d.pick(1, 2), d.pick(1, 2, 5), d.pick(1, 3), d.pick(2, 4)]), "depth": d.pick(1, 2, 3),
            "height": d.pick(1, 2, 5), "width": d.pick(1, 3)}


@shaped("max_pool1d", "avg_pool1d")
def draw_pool1d(d):
    kernel = d.pick(1, 2, 3)
    opts = {"kernel": [kernel, 0], "stride": [d.pick(0, 1, 2, 3), 0], "padding": [d.pick(0, 0, 1), 0],
            "dilation": [d.pick(0, 1, 2) if d.name == "max_pool1d" else 0, 0], "ceil_mode": d.chance(0.3),
            "exclude_padding": d.name == "avg_pool1d" and d.chance(0.4), "divisor_override": d.pick(1, 3, -2) if d.name == "avg_pool1d" and d.chance(0.3) else 0}
    x = d.tensor(d.float_dtype(), [d.pick(1, 2), d.pick(1, 2, 3), d.pick(1, 2, 4, 5, 7, 8)])
    if only_padding(d.tensors[x["tensor"]], opts):
        opts["dilation"] = [0, 0]
    return {"x": x, "opts": opts}


@shaped("adaptive_avg_pool1d")
def draw_adaptive1d(d):
    return {"x": d.tensor(d.float_dtype(), [d.pick(1, 2), d.pick(1, 2, 3), d.pick(1, 2, 5, 7)]), "length": d.pick(1, 2, 3, 5)}


@shaped("adaptive_avg_pool2d")
def draw_adaptive(d):
    return {"x": d.tensor(d.float_dtype(), [d.pick(0, 1, 2), d.pick(1, 2, 3), d.pick(1, 2, 5, 7), d.pick(1, 3, 4, 6)]),
            "height": d.pick(1, 2, 3, 5), "width": d.pick(1, 2, 3, 8)}
