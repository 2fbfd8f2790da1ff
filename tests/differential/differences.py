# SPDX-License-Identifier: Apache-2.0
"""Where trek differs from PyTorch on purpose: the one table of it. Each entry says where the difference is written,
a header and words of its comment, and the fuzzer fails if they are not there."""
import re
from dataclasses import dataclass
from typing import Callable

from headers import text_of


@dataclass
class Difference:
    functions: str            # a regular expression for the function's name
    part: str                 # of the complaint: refusal, value, gradient, second, rules; or a regular expression of them
    text: str                 # a regular expression found in the complaint
    header: str
    phrase: str               # words of the comment there
    when: Callable = lambda case: True


def inputs(case, *names):
    return [case["tensors"][case["args"][n]["tensor"]] for n in names if isinstance(case["args"].get(n), dict) and "tensor" in case["args"][n]]


def nothing(case):
    """A loss over no elements, or over labels that are all ignored."""
    from case import Input
    labels = inputs(case, "labels")
    opts = case["args"].get("opts") or {"ignore_index": 0}
    ignore = {0: -100, -2**63: 0}.get(opts["ignore_index"], opts["ignore_index"])
    if labels and labels[0]["dtype"][0] in "iu" and bool((Input(labels[0]).values.long() == ignore).all()):
        return True
    return any(0 in t["shape"] for t in case["tensors"])


TABLE = [
    Difference("nll_loss|cross_entropy.*|linear_cross_entropy|mse_loss|l1_loss|smooth_l1_loss|bce_with_logits|kl_div", "value|gradient|second", "nan",
               "autograd/ops.h", "0 with gradients of 0 over nothing", nothing),
    Difference("attention", "value|gradient|second", "nan", "autograd/ops.h", "A query that sees no key gives 0"),
    Difference("mean|var_of|std", "refusal", "PyTorch alone refuses.*(Long|Int|Byte|Bool)", "autograd/ops.h", "integer inputs of the float functions give f32"),
]

# What counterparts.py lets trek take and PyTorch does not, or the other way round.
ADAPTED = [
    ("autograd/ops.h", "index: 1-D, any integer dtype"),
    ("autograd/ops.h", "index: x's ndim, i64 or i32"),
    ("autograd/ops.h", "indices of any integer dtype and shape"),
    ("autograd/ops.h", "labels [N, ...] of any integer dtype"),
    ("autograd/ops.h", "labels [...] of any integer dtype"),
    ("autograd/ops.h", "convolution and pooling; x [N, C, H, W]"),
    ("autograd/ops.h", "logits [N, C, ...]"),
    ("autograd/ops.h", "x + branch (both of one shape)"),
    ("autograd/ops.h", "the loss of 16-bit x is f32"),
    ("autograd/ops.h", "UNSUPPORTED: a mask that requires a gradient"),
    ("autograd/ops.h", "i64; one dim or all; first of equals"),
    ("autograd/ops.h", "condition: bool"),
    ("nn/layers.h", "default the dtype's epsilon (f32's for 16-bit dtypes)"),
]

# PyTorch's own faults: calls that it fails in a way that nobody can mean.
FAULTS = [
    "Expected a proper Tensor but got None",          # double backward of native_layer_norm with an undefined input
    "INTERNAL ASSERT FAILED",
    "cannot reshape tensor of 0 elements",            # second derivatives of embedding over nothing
    "returned an invalid gradient",                   # scatter_add whose source is larger than the index
    "not implemented for '(Half|BFloat16|Bool|Byte)'",  # a kernel that the CPU lacks
    "derivative for aten::.* is not implemented",
]


def flat(text):
    return " ".join(re.sub(r"^\s*/?\*+/?", " ", text, flags=re.M).split())


def unwritten():
    """Entries whose words are not in the header."""
    places = [(d.header, d.phrase) for d in TABLE] + ADAPTED
    return [f"{header}: {phrase!r}" for header, phrase in dict.fromkeys(places) if flat(phrase) not in flat(text_of(header))]


def undefined(case):
    """Calls whose result is nobody's promise: floating numbers that an integer dtype does not have."""
    from trek import DTYPE_OF
    from case import Input
    if case["name"] not in ("cast", "copy_", "fill_"):
        return False
    target = DTYPE_OF.get(case["args"]["dtype"]) if case["name"] == "cast" else inputs(case, "x")[0]["dtype"]
    source = inputs(case, "y" if case["name"] == "copy_" else "x")[0]
    limit = {"i64": 2.0**62, "i32": 2.0**30, "u8": 255.0}.get(target)
    if limit is None:
        return False
    if case["name"] == "fill_":
        return not 0 <= case["args"]["value"] <= limit and (target == "u8" or not abs(case["args"]["value"]) <= limit)
    values = Input(source).values.double()
    return bool((~(values.abs() <= limit)).any() or (target == "u8" and (values < 0).any()))


UNDEFINED = Difference("cast|copy_|fill_", "value", "", "", "a number that the dtype does not have")


def known(case, complaint):
    """The entry that allows a complaint, or None."""
    part, text = complaint
    if part == "value" and case["kind"] == "op" and undefined(case):
        return UNDEFINED
    for d in TABLE:
        if re.fullmatch(d.functions, case["name"]) and re.fullmatch(d.part, part) and re.search(d.text, text) and d.when(case):
            return d
    return None


def fault(error):
    """Whether PyTorch's refusal is a fault of its own."""
    return error is not None and any(re.search(f, error[1]) for f in FAULTS)
