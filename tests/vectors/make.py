#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes ops.txt and training.txt: results and gradients of PyTorch, in f64, of functions that are several
ops, or take options.

Inputs and initial weights come from an integer hash that the tests know too
(test_number in support/support.c), so only results are stored.
    usage: python3 tests/vectors/make.py      (needs torch)
"""
import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from numbers_of_tests import tensor

here = pathlib.Path(__file__).parent
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


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

case("norm2", [(3, 7)], 2, lambda x: torch.linalg.vector_norm(x, 2, dim=1))
case("norm3", [(3, 7)], 2, lambda x: torch.linalg.vector_norm(x, 3, dim=0))
case("norm_inf", [(3, 7)], 2, lambda x: torch.linalg.vector_norm(x, float("inf"), dim=1))
case("conv2d_strided", [(1, 2, 7, 6), (2, 2, 3, 2), (2,)], 1, lambda x, w, b: F.conv2d(x, w, b, stride=(2, 1), padding=(1, 2), dilation=(2, 1)))
case("conv2d_groups", [(1, 4, 4, 4), (6, 2, 3, 3)], 1, lambda x, w: F.conv2d(x, w, None, groups=2))
case("conv_transpose2d_groups", [(1, 4, 3, 3), (4, 3, 3, 2), (6,)], 1,
     lambda x, w, b: F.conv_transpose2d(x, w, b, stride=(3, 2), padding=(1, 0), output_padding=(2, 1), groups=2, dilation=(2, 1)))
case("max_pool2d_ceil", [(1, 2, 5, 6)], 2, lambda x: F.max_pool2d(x, 3, 2, 1, 1, ceil_mode=True))
case("max_pool2d_dilated", [(1, 2, 5, 6)], 2, lambda x: F.max_pool2d(x, 2, 1, 0, 2))
case("avg_pool2d_exclude", [(1, 2, 5, 6)], 2, lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False))
case("embedding_padding", [(5, 3)], 1, lambda w: F.embedding(classes((2, 4), 5), w, padding_idx=1))
case("cross_entropy_options", [(6, 5)], 2,
     lambda x: F.cross_entropy(x, classes((6,), 5), weight=torch.tensor([0.5, 1, 2, 0.25, 1.5]), ignore_index=1, label_smoothing=0.1))
case("cross_entropy_probabilities", [(3, 5), (3, 5)], 2, lambda x, p: F.cross_entropy(x, p.detach().softmax(1)))
case("nll_loss", [(6, 5)], 2, lambda x: F.nll_loss(x.log_softmax(1), classes((6,), 5)))
case("mse_loss", [(3, 7), (3, 7)], 2, F.mse_loss)
case("l1_loss", [(3, 7), (3, 7)], 2, F.l1_loss)
case("smooth_l1_loss", [(3, 7), (3, 7)], 2, lambda x, y: F.smooth_l1_loss(x, y, beta=0.5))
case("bce_with_logits", [(3, 7), (3, 7)], 2, lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()))
case("kl_div", [(3, 7), (3, 7)], 2, lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"))



def signs(shape):
    return (classes(shape, 2) * 2 - 1).double()


def focal(x, t, alpha, gamma):
    """torchvision's sigmoid_focal_loss."""
    p = x.sigmoid()
    p_t = p * t + (1 - p) * (1 - t)
    loss = F.binary_cross_entropy_with_logits(x, t, reduction="none") * (1 - p_t) ** gamma
    return (alpha * t + (1 - alpha) * (1 - t)) * loss if alpha >= 0 else loss


def info_nce(q, k, temperature):
    return F.cross_entropy(F.normalize(q, dim=1) @ F.normalize(k, dim=1).T / temperature, torch.arange(q.shape[0]))


