#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens a second of a GPT with a cache: trek and PyTorch's eager mode in turns, random weights, greedy, f32.

    generate.py PROGRAM [--threads 1] [--rows 1] [--prompt 16] [--tokens 128] [--turns 5] [--sides trek,plain,eager,generate]

PROGRAM is tests/bench/trek-bench-generate. Of PyTorch there are three: "plain", a GPT of torch.nn's layers with room for keys and
values that is made once; "eager", a loop around the model of transformers with past_key_values; "generate", its own generate(). Each turn of each side is a process of its own, which generates once to
warm up; GPT-2 124M. The ratio is trek's median over the side's.
"""
import argparse
import os
import statistics
import subprocess
import sys
import time

SIZES = ["12", "768", "12", "50257"]


def plain_gpt(rows, most):
    """As gpt.c's, and a function from (tokens, position) to the next tokens."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    layers, width, heads, words = (int(x) for x in SIZES)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.packed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.keys, self.values = (torch.zeros(rows, heads, most, width // heads) for _ in range(2))

        def forward(self, x, at):
            n = x.shape[1]
            q, k, v = self.packed(self.first(x)).view(rows, n, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            self.keys[:, :, at:at + n] = k
            self.values[:, :, at:at + n] = v
            y = F.scaled_dot_product_attention(q, self.keys[:, :, :at + n], self.values[:, :, :at + n], is_causal=n > 1)
            x = x + self.out(y.transpose(1, 2).reshape(rows, n, width))
            return x + self.down(F.gelu(self.up(self.second(x))))

    blocks, norm = nn.ModuleList(Block() for _ in range(layers)), nn.LayerNorm(width)
    table, places = nn.Embedding(words, width), nn.Embedding(most, width)

    def step(tokens, at):
        x = table(tokens) + places(torch.arange(at, at + tokens.shape[1]))
        for block in blocks:
            x = block(x, at)
        return F.linear(norm(x[:, -1:]), table.weight)[:, -1].argmax(-1, keepdim=True)

    return step


def generate(side, threads, rows, prompt, tokens):
    """Of PyTorch: tokens a second, and ms up to the first one."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    config = transformers.GPT2Config(activation_function="gelu", n_positions=1024)
    model = transformers.GPT2LMHeadModel(config).eval()
    ids = torch.randint(0, config.vocab_size, (rows, prompt))

    def loop(count):
        seen, x, first, begin = None, ids, 0, time.perf_counter()
        with torch.no_grad():
            for k in range(count):
                out = model(input_ids=x, past_key_values=seen, use_cache=True, logits_to_keep=1)
                seen, x = out.past_key_values, out.logits[:, -1].argmax(-1, keepdim=True)
                first = first or time.perf_counter() - begin
        return time.perf_counter() - begin, first

    def own(count):
        begin = time.perf_counter()
        model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, min_new_tokens=count,
                       pad_token_id=0)
        return time.perf_counter() - begin, float("nan")

    def plain(count):
        x, at, first, begin = ids, 0, 0, time.perf_counter()
        with torch.no_grad():
            for k in range(count):
                x, at = step(x, at), at + x.shape[1]
                first = first or time.perf_counter() - begin
        return time.perf_counter() - begin, first

    step = plain_gpt(rows, prompt + tokens)
    run = {"plain": plain, "eager": loop, "generate": own}[side]
    run(8)
    seconds, first = run(tokens)
    print(f"tokens_per_s {rows * tokens / seconds:.2f} first_ms {first * 1e3:.2f}")


def measure(side, args):
    env = dict(os.environ, TREK_THREADS=str(args.threads), OMP_NUM_THREADS=str(args.threads))
    if side == "trek":
        command = [args.program, *SIZES, str(args.rows), str(args.prompt), str(args.tokens), "1", "2"]
    else:
        command = [sys.executable, __file__, args.program, "--side", side, "--threads", str(args.threads), "--rows", str(args.rows),
                   "--prompt", str(args.prompt), "--tokens", str(args.tokens)]
    lines = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.split("\n")
    words = [line.split() for line in lines if line.startswith("tokens_per_s")][-1]
    return float(words[1]), float(words[3])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    for name, value in (("threads", 1), ("rows", 1), ("prompt", 16), ("tokens", 128), ("turns", 5)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--sides", default="trek,plain,eager,generate")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        generate(args.side, args.threads, args.rows, args.prompt, args.tokens)
        return
    sides = args.sides.split(",")
    found = {side: [] for side in sides}
    for _ in range(args.turns):
        for side in sides:
            found[side].append(measure(side, args))
            time.sleep(0.2)
    base = statistics.median(rate for rate, _ in found[sides[0]])
    for side in sides:
        rates = [rate for rate, _ in found[side]]
        print(f"{side:10} {statistics.median(rates):8.2f} tokens/s (best {max(rates):.2f}), first "
              f"{statistics.median(first for _, first in found[side]):.1f} ms, {sides[0]} is {base / statistics.median(rates):.2f} x")


main()
