#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each layer's forward and backward beside PyTorch's, in turns; sorting and losses likewise.

    layers.py --library build/libtrek.so [--only REGEX] [--dtype f32|bf16] [--threads N] [--rounds N] [--seconds S] [--json FILE]

Both sides have the same parameters (where a layer draws at random only shapes are compared) and are given the same gradient of
the result; gradients of the input and of all parameters are computed. Results must agree, or the row says so. A row is measured in
rounds of both sides; printed are the best of each, their ratio, and the goal: 0.7 for norms, recurrent layers, attention, embedding and
sorting, 1 for all others. Needs PyTorch.
"""
import argparse
import ctypes
import json
import math
import os
import pathlib
import random
import re
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "differential"))
sys.dont_write_bytecode = True


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="build/libtrek.so")
    parser.add_argument("--only", default="")
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.04, help="of each side in a round")
    parser.add_argument("--json")
    return parser.parse_args()


OPTIONS = options()
os.environ.setdefault("TREK_THREADS", str(OPTIONS.threads))
os.environ.setdefault("OMP_NUM_THREADS", str(OPTIONS.threads))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import layers  # noqa: E402
from trek import DTYPES, Library, headers, shape  # noqa: E402

torch.set_num_threads(OPTIONS.threads)
torch.manual_seed(1)
DTYPE = DTYPES[OPTIONS.dtype]
FAST = {"norm", "recurrent", "attention", "embedding", "sorting"}
IMAGE, LINE, VOLUME, ROWS = [16, 64, 32, 32], [16, 64, 1024], [4, 32, 8, 16, 16], [1024, 768]

# name: (family, options beside the defaults, input; a number: indices below it follow)
LAYERS = {
    "nn_linear": ("products", {"in": 768, "out": 768}, ROWS),
    "nn_bilinear": ("products", {"in1": 64, "in2": 64, "out": 64}, [256, 64]),
    "nn_swiglu": ("products", {"in": 256, "hidden": 512}, [1024, 256]),
    "nn_conv1d": ("convolutions", {"in": 64, "out": 64, "kernel": 3, "padding": 1}, LINE),
    "nn_conv2d": ("convolutions", {"in": 64, "out": 64, "kernel": [3, 0], "padding": [1, 1]}, IMAGE),
    "nn_conv3d": ("convolutions", {"in": 32, "out": 32, "kernel": [3, 0, 0], "padding": [1, 1, 1]}, VOLUME),
    "nn_conv_transpose1d": ("convolutions", {"in": 64, "out": 32, "kernel": 4, "stride": 2, "padding": 1}, LINE),
    "nn_conv_transpose2d": ("convolutions", {"in": 64, "out": 32, "kernel": [4, 0], "stride": [2, 0], "padding": [1, 1]}, [16, 64, 16, 16]),
    "nn_conv_transpose3d": ("convolutions", {"in": 32, "out": 16, "kernel": [4, 0, 0], "stride": [2, 0, 0], "padding": [1, 1, 1]}, [4, 32, 4, 8, 8]),
    "nn_batch_norm1d": ("norm", {"features": 512}, [1024, 512]), "nn_batch_norm2d": ("norm", {"features": 64}, IMAGE),
    "nn_batch_norm3d": ("norm", {"features": 32}, VOLUME),
    "nn_instance_norm1d": ("norm", {"features": 64, "affine": True}, LINE), "nn_instance_norm2d": ("norm", {"features": 64, "affine": True}, IMAGE),
    "nn_instance_norm3d": ("norm", {"features": 32, "affine": True}, VOLUME),
    "nn_group_norm": ("norm", {"groups": 8, "channels": 64}, IMAGE), "nn_local_response_norm": ("norm", {"size": 5}, IMAGE),
    "nn_layer_norm": ("norm", {"shape": [768]}, ROWS), "nn_rms_norm": ("norm", {"shape": [768]}, ROWS),
    "nn_lstm": ("recurrent", {"in": 128, "hidden": 128, "batch_first": True}, [32, 64, 128]),
    "nn_gru": ("recurrent", {"in": 128, "hidden": 128, "batch_first": True}, [32, 64, 128]),
    "nn_lstm_cell": ("recurrent", {"in": 128, "hidden": 128}, [64, 128]), "nn_gru_cell": ("recurrent", {"in": 128, "hidden": 128}, [64, 128]),
    "nn_multihead_attention": ("attention", {"embed_dim": 256, "heads": 4, "causal": True}, [8, 128, 256]),
    "nn_transformer_encoder_layer": ("attention", {"d_model": 256, "heads": 4, "dim_feedforward": 1024, "dropout": layers.ZERO}, [8, 128, 256]),
    "nn_embedding": ("embedding", {"num": 10000, "dim": 256}, [32, 128]), "nn_embedding_bag": ("embedding", {"num": 10000, "dim": 256}, [512, 16]),
    "nn_rotary": ("attention", {"dim": 64, "length": 512}, [4, 16, 512, 64]),
    "nn_dropout": ("dropout", {"p": 0.1}, ROWS), "nn_dropout2d": ("dropout", {"p": 0.1}, IMAGE), "nn_alpha_dropout": ("dropout", {"p": 0.1}, ROWS),
    **{name: ("activations", {}, ROWS) for name in (
        "nn_relu", "nn_gelu", "nn_silu", "nn_tanh", "nn_sigmoid", "nn_leaky_relu", "nn_relu6", "nn_selu", "nn_softsign", "nn_hardswish",
        "nn_hardsigmoid", "nn_tanhshrink", "nn_mish", "nn_logsigmoid", "nn_elu", "nn_celu", "nn_softplus", "nn_hardtanh", "nn_hardshrink",
        "nn_softshrink", "nn_prelu")},
    "nn_threshold": ("activations", {"threshold": 0.5, "value": 2.0}, ROWS), "nn_glu": ("activations", {"dim": -1}, ROWS),
    "nn_softmax": ("activations", {"dim": -1}, ROWS), "nn_log_softmax": ("activations", {"dim": -1}, ROWS),
    "nn_max_pool1d": ("pooling", {"kernel": [2, 0]}, LINE), "nn_max_pool2d": ("pooling", {"kernel": [2, 0]}, IMAGE),
    "nn_max_pool3d": ("pooling", {"kernel": [2, 0, 0]}, VOLUME),
    "nn_avg_pool1d": ("pooling", {"kernel": [2, 0]}, LINE), "nn_avg_pool2d": ("pooling", {"kernel": [2, 0]}, IMAGE),
    "nn_avg_pool3d": ("pooling", {"kernel": [2, 0, 0]}, VOLUME),
    "nn_adaptive_avg_pool3d": ("pooling", {"depth": 2, "height": 4, "width": 4}, VOLUME),
    "nn_adaptive_max_pool1d": ("pooling", {"length": 8}, LINE), "nn_adaptive_max_pool2d": ("pooling", {"height": 4, "width": 4}, IMAGE),
    "nn_adaptive_max_pool3d": ("pooling", {"depth": 2, "height": 4, "width": 4}, VOLUME),
    "nn_lp_pool1d": ("pooling", {"norm": 2.0, "kernel": 2}, LINE), "nn_lp_pool2d": ("pooling", {"norm": 2.0, "kernel": 2}, IMAGE),
    "nn_lp_pool3d": ("pooling", {"norm": 2.0, "kernel": 2}, VOLUME),
    "nn_adaptive_avg_pool1d": ("pooling", {"length": 8}, LINE), "nn_adaptive_avg_pool2d": ("pooling", {"height": 4, "width": 4}, IMAGE),
    "nn_pad": ("space", {"sizes": [1, 1, 1, 1], "mode": 0, "value": 0.0}, IMAGE), "nn_pixel_shuffle": ("space", {"factor": 2}, IMAGE),
    "nn_pixel_unshuffle": ("space", {"factor": 2}, IMAGE), "nn_channel_shuffle": ("space", {"groups": 8}, IMAGE),
}
AT_RANDOM = {"nn_dropout", "nn_dropout2d", "nn_alpha_dropout"}
INDICES = {"nn_embedding": 10000, "nn_embedding_bag": 10000}
POSITIVE, LABELS = "positive", "labels"  # what a second input holds


def options_of(name, **fields):
    """An option struct of a function, by address."""
    made = headers.structs[name]()
    for key, value in fields.items():
        for k, item in enumerate(value) if isinstance(value, list) else ():
            getattr(made, key)[k] = item
        if not isinstance(value, list):
            setattr(made, key, value)
    return ctypes.byref(made)


def resized(mode, size=None, antialias=False):
    """Of trek's and PyTorch's interpolate: height and width of the result."""
    size = size or [64, 64]
    given = {"size": size, "mode": {"nearest": 0, "bilinear": 2, "bicubic": 3}[mode], "antialias": antialias}
    return ("space", (options_of("trek_interpolate_opts", **given),), lambda x: F.interpolate(x, size, mode=mode, antialias=antialias), None, IMAGE)


def sampled(mode, padding, image=None):
    """grid_sample at places that are random, some outside."""
    given = {"mode": ("bilinear", "nearest", "bicubic").index(mode), "padding": ("zeros", "border", "reflection").index(padding)}
    image = image or IMAGE
    return ("space", (options_of("trek_grid_sample_opts", **given),), lambda x, g: F.grid_sample(x, g, mode, padding, False),
            lambda: torch.rand([image[0], *image[2:], len(image) - 2]) * 2.4 - 1.2, image)


def pooled(dims, sizes):
    """Max pools with places, and what undoes them."""
    kernel = [2] + [0] * (dims - 1)
    pool, undo = getattr(F, f"max_pool{dims}d"), getattr(F, f"max_unpool{dims}d")
    half = sizes[:2] + [n // 2 for n in sizes[2:]]
    places = lambda: pool(torch.randn(sizes), 2, return_indices=True)[1]
    return {f"max_pool{dims}d_with_indices": ("pooling", (options_of("trek_pool_opts", kernel=kernel), ctypes.byref(ctypes.c_void_p())),
                                              lambda x: pool(x, 2, return_indices=True)[0], None, sizes),
            f"max_unpool{dims}d": ("pooling", (options_of("trek_unpool_opts", kernel=kernel),), lambda x, i: undo(x, i, 2), places, half)}


# Ops that are no layers. name: (family, trek's arguments after the inputs, PyTorch's function of the inputs, second input)
OPS = {
    "sort": ("sorting", (-1, False, None), lambda x: torch.sort(x, stable=True)[0], None),
    "topk": ("sorting", (10, -1, True, None), lambda x: torch.topk(x, 10)[0], None),
    "median": ("sorting", (-1, False, None), lambda x: torch.median(x, -1)[0], None),
    "kthvalue": ("sorting", (100, -1, False, None), lambda x: torch.kthvalue(x, 100)[0], None),
    "cummax": ("sorting", (-1, None), lambda x: torch.cummax(x, -1)[0], None),
    "cumsum": ("sums", (-1,), lambda x: torch.cumsum(x, -1), None),
    "normalize": ("norm", (2.0, -1, 1e-12), F.normalize, None),
    "cosine_similarity": ("sums", (-1, 1e-8), lambda x, y: F.cosine_similarity(x, y, -1), POSITIVE),
    "cdist": ("sums", (2.0,), torch.cdist, POSITIVE),
    "cross_entropy": ("losses", (), F.cross_entropy, LABELS), "nll_loss": ("losses", (), F.nll_loss, LABELS),
    "mse_loss": ("losses", (), F.mse_loss, POSITIVE), "l1_loss": ("losses", (), F.l1_loss, POSITIVE),
    "smooth_l1_loss": ("losses", (1.0,), F.smooth_l1_loss, POSITIVE), "huber_loss": ("losses", (1.0, None), F.huber_loss, POSITIVE),
    "bce_with_logits": ("losses", (), F.binary_cross_entropy_with_logits, POSITIVE),
    "kl_div": ("losses", (), lambda x, y: F.kl_div(x, y, reduction="batchmean"), POSITIVE),
    "soft_margin_loss": ("losses", (None,), F.soft_margin_loss, POSITIVE),
    "poisson_nll_loss": ("losses", (None,), F.poisson_nll_loss, POSITIVE),
    **pooled(1, LINE), **pooled(2, IMAGE), **pooled(3, VOLUME),
    "interpolate nearest": resized("nearest"), "interpolate bilinear": resized("bilinear"), "interpolate bicubic": resized("bicubic"),
    "interpolate bilinear half": resized("bilinear", [16, 16]), "interpolate bilinear uneven": resized("bilinear", [45, 50]),
    "interpolate bilinear antialias": resized("bilinear", [13, 13], True), "interpolate bicubic antialias": resized("bicubic", [13, 13], True),
    "interpolate bicubic antialias larger": resized("bicubic", [64, 64], True),
    **{f"grid_sample {mode} {padding}": sampled(mode, padding) for mode in ("bilinear", "nearest", "bicubic") for padding in ("zeros", "border", "reflection")},
    "grid_sample trilinear": sampled("bilinear", "zeros", VOLUME), "grid_sample of pictures": sampled("bilinear", "zeros", [8, 3, 128, 128]),
    "affine_grid": ("space", (shape([16, 3, 64, 64]), False), lambda x: F.affine_grid(x, [16, 3, 64, 64], False), None, [16, 2, 3]),
    "conv2d same": ("convolutions", (None, options_of("trek_conv_opts", padding_kind=2, groups=1)), lambda x, w: F.conv2d(x, w, None, 1, "same"),
                    lambda: torch.randn([64, 64, 4, 4]) / 32, IMAGE),
}


class Row:
    """Both sides of one row; a side is a function that runs forward and backward once and gives the result."""

    def __init__(self, lib, name):
        self.lib, self.name, self.keep = lib, name, []
        self.family = (LAYERS.get(name) or OPS[name])[0]
        self.ours = None
        (self.layer if name in LAYERS else self.op)()

    def var(self, tensor, grad):
        made = self.lib.tensor(tensor)
        var = self.lib.ok(self.lib.var_new(made, grad), "var_new")
        self.lib.tensor_release(made)
        return var

    def layer(self):
        _, given, sizes = LAYERS[self.name]
        entry, lib = layers.TABLE[self.name], self.lib
        named = f"trek_{self.name}_with" in {f.name for f in headers.functions.values()} and f"{self.name}_with" not in layers.HELPERS
        drawn = entry.draw(random.Random(1))
        opts = {k: [0] * len(v) if isinstance(v, list) else type(v)() for k, v in drawn.items()} | given
        if entry.dtypes and named:
            opts["dtype"] = OPTIONS.dtype
        elif entry.dtypes and OPTIONS.dtype != "f32":
            raise NotImplementedError("its short form is of f32")
        module = entry.torch(opts).to(DTYPE).train()
        inner = getattr(module, "inner", module)
        made = layers.make(lib, {"name": self.name + ("_with" if named else ""), "opts": opts})
        layers.copy_state(lib, made, {k: v.detach().clone() for k, v in inner.state_dict().items()})
        lib.done(lib.module_train(made, True), "module_train")
        indices = self.name in INDICES
        x = torch.randint(0, INDICES[self.name], sizes) if indices else torch.randn(sizes).to(DTYPE)
        params = lib.ok(lib.module_params(made), "module_params")
        held = [lib.params_var(params, k) for k in range(lib.params_count(params))]
        theirs = list(module.parameters()) + ([] if indices else [x.requires_grad_()])
        self.sides(x, lambda v: lib.forward(made, v), held, lambda: module(x), theirs)

    def op(self):
        _, after, function, second, *sizes = OPS[self.name]
        x = torch.randn(sizes[0] if sizes else ROWS).to(DTYPE)
        more = [] if second is None else [torch.randint(0, ROWS[1], ROWS[:1]) if second is LABELS else torch.rand(ROWS).to(DTYPE) if
                                          second is POSITIVE else second()]
        more = [t.to(DTYPE) if t.is_floating_point() else t for t in more]
        grid = self.name.startswith("grid_sample")  # whose gradient is wanted, too
        vars_, x = [self.var(t, grid) for t in more], x.requires_grad_()
        more = [t.requires_grad_() if grid else t for t in more]
        function_of = getattr(self.lib, self.name.split()[0])
        self.sides(x, lambda v: function_of(v, *vars_, *after), vars_ if grid else [], lambda: function(x, *more), (more if grid else []) + [x])

    def sides(self, x, forward, held, torch_forward, theirs):
        lib, input_ = self.lib, self.var(x.detach(), x.requires_grad)
        held = held + ([input_] if x.requires_grad else [])
        seed = torch.randn(torch_forward().shape).to(DTYPE)
        ours_seed = self.var(seed, False)

        def ours(read=False):
            scope = lib.scope_begin()
            for var in held:
                lib.var_zero_grad(var)
            out = lib.ok(forward(input_), self.name)
            lib.done(lib.backward_with(out, ours_seed, None), "backward")
            result = (lib.read_var(out), lib.read_var(lib.var_grad(held[-1]))) if read else None
            lib.scope_end(scope)
            return result

        def other(read=False):
            for t in theirs:
                t.grad = None
            out = torch_forward()
            out.backward(seed)
            return (out.detach(), theirs[-1].grad) if read else None

        self.ours, self.theirs = ours, other

    def disagreement(self):
        """The largest difference by the largest number, of the result and of a gradient; 0 where both are drawn."""
        if self.name in AT_RANDOM:
            return 0.0
        return max(float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1e-3)) for a, b in
                   zip(self.ours(True), self.theirs(True)) if a.shape == b.shape)

    def measure(self):
        """(seconds of trek, of PyTorch)"""
        once = [min(timed(side, 1) for _ in range(3)) for side in (self.ours, self.theirs)]
        counts = [max(1, int(OPTIONS.seconds / t)) for t in once]
        rounds = [(quiet(self.ours, counts[0]), quiet(self.theirs, counts[1])) for _ in range(OPTIONS.rounds)]
        return min(r[0] for r in rounds), min(r[1] for r in rounds)


def quiet(function, count):
    """With several threads those of the other side spin for milliseconds after their last work, and one's own wake up."""
    until = time.perf_counter() + (0.015 if OPTIONS.threads > 1 else 0)
    while time.perf_counter() < until:
        function()
    return timed(function, count)


