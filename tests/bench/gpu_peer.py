#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The works of trek-gpu-bench in PyTorch, timed in the same way.

    gpu_peer.py [--device cuda:0] [--modes eager,compile,reduce-overhead] [--ms N] [--rounds N] [--scale N] NAME...

Prints one line of JSON a measure and mode. Status 0 and nothing printed where PyTorch or its CUDA is missing."""
import argparse
import functools
import json
import statistics
import sys
import time

try:
    import torch
    from torch import nn
    from torch.nn import functional
except ImportError:
    print("PyTorch is not installed", file=sys.stderr)
    sys.exit(0)

BATCHES = 50
state = argparse.Namespace()


def size(full, least):
    return max(full // state.scale, least)


def sync():
    if state.cuda:
        torch.cuda.synchronize()


def span(fn, calls):
    sync()
    start = time.perf_counter()
    for _ in range(calls):
        fn()
    host = time.perf_counter() - start
    sync()
    return (time.perf_counter() - start) * 1e6, host * 1e6


def measure_host(work, name, mode, fn, per=1):
    """As gpu_time_host: what the host spends in a call, from a device at rest; medians."""
    bursts = []
    try:
        for _ in range(9 * (state.rounds + 1)):
            sync()
            start = time.perf_counter()
            fn()
            bursts.append((time.perf_counter() - start) * 1e6)
    except Exception as error:
        print(json.dumps({"work": work, "measure": name, "mode": mode, "error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}), flush=True)
        return
    us = round(statistics.median(bursts[9:]) / per, 4)
    print(json.dumps({"work": work, "measure": name, "mode": mode, "us": us, "host_us": us}), flush=True)


def measure(work, name, mode, fn, per=1, traffic=0, flop=0, tokens=0):
    """As gpu_time: a warm-up, then rounds of at least --ms; prints the median."""
    line = {"work": work, "measure": name, "mode": mode}
    try:
        if state.cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        for _ in range(6 if mode != "eager" else 4):
            span(fn, 1)
        one = span(fn, 1)[0]
        calls, rounds = int(min(max(state.ms * 1e3 / one, 1), 20000)), state.rounds if one * state.rounds <= 20e6 else 3
        spans = [span(fn, calls) for _ in range(rounds)]
        us, host = (statistics.median(s[k] for s in spans) / calls for k in (0, 1))
        line.update(us=round(us / per, 4), host_us=round(host / per, 4))
        if state.cuda:
            line["peak_mib"] = round(torch.cuda.max_memory_allocated() / 2**20, 1)
        if traffic:
            line["gb_s"] = round(traffic / us * 1e-3, 2)
        if flop:
            line["tflops"] = round(flop / us * 1e-6, 2)
        if tokens:
            line["tokens_s"] = round(tokens / us * 1e6)
    except Exception as error:  # a mode that fails leaves the others
        line["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    print(json.dumps(line), flush=True)


def compiled(mode, fn):
    """fn in a mode; the caches of earlier measures are dropped."""
    if mode == "eager":
        return fn
    torch._dynamo.reset()
    return torch.compile(fn) if mode == "compile" else torch.compile(fn, mode=mode)


def randn(*shape, dtype=torch.float32, scale=1.0, grad=False):
    return (torch.randn(*shape, device=state.device) * scale).to(dtype).requires_grad_(grad)


def randint(limit, *shape):
    return torch.randint(0, limit, shape, device=state.device)


def first(result):
    """What backward begins at, of an op with several results."""
    return result[0] if isinstance(result, tuple) else result


def both_ways(work, name, op, inputs, traffic=0, traffic_both=0, flop=0, backward_flop=2.0, modes=None):
    seed = torch.randn_like(first(op(*inputs)))
    leaves = [t for t in inputs if t.requires_grad]
    for mode in modes or state.modes:
        run = compiled(mode, op)

        def forward():
            with torch.no_grad():
                run(*inputs)

        def both():
            first(run(*inputs)).backward(seed)
            for leaf in leaves:
                leaf.grad = None

        measure(work, name + " forward", mode, forward, traffic=traffic, flop=flop)
        if traffic_both or flop:
            measure(work, name + " forward+backward", mode, both, traffic=traffic_both, flop=(1 + backward_flop) * flop)


# -- works ------------------------------------------------------------------------


def eager():
    x, y = randn(64, grad=True), randn(64)
    seed = torch.randn_like(x)

    def chain():
        z = x
        for _ in range(100):
            z = z * y
        return z

    def forward():
        with torch.no_grad():
            chain()

    def both():
        chain().backward(seed)
        x.grad = None

    measure("eager", "100 mul, each, forward", "eager", forward, per=100)
    measure("eager", "100 mul, each, forward+backward", "eager", both, per=100)
    measure_host("eager", "100 mul, each, forward, host", "eager", forward, per=100)
    measure_host("eager", "100 mul, each, forward+backward, host", "eager", both, per=100)


def matmul():
    n = size(8192, 64)
    for name, dtype, tf32 in (("bf16", torch.bfloat16, 0), ("f16", torch.float16, 0), ("tf32", torch.float32, 1), ("f32", torch.float32, 0)):
        torch.backends.cuda.matmul.allow_tf32 = bool(tf32)
        a, b = randn(n, n, dtype=dtype), randn(n, n, dtype=dtype)
        measure("matmul", f"8192 {name}", "eager", lambda: a @ b, flop=2.0 * n**3)
    torch.backends.cuda.matmul.allow_tf32 = False


def gpt2_products():
    rows = size(65536, 64)
    for name, width, out, gelu in (("qkv 768-2304 + bias", 768, 2304, False), ("projection 768-768 + bias", 768, 768, False),
                                   ("up 768-3072 + bias + gelu", 768, 3072, True), ("down 3072-768 + bias", 3072, 768, False)):
        width, out = size(width, 16), size(out, 16)
        x, w, b = randn(rows, width, dtype=torch.bfloat16, grad=True), randn(out, width, dtype=torch.bfloat16, scale=0.02, grad=True), \
            randn(out, dtype=torch.bfloat16, scale=0.02, grad=True)
        op = (lambda x, w, b: functional.gelu(functional.linear(x, w, b))) if gelu else functional.linear
        both_ways("gpt2_products", name, op, [x, w, b], flop=2.0 * rows * width * out, modes=[m for m in state.modes if m != "reduce-overhead"])


def memory():
    rows, width = size(65536, 64), size(768, 64)

    def add_norm(x, w, b, branch):
        total = x + branch
        return functional.layer_norm(total, (width,), w, b), total

    ops = {"copy": (lambda x: x.clone(), 2, 0, 0), "add": (torch.add, 3, 0, 2), "row sum": (lambda x: x.sum(1), 1, 0, 0),
           "layer norm": (lambda x, w, b: functional.layer_norm(x, (width,), w, b), 2, 5, 1),
           "rms norm": (lambda x, w: functional.rms_norm(x, (width,), w, 1e-6), 2, 5, 3),
           "softmax": (lambda x: functional.softmax(x, -1), 2, 5, 0), "gelu": (functional.gelu, 2, 5, 0),
           "dropout": (lambda x: functional.dropout(x, 0.1), 2, 4, 0),
           "residual + layer norm": (add_norm, 4, 7, 4)}
    for label, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        for name, (op, once, twice, more) in ops.items():
            array = rows * width * (4 if dtype == torch.float32 else 2)
            inputs = [randn(rows, width, dtype=dtype, grad=twice > 0)]
            inputs += [randn(width, dtype=dtype, grad=True) for _ in range({1: 2, 3: 1, 4: 2}.get(more, 0))]
            if more in (2, 4):
                inputs.append(randn(rows, width, dtype=dtype))
            if twice:
                both_ways("memory", f"{name} {label}", op, inputs, once * array, twice * array, modes=[m for m in state.modes if m != "reduce-overhead"])
            else:
                measure("memory", f"{name} {label}", "eager", lambda: op(*inputs), traffic=once * array)


def attention():
    batch, heads, length, dim = size(16, 1), 12, size(1024, 64), 64
    packed = randn(batch, length, 3, heads, dim, dtype=torch.bfloat16, grad=True)

    def op(packed):
        q, k, v = packed.permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    both_ways("attention", "causal bf16", op, [packed], flop=2.0 * batch * heads * dim * length**2, backward_flop=2.5, modes=["eager"])


def linear_cross_entropy():
    rows, width, classes = size(65536, 64), size(768, 64), size(50304, 128)
    x, w = randn(rows, width, dtype=torch.bfloat16, grad=True), randn(classes, width, dtype=torch.bfloat16, scale=0.02, grad=True)
    labels = randint(classes, rows)
    for mode in state.modes:
        loss = compiled(mode, lambda x, w: functional.cross_entropy(functional.linear(x, w).float(), labels))

        def step():
            loss(x, w).backward()
            x.grad = w.grad = None

        measure("linear_cross_entropy", "forward+backward", mode, step, flop=6.0 * rows * width * classes)


def adamw():
    table, rest = size(50304 * 768, 4096), size(124475904 - 50304 * 768, 4096)
    for label, dtype, traffic in (("f32", torch.float32, 28), ("bf16", torch.bfloat16, 30)):
        # f32 masters beside 16-bit weights: the optimizer updates f32, and the weights are copied from it
        low = [torch.zeros(n, dtype=dtype, device=state.device) for n in (table, rest)]
        params = [nn.Parameter(p.float()) for p in low]
        for p in params:
            p.grad = torch.randn_like(p) * 1e-3
        optimizer = torch.optim.AdamW(params, lr=1e-4, weight_decay=0.1, fused=state.cuda)

        def update():
            optimizer.step()
            if dtype != torch.float32:
                with torch.no_grad():
                    torch._foreach_copy_(low, params)

        def clip():
            torch.nn.utils.clip_grad_norm_(params, 1e9, foreach=True)
            update()

        measure("adamw", f"{label} update", "eager", update, traffic=traffic * (table + rest))
        measure("adamw", f"{label} clip + update", "eager", clip, traffic=(traffic + 4) * (table + rest))
        del low, params, optimizer


# -- training steps -----------------------------------------------------------------


def steps(work, name, model, loss, x, y, lr, decay=0.0, batches=1, read=False, adam=torch.optim.Adam, autocast=False, flop=0, tokens=0, host=False, label=None):
    initial = {key: value.cpu().clone() for key, value in model.state_dict().items()}
    for mode in state.modes:
        model.load_state_dict(initial)
        forward = compiled(mode, lambda x, y: loss(model, x, y))
        optimizer = adam(model.parameters(), lr=lr, weight_decay=decay, fused=state.cuda)

        def step():
            if mode == "reduce-overhead":
                torch.compiler.cudagraph_mark_step_begin()
            for _ in range(batches):
                with torch.autocast(state.device.type, torch.bfloat16, enabled=autocast):
                    value = forward(x, y)
                optimizer.zero_grad(set_to_none=True)
                value.backward()
                optimizer.step()
                if read:
                    value.item()

        if host:
            measure_host(work, name + ", host", mode, step)
        measure(work, name, label or mode, step, flop=flop, tokens=tokens)
        model.zero_grad(set_to_none=True)
        del optimizer


class Residual(nn.Module):
    def __init__(self, main, times=1):
        super().__init__()
        self.main, self.times = main, times

    def forward(self, x):
        for _ in range(self.times):
            x = x + self.main(x)
        return x


class Routing(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate = nn.Linear(width, 8)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)) for _ in range(8))

    def forward(self, x):
        weights = functional.softmax(self.gate(x), -1)
        return sum(expert(x) * weights[:, k:k + 1] for k, expert in enumerate(self.experts))


class Encoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.packed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.packed(x).view(batch, length, 3, 8, width // 8).permute(2, 0, 3, 1, 4)
        heads = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = self.first(x + self.out(heads))
        return self.second(x + self.feed(x))


class Position(nn.Module):
    def __init__(self, length, width):
        super().__init__()
        self.register_buffer("table", torch.randn(1, length, width))

    def forward(self, x):
        return x + self.table


def refine(width, times):
    def block():
        return [nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)]
    return nn.Sequential(*block(), Residual(nn.Sequential(*block()), times), nn.Linear(width, width))


def model_of(name):
    large, small, wide = size(1024, 8), size(512, 8), size(2048, 8)
    if name == "mlp":
        layers = []
        for k in range(4):
            layers += [nn.Linear(wide if k else large, wide), nn.GELU(), nn.LayerNorm(wide)]
        return nn.Sequential(*layers, nn.Linear(wide, large))
    if name.startswith("convnet"):
        channels, layers = [3, 64, 128, 256, 512, 512], []
        for k in range(5):
            layers += [nn.Conv2d(channels[k], channels[k + 1], 3, padding=1), nn.BatchNorm2d(channels[k + 1]), nn.ReLU()]
            layers += [nn.MaxPool2d(2)] if k < 4 else []
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100)).to(
            memory_format=torch.channels_last if name == "convnet_last" else torch.contiguous_format)
    if name == "transformer":
        many = size(8192, 64)
        return nn.Sequential(nn.Embedding(many, small), Position(size(128, 8), small), *[Encoder(small) for _ in range(4)], nn.Linear(small, many))
    if name == "residual_tower":
        blocks = [Residual(nn.Sequential(nn.Linear(large, large), nn.GELU(), nn.LayerNorm(large))) for _ in range(12)]
        return nn.Sequential(nn.Linear(large, large), *blocks, nn.Linear(large, large))
    if name == "gated_routing":
        return nn.Sequential(nn.Linear(small, small), nn.GELU(), Routing(small), nn.Linear(small, small))
    return refine(large, 8) if name == "iterative_refine" else refine(small, 10)


def mse(model, x, y):
    return functional.mse_loss(model(x), y)


def classes(model, x, y):
    return functional.cross_entropy(model(x).flatten(0, -2), y.flatten())


def model(name):
    large, small, many, few = size(1024, 8), size(512, 8), size(256, 2), size(128, 2)
    shape = {"convnet": (few, 3, 64, 64), "convnet_last": (few, 3, 64, 64), "transformer": (size(32, 2), size(128, 8)), "gated_routing": (many, small),
             "feedback_fixed": (few, small)}.get(name, (many, large))
    tokens = name == "transformer"
    x = randint(size(8192, 64), *shape) if tokens else randn(*shape)
    y = randint(size(8192, 64), *shape) if tokens else randn(few, 100) if name.startswith("convnet") else randn(*shape)
    x = x.to(memory_format=torch.channels_last) if name == "convnet_last" else x
    steps("model_" + name, name, model_of(name).to(state.device), classes if tokens else mse, x, y, 1e-4 if tokens else 1e-3, batches=BATCHES, read=True)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.packed, self.projection = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.second, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.packed(self.first(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + self.projection(y)
        return x + self.down(functional.gelu(self.up(self.second(x))))


class GPT2(nn.Module):
    def __init__(self, layers, width, context, vocabulary):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks, self.last = nn.Sequential(*[Block(width, width // 64) for _ in range(layers)]), nn.LayerNorm(width)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions.weight[:tokens.shape[1]]
        return functional.linear(self.last(self.blocks(x)), self.tokens.weight)


def gpt2(text, work=None, label=None):
    width, vocabulary, full = 64 * size(12, 1), size(50304, 128), int(text)
    context = 256 if full == 1 else 1024
    batch, length = size(full, 1), size(context, 16)
    module = GPT2(size(12, 2), width, size(1024, 16), vocabulary).to(state.device)
    flop = 6.0 * sum(p.numel() for p in module.parameters()) * batch * length
    steps(work or "gpt2_" + text, f"{full} x {context}", module, classes, randint(vocabulary, batch, length), randint(vocabulary, batch, length), 1e-4, 0.1,
          adam=torch.optim.AdamW, autocast=True, flop=flop, tokens=batch * length, label=label)


def offload_gpt2():
    """Eager steps as ever, and with what is saved for backward in pinned host memory."""
    state.modes = ["eager"]
    gpt2("16", "offload_gpt2")
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        gpt2("16", "offload_gpt2", "offloaded")


class Bottleneck(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        out = 4 * width
        self.main = nn.Sequential(*conv_norm(channels, width, 1), nn.ReLU(), *conv_norm(width, width, 3, stride), nn.ReLU(), *conv_norm(width, out, 1))
        self.skip = nn.Identity() if channels == out and stride == 1 else nn.Sequential(*conv_norm(channels, out, 1, stride))

    def forward(self, x):
        return functional.relu(self.main(x) + self.skip(x))


def conv_norm(channels, out, kernel, stride=1):
    return nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(out)


def resnet():
    """ResNet-50 by bf16 autocast, channels last: as tests/bench/gpu/resnet.c has it."""
    batch, side, width = size(256, 2), size(224, 32), size(64, 8)
    layers, channels = [*conv_norm(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], width
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for k in range(size(blocks, 1)):
            layers.append(Bottleneck(channels, width, 2 if stage and not k else 1))
            channels = 4 * width
        width *= 2
    module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)).to(state.device, memory_format=torch.channels_last)
    x = randn(batch, 3, side, side).to(memory_format=torch.channels_last)
    steps("resnet", "ResNet-50, 256 x 224", module, classes, x, randint(1000, batch), 0.01, 1e-4, adam=functools.partial(torch.optim.SGD, momentum=0.9),
          autocast=True, flop=3 * 2 * 4.089e9 * batch)


def replay():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(state.device)
    x, y = randn(32, 64), randint(10, 32)
    steps("replay", "small step", model, classes, x, y, 1e-3, adam=torch.optim.AdamW, host=True)
    if not state.cuda:
        return
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True, capturable=True)

    def step():
        classes(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    aside = torch.cuda.Stream()
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    measure_host("replay", "small step, host", "cuda graph by hand", graph.replay)
    measure("replay", "small step", "cuda graph by hand", graph.replay)


def launch():
    """The driver's own costs: trek-gpu-bench measures them alone."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--modes", default="eager,compile,reduce-overhead")
    parser.add_argument("--ms", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--scale", type=int, default=1)
    parser.parse_args(namespace=state)
    state.modes = state.modes.split(",")
    state.cuda = state.device.startswith("cuda")
    if state.cuda and not torch.cuda.is_available():
        print("PyTorch sees no CUDA device", file=sys.stderr)
        return
    state.device = torch.device(state.device)
    torch.manual_seed(1)
    torch.backends.cudnn.allow_tf32 = False  # f32 models are f32 on both sides
    for name in state.names:
        kind, _, what = name.partition("_")
        if kind in ("model", "gpt2") and name != "gpt2_products":
            globals()[kind](what)
        else:
            globals()[name]()


if __name__ == "__main__":
    main()
