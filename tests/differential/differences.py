# SPDX-License-Identifier: Apache-2.0
"""Where trek differs from PyTorch on purpose: the one table of it. Each entry says where the difference is written,
a header and words of its comment, and the fuzzer fails if they are not there."""
import math
import re
from dataclasses import dataclass
from typing import Callable

import torch

from headers import ZERO, text_of


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


def has_nan(case):
    from case import Input
    return any(bool(Input(t).values.isnan().any()) for t in case["tensors"] if t["dtype"][0] in "fb" and t["dtype"] != "bool")


def has_zero(case):
    from case import Input
    return any(bool((Input(t).values == 0).any()) for t in case["tensors"])


def has_nan_or_infinity(case):
    return any(not_finite(t) for t in case["tensors"])


def nothing_varies(case):
    """Equal numbers, of which rounding makes PyTorch's deviation something."""
    from case import Input
    values, dims = Input(inputs(case, "x")[0]).values.double(), case["args"]["dims"]
    dims = [d % values.dim() for d in dims] if dims and values.dim() else list(range(values.dim()))
    return values.numel() > 0 and bool((values.amax(dims) == values.amin(dims)).any())


def short(case):
    """Vectors of length 0, or near, or of one number: rounding decides."""
    from case import Input
    found = [Input(t).values.double() for n in ("x", "y", "query", "key", "anchor", "positive", "negative") for t in inputs(case, n)]
    found = list(torch.broadcast_tensors(*found))
    eps, dim = case["args"].get("eps", 0), case["args"].get("dim", -1)
    found += [a - b + eps for a in found for b in found if a is not b]
    return any(t.numel() == 0 or t.dim() == 0 or t.shape[dim] == 1 or bool((t.norm(dim=dim) < 0.5).any()) for t in found)


def at_ends(case):
    """Probabilities of 0 and 1, or near."""
    from case import Input
    values = Input(inputs(case, "probabilities")[0]).values.double()
    return bool(((values < 1e-5) | (values > 1 - 1e-5)).any())


def nothing(case):
    """A loss over no elements, or over labels that are all ignored."""
    from case import Input
    labels = inputs(case, "labels")
    ignored = (case["args"].get("opts") or {}).get("ignore_index", 0)
    ignore = {0: -100, ZERO: 0}.get(ignored, ignored)
    if labels and labels[0]["dtype"][0] in "iu" and bool((Input(labels[0]).values.long() == ignore).all()):
        return True
    return any(0 in t["shape"] for t in case["tensors"])


def not_finite(tensor):
    from case import Input
    return not bool(Input(tensor).values.isfinite().all())


def near_a_bend(case):
    """A ReLU of a number that rounding may take to either side of 0."""
    from case import Input
    x, w = (Input(inputs(case, n)[0]).values.double() for n in ("x", "weight"))
    b = [Input(t).values.double() for t in inputs(case, "bias")]
    if case["args"]["activation"] != 1 or not x.numel() or not w.numel():
        return False
    product = torch.nn.functional.linear
    if "opts" in case["args"]:
        from counterparts import conv2d
        product = lambda x, w, b=None: conv2d(x, w, b, case["args"]["opts"])
    y, size = product(x, w, *b), product(x.abs(), w.abs(), *[t.abs() for t in b])
    return bool((y.abs() <= size * 2 * max(torch.finfo(Input(t).values.dtype).eps for t in case["tensors"])).any())


def large_exponent(case):
    from case import Input
    return any(bool((Input(t).values.double().abs() > 2.0**24).any()) for t in inputs(case, "y")) or abs(case["args"].get("value", 0)) > 2.0**24


def scalar_beyond_f16(case):
    """A 0-d integer, which PyTorch takes in f32, beside f16."""
    from case import Input
    scalars = [t for t in case["tensors"] if not t["shape"] and t["dtype"][0] in "iu"]
    return any(t["dtype"] == "f16" for t in case["tensors"]) and any(abs(int(Input(t).values)) > 65504 for t in scalars)


