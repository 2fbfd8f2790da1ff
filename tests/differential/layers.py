# SPDX-License-Identifier: Apache-2.0
"""Layers of nn/layers.h against torch.nn's: results, gradients of input and parameters, buffers, in training and not,
over two batches. Parameters are copied by name, which is to be PyTorch's."""
import ctypes
import math

import torch
from torch import nn

from case import Input
from draw import Draw, each_said
from headers import OFF, ZERO
from trek import CPU, DTYPE_NUMBER, DTYPES, Refused, Wrong, headers, shape, vector

FUNCTIONS = {f.name[5:]: f for f in headers.functions.values() if f.header in ("nn/activations.h", "nn/basic_layers.h", "nn/embedding.h", "nn/layers.h", "nn/norms.h", "nn/lora.h", "nn/parametrize.h", "nn/resample.h", "nn/routers.h", "nn/spatial.h", "nn/transformer.h")}
HELPERS = {"nn_sequential_add": "called for the last layer of a sequential",
           **{name: "calls the function, which is compared: autograd/resample.h" for name in ("nn_upsample", "nn_unfold", "nn_fold")},
           **{name: "its memory is a second input: tests/nn/test_transformer.c" for name in
              ("nn_transformer_decoder", "nn_transformer_decoder_with", "nn_transformer_decoder_layer", "nn_transformer_decoder_layer_with")},
           **{f"nn_max_unpool{n}d{end}": "its indices are a second input: tests/autograd/test_pools.c" for n in (1, 2, 3) for end in ("", "_with")},
           **{f"nn_lp_pool{n}d_with": "calls the function, which is compared: autograd/spatial.h" for n in (1, 2, 3)},
           **{name: "drops at random by default: the long form" for name in ("nn_transformer_encoder_layer", "nn_transformer_encoder")},
           **{name: "it takes two inputs, of the function that is compared: tests/nn/test_layers.c" for name in ("nn_bilinear", "nn_bilinear_with")},
           **{name: "its parts are weight norm and spectral norm, which are compared: tests/nn/test_parametrize.c" for name in
              ("parametrize", "is_parametrized", "parametrized_weight", "parametrized_assign", "parametrize_remove")},
           **{name: "what is done to adapters: tests/nn/test_lora.c" for name in
              ("lora_apply", "lora_merge", "lora_unmerge", "lora_remove", "lora_state_of", "lora_state_apply", "lora_save", "lora_load")},
           **{name: "gives an index: tests/graph/test_flow_verbs.c" for name in ("nn_argmax_selector", "nn_fixed_selector")},
           "nn_multihead_attention_forward": "gives the weights, too: tests/nn/test_transformer.c",
           "nn_rrelu": "random: tests/nn/test_activations.c", "nn_rrelu_with": "random: tests/nn/test_activations.c",
           **{name: "states and lengths are those of lstm and gru" for name in
              ("nn_lstm_forward", "nn_gru_forward", "nn_lstm_cell_forward", "nn_gru_cell_forward", "nn_rnn_forward", "nn_rnn_cell_forward")}}


def real(value, default):
    return 0.0 if value == ZERO else value if value else default


def pair(values, default):
    h = values[0] or default
    w = values[1] or h
    return (0 if h == ZERO else h, 0 if w == ZERO else w)


class Layer:
    """A layer's drawing: the options of the long form, what the short form sets, its input and PyTorch's module."""

    def __init__(self, draw, torch_module, short=None, dtypes=True, inputs=None):
        self.draw, self.torch, self.short, self.dtypes, self.inputs = draw, torch_module, short, dtypes, inputs


def image(r, channels):
    return [r.choice([1, 2, 3]), channels, r.choice([3, 4, 6]), r.choice([3, 5, 7])]


def any_shape(r, last=None):
    lead = [r.choice([1, 2, 3, 5]) for _ in range(r.randrange(0, 3))]
    return lead + [last if last else r.choice([1, 2, 4, 7])]


class Projected(nn.Module):
    def __init__(self, size, n, after):
        super().__init__()
        self.proj, self.after = nn.Linear(size, n), after

    def forward(self, x):
        return self.after(self.proj(x))


class Above(nn.Module):
    """Most of a row's elements, less a threshold."""

    def __init__(self, threshold):
        super().__init__()
        self.threshold = threshold

    def forward(self, x):
        return x.flatten(1).amax(1) - self.threshold if x.dim() > 1 else x - self.threshold


def router(after):
    return Layer(lambda r: {"in": r.choice([1, 2, 5]), "n": r.choice([1, 2, 4])}, lambda o: Projected(o["in"], o["n"], after), ["in", "n"], False,
                 lambda r, o: any_shape(r, o["in"]))


def activation(make, options=None):
    return Layer(options or (lambda r: {}), make, [], False, lambda r, o: any_shape(r))


class SwiGLU(nn.Module):
    def __init__(self, o):
        super().__init__()
        out = o["out"] or o["in"]
        self.gate_proj, self.up_proj = nn.Linear(o["in"], o["hidden"], o["bias"]), nn.Linear(o["in"], o["hidden"], o["bias"])
        self.down_proj = nn.Linear(o["hidden"], out, o["bias"])

    def forward(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


def prelu_input(r, o):
    return [r.choice([1, 2]), o["parameters"] or 3, r.choice([1, 4])] if o["parameters"] != 1 else any_shape(r)


class Transformer(nn.Module):
    """A layer or a stack of PyTorch's that attends to itself; a decoder's memory is its input."""

    def __init__(self, o, decodes=False, stack=False):
        super().__init__()
        layer = (nn.TransformerDecoderLayer if decodes else nn.TransformerEncoderLayer)(
            o["d_model"], o["heads"], o["dim_feedforward"] or 2048, 0.0, "gelu" if o["activation"] == 2 else "relu", real(o["eps"], 1e-5), True,
            o["norm_first"], not o["no_bias"])
        norm = nn.LayerNorm(o["d_model"], real(o["eps"], 1e-5), bias=not o["no_bias"]) if stack and o["final_norm"] else None
        made = nn.TransformerDecoder if decodes else nn.TransformerEncoder
        self.inner, self.decodes, self.causal = made(layer, o["layers"] or 6, norm) if stack else layer, decodes, o["causal"]

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype) if self.causal else None
        return self.inner(x, x, mask) if self.decodes else self.inner(x, mask)


def transformer_options(r, stack=False):
    heads = r.choice([1, 2, 3])
    o = {"d_model": heads * r.choice([4, 6]), "heads": heads, "dim_feedforward": r.choice([1, 7, 12]), "dropout": ZERO, "activation": r.choice([0, 1, 2]),
         "norm_first": r.random() < 0.5, "no_bias": r.random() < 0.3, "eps": r.choice([0.0, 1e-3]), "causal": r.random() < 0.4}
    return o | ({"layers": r.choice([1, 2, 3]), "final_norm": r.random() < 0.5} if stack else {})


def transformer(stack):
    return Layer(lambda r: transformer_options(r, stack), lambda o: Transformer(o, False, stack), None,
                 inputs=lambda r, o: [r.choice([1, 2, 3]), r.choice([1, 3, 5]), o["d_model"]])


