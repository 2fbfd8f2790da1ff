#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Matrix products: trek and PyTorch (or a BLAS) in turns, shape by shape.

    products.py PROGRAM [--threads 1,2] [--dtype f32] [--turns 5] [--ms 8] [--shapes TEXT] [--only forward,dx,dw]
                        [--blas LIBRARY] [--peak GFLOPS] [--env NAME=VALUE ...]

PROGRAM is tests/bench/trek-bench-products. A linear layer's shape is rows x inputs x outputs, its products
y = x W^T (forward), dx = dy W and dw = dy^T x; "b COUNT M N K" is a batched product a b^T (scores of attention) and
a b. Each side is a process of its own; a turn measures one, pauses, then the other. The ratio of a row is the
median of its turns' ratios of times, PyTorch's over trek's: above 1 trek is faster. PyTorch writes into a tensor
that is kept (out=). --blas adds a side: cblas_[sd]gemm of a shared library, on one thread.
"""
import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import time

LINEAR = """
    1x1024x1024 1x768x50257 2x768x3072 8x1024x4096 16x256x1024 32x64x64 64x784x256 64x256x10 64x768x50257 64x64x4096
    100x77x33 127x511x1023 128x128x512 128x4096x4096 256x1024x2048 256x2048x1024 256x768x50257 333x1000x517 512x512x512
    1000x1000x1000 1024x1024x1024 2048x128x128 2048x128x384 2048x128x512 2048x512x128 2048x2048x2048 4096x768x768
    8192x64x64 8192x256x1024 8191x65x129
