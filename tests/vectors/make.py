#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes ops.txt and training.txt: results and gradients of PyTorch, in f64.

Inputs and initial weights come from an integer hash that the tests know too
(test_number in support/support.c), so only results are stored.
    usage: python3 tests/vectors/make.py      (needs torch)
"""
import pathlib

import numpy as np
import torch
import torch.nn.functional as F

here = pathlib.Path(__file__).parent
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


def numbers(stream, count):
    with np.errstate(over="ignore"):
        x = np.uint32(stream) * np.uint32(0x9E3779B1) + np.arange(count, dtype=np.uint32) * np.uint32(0x85EBCA77) + np.uint32(0xC2B2AE3D)
        x ^= x >> np.uint32(15)
        x *= np.uint32(0x2C1B3C6D)
        x ^= x >> np.uint32(12)
        x *= np.uint32(0x297A2D39)
        x ^= x >> np.uint32(15)
    return ((x >> np.uint32(7)).astype(np.int64) - (1 << 24)).astype(np.float32) * np.float32(2.0**-24)


def tensor(stream, shape, scale):
    count = int(np.prod(shape)) if len(shape) else 1
    values = np.float32(scale) * numbers(stream, count)
    return torch.from_numpy(values.astype(np.float64).reshape(shape))


def classes(shape, c):
    count = int(np.prod(shape))
    return torch.tensor([(i * 7 + 1) % c for i in range(count)]).reshape(shape)


cases = {}


def case(name, shapes, scale, fn):
    """Inputs 0.. are streams 1.. of the shapes, the cotangent stream 50."""
    xs = [tensor(k + 1, s, scale).requires_grad_() for k, s in enumerate(shapes)]
    y = fn(*xs)
    y.backward(tensor(50, tuple(y.shape), 1.0))
    cases[name] = [y.detach()] + [x.grad if x.grad is not None else torch.zeros_like(x) for x in xs]


V = [(3, 7)]
case("gelu", V, 2, F.gelu)
case("gelu_tanh", V, 2, lambda x: F.gelu(x, approximate="tanh"))
case("silu", V, 2, F.silu)
case("softplus", V, 2, lambda x: F.softplus(x, 1.5, 2.0))
case("elu", V, 2, lambda x: F.elu(x, 0.7))
case("leaky_relu", V, 2, lambda x: F.leaky_relu(x, 0.2))
case("sigmoid", V, 2, torch.sigmoid)
case("tanh", V, 2, torch.tanh)
case("erf", V, 2, torch.erf)
case("expm1", V, 2, torch.expm1)
case("clamp", V, 2, lambda x: x.clamp(-0.5, 1.25))
case("remainder", [(3, 7), (7,)], 2, torch.remainder)
case("atan2", [(3, 7), (3, 1)], 2, torch.atan2)
case("div", [(3, 7), (7,)], 2, torch.div)
case("maximum", [(3, 7), (1, 7)], 2, torch.maximum)
case("std", [(3, 7)], 2, lambda x: x.std(dim=1))
case("var", [(3, 7)], 2, lambda x: x.var(dim=0, keepdim=True))
case("norm2", [(3, 7)], 2, lambda x: torch.linalg.vector_norm(x, 2, dim=1))
case("norm3", [(3, 7)], 2, lambda x: torch.linalg.vector_norm(x, 3, dim=0))
case("norm_inf", [(3, 7)], 2, lambda x: torch.linalg.vector_norm(x, float("inf"), dim=1))
case("logsumexp", [(2, 3, 4)], 2, lambda x: x.logsumexp(dim=(0, 2)))
case("cumsum", [(3, 7)], 2, lambda x: x.cumsum(1))
case("prod", [(3, 4)], 2, lambda x: x.prod(1))
case("softmax", [(2, 3, 4)], 2, lambda x: x.softmax(1))
case("log_softmax", [(3, 7)], 2, lambda x: x.log_softmax(-1))
case("matmul", [(2, 3, 4), (4, 5)], 1, torch.matmul)
case("linear", [(5, 4), (3, 4), (3,)], 1, F.linear)
case("linear_gelu", [(5, 4), (3, 4), (3,)], 1, lambda x, w, b: F.gelu(F.linear(x, w, b)))
case("conv2d", [(2, 3, 5, 4), (4, 3, 3, 3), (4,)], 1, lambda x, w, b: F.conv2d(x, w, b, padding=1))
case("conv2d_strided", [(1, 2, 7, 6), (2, 2, 3, 2), (2,)], 1, lambda x, w, b: F.conv2d(x, w, b, stride=(2, 1), padding=(1, 2), dilation=(2, 1)))
case("conv2d_groups", [(1, 4, 4, 4), (6, 2, 3, 3)], 1, lambda x, w: F.conv2d(x, w, None, groups=2))
case("conv_transpose2d", [(2, 3, 3, 4), (3, 2, 4, 4), (2,)], 1, lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1))
case("conv_transpose2d_groups", [(1, 4, 3, 3), (4, 3, 3, 2), (6,)], 1,
     lambda x, w, b: F.conv_transpose2d(x, w, b, stride=(3, 2), padding=(1, 0), output_padding=(2, 1), groups=2, dilation=(2, 1)))
case("conv_transpose2d_dilated", [(2, 2, 3, 3), (2, 2, 2, 3)], 1,
     lambda x, w: F.conv_transpose2d(x, w, None, stride=(1, 2), padding=(2, 3), output_padding=(2, 3), dilation=(3, 4)))
case("max_pool2d", [(1, 2, 5, 6)], 2, lambda x: F.max_pool2d(x, 2))
case("max_pool2d_ceil", [(1, 2, 5, 6)], 2, lambda x: F.max_pool2d(x, 3, 2, 1, 1, ceil_mode=True))
case("max_pool2d_dilated", [(1, 2, 5, 6)], 2, lambda x: F.max_pool2d(x, 2, 1, 0, 2))
case("avg_pool2d", [(1, 2, 5, 6)], 2, lambda x: F.avg_pool2d(x, 3, 2, 1))
case("avg_pool2d_exclude", [(1, 2, 5, 6)], 2, lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False))
case("avg_pool2d_ceil", [(1, 2, 6, 6)], 2, lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True))
case("adaptive_avg_pool2d", [(1, 2, 5, 7)], 2, lambda x: F.adaptive_avg_pool2d(x, (3, 2)))
case("layer_norm", [(4, 6), (6,), (6,)], 2, lambda x, w, b: F.layer_norm(x, (6,), w, b, 1e-5))
case("layer_norm_2d", [(3, 2, 4), (2, 4), (2, 4)], 2, lambda x, w, b: F.layer_norm(x, (2, 4), w, b, 1e-3))
case("batch_norm_train", [(3, 2, 2, 2), (2,), (2,)], 2,
     lambda x, w, b: F.batch_norm(x, torch.zeros(2), torch.ones(2), w, b, True, 0.1, 1e-5))
case("batch_norm_eval", [(3, 2, 4), (2,), (2,)], 2,
     lambda x, w, b: F.batch_norm(x, torch.full((2,), 0.25), torch.full((2,), 1.5), w, b, False, 0.1, 1e-5))
case("embedding", [(5, 3)], 1, lambda w: F.embedding(classes((2, 4), 5), w))
case("embedding_padding", [(5, 3)], 1, lambda w: F.embedding(classes((2, 4), 5), w, padding_idx=1))
case("cross_entropy", [(6, 5)], 2, lambda x: F.cross_entropy(x, classes((6,), 5)))
case("cross_entropy_options", [(6, 5)], 2,
     lambda x: F.cross_entropy(x, classes((6,), 5), weight=torch.tensor([0.5, 1, 2, 0.25, 1.5]), ignore_index=1, label_smoothing=0.1))
case("cross_entropy_sum", [(6, 5)], 2, lambda x: F.cross_entropy(x, classes((6,), 5), reduction="sum", label_smoothing=0.2))
case("cross_entropy_none", [(6, 5)], 2, lambda x: F.cross_entropy(x, classes((6,), 5), reduction="none"))
case("cross_entropy_images", [(2, 4, 3)], 2, lambda x: F.cross_entropy(x, classes((2, 3), 4)))
case("cross_entropy_probabilities", [(3, 5), (3, 5)], 2, lambda x, p: F.cross_entropy(x, p.detach().softmax(1)))
case("nll_loss", [(6, 5)], 2, lambda x: F.nll_loss(x.log_softmax(1), classes((6,), 5)))
case("mse_loss", [(3, 7), (3, 7)], 2, F.mse_loss)
case("l1_loss", [(3, 7), (3, 7)], 2, F.l1_loss)
case("smooth_l1_loss", [(3, 7), (3, 7)], 2, lambda x, y: F.smooth_l1_loss(x, y, beta=0.5))
case("bce_with_logits", [(3, 7), (3, 7)], 2, lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()))
case("kl_div", [(3, 7), (3, 7)], 2, lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"))
case("gather", [(4, 3)], 2, lambda x: x.gather(0, classes((5, 3), 4)))
case("index_select", [(4, 3)], 2, lambda x: x.index_select(0, classes((6,), 4)))
case("scatter_add", [(4, 3), (5, 3)], 2, lambda x, s: x.scatter_add(0, classes((5, 3), 4), s))
case("index_add", [(4, 3), (6, 3)], 2, lambda x, s: x.index_add(0, classes((6,), 4), s))
case("masked_fill", [(3, 7)], 2, lambda x: x.masked_fill(classes((7,), 3) == 0, -1.5))

with open(here / "ops.txt", "w") as out:
    for name, tensors in cases.items():
        for k, t in enumerate(tensors):
            what = "y" if k == 0 else f"g{k - 1}"
            out.write(f"{name} {what} {t.dim()} {' '.join(map(str, t.shape))}\n")
            out.write(" ".join(f"{v:.10g}" for v in t.reshape(-1).tolist()) + "\n")


# -- ten steps of training -------------------------------------------------------


def fill(module):
    """Parameter k of the model is stream 100 + k, scaled by 1 / sqrt(fan in)."""
    fan = 1
    for k, p in enumerate(module.parameters()):
        if p.dim() > 1:
            fan = int(np.prod(p.shape[1:]))
        p.data = tensor(100 + k, tuple(p.shape), 1.0 / np.sqrt(np.float64(fan)))
    return module


def train(model, optimizer, shape):
    losses = []
    for step in range(10):
        x, label = tensor(1000 + step, shape, 1.0), classes((shape[0],), 10)
        loss = F.cross_entropy(model(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


lenet = fill(torch.nn.Sequential(
    torch.nn.Conv2d(1, 6, 5, padding=2), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Conv2d(6, 16, 5), torch.nn.ReLU(),
    torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(400, 120), torch.nn.ReLU(), torch.nn.Linear(120, 84),
    torch.nn.ReLU(), torch.nn.Linear(84, 10)))
mlp = fill(torch.nn.Sequential(torch.nn.Linear(784, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)))
mlp_adamw = fill(torch.nn.Sequential(torch.nn.Linear(784, 256), torch.nn.GELU(), torch.nn.Linear(256, 10)))
with open(here / "training.txt", "w") as out:
    runs = {
        "lenet_sgd": train(lenet, torch.optim.SGD(lenet.parameters(), lr=0.05, momentum=0.9), (16, 1, 28, 28)),
        "mlp_adam": train(mlp, torch.optim.Adam(mlp.parameters(), lr=1e-3), (16, 784)),
        "mlp_adamw": train(mlp_adamw, torch.optim.AdamW(mlp_adamw.parameters(), lr=2e-3, weight_decay=0.05), (16, 784)),
    }
    for name, losses in runs.items():
        out.write(f"{name} losses 1 10\n" + " ".join(f"{v:.12g}" for v in losses) + "\n")
