# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own samples: the inputs that its test suite has for each of its operators (op_db), as cases of trek's functions.

A sample is taken where the function's parameters can be filled from its arguments, and where PyTorch's counterpart, called with
those, gives what the operator itself gives: then the arguments mean the same. What is not taken is counted by its reason."""
import ctypes
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
from headers import ZERO
from trek import NAME_OF, headers

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
KEYWORDS = {"dims": ("dim", "dims", "axis"), "axis": ("dim",), "p": ("p", "ord"), "y": ("other",), "variance": ("var",), "low": ("min", "min_val"),
            "high": ("max", "max_val"), "order": ("ord",), "classes": ("num_classes",), "kernel": ("kernel_size",), "scale": ("scale_factor",),
            "recompute_scale": ("recompute_scale_factor",), "labels": ("target",), "unit_diagonal": ("unitriangular",), "slope": ("negative_slope",),
            "momentum": ("momentum",), "offset": ("offset", "diagonal"), "diagonal": ("diagonal", "k"), "indices": ("indices_or_sections", "indices"),
            "exclude_padding": ("count_include_pad",), "rates": ("log_input",), "per_element": ("reduction",)}
# Arguments that PyTorch's functions of C++ take by position, behind the tensors.
ORDERS = {"max_pool": ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"),
          "avg_pool": ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
          "conv_transpose": ("stride", "padding", "output_padding", "groups", "dilation"), "conv": ("stride", "padding", "dilation", "groups"),
          "unfold": ("kernel_size", "dilation", "padding", "stride"), "interpolate": ("size", "scale_factor", "mode", "align_corners"),
          "gaussian_nll_loss": ("full", "eps", "reduction"), "quantile": ("dim", "keepdim", "interpolation"), "nanquantile": ("dim", "keepdim", "interpolation"),
          "fft": ("n", "dim", "norm"), "pad": ("pad", "mode", "value")}
# What says only how many results there are; the first one is compared. Their order, where PyTorch leaves it open, is ours.
RESULTS = ("return_inverse", "return_counts", "sorted")
WORDS = {"trek_reduction": {"mean": 0, "sum": 1, "amax": 2, "amin": 3, "prod": 4, "none": 6, "batchmean": 0}, "trek_fft_norm": {None: 0, "backward": 0},
         "trek_interpolation": {"linear": 0, "lower": 1, "higher": 2, "midpoint": 3, "nearest": 4},
         "trek_interpolate_mode": {"nearest": 0, "nearest-exact": 1, "linear": 2, "bilinear": 2, "trilinear": 2, "bicubic": 3, "area": 4}}
WORDS["trek_pad_mode"] = {"constant": 0, "reflect": 1, "replicate": 2, "circular": 3}
WORDS["trek_matrix_order"] = {"fro": 0, "nuc": 1, 2: 2, -2: 3, 1: 4, -1: 5, math.inf: 6, -math.inf: 7}
WORDS["trek_fft_norm"].update(ortho=1, forward=2)
# What PyTorch takes where an argument is missing; the one is right with which PyTorch's own results are those of the counterpart.
GUESSES = ({}, {"dim": -1, "eps": 1e-5, "p": 2, "value": 1.0, "alpha": 1.0, "beta": 1.0, "momentum": 0.1, "offset": 0, "diagonal": 0, "n": 0, "lambda": 0.5,
                "low": -1.0, "high": 1.0, "slope": 0.01, "correction": 1.0, "dim1": 0, "dim2": 1, "start": 0, "end": -1, "classes": -1, "base": 0.0},
           {"dim": 0, "eps": 1e-6, "p": 2, "value": 0.0, "n": 1, "dims": [], "low": -math.inf, "high": math.inf, "rtol": 1e-5, "atol": 1e-8, "correction": 0.0},
           {"dim": 1, "eps": 1e-12, "p": 2, "low": 0.0, "high": 0.0}, {"dim": 1, "eps": 1e-8}, {"dim": -1, "n": 1, "dx": 1.0, "value": math.nan})
INVERTED = ("exclude_padding", "rates")  # false here where PyTorch's is true


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


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_whole(value):
    return isinstance(value, int) and not isinstance(value, bool)


def is_tensor(value):
    return isinstance(value, torch.Tensor)


def is_list(value):
    return isinstance(value, (list, tuple)) and all(map(is_whole, value))


def order_of(op):
    """Names of the arguments that follow the tensors."""
    name = op.name.rsplit(".", 1)[-1]
    if op.name == "unfold":  # of a tensor
        return ("dimension", "size", "step")
    return next((names for key, names in ORDERS.items() if name.startswith(key) or key == "fft" and key in name), ())


class Binding:
    """Arguments of a sample, in the order in which a function takes them. guess: numbers that PyTorch has where a sample has none."""

    def __init__(self, op, sample, guess):
        self.values, self.named = [sample.input, *sample.args], dict(sample.kwargs)
        self.tensors, self.args, self.guess, self.guessed = [], {}, guess, False
        order, first = order_of(op), 0
        while order and first < len(self.values) and (self.values[first] is None or is_tensor(self.values[first])):
            first += 1
        if order and len(self.values) - first <= len(order):
            self.named.update(zip(order, self.values[first:]))
            del self.values[first:]
        if "side" in self.named and self.named["side"] is not None:
            self.named["right"] = self.named.pop("side") == "right"
        for name in RESULTS:
            self.named.pop(name, None)

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
        if name in self.guess and fits(self.guess[name]):
            self.guessed = True
            return self.guess[name]
        likely = [key for key, value in self.named.items() if fits(value)]
        if default is NotTaken and len(likely) == 1:
            return self.named.pop(likely[0])
        if default is NotTaken:
            raise NotTaken("arguments that the function does not take")
        return default

    def whole(self, name):
        """A number; of a list of sizes the next one, and of the dimensions of a norm how many there are."""
        for holder, key in [(self.named, k) for k in ("output_size", "normalized_shape") if k in self.named] + ([(self.values, 0)] if self.values else []):
            if is_list(holder[key]) and name in ("depth", "height", "width", "length") and len(holder[key]) > 0:
                first, *rest = holder[key]
                holder[key] = rest
                if not rest:
                    holder.pop(key)
                return first
            if is_list(holder[key]) and name == "dims":
                return len(holder.pop(key))
        return self.next(name, is_whole)

    def word(self, kind, name):
        value = self.next(name, lambda v: isinstance(v, str) or v is None or is_number(v) and kind == "trek_matrix_order", None)
        if value not in WORDS[kind] and value is not None:
            raise NotTaken(f"a choice that trek does not have: {value}")
        return WORDS[kind].get(value, 0)

    def fill(self, kind, name):
        if kind == "trek_var *":
            value = self.next(name, is_tensor, None)
            return None if value is None else self.tensor(value)
        if kind == "trek_var * const *":
            return [self.tensor(v) for v in self.next(name, lambda v: isinstance(v, (list, tuple)) and all(map(is_tensor, v)))]
        if kind == "trek_dims_list":
            value = self.next(name, lambda v: v is None or is_whole(v) or is_list(v), ())
            return [value] if is_whole(value) else list(value or ())
        if kind == "bool":
            return bool(self.next(name, lambda v: isinstance(v, bool), False))
        if kind in ("int", "int64_t"):
            return self.whole(name)
        if kind == "double":
            return float(self.next(name, is_number))
        if kind == "trek_shape":
            value = list(self.next(name, is_list))
            if value.count(-1) == 1 and is_tensor(self.first) and name != "repeats":
                others = math.prod(v for v in value if v != -1)
                value[value.index(-1)] = self.first.numel() // others if others else 0
            if any(size < 0 for size in value):
                raise NotTaken("a size that is to be found out")
            return value
        if kind in WORDS:
            return self.word(kind, name)
        if kind.endswith("_opts *"):
            return self.options(kind.split()[1])
        if kind == "trek_var * *":
            return None
        raise NotTaken("parameters that are drawn only: " + kind)

    def options(self, kind):
        """Every field, as draw.py gives them; None where the sample has none of them."""
        given = {}
        for field, held in headers.structs[kind]._fields_:
            keys = [key for key in (field, *KEYWORDS.get(field, ())) if key in self.named]
            given[field] = self.option(field, held, self.named.pop(keys[0])) if keys else EMPTY(held)
            if field == "mode" and keys:
                words = WORDS["trek_interpolate_mode" if "interpolate" in kind else "trek_reduction"]
                if given[field] not in words and given[field] != "max":
                    raise NotTaken(f"a choice that trek does not have: {given[field]}")
                given[field] = words.get(given[field], 2)
        if isinstance(given.get("padding"), str):  # a kind
            given["padding_kind"], given["padding"] = ("valid", "same").index(given["padding"]) + 1, EMPTY(dict(headers.structs[kind]._fields_)["padding"])
        return given if any(v not in (None, 0, False) and v != [0] * 3 and v != [0] * 2 and v != [0] for v in given.values()) else None

    def option(self, field, held, value):
        if is_tensor(value):
            return self.tensor(value)
        if field == "reduction":
            return WORDS["trek_reduction"][value]
        if field == "per_element":
            self.named["reduction"] = value
            return value == "mean"
        if hasattr(held, "_length_"):
            if isinstance(value, str):
                return value
            value = list(value) if isinstance(value, (list, tuple)) else [] if value is None else [value] * held._length_
            value = value * held._length_ if len(value) == 1 else value
            value = [v if v else ZERO for v in value] if any(value) else [0] * len(value)
            return value + [0] * (held._length_ - len(value))
        if field == "ignore_index":
            return {-100: 0, 0: ZERO}.get(value, value)
        if field in INVERTED:
            return not value
        return EMPTY(held) if value is None else ZERO if is_number(value) and value == 0 and field in ("margin", "eps") else value

    def bind(self, function):
        self.first = self.values[0] if self.values else None
        for kind, name in function.params:
            if name not in ("count", "capacity"):
                self.args[name] = self.fill(kind, name)
        if self.values or any(v not in (None, False) for v in self.named.values() if not is_tensor(v)) or any(map(is_tensor, self.named.values())):
            raise NotTaken("options that the function does not take")
        return self


def EMPTY(held):
    return [0] * held._length_ if hasattr(held, "_length_") else None if held is ctypes.c_void_p else False if held is ctypes.c_bool else 0


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
    some = {name for name in RESULTS if name in sample.kwargs}
    try:
        want = flat(op.op(sample.input, *sample.args, **sample.kwargs))
        got = flat(counterpart(case["name"])(*arguments(case, FUNCTIONS[case["name"]], tensor, lambda kind, o: o)))
    except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, AttributeError, KeyError, Refuses):
        return False
    return alike(want, got) or bool(some) and alike(want[:1], got[:1])


def case_of(op, sample, name):
    if not isinstance(sample.input, (torch.Tensor, list, tuple)):
        raise NotTaken("no tensor")
    for guess in GUESSES:
        made = Binding(op, sample, guess).bind(FUNCTIONS[name])
        if not made.tensors:
            raise NotTaken("no tensor")
        case = {"kind": "op", "name": name, "tensors": made.tensors, "args": made.args, "plan": dict(PLAN)}
        if not any(t["grad"] for t in made.tensors):
            case["plan"].update(create=False, second=False, seed_grad=False)
        if means_the_same(op, sample, case):
            return case
        if not made.guessed:
            break
    raise NotTaken("the function's arguments mean something else")


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