PAIR, WEIGHTED = [(3, 7), (3, 7)], [(3, 7), (3, 7), (3, 7)]
case("mse_loss_weighted", WEIGHTED, 2, lambda x, y, w: F.mse_loss(x, y, weight=w.exp()))
case("huber_loss", PAIR, 2, lambda x, y: F.huber_loss(x, y, delta=0.7))
case("huber_loss_weighted", WEIGHTED, 2, lambda x, y, w: F.huber_loss(x, y, delta=1.5, weight=w.exp()))
case("bce", PAIR, 2, lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()))
case("bce_weighted", WEIGHTED, 2, lambda x, y, w: F.binary_cross_entropy(x.sigmoid(), y.sigmoid(), w.detach().exp()))
case("bce_with_logits_positives", [(3, 7), (7,), (3, 1)], 2, lambda x, p, w: F.binary_cross_entropy_with_logits(
    x, classes((3, 7), 2).double(), w.detach().exp(), pos_weight=p.detach().exp()))
case("focal_loss", [(3, 7)], 2, lambda x: focal(x, classes((3, 7), 2).double(), 0.25, 2).mean())
case("focal_loss_sum", PAIR, 2, lambda x, y: focal(x, y.sigmoid(), -1, 1.5).sum())
case("soft_margin_loss", [(3, 7)], 2, lambda x: F.soft_margin_loss(x, signs((3, 7))))
case("poisson_nll_loss", PAIR, 2, lambda x, y: F.poisson_nll_loss(x, y.exp(), full=True))
case("poisson_nll_loss_rates", PAIR, 2, lambda x, y: F.poisson_nll_loss(x.exp(), y.exp(), log_input=False, eps=0.1, reduction="sum"))
case("gaussian_nll_loss", WEIGHTED, 2, lambda x, y, v: F.gaussian_nll_loss(x, y, v.exp(), full=True))
case("gaussian_nll_loss_rows", [(3, 7), (3, 7), (3,)], 2, lambda x, y, v: F.gaussian_nll_loss(x, y, v.exp(), eps=0.8, reduction="none"))
case("kl_div_logs", PAIR, 2, lambda x, y: F.kl_div(x.log_softmax(1), y.log_softmax(1), log_target=True, reduction="mean"))
case("nll_loss_none", [(2, 4, 3)], 2, lambda x: F.nll_loss(x.log_softmax(1), classes((2, 3), 4), reduction="none"))
case("cosine_similarity", [(3, 7), (1, 7)], 2, lambda x, y: F.cosine_similarity(x, y, 1, 1e-8))
case("cosine_similarity_short", [(3, 7), (3, 7)], 2, lambda x, y: F.cosine_similarity(x, y, 0, 2.5))
case("pairwise_distance", [(3, 7), (3, 7)], 2, lambda x, y: F.pairwise_distance(x, y, 3, 1e-6, True))
case("cosine_embedding_loss", PAIR, 2, lambda x, y: F.cosine_embedding_loss(x, y, signs((3,)), margin=0.1))
case("margin_ranking_loss", PAIR, 2, lambda x, y: F.margin_ranking_loss(x, y, signs((3, 7)), margin=0.3))
case("hinge_embedding_loss", [(3, 7)], 2, lambda x: F.hinge_embedding_loss(x, signs((3, 7)), margin=0.8, reduction="none"))
case("triplet_margin_loss", WEIGHTED, 2, lambda a, p, n: F.triplet_margin_loss(a, p, n))
case("triplet_margin_loss_swap", WEIGHTED, 2, lambda a, p, n: F.triplet_margin_loss(a, p, n, 2.0, 1, 1e-4, True, reduction="sum"))
case("multi_margin_loss", [(6, 5)], 2, lambda x: F.multi_margin_loss(x, classes((6,), 5)))
case("multi_margin_loss_weighted", [(6, 5), (5,)], 2,
     lambda x, w: F.multi_margin_loss(x, classes((6,), 5), 2, 0.5, w.detach().exp(), reduction="none"))
case("multilabel_soft_margin_loss", [(3, 7), (7,)], 2, lambda x, w: F.multilabel_soft_margin_loss(x, classes((3, 7), 2).double(), w.exp()))
case("info_nce", [(4, 5), (4, 5)], 2, lambda q, k: info_nce(q, k, 0.2))


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