PLAIN_ACTIVATIONS = {
    "nn_relu6": lambda o: nn.ReLU6(), "nn_selu": lambda o: nn.SELU(), "nn_softsign": lambda o: nn.Softsign(),
    "nn_hardswish": lambda o: nn.Hardswish(), "nn_hardsigmoid": lambda o: nn.Hardsigmoid(), "nn_tanhshrink": lambda o: nn.Tanhshrink(),
    "nn_mish": lambda o: nn.Mish(), "nn_logsigmoid": lambda o: nn.LogSigmoid(),
}


def norm_options(r):
    return {"features": r.choice([1, 2, 5]), "eps": r.choice([0.0, 1e-3]), "momentum": r.choice([0.0, 0.5, float(OFF)]),
            "no_affine": r.random() < 0.3, "no_running_stats": r.random() < 0.3}


def torch_norm(make):
    return lambda o: make(o["features"], real(o["eps"], 1e-5), None if o["momentum"] == OFF else real(o["momentum"], 0.1), not o["no_affine"],
                          not o["no_running_stats"])


def batch_shape(ndims):
    def draw(r, o):
        n = r.choice(ndims)
        return [r.choice([2, 3, 5]), o["features"]] + [r.choice([1, 2, 4]) for _ in range(n - 2)]
    return draw


def instance_options(r):
    return {"features": r.choice([1, 2, 5]), "eps": r.choice([0.0, 1e-3]), "momentum": r.choice([0.0, 0.5, float(OFF)]),
            "affine": r.random() < 0.6, "running_stats": r.random() < 0.4}


def instance_norm(make, ndim):
    """One sample without a batch, too."""
    return Layer(instance_options,
                 lambda o: make(o["features"], real(o["eps"], 1e-5), None if o["momentum"] == OFF else real(o["momentum"], 0.1), o["affine"],
                                o["running_stats"]), ["features"],
                 inputs=lambda r, o: ([r.choice([1, 2, 3])] if r.random() < 0.8 else []) + [o["features"]] + [r.choice([1, 2, 3, 4]) for _ in range(ndim)])


def group_options(r):
    groups = r.choice([1, 2, 3])
    return {"groups": groups, "channels": groups * r.choice([1, 2, 3]), "eps": r.choice([0.0, 1e-3]), "no_affine": r.random() < 0.3}


def response_options(r):
    return {"size": r.choice([1, 2, 3, 5]), "alpha": r.choice([0.0, 0.5, ZERO]), "beta": r.choice([0.0, 0.5, 2.0]), "k": r.choice([0.0, 2.0])}


def channel_dropout(make, ndims):
    """What is zeroed is drawn otherwise; without and with all of it there is nothing to draw."""
    return Layer(lambda r: {"p": r.choice([ZERO, 1.0])}, lambda o: make(real(o["p"], 0.5)), ["p"], False,
                 lambda r, o: [r.choice([1, 2, 3]) for _ in range(r.choice(ndims))])


def dims_of(shape_):
    return list(shape_)


def norm_shape(r):
    return [r.choice([2, 3, 5]) for _ in range(r.choice([1, 1, 2]))]


def pool_options(r, maximum):
    return {"kernel": [r.choice([1, 2, 3]), r.choice([0, 2])], "stride": r.choice([[0, 0], [1, 0], [2, 1]]), "padding": [0, 0],
            "dilation": r.choice([[0, 0], [1, 0]]) if maximum else [0, 0], "ceil_mode": r.random() < 0.3,
            "exclude_padding": not maximum and r.random() < 0.3}


def max_pool(o):
    k = pair(o["kernel"], 1)
    return nn.MaxPool2d(k, pair(o["stride"], 1) if o["stride"][0] else k, pair(o["padding"], 0), pair(o["dilation"], 1), ceil_mode=o["ceil_mode"])


def avg_pool(o):
    k = pair(o["kernel"], 1)
    return nn.AvgPool2d(k, pair(o["stride"], 1) if o["stride"][0] else k, pair(o["padding"], 0), o["ceil_mode"], not o["exclude_padding"])


class Attention(nn.Module):
    """torch.nn.MultiheadAttention of a sequence with itself, batch first."""

    def __init__(self, o):
        super().__init__()
        self.inner = nn.MultiheadAttention(o["embed_dim"], o["heads"], bias=not o["no_bias"], batch_first=True, add_bias_kv=o["add_bias_kv"],
                                           add_zero_attn=o["add_zero_attn"])
        self.causal = o["causal"]

    def forward(self, x):
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1) if self.causal else None
        return self.inner(x, x, x, attn_mask=hidden, need_weights=False)[0]


class First(nn.Module):
    """The first result of a recurrent layer, in torch's own steps."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        made = self.inner(x)
        return made[0] if isinstance(made, tuple) else made


def recurrent(make):
    def options(r):
        o = {"in": r.choice([1, 2, 4]), "hidden": r.choice([1, 3, 5]), "layers": r.choice([0, 1, 2, 3]), "no_bias": r.random() < 0.3,
             "batch_first": r.random() < 0.5, "bidirectional": r.random() < 0.5, "dropout": 0.0}
        return {**o, "proj_size": r.choice([0, 0, 1, 2]) if o["hidden"] > 1 else 0} if make is nn.LSTM else o

    return Layer(options,
                 lambda o: First(make(o["in"], o["hidden"], o["layers"] or 1, not o["no_bias"], o["batch_first"], 0.0, o["bidirectional"],
                                      o.get("proj_size", 0))),
                 ["in", "hidden"], inputs=lambda r, o: [r.choice([1, 2, 5]) for _ in range(r.choice([1, 2, 2]))] + [o["in"]])


def cell(make):
    return Layer(lambda r: {"in": r.choice([1, 2, 4]), "hidden": r.choice([1, 3, 5]), "no_bias": r.random() < 0.3},
                 lambda o: First(make(o["in"], o["hidden"], not o["no_bias"])), ["in", "hidden"],
                 inputs=lambda r, o: [r.choice([1, 2, 5]) for _ in range(r.choice([0, 1, 1]))] + [o["in"]])


def plain_recurrent():
    """Of several layers with relu, gradients leave the range of f16 on their way."""
    both = recurrent(nn.RNN)
    return Layer(lambda r: {**both.draw(r), "relu": False} if r.random() < 0.5 else {**both.draw(r), "layers": r.randrange(2), "relu": True},
                 lambda o: First(nn.RNN(o["in"], o["hidden"], o["layers"] or 1, "relu" if o["relu"] else "tanh", not o["no_bias"], o["batch_first"], 0.0,
                                        o["bidirectional"])), ["in", "hidden"], inputs=both.inputs)


def plain_cell():
    both = cell(nn.RNNCell)
    return Layer(lambda r: {**both.draw(r), "relu": r.random() < 0.5},
                 lambda o: First(nn.RNNCell(o["in"], o["hidden"], not o["no_bias"], "relu" if o["relu"] else "tanh")), ["in", "hidden"], inputs=both.inputs)


def rms_eps(o):
    """None is PyTorch's default, the dtype's epsilon; of 16-bit dtypes trek takes f32's."""
    return real(o["eps"], torch.finfo(torch.float64 if o.get("dtype") == "f64" else torch.float32).eps) if o["eps"] != ZERO else 0.0