def timed(function, count):
    begin = time.perf_counter()
    for _ in range(count):
        function()
    return (time.perf_counter() - begin) / count


def main():
    lib, found = Library(OPTIONS.library), []
    print("| family | layer or op | trek, ms | PyTorch, ms | ratio | goal |\n|---|---|---|---|---|---|")
    for name in [*LAYERS, *OPS]:
        if not re.search(OPTIONS.only, name) or (name in LAYERS and name not in layers.TABLE):
            continue
        try:
            row = Row(lib, name)
            off = row.disagreement()
            ours, theirs = row.measure()
        except (NotImplementedError, RuntimeError) as e:
            print(f"| | {name} | not measured: {str(e).splitlines()[0]} | | | |")
            continue
        goal, ratio = 0.7 if row.family in FAST else 1.0, ours / theirs
        found.append({"family": row.family, "name": name, "trek": ours, "torch": theirs, "ratio": ratio, "goal": goal, "off": off})
        print(f"| {row.family} | {name.removeprefix('nn_')} | {ours * 1e3:.3f} | {theirs * 1e3:.3f} | {ratio:.2f} | {goal}"
              f"{', missed' if ratio > goal else ''}{f', DIFFERS by {off:.1e}' if off > (1e-3 if OPTIONS.dtype == 'f32' else 0.1) else ''} |", flush=True)
    if found:
        mean = math.exp(sum(math.log(c["ratio"]) for c in found) / len(found))
        print(f"\n{len(found)} rows, {OPTIONS.dtype}, {OPTIONS.threads} threads: geometric mean {mean:.2f}, "
              f"{sum(c['ratio'] > c['goal'] for c in found)} miss their goal; load {os.getloadavg()[0]:.1f}, PyTorch {torch.__version__}")
    if OPTIONS.json:
        pathlib.Path(OPTIONS.json).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
