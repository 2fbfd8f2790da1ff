# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own samples: the inputs that its test suite has for each of its operators (op_db), as cases of trek's functions.

A sample is taken where the function's parameters can be filled from its arguments, and where PyTorch's counterpart, called with
those, gives what the operator itself gives: then the arguments mean the same. What is not taken is counted by its reason."""
import importlib.util
import math
import sys
import types
import unittest
import warnings

import torch

import differences
from case import arguments, is_ref
from counterparts import ELSEWHERE, Refuses, counterpart
from ops import FUNCTIONS
from trek import NAME_OF

MOST_NUMBERS = 600  # of a case: as many as one can write down
DTYPES = (torch.float64, torch.float32, torch.int64)
PLAN = {"head": "seed", "way": "leaf", "create": True, "retain": False, "second": True, "twice": False, "seed_grad": True, "seed": 1,
        "seed_layout": False, "write": False, "shared": None}
# Operators whose function has another name here; others have their own, or that with "trek_..._with" for options.
RENAMED = {"cat": ("cat",), "nn.functional.conv2d": ("conv2d",), "linalg.det": ("det",), "linalg.inv": ("inverse", "inv"),
           "linalg.slogdet": ("slogdet",), "linalg.vector_norm": ("norm",), "linalg.matrix_exp": ("matrix_exp",), "true_divide": ("div",),
           "multiply": ("mul",), "subtract": ("sub",), "max_binary": ("maximum",), "min_binary": ("minimum",), "concat": ("cat",),
           "special.erfcx": ("erfcx",), "nn.functional.mse_loss": ("mse_loss",), "movedim": ("movedim", "move_dims"), "std": ("std",), "var_mean": ("variance_mean",), "amax": ("max", "amax"),
           "amin": ("min", "amin"), "max_reduction_with_dim": ("max_with_indices",), "ne": ("ne",), "sgn": ("sign",), "clamp": ("clamp", "clamp_tensors"),
           "gather": ("gather",), "masked_fill": ("masked_fill",), "permute": ("permute",), "add": ("add", "add_scalar"), "sub": ("sub", "sub_scalar"),
           "mul": ("mul", "mul_scalar"), "div_no_rounding_mode": ("div", "div_scalar"), "pow": ("pow", "pow_scalar"),
           "gt": ("gt", "gt_scalar"), "lt": ("lt", "lt_scalar"), "ge": ("ge", "ge_scalar"), "le": ("le", "le_scalar"), "eq": ("eq", "eq_scalar")}
KEYWORDS = {"dims": ("dim", "dims", "axis"), "axis": ("dim",), "p": ("p", "ord"), "y": ("other",)}


class NotTaken(Exception):
    """Why a sample is no case."""


def databases():
    """op_db and module_db; None where this PyTorch has not brought its test suite along."""
    if importlib.util.find_spec("expecttest") is None:  # of which the databases need nothing
        sys.modules["expecttest"] = types.ModuleType("expecttest")
        sys.modules["expecttest"].TestCase = unittest.TestCase
    try:
        from torch.testing._internal.common_methods_invocations import op_db
        from torch.testing._internal.common_modules import module_db
    except ImportError as error:
        print(f"PyTorch's samples cannot be had: {error}")
        return None
    return op_db, module_db


def functions_of(op):
    name = op.name.rsplit(".", 1)[-1]
    names = (*RENAMED.get(op.name, ()), name, name + "_with")
    variant = op.variant_test_name
    names = (*((f"{op.name}_{variant}", *RENAMED.get(f"{op.name}_{variant}", ())) if variant else ()), *names)
    return [n for n in dict.fromkeys(names) if n in FUNCTIONS and n not in ELSEWHERE and counterpart(n) is not None]


# --- arguments -------------------------------------------------------------------------------------------------


class Binding:
    """Arguments of a sample, in the order in which a function takes them."""

    def __init__(self, sample):
        self.values, self.named = [sample.input, *sample.args], dict(sample.kwargs)
        self.tensors, self.args = [], {}

    def tensor(self, value):
        if value.dtype not in NAME_OF:
            raise NotTaken("a dtype that trek does not have")
        if value.layout != torch.strided or value.is_conj() or value.is_neg():
            raise NotTaken("a layout that trek does not have")
        if value.numel() > MOST_NUMBERS:
            raise NotTaken("large")
        numbers = value.detach().reshape(-1).tolist()
        self.tensors.append({"dtype": NAME_OF[value.dtype], "shape": list(value.shape), "layout": None, "values": numbers, "own": True,
                             "grad": value.requires_grad, "way": None})
        return {"tensor": len(self.tensors) - 1}

    def next(self, name, fits, default=NotTaken):
        for key in (name, *KEYWORDS.get(name, ())):
            if key in self.named and fits(self.named[key]):
                return self.named.pop(key)
        if self.values and fits(self.values[0]):
            return self.values.pop(0)
        if default is NotTaken:
            raise NotTaken("arguments that the function does not take")
        return default

    def fill(self, kind, name):
        number = lambda v: isinstance(v, (int, float)) and not isinstance(v, bool)
        whole = lambda v: isinstance(v, int) and not isinstance(v, bool)
        is_tensor = lambda v: isinstance(v, torch.Tensor)
        if kind == "trek_var *":
            value = self.next(name, is_tensor, None)
            return None if value is None else self.tensor(value)
        if kind == "trek_var * const *":
            return [self.tensor(v) for v in self.next(name, lambda v: isinstance(v, (list, tuple)) and all(map(is_tensor, v)))]
        if kind == "trek_dims_list":
            value = self.next(name, lambda v: v is None or whole(v) or isinstance(v, (list, tuple)) and all(map(whole, v)), ())
            return [value] if whole(value) else list(value or ())
        if kind == "bool":
            return bool(self.next(name, lambda v: isinstance(v, bool), False))
        if kind in ("int", "int64_t"):
            return self.next(name, whole)
        if kind == "double":
            return float(self.next(name, number))
        if kind == "trek_shape":
            value = self.next(name, lambda v: isinstance(v, (list, tuple)) and all(map(whole, v)))
            if any(size < 0 for size in value):
                raise NotTaken("a size that is to be found out")
            return list(value)
        if kind.endswith("_opts *") or kind == "trek_var * *":
            return None
        raise NotTaken("parameters that are drawn only: " + kind)

    def bind(self, function):
        for kind, name in function.params:
            if name not in ("count", "capacity"):
                self.args[name] = self.fill(kind, name)
        if self.values or any(v not in (None, False) for v in self.named.values() if not isinstance(v, torch.Tensor)) or \
                any(isinstance(v, torch.Tensor) for v in self.named.values()):
            raise NotTaken("options that the function does not take")
        return self


# --- whether they mean the same --------------------------------------------------------------------------------------


def flat(made):
    made = list(made) if isinstance(made, (list, tuple)) else [made]
    return [m for m in made if isinstance(m, torch.Tensor)]


def alike(a, b):
    if len(a) != len(b):
        return False
    return all(x.shape == y.shape and torch.allclose(x.detach().double(), y.detach().double(), rtol=1e-4, atol=1e-5, equal_nan=True) for x, y in zip(a, b))


def means_the_same(op, sample, case):
    tensors = [torch.tensor([float(v) if t["dtype"] in ("f32", "f64") else v for v in t["values"]], dtype={v: k for k, v in NAME_OF.items()}[t["dtype"]])
               .reshape(t["shape"]) for t in case["tensors"]]
    tensor = lambda ref: None if ref is None else tensors[ref["tensor"]] if is_ref(ref) else ref
    try:
        want = flat(op.op(sample.input, *sample.args, **sample.kwargs))
        got = flat(counterpart(case["name"])(*arguments(case, FUNCTIONS[case["name"]], tensor, lambda kind, o: o)))
    except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, AttributeError, KeyError, Refuses):
        return False
    return alike(want, got)


def case_of(op, sample, name):
    if not isinstance(sample.input, (torch.Tensor, list, tuple)):
        raise NotTaken("no tensor")
    made = Binding(sample).bind(FUNCTIONS[name])
    if not made.tensors:
        raise NotTaken("no tensor")
    case = {"kind": "op", "name": name, "tensors": made.tensors, "args": made.args, "plan": dict(PLAN)}
    if not any(t["grad"] for t in made.tensors):
        case["plan"].update(create=False, second=False, seed_grad=False)
    if not means_the_same(op, sample, case):
        raise NotTaken("the function's arguments mean something else")
    return case


def drawn(op, dtype):
    grads = dtype.is_floating_point and op.supports_autograd
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(op.sample_inputs("cpu", dtype, requires_grad=grads))


class Samples:
    """All cases, and how many samples are none, by reason, with the operators that they are of."""

    def __init__(self):
        self.cases, self.reasons, self.taken = [], {}, set()

    def leave(self, reason, name):
        self.reasons.setdefault(reason, {}).setdefault(name, 0)
        self.reasons[reason][name] += 1

    def take(self, op, sample):
        reason = None
        for name in functions_of(op):
            try:
                self.cases.append(case_of(op, sample, name))
                self.taken.add(op.formatted_name)
                return
            except NotTaken as error:
                reason = str(error)
        self.leave(reason, op.formatted_name)

    def gather(self, op_db, module_db):
        for op in op_db:
            if not functions_of(op):
                self.leave("operators that are no function here", op.formatted_name)
                continue
            for dtype in DTYPES:
                if dtype not in op.dtypes:
                    continue
                try:
                    samples = drawn(op, dtype)
                except Exception as error:  # whatever PyTorch's own suite needs there
                    self.leave(f"samples that cannot be made: {type(error).__name__}", op.formatted_name)
                    continue
                for sample in samples:
                    self.take(op, sample)
        for module in module_db:
            self.leave("modules: layers are drawn by layers.py, with PyTorch's beside them", module.name)
        return self

    def table(self):
        for reason, names in sorted(self.reasons.items(), key=lambda item: -sum(item[1].values())):
            few = sorted(names)[:6]
            print(f"  {sum(names.values()):6d} of {len(names):3d}: {reason} ({', '.join(few)}{', ...' if len(names) > len(few) else ''})")


def run(check, describe, only=()):
    """Runs all; (passed, failed, both refused)."""
    found = databases()
    if found is None:
        return 0, 0, 1
    samples = Samples().gather(*found)
    print(f"PyTorch's samples: {len(samples.cases)} cases of {len(samples.taken)} operators; not taken are")
    samples.table()
    done = failed = refused = known = 0
    seen = {}
    for case in samples.cases:
        if only and case["name"] not in only:
            continue
        complaint, both = check(case)
        refused += both
        if complaint and differences.known(case, complaint):
            known += 1
        elif complaint:
            failed += 1
            key = (case["name"], complaint[0])
            seen[key] = seen.get(key, 0) + 1
            if seen[key] <= 2:
                print(f"DIFFERENCE {case['name']}: {complaint[0]}: {complaint[1]}\n    {describe(case)}\n", flush=True)
        else:
            done += not both
    print(f"PyTorch's samples: {known} known differences")
    return done, failed, refused