""".split()
BATCHED = ["64 128 128 32", "48 64 64 64", "12 1024 1024 64", "128 50 50 40"]


def linear_products(shape, only):
    rows, inputs, outputs = (int(x) for x in shape.split("x"))
    kinds = {"forward": ("nt", rows, outputs, inputs), "dx": ("nn", rows, inputs, outputs), "dw": ("tn", outputs, inputs, rows)}
    for name in only:
        kind, m, n, k = kinds[name]
        yield f"{shape} {name}", (kind, 1, m, n, k)


def batched_products(shape):
    count, m, n, k = (int(x) for x in shape.split())
    yield f"b {shape} scores", ("nt", count, m, n, k)
    yield f"b {shape} values", ("nn", count, m, k, n)


# -- the other sides: each answers the same lines as trek-bench-products -----------


def timed(run, ms):
    run()
    begin = end = time.perf_counter_ns()
    times = 0
    while end - begin < ms * 1e6:
        run()
        end = time.perf_counter_ns()
        times += 1
    return (end - begin) / times


def serve_torch(threads):
    import torch

    torch.set_num_threads(threads)

    def product(kind, count, m, n, k, dtype):
        real = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}[dtype]
        lead = (count,) if count > 1 else ()
        a = torch.rand(lead + ((k, m) if kind[0] == "t" else (m, k)), dtype=real)
        b = torch.rand(lead + ((n, k) if kind[1] == "t" else (k, n)), dtype=real)
        out = torch.empty(lead + (m, n), dtype=real)
        a, b = a.transpose(-2, -1) if kind[0] == "t" else a, b.transpose(-2, -1) if kind[1] == "t" else b
        return lambda: torch.matmul(a, b, out=out)

    with torch.inference_mode():
        serve(product)


def serve_blas(path):
    import numpy as np

    library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    prefix = "" if hasattr(library, "cblas_sgemm") else "scipy_"  # of PyPI's scipy-openblas32

    def product(kind, count, m, n, k, dtype):
        real, scalar = (np.float64, ctypes.c_double) if dtype == "f64" else (np.float32, ctypes.c_float)
        call = getattr(library, prefix + ("cblas_dgemm" if dtype == "f64" else "cblas_sgemm"))
        random = np.random.default_rng(1)
        a, b, c = random.random((count, m * k)).astype(real), random.random((count, k * n)).astype(real), np.empty((count, m * n), real)
        lda, ldb = m if kind[0] == "t" else k, k if kind[1] == "t" else n
        flags = [ctypes.c_int(x) for x in (101, 112 if kind[0] == "t" else 111, 112 if kind[1] == "t" else 111, m, n, k)]
        calls = [
            flags + [scalar(1), ctypes.c_void_p(a[i].ctypes.data), ctypes.c_int(lda), ctypes.c_void_p(b[i].ctypes.data),
                     ctypes.c_int(ldb), scalar(0), ctypes.c_void_p(c[i].ctypes.data), ctypes.c_int(n)]
            for i in range(count)
        ]

        def run(_kept=(a, b, c)):
            for arguments in calls:
                call(*arguments)

        return run

    serve(product)


def serve(product):
    for line in sys.stdin:
        kind, count, m, n, k, dtype, ms = line.split()
        print(timed(product(kind, int(count), int(m), int(n), int(k), dtype), float(ms)), flush=True)
        time.sleep(0.003)  # until threads that look for more work have gone to sleep


class Side:
    def __init__(self, command, **settings):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **settings})

    def ask(self, product, dtype, ms):
        self.process.stdin.write(" ".join(str(x) for x in product) + f" {dtype} {ms}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"{self.process.args}: ended")
        time.sleep(0.004)
        return float(answer)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def start_sides(options, threads):
    count = str(threads)
    extra = dict(pair.split("=", 1) for pair in options.env)
    sides = {"trek": Side([options.program], TREK_THREADS=count, **extra)}
    own = [sys.executable, os.path.abspath(__file__)]
    if not options.no_torch:
        sides["PyTorch"] = Side(own + ["--serve-torch", count], OMP_NUM_THREADS=count)
    if options.blas:
        one = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")}
        sides["BLAS"] = Side(own + ["--serve-blas", options.blas], MKL_THREADING_LAYER="SEQUENTIAL", **one)
    return sides


def measure(options, threads):
    sides = start_sides(options, threads)
    products = [p for shape in options.shapes for p in (batched_products(shape) if " " in shape else linear_products(shape, options.only))]
    rows = []
    print(f"\n{threads} thread(s), {options.dtype}: GFLOP/s (medians); PyTorch's time / trek's, median of {options.turns} turns")
    for name, product in products:
        times = {side: [] for side in sides}
        for _ in range(options.turns):
            for side in sides:
                times[side].append(sides[side].ask(product, options.dtype, options.ms))
        flops = 2.0 * product[1] * product[2] * product[3] * product[4]
        text = "  ".join(f"{side} {flops / statistics.median(t):7.1f}" for side, t in times.items())
        ratios = {side: statistics.median(b / a for a, b in zip(times["trek"], times[side])) for side in sides if side != "trek"}
        rows.append((name, ratios, flops / statistics.median(times["trek"])))
        print(f"  {name:28s} {text}   " + "  ".join(f"{side}: {r:.2f}" for side, r in ratios.items()), flush=True)
    for side in sides.values():
        side.close()
    return rows


def summary(rows, threads, peak):
    for side in rows[0][1] if rows else ():
        slow = [f"{name} ({ratios[side]:.2f})" for name, ratios, _ in rows if ratios[side] < 0.97]
        mean = statistics.geometric_mean(ratios[side] for _, ratios, _ in rows)
        print(f"{threads} thread(s), beside {side}: geometric mean {mean:.3f}; {len(slow)} of {len(rows)} below 0.97" +
              (": " + ", ".join(slow) if slow else ""))
    if peak and rows:
        print(f"{threads} thread(s): best {max(rate for _, _, rate in rows) / (peak * threads):.2f} of the FMA peak")


def main():
    if sys.argv[1:2] == ["--serve-torch"]:
        return serve_torch(int(sys.argv[2]))
    if sys.argv[1:2] == ["--serve-blas"]:
        return serve_blas(sys.argv[2])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--dtype", default="f32", choices=["f32", "f64", "bf16", "f16"])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--ms", type=float, default=8)
    parser.add_argument("--shapes", help="comma-separated; default: all")
    parser.add_argument("--only", default="forward,dx,dw")
    parser.add_argument("--blas")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--peak", type=float, help="GFLOP/s of one core, for the share of it")
    parser.add_argument("--env", nargs="*", default=[])
    options = parser.parse_args()
    options.shapes = options.shapes.split(",") if options.shapes else LINEAR + BATCHED
    options.only = options.only.split(",")
    print("load", os.getloadavg()[0])
    results = [(threads, measure(options, threads)) for threads in (int(x) for x in options.threads.split(","))]
    print()
    for threads, rows in results:
        summary(rows, threads, options.peak)
    return 0


if __name__ == "__main__":
    sys.exit(main())
