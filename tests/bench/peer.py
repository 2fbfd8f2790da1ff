#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The works of trek-bench in PyTorch, from the same weights and samples.

    peer.py [--threads N] [--compile] [--exact] [--repetitions N] [--ms N] NAME...
    peer.py --serve NAME ...      the protocol of trek-bench --serve, see bench.c
    peer.py --first-step          one training step, then the resident memory beside the model

PyTorch's best settings: fused optimizers, gradients set to None, inference mode where no
gradient is asked. Threads and the environment are the driver's business. --exact gives the
losses of the checked steps in f64, too: what both sides are compared with.
"""
import argparse
import copy
import json
import os
import resource
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional

POOL, CHECKED_STEPS, CLASSES, CHAIN, OPS = 8, 10, 10, 100, 100


def hash32(seed, count):
    """As bench_hash in common.c, for indices 0..count-1."""
    with np.errstate(over="ignore"):
        x = np.arange(count, dtype=np.uint32) + np.uint32(seed * 0x9E3779B9 & 0xFFFFFFFF)
        x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        return x ^ (x >> np.uint32(16))


def uniform(seed, count):
    return (hash32(seed, count) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)


def fill(shape, seed, shift=0.0, scale=1.0):
    count = int(np.prod(shape))
    return torch.from_numpy((np.float32(shift) + np.float32(scale) * uniform(seed, count)).reshape(shape))


def labels(shape, seed, classes):
    return torch.from_numpy((hash32(seed, int(np.prod(shape))) % np.uint32(classes)).astype(np.int64).reshape(shape))


def digest(tensor):
    values = tensor.detach().numpy().reshape(-1)
    some, weights = values[::97].astype(np.float64), uniform(9, values.size)[::97].astype(np.float64)
    return float(np.sum(some * weights) / np.sqrt(some.size))


# -- one op, and a chain of them --------------------------------------------------


class Op:
    per = OPS

    def __init__(self, op, count):
        self.op, self.x, self.y = op, fill((count,), 1), fill((count,), 2)
        self.checks = self.op(self.x, self.y).tolist()

    def run(self, times):
        op, x, y = self.op, self.x, self.y
        with torch.inference_mode():
            for _ in range(times * OPS):
                op(x, y)


class Chain:
    per = CHAIN

    def __init__(self, both):
        self.x = fill((1,), 1).requires_grad_()
        self.y = fill((1,), 2, 1, 0.01).requires_grad_(both)
        self.run(1)
        self.checks = [self.x.grad.item()] + ([self.y.grad.item()] if both else [])

    def run(self, times):
        for _ in range(times):
            result, factor = self.x, self.y
            for _ in range(CHAIN):
                result = result * factor
            self.x.grad = self.y.grad = None
            result.backward()


# -- training steps -----------------------------------------------------------------


def mlp(sizes, norm=False):
    layers = []
    for k in range(len(sizes) - 1):
        layers.append(nn.Linear(sizes[k], sizes[k + 1]))
        if k + 2 < len(sizes):
            layers += [nn.LayerNorm(sizes[k + 1]), nn.GELU()] if norm else [nn.ReLU()]
    return nn.Sequential(*layers)


def lenet(first, second):
    return nn.Sequential(
        nn.Conv2d(1, first, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(first, second, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * second, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, CLASSES))


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        self.skip = nn.Identity() if inputs == outputs else nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return functional.relu(self.main(x) + self.skip(x))


def resnet18(width):
    layers, inputs = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()], width
    for stage in range(4):
        outputs = width << stage
        layers += [Residual(inputs, outputs, 2 if stage else 1), Residual(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.packed, self.projection = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.second, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.packed(self.first(x)).split(width, 2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class GPT(nn.Module):
    """As gpt.c has it; to [places, vocabulary]."""

    def __init__(self, layers, width, heads, context, vocabulary):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.last = nn.LayerNorm(width)
        self.sample, self.classes = (context,), vocabulary

    def forward(self, tokens):
        x = self.blocks(self.tokens(tokens) + self.positions.weight[:tokens.shape[1]])
        return functional.linear(self.last(x), self.tokens.weight).flatten(0, 1)


def fill_parameters(model):
    with torch.no_grad():
        for k, (name, parameter) in enumerate(model.named_parameters()):
            shape = tuple(parameter.shape)
            if len(shape) > 1:
                parameter.copy_(fill(shape, k + 1, 0, 1 / np.sqrt(parameter.numel() // shape[0])))
            else:
                parameter.copy_(fill(shape, k + 1, 1 if name.endswith("weight") else 0, 0.1))


def gpt(batch, *sizes, half=False):
    model = GPT(*sizes)
    return Training(model, batch, model.sample, torch.optim.AdamW, half=half)


class Training:
    per = 1

    def __init__(self, model, batch, sample, optimizer=torch.optim.Adam, outputs=0, compiled=False, rate=1e-3, half=False):
        fill_parameters(model)
        exact = copy.deepcopy(model).double()
        self.optimizer = optimizer(model.parameters(), lr=rate, fused=True)
        self.model = torch.compile(model) if compiled else model
        self.loss = functional.mse_loss if outputs else functional.cross_entropy
        classes = getattr(model, "classes", 0)
        places = (batch,) + sample if classes else (batch,)
        self.inputs = [labels(places, 1000 + k, classes) if classes else fill((batch,) + sample, 1000 + k) for k in range(POOL)]
        self.targets = [fill((batch, outputs), 2000 + k) if outputs else labels(places, 2000 + k, classes or CLASSES).flatten()
                        for k in range(POOL)]
        self.exact = lambda: self.exact_losses(exact, optimizer(exact.parameters(), lr=rate))
        self.steps, self.half = 0, half
        self.checks = [self.step().item() for _ in range(CHECKED_STEPS)]
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-7
        self.notes = {"parameters": sum(p.numel() for p in model.parameters()), "samples": batch}

    def step(self):
        k = self.steps % POOL
        self.steps += 1
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            loss = self.loss(self.model(self.inputs[k]), self.targets[k])
        loss.backward()
        self.optimizer.step()
        return loss

    def exact_losses(self, model, optimizer):
        losses = []
        for k in range(CHECKED_STEPS):
            target = self.targets[k % POOL]
            sample = self.inputs[k % POOL]
            loss = self.loss(model(sample.double() if sample.is_floating_point() else sample), target.double() if target.is_floating_point() else target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def run(self, times):
        for _ in range(times):
            self.step()
        self.notes["peak_resident"] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# -- what memory limits ---------------------------------------------------------------


class AdamW:
    per = 1
    count = 64_000_000

    def __init__(self):
        self.parameter = nn.Parameter(fill((self.count,), 1))
        self.parameter.grad = fill((self.count,), 2, 0, 0.01)
        self.optimizer = torch.optim.AdamW([self.parameter], lr=1e-3, fused=True)
        self.run(3)
        self.checks = [digest(self.parameter)]

    def run(self, times):
        for _ in range(times):
            self.optimizer.step()


class Rows:
    per = 1

    def __init__(self, rows, columns, norm):
        x = fill((rows, columns), 1, 0, 3)
        weight, bias = fill((columns,), 2, 1, 0.1), fill((columns,), 3, 0, 0.1)
        self.apply = ((lambda: functional.layer_norm(x, (columns,), weight, bias, 1e-5)) if norm else
                      (lambda: torch.softmax(x, -1)))
        with torch.inference_mode():
            self.checks = [digest(self.apply().clone())]

    def run(self, times):
        apply = self.apply
        with torch.inference_mode():
            for _ in range(times):
                apply()


DEEP = [1024, 2048, 2048, 2048, 2048, 1024]

# Each takes whether to compile.
class Recurrent:
    per = 1

    def __init__(self, kind, rows, steps=128, size=256):
        self.layer = kind(size, size, batch_first=True)
        with torch.no_grad():
            for k, parameter in enumerate(self.layer.parameters()):
                parameter.copy_(fill(tuple(parameter.shape), k + 1, 0, 0.0625))
        self.x, self.grad = fill((rows, steps, size), 1000).requires_grad_(), fill((rows, steps, size), 2000)
        self.checks = self.digests(self.layer, self.x, self.grad)
        exact, x, grad = copy.deepcopy(self.layer).double(), self.x.detach().double().requires_grad_(), self.grad.double()
        self.exact = lambda: self.digests(exact, x, grad)

    def digests(self, layer, x, grad):
        result = self.step(layer, x, grad)
        return [digest(t) for t in [result, x.grad] + [p.grad for p in layer.parameters()]]

    @staticmethod
    def step(layer, x, grad):
        layer.zero_grad(set_to_none=True)
        x.grad = None
        result, _ = layer(x)
        result.backward(grad)
        return result

    def run(self, times):
        for _ in range(times):
            self.step(self.layer, self.x, self.grad)


WORKS = {
    "add-1": lambda c: Op(torch.add, 1),
    "add-4": lambda c: Op(torch.add, 4),
    "mul-4": lambda c: Op(torch.mul, 4),
    "chain": lambda c: Chain(False),
    "chain-both": lambda c: Chain(True),
    "mlp-tiny": lambda c: Training(mlp([16, 16, 16, CLASSES]), 1, (16,), torch.optim.AdamW, compiled=c),
    "mlp": lambda c: Training(mlp([784, 256, CLASSES]), 64, (784,), compiled=c),
    "mlp-near": lambda c: Training(mlp([771, 250, CLASSES]), 61, (771,), compiled=c),
    "lenet": lambda c: Training(lenet(6, 16), 64, (1, 28, 28), compiled=c),
    "lenet-near": lambda c: Training(lenet(5, 13), 61, (1, 28, 28), compiled=c),
    "lenet-near2": lambda c: Training(lenet(7, 11), 61, (1, 28, 28), compiled=c),
    "lenet-few": lambda c: Training(lenet(6, 16), 4, (1, 28, 28), compiled=c),
    "resnet18": lambda c: Training(resnet18(32), 32, (3, 32, 32), rate=1e-6, compiled=c),
    "mlp-deep": lambda c: Training(mlp(DEEP, True), 256, (1024,), outputs=1024, compiled=c),
    "char-gpt": lambda c: gpt(16, 4, 128, 4, 128, 65),
    "char-gpt-near": lambda c: gpt(15, 3, 120, 5, 125, 67),
    "char-gpt-few": lambda c: gpt(1, 4, 128, 4, 128, 65),
    "gpt2": lambda c: gpt(4, 12, 768, 12, 64, 50257),
    "resnet18-bf16": lambda c: Training(resnet18(32), 32, (3, 32, 32), rate=1e-6, compiled=c, half=True),
    "mlp-deep-bf16": lambda c: Training(mlp(DEEP, True), 256, (1024,), outputs=1024, compiled=c, half=True),
    "char-gpt-bf16": lambda c: gpt(16, 4, 128, 4, 128, 65, half=True),
    "gpt2-bf16": lambda c: gpt(4, 12, 768, 12, 64, 50257, half=True),
    "ranks-lenet": lambda c: Training(lenet(6, 16), 256, (1, 28, 28), compiled=c),
    "ranks-mlp": lambda c: Training(mlp([1024, 4096, 4096, 2176, CLASSES]), 256, (1024,), compiled=c),
    "adamw": lambda c: AdamW(),
    "lstm-64": lambda c: Recurrent(nn.LSTM, 64),
    "lstm-1": lambda c: Recurrent(nn.LSTM, 1),
    "gru-64": lambda c: Recurrent(nn.GRU, 64),
    "gru-1": lambda c: Recurrent(nn.GRU, 1),
    "softmax": lambda c: Rows(1024, 768, False),
    "layer-norm": lambda c: Rows(1024, 768, True),
    "softmax-near": lambda c: Rows(1021, 771, False),
    "layer-norm-near": lambda c: Rows(1021, 771, True),
}


def calibrate(work, ms):
    """Warms up for a fifth of a second at least, and finds how many times fill `ms`."""
    times, begin = 1, time.perf_counter_ns()
    while True:
        last = time.perf_counter_ns()
        work.run(times)
        now = time.perf_counter_ns()
        if now - begin > 200_000_000 and now - last > 1_000_000:
            return max(1, int(ms * 1e6 * times / (now - last)))
        if now - last < 10_000_000:
            times *= 2


def measure(name, work, repetitions, ms):
    times, samples = calibrate(work, ms), []
    for _ in range(repetitions):
        begin = time.perf_counter_ns()
        work.run(times)
        samples.append((time.perf_counter_ns() - begin) / times / work.per)
    result = {"work": name, "side": "pytorch", "median_ns": float(np.median(samples)), "times": times, "ns": samples}
    result.update(getattr(work, "notes", {}))
    print(json.dumps(result), flush=True)


def first_step():
    model = mlp([784, 256, CLASSES])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    functional.cross_entropy(model(torch.rand(64, 784)), torch.randint(0, CLASSES, (64,))).backward()
    optimizer.step()
    with open("/proc/self/statm", encoding="ascii") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    print(resident - 16 * sum(p.numel() for p in model.parameters()), flush=True)


def blas_name():
    return next((part.split("=")[1].strip(" ,") for part in torch.__config__.show().split() if part.startswith("BLAS_INFO=")), "?")


def features():
    """What PyTorch and its libraries find in this CPU and are not told to leave alone."""
    asked = {"avx512": "avx512", "avx512_bf16": "avx512_bf16", "amx_tile": "amx_tile", "amx_fp16": "amx_fp16"}
    have = [name for name, function in asked.items() if getattr(torch.cpu, f"_is_{function}_supported", lambda: False)()]
    return " ".join([torch.backends.cpu.get_cpu_capability(), "oneDNN" if torch.backends.mkldnn.is_available() else "no oneDNN", *have])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--first-step", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--compile", action="store_true", help="through torch.compile")
    parser.add_argument("--exact", action="store_true", help="the checked losses in f64, too")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--repetitions", type=int, default=11)
    parser.add_argument("--ms", type=float, default=50)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if options.list:
        print("\n".join(WORKS))
        return
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.first_step:
        first_step()
        return
    for name in options.names:
        work = WORKS[name](options.compile)
        first = {"work": name, "side": "pytorch", "version": torch.__version__, "threads": torch.get_num_threads(),
                 "capability": torch.backends.cpu.get_cpu_capability(), "blas": blas_name(),
                 "features": features(), "checks": work.checks}
        if options.exact and hasattr(work, "exact"):
            first["exact"] = work.exact()
        print(json.dumps(first), flush=True)
        if not options.serve:
            measure(name, work, options.repetitions, options.ms)
            continue
        for line in sys.stdin:
            repetitions, ms = line.split()
            measure(name, work, int(repetitions), float(ms))


if __name__ == "__main__":
    main()
