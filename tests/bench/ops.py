#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every public op of the table beside PyTorch's, in turns: what is slower, and the geometric mean of the ratios.

    ops.py --library build/libtrek.so [--only REGEX] [--layout NAME,...] [--dtype NAME,...] [--elements N,...]
           [--threads N] [--seconds S] [--part K/N] [--slower RATIO] [--all] [--json FILE]

Layouts: contiguous, transposed, strided (every second column), expanded (one column repeated: the last input of several).
Ops along a dimension take the last; `sum:0` is the sum over the first, `sum:all` that over all (--dims chooses).
Both sides are called from Python; what calls through ctypes with the same arguments cost is measured and taken off trek's time, for
each case. A case is measured in rounds of both sides, its ratio is that of the best rounds. What one of the sides refuses is left out. Cases that do not fit into
--seconds are counted; --part 2/5 runs the second of five slices. Needs PyTorch.
"""
import argparse
import ctypes
import itertools
import json
import math
import os
import pathlib
import re
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "differential"))
sys.dont_write_bytecode = True

LAYOUTS = ("contiguous", "transposed", "strided", "expanded")
NAMES = ("f32", "f64", "bf16", "f16", "i64", "i32", "u8", "bool")
INDICES, SHAPES = ("index", "indices", "labels"), {1000000: (1000, 1000), 1000: (25, 40)}
DOUBLES = {"low": -0.5, "high": 0.5, "beta": 1.0, "threshold": 20.0, "negative_slope": 0.01, "alpha": 1.0, "p": 2.0, "eps": 1e-5,
           "momentum": 0.1, "value": 2.0}
# Views, copies to where it is, and what no plain tensor of two dimensions is given to.
LEFT_OUT = {"reshape", "flatten", "expand", "permute", "transpose", "squeeze", "unsqueeze", "narrow", "select", "to", "split", "chunk",
            "conv2d", "conv_transpose2d", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "attention", "lstm", "gru", "batch_norm",
            "add_layer_norm", "linear_activation", "linear_cross_entropy", "cross_entropy_with", "loss_weight", "loss_set_weight",
            "accuracy", "one_hot", "contiguous",
            "pad", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "conv1d", "conv_transpose1d", "max_pool1d", "avg_pool1d",
            "adaptive_avg_pool1d", "conv3d", "conv_transpose3d", "max_pool3d", "avg_pool3d", "adaptive_avg_pool3d"}
# Integers of which 0, the default here, would leave nothing to do.
INTEGERS = {("diff", "n"): 1, ("matrix_power", "n"): 3, ("polygamma", "n"): 1, ("round_decimals", "decimals"): 2}
# PyTorch's clone keeps the order in memory; trek's is contiguous.
ALIKE = {"clone": lambda x: x.clone(memory_format=torch.contiguous_format)}
HALVED = {"matmul": "a product of squares of 1000 is no op of 1 M elements", "linear": ""}


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="build/libtrek.so")
    parser.add_argument("--only", default="")
    parser.add_argument("--layout", default=",".join(LAYOUTS))
    parser.add_argument("--dtype", default=",".join(NAMES))
    parser.add_argument("--elements", default="1000000,1000")
    parser.add_argument("--dims", default="1,0,all", help="that ops along dimensions are given")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=50)
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--slower", type=float, default=1.1)
    parser.add_argument("--all", action="store_true", help="print every case")
    parser.add_argument("--json")
    return parser.parse_args()


OPTIONS = options()
os.environ.setdefault("TREK_THREADS", str(OPTIONS.threads))
os.environ.setdefault("OMP_NUM_THREADS", str(OPTIONS.threads))

import torch  # noqa: E402

from counterparts import counterpart  # noqa: E402
from ops import FUNCTIONS  # noqa: E402
from trek import DTYPE_NUMBER, DTYPES, Library, Refused, shape, vector  # noqa: E402

torch.set_num_threads(OPTIONS.threads)
torch.manual_seed(1)


def values(dtype, sizes):
    if dtype.is_floating_point:
        return (torch.rand(sizes) * 1.8 - 0.9).to(dtype)
    return torch.randint(1, 2 if dtype == torch.bool else 5, sizes).to(dtype)


def laid_out(dtype, sizes, layout, positive=False):
    """(memory, view)"""
    rows, columns = sizes
    made = {"contiguous": (rows, columns), "transposed": (columns, rows), "strided": (rows, 2 * columns), "expanded": (rows, 1)}[layout]
    base = values(dtype, made)
    base = base.abs() + 0.1 if positive and dtype.is_floating_point else base
    view = {"contiguous": lambda t: t, "transposed": lambda t: t.t(), "strided": lambda t: t[:, ::2], "expanded": lambda t: t.expand(sizes)}[layout](base)
    return base, view


class NoValue(Exception):
    """What this program does not make up: strings, results through pointers."""


class Case:
    """One op on one kind of input: a call for each side."""

    def __init__(self, lib, name, dim, dtype, layout, elements):
        self.key = {"op": name + (f":{dim}" if dim != "1" else ""), "dtype": dtype, "layout": layout, "elements": elements}
        self.lib, self.function, self.dims, sizes = lib, FUNCTIONS[name], [] if dim == "all" else [int(dim)], SHAPES[elements]
        self.keep, ours, theirs = [], [], []
        tensors = [p for k, p in self.function.params if k == "trek_var *"]
        for kind, param in self.function.params:
            self.argument(name, kind, param, DTYPES[dtype], layout, sizes, tensors, ours, theirs)
        self.ours, self.theirs = ours, theirs
        self.trek, self.torch = getattr(lib, name), ALIKE.get(name) or counterpart(name)
        self.overhead = 0.0

    def argument(self, name, kind, param, dtype, layout, sizes, tensors, ours, theirs):
        if kind == "trek_var *":
            base, view = self.tensor(name, param, dtype, layout, sizes, tensors)
            ours.append(self.var(base, view))
            theirs.append(view)
        elif kind == "trek_var * const *":
            pairs = [laid_out(dtype, sizes, layout) for _ in range(2)]
            held = vector([self.var(*pair) for pair in pairs])
            self.keep.append(held)
            ours.append(held)
            theirs.append([view for _, view in pairs])
        elif param == "count":
            ours.append(2)
        elif kind == "trek_dims_list":
            ours.append(shape(self.dims))
            theirs.append(self.dims)
        elif kind == "trek_reduction":
            ours.append(0)
            theirs.append(0)
        elif kind.endswith("_opts *"):
            ours.append(None)
            theirs.append(None)
        elif kind == "trek_dtype":
            to = "f32" if dtype != torch.float32 else "bf16"
            ours.append(DTYPE_NUMBER[to])
            theirs.append(DTYPE_NUMBER[to])
        else:
            value = {"double": DOUBLES.get(param, 0.5), "bool": False, "int": 1, "int64_t": -1 if param == "padding_idx" else INTEGERS.get((name, param), 0)}.get(kind)
            if value is None:
                raise NoValue(kind)
            if param == "dim":
                value = self.dims[0]
            if name == "dropout":
                value = {"p": 0.5, "training": True}[param]
            ours.append(value)
            theirs.append(value)

    def tensor(self, name, param, dtype, layout, sizes, tensors):
        if param in INDICES:
            shaped = sizes if name in ("gather", "scatter_add") else sizes[1:] if name.startswith("index_") else sizes[:1]
            base = torch.randint(0, sizes[0] if name == "embedding" else sizes[1], shaped)
            return base, base
        if param in ("condition", "mask"):
            base = torch.rand(sizes) < 0.5
            return base, base
        if param in ("weight", "bias") and "norm" in name:
            base = values(dtype, sizes[1:])
            return base, base
        if layout == "expanded" and (name.endswith("_") and param == "x" or len(tensors) > 1 and param != tensors[-1]):
            layout = "contiguous"
        positive = name in ("log", "log2", "log10", "sqrt", "rsqrt", "pow", "div", "remainder") or name.startswith("pow")
        return laid_out(dtype, sizes, layout, positive)

    def var(self, base, view):
        tensor = self.lib.view(base, list(view.shape), list(view.stride()), 0)
        made = self.lib.ok(self.lib.var_new(tensor, False), "var_new")
        self.lib.tensor_release(tensor)
        return made

    def calls(self, count, function, begin_scope, end_scope):
        """Seconds of one."""
        arguments = self.ours
        begin = time.perf_counter()
        for _ in range(count):
            scope = begin_scope()
            function(*arguments)
            end_scope(scope)
        return (time.perf_counter() - begin) / count

    def ctypes_price(self):
        """Seconds of the same calls where none does anything."""
        idle = [idle_twin(self.lib, f) for f in (self.trek, self.lib.scope_begin, self.lib.scope_end)]
        return min(self.calls(50, *idle) for _ in range(10))

    def run_trek(self, count):
        spent = self.calls(count, self.trek, self.lib.scope_begin, self.lib.scope_end)
        if self.lib.error_status():
            raise self.lib.refusal(self.function.name)
        return spent - self.overhead

    def run_torch(self, count):
        function, arguments = self.torch, self.theirs
        begin = time.perf_counter()
        for _ in range(count):
            function(*arguments)
        return (time.perf_counter() - begin) / count

    def measure(self):
        """[seconds of trek, of PyTorch]: the best of rounds in turns; None: one of the sides refuses."""
        try:
            once = max(self.run_trek(1), self.run_torch(1), 1e-7)
        except (Refused, RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, OverflowError):
            self.lib.error_clear()
            return None
        once = max(min(once, max(self.run_trek(1), self.run_torch(1))), 1e-7)
        self.overhead = self.ctypes_price()
        count = max(1, min(300, int(1.5e-3 / once)))
        rounds = [(quiet(self.run_trek, count), quiet(self.run_torch, count)) for _ in range(3 if once > 5e-3 else 5)]
        return [max(min(r[0] for r in rounds), 1e-8), min(r[1] for r in rounds)]


def quiet(run, count):
    """With several threads those of the other side spin for milliseconds after their last work, and one's own wake up."""
    until = time.perf_counter() + (0.015 if OPTIONS.threads > 1 else 0)
    while time.perf_counter() < until:
        run(1)
    return run(count)