def padding(o):
    p = o["padding_idx"]
    return None if p in (0, OFF) else 0 if p == ZERO else p


def classes(r):
    return {"num": r.choice([1, 4, 9]), "dim": r.choice([1, 3, 8]), "padding_idx": r.choice([0, OFF, ZERO]), "max_norm": r.choice([0.0, 0.0, 0.75]),
            "norm_type": r.choice([0.0, 1.0]), "scale_grad_by_freq": r.random() < 0.3}


def bag_options(r):
    o = classes(r) | {"mode": r.choice([0, 1, 2])}
    if o["mode"] == 2:  # rows that are scaled to one norm are equally large, as rounding has it
        o["max_norm"] = 0.0
    return o | {"scale_grad_by_freq": o["scale_grad_by_freq"] and o["mode"] != 2}


def table_of(o):
    return {"padding_idx": padding(o), "max_norm": o["max_norm"] or None, "norm_type": o["norm_type"] or 2.0, "scale_grad_by_freq": bool(o["scale_grad_by_freq"])}


class Rotary(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.interleaved = o["interleaved"]
        self.register_buffer("table", torch.zeros(o["length"] or 4096, o["dim"]))

    def forward(self, x):
        half, dim = self.table.shape[1] // 2, self.table.shape[1]
        work = torch.float64 if x.dtype == torch.float64 else torch.float32
        rows, y = self.table[:x.shape[-2]].to(work), x.to(work)
        c, s = rows[:, :half], rows[:, half:]
        a, b = (y[..., 0:dim:2], y[..., 1:dim:2]) if self.interleaved else (y[..., :half], y[..., half:dim])
        p, q = a * c - b * s, b * c + a * s
        turned = torch.stack([p, q], -1).flatten(-2) if self.interleaved else torch.cat([p, q], -1)
        return torch.cat([turned, y[..., dim:]], -1).to(x.dtype)


class Sinusoidal(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.register_buffer("pe", torch.zeros(o["length"] or 5000, o["dim"]))

    def forward(self, x):
        return x + self.pe[:x.shape[-2]]


flat_dim = lambda d, default: default if d == 0 else 0 if d == ZERO else d
no_options = lambda r: {}
PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


def pad_layer(o):
    """The one of torch's layers that has this mode and as many dimensions."""
    count, sizes = len(o["sizes"]) // 2, tuple(o["sizes"])
    if o["mode"] == 0:
        return getattr(nn, f"ConstantPad{count}d")(sizes, o["value"]) if o["value"] else getattr(nn, f"ZeroPad{count}d")(sizes)
    return getattr(nn, f"{('Reflection', 'Replication', 'Circular')[o['mode'] - 1]}Pad{count}d")(sizes)


def pad_sizes(r):
    return {"sizes": [r.choice([0, 1, 2]) for _ in range(2 * r.choice([1, 2, 3]))], "mode": r.randrange(4), "value": r.choice([0.0, 2.5])}


def pool1d_options(r, maximum):
    return {"kernel": [r.choice([1, 2, 3]), 0], "stride": r.choice([[0, 0], [1, 0], [2, 1]]), "padding": [0, 0],
            "dilation": [0, 0], "ceil_mode": r.random() < 0.3, "exclude_padding": not maximum and r.random() < 0.3}


def triple(values, default):
    first = values[0] or default
    second = values[1] or first
    return tuple(0 if v == ZERO else v for v in (first, second, values[2] or second))


def pool3d_options(r, maximum):
    return {"kernel": [r.choice([1, 2, 3]), r.choice([0, 2]), 0], "stride": r.choice([[0, 0, 0], [1, 0, 0], [2, 1, 0]]), "padding": [0, 0, 0],
            "dilation": [0, 0, 0], "ceil_mode": r.random() < 0.3, "exclude_padding": not maximum and r.random() < 0.3}


def block(r):
    return [r.choice([1, 2]), 2, r.choice([3, 4]), 3, r.choice([3, 5])]


def line(r, channels):
    return [r.choice([1, 2, 3]), channels, r.choice([3, 5, 8])]


def padding_kind(r, o):
    """Sometimes the kind of padding instead of numbers."""
    o["padding_kind"] = r.choice([0, 0, 0, 1, 2])
    if o["padding_kind"]:
        o["padding"] = [0] * len(o["padding"]) if isinstance(o["padding"], list) else 0
    if o["padding_kind"] == 2:
        o["stride"] = [0] * len(o["stride"]) if isinstance(o["stride"], list) else 0
    return o


def padded(o, numbers):
    return ("valid", "same")[o["padding_kind"] - 1] if o["padding_kind"] else numbers


def lp_pool(make, inputs):
    return Layer(lambda r: {"norm": r.choice([2.0, 4.0]), "kernel": r.choice([1, 2, 3])}, lambda o: make(o["norm"], o["kernel"]),
                 ["norm", "kernel"], False, inputs)


number = lambda name, *of: lambda r: {name: r.choice(of)}
SPACE = {
    "nn_pad": Layer(pad_sizes, pad_layer, ["sizes", "mode", "value"], False, lambda r, o: [1, 2] + [r.choice([3, 4, 5]) for _ in range(len(o["sizes"]) // 2)]),
    "nn_conv1d": Layer(lambda r: padding_kind(r, {"in": r.choice([2, 4]), "out": r.choice([2, 4]), "kernel": r.choice([1, 2, 3]), "stride": r.choice([0, 2]),
                                  "padding": r.choice([0, 1, 2]), "dilation": r.choice([0, 0, 2]), "groups": r.choice([0, 1, 2]),
                                  "no_bias": r.random() < 0.3, "padding_mode": r.choice([0, 0, 1, 2, 3])}),
                       lambda o: nn.Conv1d(o["in"], o["out"], o["kernel"], o["stride"] or 1, padded(o, o["padding"]), o["dilation"] or 1, o["groups"] or 1,
                                           not o["no_bias"], PADDING_MODES[o["padding_mode"]]), ["in", "out", "kernel"], inputs=lambda r, o: [2, o["in"], r.choice([5, 8])]),
    "nn_conv_transpose1d": Layer(lambda r: {"in": r.choice([2, 4]), "out": r.choice([2, 4]), "kernel": r.choice([2, 3]), "stride": r.choice([0, 2, 3]),
                                            "padding": r.choice([0, 1]), "output_padding": r.choice([0, 0, 1]), "dilation": r.choice([0, 2]),
                                            "groups": r.choice([0, 1, 2]), "no_bias": r.random() < 0.3},
                                 lambda o: nn.ConvTranspose1d(o["in"], o["out"], o["kernel"], o["stride"] or 1, o["padding"], o["output_padding"],
                                                              o["groups"] or 1, not o["no_bias"], o["dilation"] or 1), ["in", "out", "kernel"],
                                 inputs=lambda r, o: line(r, o["in"])),
    "nn_conv3d": Layer(lambda r: padding_kind(r, {"in": r.choice([2, 4]), "out": r.choice([2, 4]), "kernel": [r.choice([1, 2, 3]), r.choice([0, 1]), 0],
                                  "stride": r.choice([[0, 0, 0], [2, 1, 0]]), "padding": r.choice([[0, 0, 0], [1, 0, 0], [1, ZERO, 0]]),
                                  "dilation": [0, 0, 0], "groups": r.choice([0, 1, 2]), "no_bias": r.random() < 0.3,
                                  "padding_mode": r.choice([0, 0, 1, 2, 3])}),
                       lambda o: nn.Conv3d(o["in"], o["out"], triple(o["kernel"], 1), triple(o["stride"], 1), padded(o, triple(o["padding"], ZERO)), 1,
                                           o["groups"] or 1, not o["no_bias"], PADDING_MODES[o["padding_mode"]]), ["in", "out", "kernel"],
                       inputs=lambda r, o: [r.choice([1, 2]), o["in"], r.choice([3, 4]), 3, r.choice([3, 5])]),
    "nn_conv_transpose3d": Layer(lambda r: {"in": r.choice([2, 4]), "out": r.choice([2, 4]), "kernel": [r.choice([2, 3]), 0, r.choice([0, 2])],
                                            "stride": r.choice([[0, 0, 0], [2, 0, 0]]), "padding": r.choice([[0, 0, 0], [1, 0, ZERO]]),
                                            "output_padding": [0, 0, 0], "dilation": [0, 0, 0], "groups": r.choice([0, 1, 2]),
                                            "no_bias": r.random() < 0.3},
                                 lambda o: nn.ConvTranspose3d(o["in"], o["out"], triple(o["kernel"], 1), triple(o["stride"], 1),
                                                              triple(o["padding"], ZERO), 0, o["groups"] or 1, not o["no_bias"]), ["in", "out", "kernel"],
                                 inputs=lambda r, o: [r.choice([1, 2]), o["in"], r.choice([2, 3]), 2, r.choice([2, 3])]),
    "nn_max_pool3d": Layer(lambda r: pool3d_options(r, True), lambda o: nn.MaxPool3d(triple(o["kernel"], 1), triple(o["stride"], 0) if o["stride"][0] else None,
                                                                                     ceil_mode=o["ceil_mode"]), ["kernel"], False, lambda r, o: block(r)),
    "nn_avg_pool3d": Layer(lambda r: pool3d_options(r, False), lambda o: nn.AvgPool3d(triple(o["kernel"], 1), triple(o["stride"], 0) if o["stride"][0] else None,
                                                                                      0, o["ceil_mode"], not o["exclude_padding"]), ["kernel"], False, lambda r, o: block(r)),
    "nn_adaptive_avg_pool3d": Layer(lambda r: {"depth": r.choice([1, 2]), "height": r.choice([1, 3]), "width": r.choice([2, 4])},
                                    lambda o: nn.AdaptiveAvgPool3d((o["depth"], o["height"], o["width"])), ["depth", "height", "width"], False,
                                    lambda r, o: block(r)),
    "nn_max_pool1d": Layer(lambda r: pool1d_options(r, True), lambda o: nn.MaxPool1d(o["kernel"][0], o["stride"][0] or None, ceil_mode=o["ceil_mode"]),
                           ["kernel"], False, lambda r, o: line(r, 2)),
    "nn_avg_pool1d": Layer(lambda r: pool1d_options(r, False),
                           lambda o: nn.AvgPool1d(o["kernel"][0], o["stride"][0] or None, 0, o["ceil_mode"], not o["exclude_padding"]),
                           ["kernel"], False, lambda r, o: line(r, 2)),
    "nn_adaptive_avg_pool1d": Layer(number("length", 1, 2, 4), lambda o: nn.AdaptiveAvgPool1d(o["length"]), ["length"], False, lambda r, o: line(r, 2)),
    "nn_adaptive_max_pool1d": Layer(number("length", 1, 2, 4), lambda o: nn.AdaptiveMaxPool1d(o["length"]), ["length"], False, lambda r, o: line(r, 2)),
    "nn_adaptive_max_pool2d": Layer(lambda r: {"height": r.choice([1, 3]), "width": r.choice([2, 4])},
                                    lambda o: nn.AdaptiveMaxPool2d((o["height"], o["width"])), ["height", "width"], False, lambda r, o: image(r, 2)),
    "nn_adaptive_max_pool3d": Layer(lambda r: {"depth": r.choice([1, 2]), "height": r.choice([1, 3]), "width": r.choice([2, 4])},
                                    lambda o: nn.AdaptiveMaxPool3d((o["depth"], o["height"], o["width"])), ["depth", "height", "width"], False,
                                    lambda r, o: block(r)),
    "nn_lp_pool1d": lp_pool(nn.LPPool1d, lambda r, o: line(r, 2)), "nn_lp_pool2d": lp_pool(nn.LPPool2d, lambda r, o: image(r, 2)),
    "nn_lp_pool3d": lp_pool(nn.LPPool3d, lambda r, o: block(r)),
    "nn_pixel_shuffle": Layer(number("factor", 1, 2, 3), lambda o: nn.PixelShuffle(o["factor"]), ["factor"], False, lambda r, o: image(r, 2 * o["factor"] ** 2)),
    "nn_pixel_unshuffle": Layer(number("factor", 1, 2, 3), lambda o: nn.PixelUnshuffle(o["factor"]), ["factor"], False,
                                lambda r, o: [2, 2, 2 * o["factor"], 3 * o["factor"]]),
    "nn_channel_shuffle": Layer(number("groups", 1, 2, 3), lambda o: nn.ChannelShuffle(o["groups"]), ["groups"], False, lambda r, o: image(r, 2 * o["groups"])),
}
TABLE = SPACE | {
    "nn_linear": Layer(lambda r: {"in": r.choice([1, 2, 5, 17]), "out": r.choice([1, 3, 8]), "no_bias": r.random() < 0.3},
                       lambda o: nn.Linear(o["in"], o["out"], not o["no_bias"]), ["in", "out"], inputs=lambda r, o: any_shape(r, o["in"])),
    "nn_conv2d": Layer(lambda r: padding_kind(r, {"in": r.choice([2, 4]), "out": r.choice([2, 4]), "kernel": [r.choice([1, 2, 3]), r.choice([0, 1])],
                                  "stride": r.choice([[0, 0], [2, 1]]), "padding": r.choice([[0, 0], [1, 0], [1, ZERO]]), "dilation": [0, 0],
                                  "groups": r.choice([0, 1, 2]), "no_bias": r.random() < 0.3, "padding_mode": r.choice([0, 0, 1, 2, 3])}),
                       lambda o: nn.Conv2d(o["in"], o["out"], pair(o["kernel"], 1), pair(o["stride"], 1), padded(o, pair(o["padding"], 0)),
                                           pair(o["dilation"], 1), o["groups"] or 1, not o["no_bias"], PADDING_MODES[o["padding_mode"]]),
                       ["in", "out", "kernel"],
                       inputs=lambda r, o: image(r, o["in"])),
    "nn_conv_transpose2d": Layer(lambda r: {"in": r.choice([2, 4]), "out": r.choice([2, 4]), "kernel": [r.choice([1, 2, 3, 4]), r.choice([0, 1])],
                                            "stride": r.choice([[0, 0], [2, 1]]), "padding": r.choice([[0, 0], [0, 0], [1, ZERO]]),
                                            "output_padding": r.choice([[0, 0], [0, 0], [1, ZERO]]), "dilation": [0, 0],
                                            "groups": r.choice([0, 1, 2]), "no_bias": r.random() < 0.3},
                                 lambda o: nn.ConvTranspose2d(o["in"], o["out"], pair(o["kernel"], 1), pair(o["stride"], 1), pair(o["padding"], 0),
                                                              pair(o["output_padding"], 0), o["groups"] or 1, not o["no_bias"]), ["in", "out", "kernel"],
                                 inputs=lambda r, o: image(r, o["in"])),
    "nn_batch_norm1d": Layer(norm_options, torch_norm(nn.BatchNorm1d), ["features"], inputs=batch_shape([2, 3])),
    "nn_batch_norm2d": Layer(norm_options, torch_norm(nn.BatchNorm2d), ["features"], inputs=batch_shape([4])),
    "nn_batch_norm3d": Layer(norm_options, torch_norm(nn.BatchNorm3d), ["features"], inputs=batch_shape([5])),
    "nn_instance_norm1d": instance_norm(nn.InstanceNorm1d, 1), "nn_instance_norm2d": instance_norm(nn.InstanceNorm2d, 2),
    "nn_instance_norm3d": instance_norm(nn.InstanceNorm3d, 3),
    "nn_group_norm": Layer(group_options, lambda o: nn.GroupNorm(o["groups"], o["channels"], real(o["eps"], 1e-5), not o["no_affine"]),
                           ["groups", "channels"], inputs=lambda r, o: [r.choice([1, 2, 3]), o["channels"]] + any_shape(r)[1:]),
    "nn_local_response_norm": Layer(response_options, lambda o: nn.LocalResponseNorm(o["size"], real(o["alpha"], 1e-4), real(o["beta"], 0.75),
                                                                                     real(o["k"], 1.0)), ["size"], False,
                                    lambda r, o: [r.choice([1, 2]), r.choice([1, 3, 6]), r.choice([1, 2, 4])]),
    "nn_dropout1d": channel_dropout(nn.Dropout1d, [2, 3]), "nn_dropout2d": channel_dropout(nn.Dropout2d, [3, 4]),
    "nn_dropout3d": channel_dropout(nn.Dropout3d, [4, 5]), "nn_alpha_dropout": channel_dropout(nn.AlphaDropout, [1, 2, 3]),
    "nn_feature_alpha_dropout": channel_dropout(nn.FeatureAlphaDropout, [2, 3, 4]),
    "nn_sync_batch_norm": Layer(norm_options, torch_norm(nn.BatchNorm2d), ["features"], inputs=batch_shape([4])),
    "nn_layer_norm": Layer(lambda r: {"shape": norm_shape(r), "eps": r.choice([0.0, 1e-3]), "no_affine": r.random() < 0.3, "no_bias": r.random() < 0.3},
                           lambda o: nn.LayerNorm(o["shape"], real(o["eps"], 1e-5), not o["no_affine"], not o["no_bias"]), ["shape"],
                           inputs=lambda r, o: any_shape(r)[:-1] + o["shape"]),
    "nn_rms_norm": Layer(lambda r: {"shape": norm_shape(r), "eps": r.choice([0.0, 1e-3]), "no_affine": r.random() < 0.3},
                         lambda o: nn.RMSNorm(o["shape"], rms_eps(o), not o["no_affine"]), ["shape"], inputs=lambda r, o: any_shape(r)[:-1] + o["shape"]),
    "nn_multihead_attention": Layer(lambda r: {"embed_dim": 4, "heads": r.choice([1, 2, 4]), "no_bias": r.random() < 0.3, "causal": r.random() < 0.4,
                                               "add_bias_kv": r.random() < 0.3, "add_zero_attn": r.random() < 0.3, "dropout": 0.0}, Attention, ["embed_dim", "heads"], inputs=lambda r, o: [r.choice([1, 2]), r.choice([1, 3, 6]), 4]),
    "nn_rnn": plain_recurrent(), "nn_rnn_cell": plain_cell(), "nn_lstm": recurrent(nn.LSTM), "nn_gru": recurrent(nn.GRU), "nn_lstm_cell": cell(nn.LSTMCell), "nn_gru_cell": cell(nn.GRUCell),
    "nn_embedding": Layer(classes, lambda o: nn.Embedding(o["num"], o["dim"], **table_of(o)), ["num", "dim"], inputs=lambda r, o: any_shape(r)),
    "nn_embedding_bag": Layer(bag_options, lambda o: nn.EmbeddingBag(o["num"], o["dim"], mode=("mean", "sum", "max")[o["mode"]], **table_of(o)),
                              ["num", "dim"], inputs=lambda r, o: [r.choice([1, 2, 5]), r.choice([1, 3, 6])]),
    "nn_rotary": Layer(lambda r: {"dim": r.choice([2, 4, 6]), "length": r.choice([7, 12]), "base": r.choice([0.0, 100.0]), "interleaved": r.random() < 0.5},
                       Rotary, ["dim", "length"], False, lambda r, o: [2, r.choice([1, 3]), r.choice([1, 5, 7]), o["dim"] + r.choice([0, 0, 3])]),
    "nn_sinusoidal_positions": Layer(lambda r: {"dim": r.choice([1, 4, 7]), "length": r.choice([7, 12]), "base": r.choice([0.0, 100.0])}, Sinusoidal,
                                     ["dim", "length"], inputs=lambda r, o: [r.choice([1, 3]), r.choice([1, 5, 7]), o["dim"]]),
    "nn_unflatten": Layer(lambda r: {"dim": r.choice([1, -1]), "sizes": r.choice([[2, 3], [3, -1], [6], [1, 2, 3]])},
                          lambda o: nn.Unflatten(o["dim"], o["sizes"]), ["dim", "sizes"], False, lambda r, o: [r.choice([1, 3]), 6]),
    "nn_dropout": Layer(lambda r: {"p": r.choice([ZERO, 1.0])}, lambda o: nn.Dropout(real(o["p"], 0.5)), ["p"], False, lambda r, o: any_shape(r)),
    "nn_relu": Layer(no_options, lambda o: nn.ReLU(), [], False, lambda r, o: any_shape(r)),
    **{name: activation(make) for name, make in PLAIN_ACTIVATIONS.items()},
    "nn_softmax2d": Layer(no_options, lambda o: nn.Softmax2d(), [], False, lambda r, o: image(r, r.choice([1, 3]))[r.choice([0, 1]):]),
    "nn_threshold": Layer(lambda r: {"threshold": r.choice([0.5, -1.0]), "value": r.choice([2.0, -0.25])},
                          lambda o: nn.Threshold(o["threshold"], o["value"]), ["threshold", "value"], False, lambda r, o: any_shape(r)),
    "nn_softmin": Layer(lambda r: {"dim": r.choice([-2, -1])}, lambda o: nn.Softmin(o["dim"]), ["dim"], False, lambda r, o: any_shape(r) + [3]),
    "nn_glu": Layer(lambda r: {"dim": r.choice([-2, -1])}, lambda o: nn.GLU(o["dim"]), ["dim"], False, lambda r, o: [r.choice([2, 4]) for _ in range(r.choice([2, 3]))]),
    "nn_prelu": Layer(lambda r: {"parameters": r.choice([0, 1, 3]), "init": r.choice([0.0, 0.1])},
                      lambda o: nn.PReLU(o["parameters"] or 1, real(o["init"], 0.25)), [], inputs=prelu_input),
    "nn_swiglu": Layer(lambda r: {"in": r.choice([1, 5]), "hidden": r.choice([1, 7]), "out": r.choice([0, 3]), "bias": r.random() < 0.5},
                       SwiGLU, ["in", "hidden"], inputs=lambda r, o: any_shape(r, o["in"])),
    "nn_transformer_encoder_layer": transformer(False), "nn_transformer_encoder": transformer(True),
    "nn_elu": activation(lambda o: nn.ELU(real(o["alpha"], 1.0)), lambda r: {"alpha": r.choice([0.0, 0.5])}),
    "nn_celu": activation(lambda o: nn.CELU(real(o["alpha"], 1.0)), lambda r: {"alpha": r.choice([0.0, 0.5])}),
    "nn_softplus": activation(lambda o: nn.Softplus(real(o["beta"], 1.0), real(o["threshold"], 20.0)),
                              lambda r: {"beta": r.choice([0.0, 2.0]), "threshold": r.choice([0.0, 1.0, ZERO])}),
    "nn_hardtanh": activation(lambda o: nn.Hardtanh(real(o["low"], -1.0), real(o["high"], 1.0)),
                              lambda r: {"low": r.choice([0.0, -0.5, ZERO]), "high": r.choice([0.0, 0.75])}),
    "nn_hardshrink": activation(lambda o: nn.Hardshrink(real(o["lambda"], 0.5)), lambda r: {"lambda": r.choice([0.0, 1.0, ZERO])}),
    "nn_softshrink": activation(lambda o: nn.Softshrink(real(o["lambda"], 0.5)), lambda r: {"lambda": r.choice([0.0, 1.0, ZERO])}),
    "nn_gelu": Layer(lambda r: {"tanh": r.random() < 0.5}, lambda o: nn.GELU("tanh" if o["tanh"] else "none"), [], False, lambda r, o: any_shape(r)),
    "nn_silu": Layer(no_options, lambda o: nn.SiLU(), [], False, lambda r, o: any_shape(r)),
    "nn_tanh": Layer(no_options, lambda o: nn.Tanh(), [], False, lambda r, o: any_shape(r)),
    "nn_sigmoid": Layer(no_options, lambda o: nn.Sigmoid(), [], False, lambda r, o: any_shape(r)),
    "nn_identity": Layer(no_options, lambda o: nn.Identity(), [], False, lambda r, o: any_shape(r)),
    "nn_channels_last": Layer(no_options, lambda o: nn.Identity(), [], False, lambda r, o: image(r, r.choice([1, 2, 5]))), # another order, the same numbers
    "nn_leaky_relu": Layer(lambda r: {"negative_slope": r.choice([0.2, ZERO])}, lambda o: nn.LeakyReLU(real(o["negative_slope"], 0.01)),
                           ["negative_slope"], False, lambda r, o: any_shape(r)),
    "nn_softmax": Layer(lambda r: {"dim": r.choice([0, -1, ZERO])}, lambda o: nn.Softmax(flat_dim(o["dim"], -1)), [], False, lambda r, o: any_shape(r)),
    "nn_log_softmax": Layer(lambda r: {"dim": r.choice([0, -1, ZERO])}, lambda o: nn.LogSoftmax(flat_dim(o["dim"], -1)), [], False,
                            lambda r, o: any_shape(r)),
    "nn_max_pool2d": Layer(lambda r: pool_options(r, True), max_pool, ["kernel"], False, lambda r, o: image(r, 2)),
    "nn_avg_pool2d": Layer(lambda r: pool_options(r, False), avg_pool, ["kernel"], False, lambda r, o: image(r, 2)),
    "nn_adaptive_avg_pool2d": Layer(lambda r: {"height": r.choice([1, 2, 3]), "width": r.choice([1, 2, 4])},
                                    lambda o: nn.AdaptiveAvgPool2d((o["height"], o["width"])), ["height", "width"], False, lambda r, o: image(r, 2)),
    "nn_flatten": Layer(lambda r: {"start_dim": r.choice([0, 1, ZERO]), "end_dim": r.choice([0, -1])},
                        lambda o: nn.Flatten(flat_dim(o["start_dim"], 1), flat_dim(o["end_dim"], -1)), [], False, lambda r, o: image(r, 2)),
    "nn_softmax_router": router(lambda z: z.softmax(-1)),
    "nn_sigmoid_router": router(torch.sigmoid),
    "nn_learned_halt": Layer(lambda r: {"in": r.choice([1, 2, 5])}, lambda o: Projected(o["in"], 1, lambda z: z), ["in"], False,
                             lambda r, o: any_shape(r, o["in"])),
    "nn_threshold_halt": Layer(lambda r: {"threshold": r.choice([0.0, -1.5, 0.25])}, lambda o: Above(o["threshold"]), ["threshold"], False,
                               lambda r, o: [r.choice([1, 2, 3]), *any_shape(r)]),
    "nn_sequential": Layer(lambda r: {"features": 3, "activation": r.randrange(3)},
                           lambda o: nn.Sequential(nn.Linear(3, 5), (nn.ReLU, nn.GELU, nn.Tanh)[o["activation"]](), nn.Linear(5, 2)), None, False,
                           lambda r, o: any_shape(r, 3)),
}


# Of which layers a weight is made of other parameters; PyTorch's own LSTM and GRU do not see it.
WEIGHTED = {"nn_linear": ["weight", "bias"], "nn_conv1d": ["weight"], "nn_conv2d": ["weight"], "nn_conv3d": ["weight"],
            "nn_conv_transpose1d": ["weight"], "nn_conv_transpose2d": ["weight"], "nn_conv_transpose3d": ["weight"], "nn_embedding": ["weight"],
            "nn_lstm_cell": ["weight_ih", "weight_hh"], "nn_gru_cell": ["weight_hh"]}


def inner_of(module):
    return getattr(module, "inner", module)


def around(r, of=None):
    """A layer and one of its weights, as options."""
    base = r.choice(sorted(of or WEIGHTED))
    layer = each_said(TABLE[base].draw(r))
    if "max_norm" in layer:  # it scales rows of a weight that has just been computed, which the backward may still need
        layer["max_norm"] = 0.0
    return {"layer": base, "of": layer, "weight": r.choice(WEIGHTED[base] if not layer.get("no_bias") else WEIGHTED[base][:1])}


def weight_norm_options(r):
    o = around(r)
    ndim = getattr(inner_of(TABLE[o["layer"]].torch(o["of"])), o["weight"]).dim()
    return o | {"dim": r.randrange(-1, ndim)}


def spectral_norm_options(r):
    o = around(r)
    ndim = getattr(inner_of(TABLE[o["layer"]].torch(o["of"])), o["weight"]).dim()
    return o | {"dim": r.choice([0, 0, ZERO, -ndim] + list(range(1, ndim))), "n_power_iterations": r.choice([0, 1, 3]), "eps": r.choice([0.0, 1e-3])}


def parametrized(how):
    """PyTorch's layer with the weight made as `how` of (layer, options) does it."""
    def make(o):
        module = TABLE[o["layer"]].torch(o["of"])
        how(inner_of(module), o)
        return module
    return make


def spectral(module, o):
    made = nn.utils.parametrizations.spectral_norm
    made(module, o["weight"], o["n_power_iterations"] or 1, real(o["eps"], 1e-12), None if o["dim"] == 0 else 0 if o["dim"] == ZERO else o["dim"])


class Lora(nn.Linear):
    """An adapter as peft's LoraLayer has it."""

    def __init__(self, o):
        super().__init__(o["of"]["in"], o["of"]["out"], not o["of"]["no_bias"])
        r = o["r"] or 8
        self.lora_A, self.lora_B = nn.Linear(self.in_features, r, False), nn.Linear(r, self.out_features, False)
        self.scaling = real(o["lora_alpha"], 8.0) / (math.sqrt(r) if o["use_rslora"] else r)
        self.dropout = nn.Dropout(o["lora_dropout"])

    def forward(self, x):
        y = super().forward(x)
        return y + (self.lora_B(self.lora_A(self.dropout(x.to(self.lora_A.weight.dtype)))) * self.scaling).to(y.dtype)


def lora_options(r):
    return around(r, ["nn_linear"]) | {"r": r.choice([0, 1, 3]), "lora_alpha": r.choice([0.0, 1.0, 12.0, ZERO]), "lora_dropout": r.choice([0.0, 0.0, 1.0]),
                                       "use_rslora": r.random() < 0.4}


TABLE |= {
    "lora": Layer(lora_options, Lora, [], inputs=lambda r, o: TABLE["nn_linear"].inputs(r, o["of"])),
    "weight_norm": Layer(weight_norm_options, parametrized(lambda m, o: nn.utils.parametrizations.weight_norm(m, o["weight"], o["dim"])), [],
                         inputs=lambda r, o: TABLE[o["layer"]].inputs(r, o["of"])),
    "spectral_norm": Layer(spectral_norm_options, parametrized(spectral), [], inputs=lambda r, o: TABLE[o["layer"]].inputs(r, o["of"])),
}


def covered():
    plain = {n: n[:-5] if n.endswith("_with") else n for n in FUNCTIONS}
    return [n for n, base in plain.items() if base in TABLE and n not in HELPERS], \
        [f"{n}: layers.py has no counterpart" for n, base in plain.items() if base not in TABLE and n not in HELPERS]


def draw(rng, name):
    base = name[:-5] if name.endswith("_with") else name
    layer, d = TABLE[base], Draw(rng)
    d.bad = False
    opts = each_said(layer.draw(rng))
    made_of = "of" in opts
    if not name.endswith("_with") and base != "nn_sequential" and not made_of:
        opts = short_options(base, opts)
    dtype = rng.choice(["f32", "f32", "f64", "bf16", "f16"])
    if layer.dtypes and (name.endswith("_with") or made_of):
        opts["dtype"] = dtype
    elif layer.dtypes or base == "nn_sequential":
        dtype = "f32"
    if base.startswith("nn_transformer") and dtype in ("bf16", "f16"):
        opts["activation"] = 2  # a sum that 16 bits round to the other side of zero has another gradient through ReLU
    sizes = layer.inputs(rng, opts)
    if opts.get("layer", base) in ("nn_embedding", "nn_embedding_bag"):
        x = d.indices(sizes, opts.get("of", opts)["num"])
    else:
        alike = base.startswith("nn_transformer")  # features that are all alike leave a norm nothing but rounding
        x = d.tensor(dtype, sizes, kinds=("normal",) if alike else ("normal", "normal", "grid"), plain=alike)
    return {"name": name, "opts": opts, "tensors": d.tensors, "train": rng.random() < 0.6, "frozen": rng.random() < 0.15,
            "batches": rng.choice([1, 2]), "seed": rng.getrandbits(31)}


def short_options(base, drawn):
    """What the short form does not say has its default."""
    kept = {k: v for k, v in drawn.items() if k in (TABLE[base].short or [])}
    made = {k: type(v)() if not isinstance(v, list) else [0] * len(v) for k, v in drawn.items()}
    made.update(kept)
    if "kernel" in kept:
        made["kernel"] = [kept["kernel"][0]] + [0] * (len(drawn["kernel"]) - 1) if isinstance(kept["kernel"], list) else kept["kernel"]
    if "shape" in kept:
        made["shape"] = kept["shape"][:1]
    if base in ("nn_softmax", "nn_log_softmax"):
        made["dim"] = drawn["dim"] if drawn["dim"] != ZERO else 0
    return made


def how(name):
    return "layers.py"


def describe(case):
    x = case["tensors"][0]
    return f"{case['name']}({case['opts']}) of {x['dtype']}{x['shape']}{' strided' if x['layout'] else ''}, " + \
        ", ".join(k for k in ("train", "frozen") if case[k]) + f" {case['batches']} batches"


# --- running ---------------------------------------------------------------------------------------------------


def torch_run(case, x, state, wide=False):
    base = case["name"][:-5] if case["name"].endswith("_with") else case["name"]
    module = TABLE[base].torch(case["opts"])
    inner = getattr(module, "inner", module)
    if state is None:
        rng = torch.Generator().manual_seed(case["seed"])
        least = -0.5 if isinstance(module, Transformer) else 0.25  # products with positive matrices leave features that are nearly alike to its norms
        state = {k: torch.rand(v.shape, generator=rng) + (least if v.dim() > 1 else 0.25) if v.is_floating_point() else v
                 for k, v in inner.state_dict().items()}
    inner.load_state_dict(state)
    dtype = torch.float64 if wide else DTYPES[case["opts"].get("dtype", "f32")]
    module = module.to(dtype).train(case["train"])
    for p in module.parameters():
        p.requires_grad_(not case["frozen"])
    first = {k: v.detach().clone() for k, v in inner.state_dict().items()}
    x = (x.double() if wide and x.is_floating_point() else x).detach()
    index = x.long() if not x.is_floating_point() else x.requires_grad_(case["tensors"][0]["grad"])
    for batch in range(case["batches"]):
        out = module(index)
        if out.requires_grad:
            seed = torch.randint(-6, 7, out.shape, generator=torch.Generator().manual_seed(case["seed"] + batch)).to(out.dtype) / 4
            out.backward(seed)
    result = {"result": out.detach(), "gradient of the input": index.grad}
    for k, p in inner.named_parameters():
        result[f"gradient of {k}"] = p.grad
    for k, b in inner.named_buffers():
        result[f"buffer {k}"] = b.detach()
    return result, state, first


def make_around(lib, name, o):
    """The layer itself, and what is done to it."""
    module = make(lib, {"name": o["layer"] + "_with", "opts": o["of"] | {"dtype": o["dtype"]}})
    weight = o["weight"].encode()
    if name == "lora":
        opts = headers.structs["trek_lora_opts"](r=o["r"], lora_alpha=o["lora_alpha"], lora_dropout=o["lora_dropout"], use_rslora=o["use_rslora"],
                                                 dtype=DTYPE_NUMBER[o["dtype"]])
        lib.done(lib.lora(module, ctypes.byref(opts)), name)
        lib.done(lib.module_thaw(module), "module_thaw")
    elif name == "weight_norm":
        lib.done(lib.weight_norm(module, weight, o["dim"]), name)
    else:
        opts = headers.structs["trek_spectral_norm_opts"](o["n_power_iterations"], o["eps"], o["dim"])
        lib.done(lib.spectral_norm(module, weight, ctypes.byref(opts)), name)
    return module


def make(lib, case):
    name, o = case["name"], case["opts"]
    if "of" in o:
        return make_around(lib, name, o)
    if name == "nn_sequential":
        middle = (lib.nn_relu, lib.nn_gelu, lib.nn_tanh)[o["activation"]]()
        module = lib.ok(lib.nn_sequential(vector([lib.nn_linear(3, 5, CPU), middle]), 2), name)
        lib.done(lib.nn_sequential_add(module, lib.nn_linear(5, 2, CPU)), "sequential_add")
        return module
    if name.endswith("_with"):
        opts = headers.structs[FUNCTIONS[name].params[0][0].split()[1]]()
        for k, v in o.items():
            if k == "dtype":
                opts.dtype = DTYPE_NUMBER[v]
            elif k == "shape":
                opts.shape = shape(v)
            elif isinstance(v, list):
                for j, item in enumerate(v):
                    getattr(opts, k)[j] = item
            else:
                setattr(opts, k, v)
        return lib.ok(getattr(lib, name)(ctypes.byref(opts)), name)
    if name == "nn_pad":
        return lib.ok(lib.nn_pad(shape(o["sizes"]), o["mode"], o["value"]), name)
    if name == "nn_unflatten":
        return lib.ok(lib.nn_unflatten(o["dim"], shape(o["sizes"])), name)
    given = []
    for kind, parameter in FUNCTIONS[name].params:
        if kind == "trek_device":
            given.append(CPU)
        else:
            value = o.get(parameter, o["shape"][0] if "shape" in o else None)
            value = value[0] if isinstance(value, list) else value
            given.append((0 if value == ZERO else value) if kind == "double" else value if value or parameter != "dim" else -1)
    return lib.ok(getattr(lib, name)(*given), name)


def copy_state(lib, module, first):
    for k, value in first.items():
        var = lib.module_find(module, k.encode())
        if not var:
            raise Wrong(f"no parameter or buffer is called {k}")
        tensor = lib.tensor(value.contiguous())
        lib.done(lib.tensor_copy_from(lib.var_data(var), tensor), "tensor_copy_from")
        lib.tensor_release(tensor)


def trek_run(lib, case, source, first, names):
    scope, result, x = lib.scope_begin(), {}, None
    module = ctypes.c_void_p(None)
    try:
        module = ctypes.c_void_p(make(lib, case))
        copy_state(lib, module, first)
        lib.done(lib.module_train(module, case["train"]), "module_train")
        lib.done((lib.module_freeze if case["frozen"] else lib.module_thaw)(module), "module_freeze")
        tensor = source.trek(lib)
        x = lib.ok(lib.var_new(tensor, case["tensors"][0]["grad"]), "var_new")
        lib.tensor_release(tensor)
        for batch in range(case["batches"]):
            out = lib.ok(lib.forward(module, x), "forward")
            result["result"] = lib.read_var(out)
            if lib.var_requires_grad(out):
                value = result["result"]
                seed = torch.randint(-6, 7, value.shape, generator=torch.Generator().manual_seed(case["seed"] + batch)).to(value.dtype) / 4
                lib.done(lib.backward_with(out, lib.ok(lib.var_from(lib.tensor(seed))), None), "backward")
        grad = lib.var_grad(x)
        result["gradient of the input"] = lib.read_var(grad) if grad else None
        for k in names:
            kind, _, parameter = k.partition(" of ") if k.startswith("gradient of ") else k.partition(" ")
            if parameter == "the input" or k == "result":
                continue
            var = lib.module_find(module, parameter.encode())
            var = lib.var_grad(var) if kind == "gradient" else var
            result[k] = lib.read_var(var) if var else None
        lib.clean(case["name"])
        return result
    finally:
        lib.error_clear()
        if x:
            lib.var_release(x)
        lib.module_free(ctypes.byref(module))
        lib.scope_end(scope)


def differs(name, have, want, truth):
    if (have is None) != (want is None):
        one = want if have is None else have
        return f"{name}: {'none' if have is None else 'one'}, PyTorch {'none' if want is None else 'has one'}" if bool((one != 0).any()) else None
    if have is None:
        return None
    if have.shape != want.shape or have.dtype != want.dtype:
        return f"{name}: {have.dtype}{list(have.shape)}, PyTorch {want.dtype}{list(want.shape)}"
    if not have.is_floating_point():
        return None if torch.equal(have, want) else f"{name}: {have.tolist()}, PyTorch {want.tolist()}"
    if have.numel() == 0:
        return None
    h, w, t = have.double(), want.double(), truth.double()
    widest = float(torch.nan_to_num(t, 0, 0, 0).abs().max())
    # a norm of two equal numbers divides roundings by its eps
    allowed = 8 * (w - t).abs().nan_to_num(0, 0, 0).max() + (16 if have.dtype.itemsize == 2 else 20000 if have.dtype == torch.float64 else 2000) * torch.finfo(have.dtype).eps * max(widest, 1)
    wrong = ~(((h - t).abs() <= allowed) | (h == w) | (h.isnan() & w.isnan()))  # PyTorch's own is wrong for some layouts
    if not bool(wrong.any()):
        return None
    at = int(torch.nonzero(wrong.reshape(-1))[0])
    return f"{name}: number {at} is {h.reshape(-1)[at].item():.9g}, PyTorch {w.reshape(-1)[at].item():.9g}, in f64 {t.reshape(-1)[at].item():.9g}"


def run(lib, case):
    lib.error_clear()
    lib.keep.clear()
    source = Input(case["tensors"][0])
    refused = theirs = None
    try:
        theirs, state, first = torch_run(case, source.torch()[1], None)
    except (RuntimeError, ValueError, IndexError, TypeError) as e:
        refused = str(e).splitlines()[0]
        first = {}
    try:
        ours = trek_run(lib, case, source, first, theirs or {})
    except (Refused, Wrong) as e:
        return (None, True) if refused and isinstance(e, Refused) else (("refusal", f"trek alone refuses: {e}"), False)
    if refused and "not implemented for '" in refused:  # a kernel that the CPU lacks
        return None, True
    if refused:
        return ("refusal", f"PyTorch alone refuses: {refused}"), False
    truth, _, _ = torch_run(case, source.torch()[1].contiguous(), state, True)
    for name in theirs:
        complaint = differs(name, ours.get(name), theirs[name], truth[name])
        if complaint:
            return ("value", complaint), False
    return (("memory", "memory around the input was written to"), False) if source.damage() else (None, False)


def candidates(case):
    """Simpler cases."""
    import copy
    for key, value in (("batches", 1), ("frozen", False)):
        if case[key] != value:
            yield {**copy.deepcopy(case), key: value}
    for key, value in (("layout", None), ("own", True), ("grad", False)):
        if case["tensors"][0][key] != value:
            new = copy.deepcopy(case)
            new["tensors"][0][key] = value
            yield new
    for d, size in enumerate(case["tensors"][0]["shape"]):
        if size > 1 and isinstance(case["tensors"][0]["values"], dict):
            new = copy.deepcopy(case)
            new["tensors"][0]["shape"][d], new["tensors"][0]["layout"] = 1, None
            yield new