def by_frequency(case):
    return bool((case["args"].get("opts") or {}).get("scale_grad_by_freq"))


TABLE = [
    Difference("embedding_with", "second", "", "autograd/embedding.h", "(PyTorch leaves that out)", by_frequency),
    Difference("ctc_loss", "refusal", "trek refuses in second", "autograd/losses.h", "there is no second one"),
    Difference("cdist|pdist", "second", "PyTorch nan", "autograd/linalg.h", "Gradients are 0 at a distance of 0"),
    Difference("nll_loss.*|cross_entropy.*|linear_cross_entropy|.*_loss|.*_loss_with|bce.*|kl_div.*|info_nce", "value|gradient|second", "nan",
               "autograd/losses.h", "0 with gradients of 0 over nothing", nothing),
    Difference("multi_margin_loss", "value|gradient|second", "", "autograd/losses.h", "0 with gradients of 0 over nothing", nothing),
    Difference("cosine_embedding_loss", "value", "", "autograd/losses.h", "of 1 (alike) and -1", short),
    Difference("bce", "second", "", "autograd/losses.h", "PyTorch adds 1e-12 in the second derivative"),
    Difference("bce", "gradient|second", "", "autograd/losses.h", "logarithms end at -100, and the gradient's", at_ends),
    Difference("cosine_.*|info_nce|pairwise_distance|triplet_margin_loss", "gradient|second", "", "autograd/losses.h",
               "a subgradient of 0 where a length is 0", short),
    Difference("bce.*|soft_margin_loss|multi_margin_loss|margin.*|gaussian.*", "refusal", "PyTorch alone refuses.*not differentiable", "autograd/losses.h",
               "Derivatives by targets and weights are taken where PyTorch has none"),
    Difference("triplet_margin_loss", "refusal", "PyTorch alone refuses.*margin must be greater", "autograd/losses.h", "a margin of 0, too"),
    Difference("kl_div_with", "refusal", "PyTorch alone refuses.*Refuses: rows", "autograd/losses.h", "batchmean: divided by the size"),
    Difference("tile|repeat", "refusal", "trek alone refuses.*times", "autograd/ops.h", "ARGUMENT: a negative number, of nothing too"),
    Difference("pad", "refusal", "trek alone refuses.*does not hold", "autograd/spatial.h", "a value that x's dtype does not hold"),
    Difference("topk", "refusal", "trek alone refuses.*without dimensions", "autograd/ops.h", "or 0 of a tensor without dimensions"),
    Difference("cumprod", "gradient|second", "nan|inf", "autograd/ops.h", "where x is not finite, derivatives may be NaN elsewhere than PyTorch's",
               has_nan_or_infinity),
    Difference("attention(_weights)?", "gradient", "zeros, PyTorch none|results require gradients", "autograd/ops.h", "A mask that requires a gradient"),
    Difference("attention(_weights)?", "value|gradient|second", "nan", "autograd/ops.h", "A query that sees no key gives 0"),
    Difference("scatter|scatter_add", "refusal", "trek alone refuses.*(the source must be|dtypes differ)", "autograd/ops.h",
               "source of x's dtype"),  # of no places
    Difference("scatter_reduce", "refusal", "PyTorch alone refuses, in second", "autograd/ops.h", "Second derivatives of a product with several"),
    Difference("any|all", "value", "dtype bool, PyTorch uint8", "autograd/ops.h", "bool, of u8 too: PyTorch's u8 there is from before it had bool"),
    Difference("max|min", "gradient|second", "nan", "autograd/ops.h", "or the NaNs do, as in torch.max(x) (amax gives NaN to all)"),
    Difference("kl_div", "gradient|second", "PyTorch nan|nan, PyTorch|inf", "autograd/losses.h", "At a target of 0 the slope of t log t is taken as 0"),
    Difference("relu6|hardtanh|hardshrink|hardswish|softshrink|celu", "gradient", "", "autograd/pointwise.h", "NaN passes on, and lets its gradient pass", has_nan),
    Difference("(nn_)?hardsigmoid", "value|gradient", "gradient", "autograd/pointwise.h", "relu6(x + 3) / 6"),  # PyTorch's slope is f32's 1 / 6
    Difference("logaddexp", "refusal", "PyTorch alone refuses.*bool", "autograd/pointwise.h", "one may be of integers"),
    Difference("tanhshrink", "value", "", "autograd/pointwise.h", "x - tanh(x)"),
    Difference("mish|logaddexp|addcdiv|prelu", "second", "nan", "autograd/pointwise.h", "NaN passes on"),
    Difference("prelu", "second", "", "autograd/pointwise.h", "x > 0 ? x : weight x", has_zero),
    Difference("lerp", "refusal", "PyTorch alone refuses.*expected dtype", "autograd/pointwise.h", "their dtypes promote"),
    Difference("fractional_max_pool3d", "refusal", "too large relative", "autograd/spatial.h", "PyTorch also refuses those of three dimensions that just fit"),
    Difference("lgamma|digamma|polygamma", "value|gradient|second", "", "autograd/pointwise.h", "precise to a few units in the last place"),
    Difference("atanh", "gradient|second", "", "autograd/pointwise.h", "trek_atanh"),
    Difference("isclose", "value", "", "autograd/pointwise.h", "integers as f64"),
    Difference("fmod", "gradient", "", "autograd/pointwise.h", "derivative by y is the exact quotient"),
    Difference("logit", "gradient|second", "", "autograd/pointwise.h", "Else derivatives outside (0, 1) are the"),
    Difference("logcumsumexp", "second", "nan", "autograd/ops.h", "beside what is not finite second"),
    Difference("mode", "gradient|second", "", "autograd/statistics.h", "and its last place"),
    Difference("aminmax", "gradient|second", "nan", "autograd/ops.h", "amax gives NaN to all"),
    Difference("std_mean|var_mean|std_with|variance_with", "gradient|second", "nan", "autograd/ops.h", "derivative 0 where nothing varies"),
    Difference("gcd|lcm", "value", "", "autograd/pointwise.h", "The greatest common divisor of integers, not negative"),
    Difference("signbit|copysign", "value", "", "autograd/pointwise.h", "or such a NaN",  # whose sign arithmetic before it leaves open
               lambda case: has_nan(case) and any(t["way"] for t in case["tensors"])),
    Difference("copysign", "gradient|second", "", "autograd/pointwise.h", "0 where x is 0 or NaN, and a number"),
    Difference("xlogy", "gradient|second", "", "autograd/pointwise.h", "Derivatives are 0 where x is 0 and y is not between", has_zero),
    Difference("sinc", "second", "PyTorch nan", "autograd/pointwise.h", "its second derivative at 0"),
    Difference("sinc", "gradient|second", "", "autograd/pointwise.h", "what remains of numbers that cancel"),
    Difference("xlogy", "gradient|second", "nan, PyTorch", "autograd/pointwise.h", "and NaN where y is below 0"),
    Difference("clamp", "gradient|second", "PyTorch 0", "autograd/ops.h", "an infinite limit bounds nothing",
               lambda case: has_nan_or_infinity(case) and math.inf in (-case["args"]["low"], case["args"]["high"])),
    Difference("clamp_var", "gradient|second", "", "autograd/pointwise.h", "Gradients at a limit are shared as theirs"),
    Difference("trapezoid", "value|gradient|second", "PyTorch nan", "autograd/pointwise.h", "of one point 0 whatever", has_nan_or_infinity),
    Difference("trapezoid", "gradient", "require gradients", "autograd/pointwise.h", "Recorded of no elements, too"),
    Difference("nanmean", "gradient|second", "PyTorch nan", "autograd/pointwise.h", "gradient 0 there"),
    Difference("matrix_norm", "gradient|second", "", "autograd/linalg.h", "are some of those that fit", lambda case: 1 <= case["args"]["order"] <= 3),
    Difference("elu", "gradient", "", "autograd/ops.h", "derivative 1 at NaN (PyTorch's depends on the element's place)", has_nan),
    Difference("elu", "second", "", "autograd/ops.h", "second one 0 at 0", has_zero),
    Difference("gelu.*|(linear|conv2d)_activation", "value|gradient|second", "nan", "autograd/ops.h", "at the infinities its limits, where PyTorch gives NaN"),
    Difference("..?_scalar", "value", "1, PyTorch 0|0, PyTorch 1", "autograd/ops.h", "comparisons of integers are exact"),
    Difference("bce.*", "value", "dtype", "autograd/losses.h", "what both promote to (PyTorch's bce: the target's)"),
    Difference("matmul|linear.*|conv[23]d.*|conv_transpose[23]d|attention|lstm|gru", "refusal", "trek alone refuses.*of different dtypes", "autograd/ops.h", "products: their inputs are of one dtype"),
    Difference("rms_norm|(add_)?layer_norm", "refusal", "trek alone refuses, in forward: TREK_ERR_DTYPE|expected scalar type|mixed dtype", "autograd/ops.h",
               "weight and bias are of x's dtype, or of f32 where x has 16 bits, both of one: DTYPE otherwise"),
    Difference("mse_loss|l1_loss|smooth_l1_loss|bce_with_logits|kl_div", "refusal", "PyTorch alone refuses.*can't be cast", "autograd/losses.h",
               "The result's dtype is what both promote to"),
    Difference(".*_loss|.*_loss_with|bce.*|kl_div.*", "refusal", "trek alone refuses.*inputs of one shape", "autograd/losses.h", "of which PyTorch warns"),
    Difference("pow|pow_scalar", "gradient|second", "nan|inf", "autograd/ops.h", "derivatives by x 0 where y is 0, by y 0 where x is 0 and y >= 0"),
    Difference("atan2", "gradient|second", "PyTorch nan", "autograd/ops.h", "derivatives 0 at (0, 0)"),
    Difference("norm", "gradient|second", "nan|zeros, PyTorch none", "autograd/ops.h", "subgradient 0 where the norm is 0"),
    Difference("maximum|minimum", "gradient|second", "", "autograd/ops.h", "NaN: all of it to both", has_nan),
    Difference("std", "second", "PyTorch nan", "autograd/ops.h", "derivative 0 where nothing varies"),
    Difference("batch_norm", "refusal", "PyTorch alone refuses", "autograd/ops.h", "of any floating dtypes (torch wants x's, or f32 for 16 bits)"),
    Difference("norm", "refusal", "PyTorch alone refuses.*vector_norm", "autograd/ops.h", "integer inputs of the float functions give f32"),
    Difference("mean|variance|std", "refusal", "PyTorch alone refuses.*(Long|Int|Byte|Bool)", "autograd/ops.h", "integer inputs of the float functions give f32"),
    Difference("fill_|masked_fill", "refusal", "trek alone refuses.*(u8|f16) does not hold", "autograd/ops.h", "a negative one in u8, where torch wraps whole ones; 1e38 in f16"),
    Difference("(log_)?softmax", "refusal", "trek alone refuses.*dtype .* is not supported", "autograd/ops.h",
               "floating dtypes, also of no elements (where torch takes others)"),
    Difference("linear|linear_activation", "refusal", "trek alone refuses.*dtype .* is not supported", "autograd/ops.h",
               "Floating dtypes (torch multiplies integers, too)"),
    Difference("matmul", "refusal", "trek alone refuses.*dtype bool is not supported", "autograd/ops.h", "Any dtype but bool (torch takes it of no elements)"),
    Difference("cat", "refusal", "trek alone refuses.*(shapes differ|of a tensor with 1)", "autograd/ops.h", "all of as many dimensions (torch passes over [0])"),
    Difference("atan2|pow|smooth_l1_loss", "refusal", "PyTorch alone refuses, in (backward|second).*a bool tensor is not supported", "autograd/ops.h",
               "and gradients are rounded to an input's own dtype at the end"),
    Difference("atan2", "gradient|second", "", "autograd/ops.h", "integers as numbers (PyTorch's -x and squares of them wrap)",
               lambda case: any(t["dtype"] in ("u8", "i32", "i64") for t in inputs(case, "x", "y"))),
    Difference("cross_entropy.*|linear_cross_entropy", "gradient|second", "PyTorch nan", "autograd/losses.h", "An ignored row gives gradients of 0, whatever its logits are"),
    Difference("std|std_mean", "gradient|second", "", "autograd/ops.h", "derivative 0 where nothing varies", nothing_varies),
    Difference("remainder", "value|gradient", "PyTorch nan", "autograd/ops.h", "exact, also where x / y overflows (PyTorch: NaN)"),
    Difference("prod", "gradient|second", "nan", "autograd/ops.h", "product of the others, as it is"),
    Difference("kl_div", "value", "dtype", "autograd/losses.h", "An input without dimensions has a dtype as any other", lambda case: any(not t["shape"] for t in case["tensors"])),
    Difference("smooth_l1_loss", "second", "PyTorch -?0", "autograd/losses.h", "second derivative 1 / beta at NaN (PyTorch: 0)", has_nan),
    Difference("batch_norm", "second", "a second, PyTorch has none", "autograd/ops.h", "A bias without a weight has second derivatives",
               lambda case: case["args"]["weight"] is None),
    Difference("batch_norm", "gradient|second", "nan|inf", "autograd/ops.h", "Where inputs are not finite, gradients are NaN or infinite", has_nan_or_infinity),
    Difference("pow|pow_scalar", "gradient|second", "", "autograd/ops.h", "beyond 2^24 f32 has even exponents only", large_exponent),
    Difference("conv(_transpose)?[123]d|conv2d_activation", "value|gradient|second", "nan", "autograd/ops.h", "weights that are not finite may make gradients NaN anywhere",
               lambda case: not_finite(inputs(case, "weight")[0])),
    Difference("conv_transpose[123]d", "refusal", r"give an output of \[|give none", "autograd/ops.h", "a result without pixels (torch gives some)"),
    Difference("conv_transpose[123]d", "refusal", "trek alone refuses.*TREK_ERR_(ARGUMENT|SHAPE)", "autograd/ops.h", "of an empty batch, of which torch checks less",
               lambda case: 0 in inputs(case, "x")[0]["shape"]),
    Difference("(linear|conv2d)_activation", "gradient|second", "", "autograd/ops.h", "derivative 0 at 0", near_a_bend),
    Difference("erf", "second", "PyTorch nan", "autograd/ops.h", "second derivative 0 where x^2 overflows (PyTorch: NaN)"),
    Difference("lstm|gru", "refusal", "PyTorch alone refuses.*greater than 0", "autograd/ops.h", "here a row may have no step"),
    Difference("lstm|gru", "refusal", "PyTorch alone refuses.*larger than 0", "autograd/ops.h", "of no steps (torch refuses them)"),
    Difference("attention(_weights)?", "refusal", r"trek alone refuses.*mask .* does not broadcast to \[", "autograd/ops.h", "torch passes over it where there are none",
               lambda case: any(0 in t["shape"] for t in case["tensors"])),
    Difference("index_add", "refusal", r"trek alone refuses.*is not in 0\.\.", "autograd/ops.h", "indices are checked, also where nothing is added (torch: of some shapes)",
               lambda case: any(0 in t["shape"] for t in case["tensors"])),
    Difference("add|sub|mul|div|maximum|minimum", "value|gradient|second", "", "autograd/ops.h", "an integer beyond f16 is infinite there, a scalar too", scalar_beyond_f16),
    Difference("(add_)?layer_norm", "second", "a second, PyTorch has none", "autograd/ops.h", "A bias without a weight has second derivatives",
               lambda case: case["args"]["weight"] is None),
    Difference("dropout", "value|gradient|second", "nan", "autograd/ops.h", "what is zeroed is 0 whatever it was", has_nan_or_infinity),
    Difference("(group|instance)_norm", "refusal", "PyTorch alone refuses.*(dtype|scalar type)", "autograd/norms.h", "of any floating dtypes (torch wants x's, or f32"),
    Difference("(group|instance)_norm", "refusal", "PyTorch alone refuses.*(greater than 0|out of range)", "autograd/norms.h", "also of no elements (which torch refuses)",
               lambda case: any(0 in t["shape"] for t in case["tensors"])),
    Difference("(group|instance)_norm", "gradient|second", "nan|inf", "autograd/ops.h", "Where inputs are not finite, gradients are NaN or infinite", has_nan_or_infinity),
    Difference("(group|instance)_norm", "second", "a second, PyTorch has none", "autograd/ops.h", "A bias without a weight has second derivatives",
               lambda case: case["args"]["weight"] is None),
    Difference("instance_norm", "written", "PyTorch nan", "autograd/norms.h", "of no samples nothing new; torch: NaN"),
    Difference("local_response_norm", "refusal", "PyTorch alone refuses.*view size", "autograd/norms.h", "of any strides (torch of some)"),
    Difference("normalize", "gradient|second", "nan|zeros, PyTorch none", "autograd/norms.h", "derivative as trek_norm's and trek_clamp's"),
]

