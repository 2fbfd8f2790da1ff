# SPDX-License-Identifier: Apache-2.0
# step_table.py ONE TWO: the table of docs/gpu-report.md, what each kernel of a training step of GPT-2 124 M at batch 64 x 1024 in bf16
# moves and computes. ONE and TWO are what TREK_TEST_PTX_COUNTS named for one step and for two of a small model on emulated PTX
#     step 1 2 256 512, step 2 2 256 512      (2 layers of GPT-2's width, one sequence of 256 tokens, 512 in the vocabulary)
# whose difference is the second step alone. Each kernel's counts are scaled by the law that it follows (LAWS below), so that a
# figure is as good as its law: what does not grow (a wave's partial sums, rests of tiles) is scaled with the rest. Products, which
# cuBLASLt makes and nothing here runs, are from their shapes.
#
# limit: bytes at the memory's speed or operations at the arithmetic's, whichever takes longer; bytes are what warps ask for, each
# once a warp: what many blocks read again comes out of the L2 and costs less. estimate: the longest of sectors that are moved,
# operations, and instructions at the rate at which a GPU can start them; products at 65 % of the tensor cores. Nothing is measured.
import argparse
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from report import FIELDS, MAXIMA, read, readable  # pylint: disable=wrong-import-position

MEMORY, F32, TENSOR, ISSUE = 3.35e12, 67e12, 989e12, 528 * 1.755e9  # of an H100 SXM, a second
PRODUCTS = 0.65  # of the tensor cores, that the estimate gives to products
WIDTH = 768
SMALL = {"layers": 2, "batch": 1, "length": 256, "vocabulary": 512}
LARGE = {"layers": 12, "batch": 64, "length": 1024, "vocabulary": 50304}


def tokens(m):
    return m["batch"] * m["length"]


def parameters(m):
    return (12 * WIDTH * WIDTH + 13 * WIDTH) * m["layers"] + (m["vocabulary"] + m["length"] + 2) * WIDTH


def tiles(queries):
    """of so many queries by 64 keys that are not all masked"""
    return lambda m: m["layers"] * m["batch"] * sum(n * queries // 64 for n in range(1, m["length"] // queries + 1))


# (kernels, what their work grows with, in words), the first that fits
LAWS = (
    (r"attention_mma_kernel", tiles(128), "tiles below the diagonal"),
    (r"gradient_mma_kernel", tiles(64), "tiles below the diagonal"),
    (r"delta_kernel|gelu|sum_op<trek_bf16>", lambda m: m["layers"] * tokens(m), "layers x tokens"),
    (r"norm_rows_kernel|grad_rows_kernel<trek_bf16, 8|combine_kernel", lambda m: (2 * m["layers"] + 1) * tokens(m), "norms x tokens"),
    (r"rows_kernel<(trek_bf16|float), trek_bf16>", lambda m: tokens(m) * m["vocabulary"], "tokens x vocabulary"),
    (r"scaled_kernel|embedding_rows|add_functor<float>, float,", lambda m: m["vocabulary"] * WIDTH, "vocabulary"),
    (r"embedding|sort_|totals|column_sums", tokens, "tokens"),
    (r"apply_kernel|slice_kernel|norm_parts|fill_functor|convert_functor|same_bits", parameters, "parameters"),
    (r"add_functor", tokens, "tokens"),
)


def law_of(name):
    for pattern, grows, words in LAWS:
        if re.search(pattern, name):
            return grows(LARGE) / grows(SMALL), words
    return None, "small"


def product(name, m, n, k, count):
    """A row of products [m, k] x [k, n]: forward, and two of backward"""
    flops, moved = 6.0 * m * n * k * count, 3 * 2.0 * (m * k + k * n + m * n) * count
    return name, 3 * count, moved, flops, max(moved / MEMORY, flops / TENSOR), flops / TENSOR / PRODUCTS, "shapes"


def rows_of(one, two):
    names = readable(list(two))
    rest = [0, 0.0]
    for mangled, counts in two.items():
        before = one.get(mangled, dict.fromkeys(FIELDS, 0))
        k = {f: counts[f] if f in MAXIMA else counts[f] - before[f] for f in FIELDS}
        if not k["launches"]:
            continue
        factor, words = law_of(names[mangled])
        if factor is None:
            rest = [rest[0] + k["launches"], rest[1] + k["sectors"] * 32]
            continue
        moved, flops = factor * k["least_sectors"] * 32, factor * (k["flops"] + k["tensor_flops"])
        computes = factor * (k["flops"] / F32 + k["tensor_flops"] / TENSOR)
        estimate = max(factor * k["sectors"] * 32 / MEMORY, computes, factor * k["instructions"] / ISSUE)
        yield names[mangled], k["launches"], moved, flops, max(moved / MEMORY, computes), estimate, words
    yield "others, counted in the small step", rest[0], rest[1], 0, rest[1] / MEMORY, rest[1] / MEMORY, "none"


def products():
    m, layers = tokens(LARGE), LARGE["layers"]
    yield product("packed q, k, v (cuBLASLt)", m, 3 * WIDTH, WIDTH, layers)
    yield product("projection (cuBLASLt)", m, WIDTH, WIDTH, layers)
    yield product("up (cuBLASLt)", m, 4 * WIDTH, WIDTH, layers)
    yield product("down (cuBLASLt)", m, WIDTH, 4 * WIDTH, layers)
    yield product("head (cuBLASLt)", m, LARGE["vocabulary"], WIDTH, 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("one")
    parser.add_argument("two")
    options = parser.parse_args()
    rows = sorted(list(products()) + list(rows_of(read(options.one), read(options.two))), key=lambda row: -row[5])
    print("| kernel | grows with | GB | TFLOP | limit, ms | estimate, ms | measured, ms |\n|---|---|---:|---:|---:|---:|---:|")
    for name, _, moved, flops, limit, estimate, words in rows:
        if estimate >= 5e-5 or "others" in name:
            print("| `%s` | %s | %.2f | %.3f | %.2f | %.2f |  |" % (name, words, moved / 1e9, flops / 1e12, limit * 1e3, estimate * 1e3))
    print("| together | | %.1f | %.1f | %.1f | %.1f |  |" % tuple(sum(row[c] for row in rows) * by for c, by in ((2, 1e-9), (3, 1e-12), (4, 1e3), (5, 1e3))))


main()