def idle_twin(lib, function):
    """A function of the same type that does nothing: trek_error_status looks at no argument."""
    address = ctypes.cast(lib.error_status, ctypes.c_void_p).value
    return ctypes.CFUNCTYPE(function.restype, *function.argtypes)(address)


def dims_of(name):
    """The dimensions that an op is given in turn; one of no meaning for those that take none."""
    wanted, kinds = OPTIONS.dims.split(","), {param: kind for kind, param in FUNCTIONS[name].params}
    if "dims" in kinds:
        return [dim for dim in wanted if name != "flip" or dim != "all"]
    return [dim for dim in wanted if dim != "all"] if "dim" in kinds else ["1"]


def cases():
    only = re.compile(OPTIONS.only)
    for name in FUNCTIONS:
        if name in LEFT_OUT or (OPTIONS.only and not only.fullmatch(name)) or counterpart(name) is None:
            continue
        for dim, elements, dtype, layout in itertools.product(dims_of(name), map(int, OPTIONS.elements.split(",")),
                                                              OPTIONS.dtype.split(","), OPTIONS.layout.split(",")):
            if not (elements > 1000 and name in HALVED) and not (layout != "contiguous" and name == "embedding"):
                yield name, dim, dtype, layout, elements


def report(found, skipped):
    for case in sorted(found, key=lambda c: -c["ratio"]):
        if OPTIONS.all or case["ratio"] > OPTIONS.slower:
            print(f"{case['ratio']:7.2f}  {case['op']:18} {case['dtype']:5} {case['layout']:11} {case['elements']:8}  "
                  f"{case['trek'] * 1e6:10.1f} {case['torch'] * 1e6:10.1f} us")
    if found:
        mean = math.exp(sum(math.log(c["ratio"]) for c in found) / len(found))
        slower = sum(c["ratio"] > OPTIONS.slower for c in found)
        print(f"{len(found)} cases, geometric mean {mean:.3f}, {slower} above {OPTIONS.slower}; {skipped} not reached; "
              f"threads {OPTIONS.threads}, load {os.getloadavg()[0]:.1f}, PyTorch {torch.__version__}")


def main():
    lib = Library(OPTIONS.library)
    part, parts = map(int, OPTIONS.part.split("/"))
    wanted = list(cases())[part - 1::parts]
    begin, found, skipped = time.monotonic(), [], 0
    lib.no_grad_begin()
    for wanted_case in wanted:
        if time.monotonic() - begin > OPTIONS.seconds:
            skipped += 1
            continue
        try:
            case = Case(lib, *wanted_case)
        except NoValue:
            continue
        times = case.measure()
        if times:
            found.append({**case.key, "trek": times[0], "torch": times[1], "ratio": times[0] / times[1]})
        lib.keep.clear()
    lib.no_grad_end()
    report(found, skipped)
    if OPTIONS.json:
        pathlib.Path(OPTIONS.json).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