# What counterparts.py lets trek take and PyTorch does not, or the other way round.
ADAPTED = [
    ("tensor/op_opts.h", "a window wholly in the padding gives the lowest number"),
    ("autograd/ops.h", "index: 1-D, any integer dtype"),
    ("autograd/ops.h", "index: x's ndim, i64 or i32"),
    ("autograd/ops.h", "indices of any integer dtype and shape"),
    ("autograd/losses.h", "labels [N, ...] of any integer dtype"),
    ("autograd/losses.h", "labels [...] of any integer dtype"),
    ("autograd/ops.h", "convolution and pooling; x [N, C, H, W]"),
    ("autograd/losses.h", "logits [N, C, ...]"),
    ("autograd/ops.h", "x + branch (both of one shape, promoted as trek_add does)"),
    ("autograd/losses.h", "the loss of 16-bit x is f32"),
    ("autograd/ops.h", "i64; one dim or all; first of equals"),
    ("autograd/ops.h", "condition: bool"),
    ("nn/layers.h", "default the dtype's epsilon (f32's for 16-bit dtypes)"),
]

# PyTorch's own faults: calls that it fails in a way that nobody can mean.
FAULTS = [
    "Expected a proper Tensor but got None",          # double backward of native_layer_norm with an undefined input
    "INTERNAL ASSERT FAILED",
    "cannot reshape tensor of 0 elements",            # second derivatives of embedding over nothing
    "grad_input must be contiguous",                  # nll_loss of some layouts
    "returned an invalid gradient",                   # scatter_add whose source is larger than the index
    "not implemented for '(Half|BFloat16|Bool|Byte)'",  # a kernel that the CPU lacks
    "derivative for aten::.* is not implemented",
    r"size mismatch \(got input: \[\d+, 0, 0, 0\]",  # cross_entropy of [N, 0, d]: a view that it makes itself
    r"scatter\(\): Expected self.dtype to be equal to src.dtype",  # second derivatives of grid_sample over nothing, of 16 bits
    "int too big to convert",                         # a Python integer beyond i64, which here is a double
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
