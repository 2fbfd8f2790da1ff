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
    """A loss over no elements, or over labels that are all ignored or whose classes have no weight."""
    from case import Input
    labels, opts = inputs(case, "labels"), case["args"].get("opts") or {}
    ignored = opts.get("ignore_index", 0)
    ignore = {0: -100, ZERO: 0}.get(ignored, ignored)
    if labels and labels[0]["dtype"][0] in "iu":
        counted = Input(labels[0]).values.long()
        counted = counted[counted != ignore]
        of_classes = opts.get("weight")  # a loss over logits has it as an option, too
        tensors = inputs(case, "weight") + ([case["tensors"][of_classes["tensor"]]] if isinstance(of_classes, dict) else [])
        weights = [Input(t).values.double() for t in tensors if len(t["shape"]) == 1]
        if counted.numel() == 0 or (weights and counted.max() < weights[0].numel() and not bool(weights[0][counted].any())):
            return True
    return any(0 in t["shape"] for t in case["tensors"])


def not_finite(tensor):
    from case import Input
    return not bool(Input(tensor).values.isfinite().all())


def some_not_finite(case):
    return any(not_finite(t) for t in case["tensors"])


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
    Difference("embedding_with", "second", "", "autograd/embedding.h", "PyTorch does not divide second derivatives", by_frequency),
    Difference("ctc_loss", "refusal", "trek refuses in second", "autograd/losses.h", "A second derivative does not exist"),
    Difference("cdist|pdist", "second", "PyTorch nan", "autograd/linalg.h", "Gradients are 0 at a distance of 0"),
    Difference("nll_loss.*|cross_entropy.*|linear_cross_entropy|.*_loss|.*_loss_with|bce.*|kl_div.*|info_nce", "value|gradient|second", "nan",
               "autograd/losses.h", "A mean over no elements is 0 with gradients of 0", nothing),
    Difference("multi_margin_loss", "value|gradient|second", "", "autograd/losses.h", "A mean over no elements is 0 with gradients of 0", nothing),
    Difference("cosine_embedding_loss", "value", "", "autograd/losses.h", "of 1 (alike) and -1", short),
    Difference("bce", "second", "", "autograd/losses.h", "PyTorch adds 1e-12 in the second derivative"),
    Difference("bce", "gradient|second", "", "autograd/losses.h", "Logarithms are at least -100, and p (1 - p) in the gradient", at_ends),
    Difference("cosine_.*|info_nce|pairwise_distance|triplet_margin_loss", "gradient|second", "", "autograd/losses.h",
               "Where a length is 0 the subgradient is 0", short),
    Difference("bce.*|soft_margin_loss|multi_margin_loss|margin.*|gaussian.*", "refusal", "PyTorch alone refuses.*not differentiable", "autograd/losses.h",
               "Derivatives by targets and weights exist, also where PyTorch has none"),
    Difference("triplet_margin_loss", "refusal", "PyTorch alone refuses.*margin must be greater", "autograd/losses.h", "A margin of 0 is accepted (PyTorch refuses it)"),
    Difference("kl_div_with", "refusal", "PyTorch alone refuses.*Refuses: rows", "autograd/losses.h", "PyTorch's batchmean: the sum is divided by the size"),
    Difference("tile|repeat", "refusal", "trek alone refuses.*repeats: ", "autograd/ops.h", "Fails with ARGUMENT if a number is negative, even if x is empty"),
    Difference("pad", "refusal", "trek alone refuses.*cannot hold it", "autograd/spatial.h", "the dtype of x does not hold the value"),
    Difference("topk", "refusal", "trek alone refuses.*must be 1 for a scalar", "autograd/ops.h", "or if k is 0 and x has no dimensions"),
    Difference("cumprod", "gradient|second", "nan|inf", "autograd/ops.h", "Where x is not finite, the derivatives may be NaN at other elements than in PyTorch",
               has_nan_or_infinity),
    Difference("attention(_weights)?", "gradient", "zeros, PyTorch none|results require gradients", "autograd/ops.h", "A mask that requires a gradient"),
    Difference("attention(_weights)?", "value|gradient|second", "nan", "autograd/ops.h", "A query that sees no key gives 0"),
    Difference("index_select", "refusal", "trek alone refuses.*x must have dimensions", "autograd/ops.h", "x needs a dimension (torch also takes a scalar)"),
    Difference("gather", "refusal", "trek alone refuses.*index: it does not fit", "autograd/ops.h",
               "The dimensions must agree even if index is empty or x a scalar (torch then takes others)"),
    Difference("conv[123]d|conv_transpose[123]d|avg_pool[123]d", "refusal", "trek alone refuses.*TREK_ERR_DTYPE.*i64 is not supported", "autograd/ops.h",
               "Convolutions and means are of floating dtypes (PyTorch also takes i64)"),
    Difference("margin_ranking_loss|hinge_embedding_loss", "refusal", "trek alone refuses.*one must be floating", "autograd/losses.h",
               "At least one of the inputs is floating"),
    Difference(".*_loss(_with)?", "refusal", "trek alone refuses.*both must be floating", "autograd/losses.h",
               "trek_bce on all inputs are floating unless a comment says otherwise"),
    Difference("scatter|scatter_add", "refusal", "trek alone refuses.*(source: .* must be|dtypes .* differ)", "autograd/ops.h",
               "source has x's dtype"),  # of no places
    Difference("scatter_reduce", "refusal", "PyTorch alone refuses, in second", "autograd/ops.h", "Second derivatives of a product with several"),
    Difference("scatter_reduce", "second", "PyTorch nan", "autograd/ops.h", "where elements are not finite, they may be 0 instead of NaN", some_not_finite),
    Difference("any|all", "value", "dtype bool, PyTorch uint8", "autograd/ops.h", "The result is bool, also for u8"),
    Difference("max|min", "gradient|second", "nan", "autograd/reductions.h", "or the NaNs do, as in torch.max(x); torch.amax gives NaN to all elements"),
    Difference("kl_div", "gradient|second", "PyTorch nan|nan, PyTorch|inf", "autograd/losses.h", "At a target of 0 the slope of t log t is taken as 0"),
    Difference("relu6|hardtanh|hardshrink|hardswish|softshrink|celu|selu", "gradient|second", "", "autograd/pointwise.h", "A NaN stays NaN, and its gradient passes through", has_nan),
    Difference("(nn_)?hardsigmoid", "value|gradient", "gradient", "autograd/pointwise.h", "relu6(x + 3) / 6"),  # PyTorch's slope is f32's 1 / 6
    Difference("logaddexp", "refusal", "PyTorch alone refuses.*bool", "autograd/pointwise.h", "One input may have an integer dtype"),
    Difference("tanhshrink", "value", "", "autograd/pointwise.h", "x - tanh(x)"),
    Difference("mish|logaddexp|addcdiv|prelu", "second", "nan", "autograd/pointwise.h", "A NaN stays NaN"),
    Difference("prelu", "second", "", "autograd/pointwise.h", "x > 0 ? x : weight x", has_zero),
    Difference("lerp", "refusal", "PyTorch alone refuses.*expected dtype", "autograd/pointwise.h", "their dtypes promote"),
    Difference("fractional_max_pool3d", "refusal", "too large relative", "autograd/spatial.h", "PyTorch also refuses those of three dimensions that just fit"),
    Difference("lgamma|digamma|polygamma", "value|gradient|second", "", "autograd/pointwise.h", "precise to a few units in the last place"),
    Difference("atanh", "gradient|second", "", "autograd/pointwise.h", "trek_atanh"),
    Difference("isclose", "value", "", "autograd/pointwise.h", "Integers are compared as f64"),
    Difference("fmod", "gradient", "", "autograd/pointwise.h", "The derivative with respect to y is the exact quotient"),
    Difference("logit", "gradient|second", "", "autograd/pointwise.h", "derivatives outside (0, 1) are then the formula's"),
    Difference("logcumsumexp", "second", "nan", "autograd/ops.h", "Next to elements that are not finite second derivatives may be NaN"),
    Difference("mode", "gradient|second", "", "autograd/statistics.h", "and its last index through *indices"),
    Difference("aminmax", "gradient|second", "nan", "autograd/reductions.h", "amax gives NaN to all elements"),
    Difference("std_mean|variance_mean|std_with|variance_with", "gradient|second", "nan", "autograd/ops.h", "The gradient is 0 where all elements are equal"),
    Difference("gcd|lcm", "value", "", "autograd/pointwise.h", "the greatest common divisor of integers. It is not negative"),
    Difference("signbit|copysign", "value", "", "autograd/pointwise.h", "or a NaN whose sign bit is set",  # whose sign arithmetic before it leaves open
               lambda case: has_nan(case) and any(t["way"] for t in case["tensors"])),
    Difference("copysign", "gradient|second", "", "autograd/pointwise.h", "The derivative with respect to x is 0 where x is 0 or NaN, and a number"),
    Difference("xlogy", "gradient|second", "", "autograd/pointwise.h", "Derivatives are 0 where x is 0 and y is not between", has_zero),
    Difference("sinc", "second", "PyTorch nan", "autograd/pointwise.h", "its second derivative at 0"),
    Difference("sinc", "gradient|second", "", "autograd/pointwise.h", "they are differences of numbers that nearly cancel"),
    Difference("xlogy", "gradient|second", "nan, PyTorch", "autograd/pointwise.h", "and NaN where y is below 0"),
    Difference("clamp", "gradient|second", "PyTorch 0", "autograd/ops.h", "An infinite bound leaves that side open",
               lambda case: has_nan_or_infinity(case) and math.inf in (-case["args"]["low"], case["args"]["high"])),
    Difference("clamp_var", "gradient|second", "", "autograd/pointwise.h", "Gradients at a limit are shared as by trek_maximum"),
    Difference("trapezoid", "value|gradient|second", "PyTorch nan", "autograd/pointwise.h", "A single point gives 0, whatever", has_nan_or_infinity),
    Difference("trapezoid", "gradient", "require gradients", "autograd/pointwise.h", "The result needs a gradient if y does, even if it has no elements"),
    Difference("nanmean", "gradient|second", "PyTorch nan", "autograd/pointwise.h", "It is NaN, with gradients of 0, if there are no such elements"),
    Difference("matrix_norm", "gradient|second", "", "autograd/linalg.h", "the gradient is one of several subgradients", lambda case: 1 <= case["args"]["order"] <= 3),
    Difference("elu", "gradient", "", "autograd/ops.h", "The derivative at NaN is 1 (PyTorch's depends on the element's position)", has_nan),
    Difference("elu", "second", "", "autograd/ops.h", "the second derivative at 0 is 0", has_zero),
    Difference("gelu.*|(linear|conv2d)_activation", "value|gradient|second", "nan", "autograd/activations.h", "At the infinities the result is the limit, where PyTorch gives NaN"),
    Difference("..?_scalar", "value", "1, PyTorch 0|0, PyTorch 1", "autograd/ops.h", "comparisons of integers are exact"),
    Difference("bce.*", "value", "dtype", "autograd/losses.h", "what both promote to (PyTorch's bce: the target's)"),
    Difference("matmul|linear.*|conv[23]d.*|conv_transpose[23]d|attention|lstm|gru", "refusal", "trek alone refuses.*dtypes .* must be equal", "autograd/ops.h", "products. All inputs have one dtype"),
    Difference("rms_norm|(add_)?layer_norm", "refusal", "trek alone refuses, in forward: TREK_ERR_DTYPE|expected scalar type|mixed dtype", "autograd/ops.h",
               "weight and bias have x's dtype, or both have f32 if x has 16 bits"),
    Difference("mse_loss|l1_loss|smooth_l1_loss|bce_with_logits|kl_div", "refusal", "PyTorch alone refuses.*can't be cast", "autograd/losses.h",
               "the result's dtype is what both promote to"),
    Difference(".*_loss|.*_loss_with|bce.*|kl_div.*", "refusal", "trek alone refuses.*must have one shape", "autograd/losses.h", "of which PyTorch only warns"),
    Difference("pow|pow_scalar", "gradient|second", "nan|inf", "autograd/ops.h", "The derivative with respect to x is 0 where y is 0, and the one with respect to y is 0 where x is 0 and y >= 0"),
    Difference("atan2", "gradient|second", "PyTorch nan", "autograd/ops.h", "The derivatives at (0, 0) are 0"),
    Difference("norm", "gradient|second", "nan|zeros, PyTorch none", "autograd/ops.h", "Where the norm is 0 the subgradient is 0"),
    Difference("maximum|minimum", "gradient|second", "", "autograd/ops.h", "where the result is NaN, both get the whole gradient", has_nan),
    Difference("std", "second", "PyTorch nan", "autograd/ops.h", "The gradient is 0 where all elements are equal"),
    Difference("batch_norm", "refusal", "PyTorch alone refuses", "autograd/ops.h", "any floating dtypes (torch wants x's, or f32 if x has 16 bits)"),
    Difference("norm", "refusal", "PyTorch alone refuses.*vector_norm", "autograd/ops.h", "Computes the p-norm for any p. Integers give f32"),
    Difference("cov", "refusal", "PyTorch alone refuses.*weights sum to zero", "autograd/statistics.h", "If these sum to 0, the"),
    Difference("full_like", "refusal", "trek alone refuses.*(u8|f16) cannot hold it", "autograd/ops.h", "Fails with ARGUMENT if x's dtype cannot hold value"),
    Difference("mean|variance|std", "refusal", "PyTorch alone refuses.*(Long|Int|Byte|Bool)", "autograd/ops.h", "Computes the p-norm for any p. Integers give f32"),
    Difference("fill_|masked_fill", "refusal", "trek alone refuses.*(u8|f16) cannot hold it", "autograd/ops.h", "a negative number in u8, where torch wraps whole numbers around, or 1e38 in f16"),
    Difference("(log_)?softmax", "refusal", "trek alone refuses.*dtype .* is not supported", "autograd/activations.h",
               "floating, also if x has no elements (torch then accepts other dtypes)"),
    Difference("linear|linear_activation", "refusal", "trek alone refuses.*dtype .* is not supported", "autograd/ops.h",
               "floating (torch also multiplies integers)"),
    Difference("matmul", "refusal", "trek alone refuses.*dtype bool is not supported", "autograd/arithmetic.h", "all but bool (torch accepts bool if there are no elements)"),
    Difference("cat", "refusal", "trek alone refuses.*(shapes differ|the tensor has 1)", "autograd/shapes.h", "They have the same number of dimensions (torch skips tensors of shape [0])"),
    Difference("atan2|pow|smooth_l1_loss", "refusal", "PyTorch alone refuses, in (backward|second).*a bool tensor is not supported", "autograd/ops.h",
               "then they are rounded to an input's own dtype at the end"),
    Difference("atan2", "gradient|second", "", "autograd/ops.h", "The derivatives of integers are computed in f32 (PyTorch's -x and its squares wrap around)",
               lambda case: any(t["dtype"] in ("u8", "i32", "i64") for t in inputs(case, "x", "y"))),
    Difference("cross_entropy.*|linear_cross_entropy", "gradient|second", "PyTorch nan", "autograd/losses.h", "An ignored row gives gradients of 0, whatever its logits are"),
    Difference("std|std_mean|std_with", "gradient|second", "", "autograd/ops.h", "The gradient is 0 where all elements are equal", nothing_varies),
    Difference("remainder", "value|gradient", "PyTorch nan", "autograd/ops.h", "It is exact, also where x / y overflows (PyTorch: NaN)"),
    Difference("prod", "gradient|second", "nan", "autograd/ops.h", "is the product of the remaining elements, evaluated literally"),
    Difference("kl_div", "value", "dtype", "autograd/losses.h", "An input without dimensions has a dtype as any other", lambda case: any(not t["shape"] for t in case["tensors"])),
    Difference("smooth_l1_loss", "second", "PyTorch -?0", "autograd/losses.h", "The second derivative at NaN is 1 / beta (PyTorch: 0)", has_nan),
    Difference("batch_norm", "second", "a second, PyTorch has none", "autograd/ops.h", "A bias without a weight has second derivatives",
               lambda case: case["args"]["weight"] is None),
    Difference("batch_norm", "gradient|second", "nan|inf", "autograd/ops.h", "which gradients are NaN and which are infinite", has_nan_or_infinity),
    Difference("pow|pow_scalar", "gradient|second", "", "autograd/ops.h", "An f32 beyond 2^24 is always even", large_exponent),
    Difference("conv(_transpose)?[123]d|conv2d_activation", "value|gradient|second", "nan", "autograd/ops.h", "Weights that are not finite may make gradients NaN anywhere",
               lambda case: not_finite(inputs(case, "weight")[0])),
    Difference("conv_transpose[123]d", "refusal", r"give \[|give an empty result", "autograd/ops.h", "if the result has no pixels (torch returns some of these)"),
    Difference("conv_transpose[123]d", "refusal", "trek alone refuses.*TREK_ERR_(ARGUMENT|SHAPE)", "autograd/ops.h", "empty batches, for which torch checks less",
               lambda case: 0 in inputs(case, "x")[0]["shape"]),
    Difference("(linear|conv2d)_activation", "gradient|second", "", "autograd/activations.h", "the derivative at 0 is 0", near_a_bend),
    Difference("erf", "second", "PyTorch nan", "autograd/ops.h", "Where x^2 overflows the second derivative is 0 (PyTorch: NaN)"),
    Difference("lstm|gru", "refusal", "PyTorch alone refuses.*greater than 0", "autograd/ops.h", "here a row may have no step"),
    Difference("lstm|gru", "refusal", "PyTorch alone refuses.*larger than 0", "autograd/ops.h", "If T is 0 they are h0 and c0 (torch refuses T = 0)"),
    Difference("attention(_weights)?", "refusal", r"trek alone refuses.*mask: .* must broadcast to \[", "autograd/ops.h", "A mask must fit even if there are no elements (torch then ignores it)",
               lambda case: any(0 in t["shape"] for t in case["tensors"])),
    Difference("index_add", "refusal", r"trek alone refuses.*is not in 0\.\.", "autograd/ops.h", "Indices are checked even if there is nothing to add (torch checks them for some shapes only)",
               lambda case: any(0 in t["shape"] for t in case["tensors"])),
    Difference("add|sub|mul|div|maximum|minimum", "value|gradient|second", "", "autograd/ops.h", "An integer beyond f16's range becomes infinite in f16, also if it is a scalar", scalar_beyond_f16),
    Difference("(add_)?layer_norm", "second", "a second, PyTorch has none", "autograd/ops.h", "A bias without a weight has second derivatives",
               lambda case: case["args"]["weight"] is None),
    Difference("dropout", "value|gradient|second", "nan", "autograd/ops.h", "A zeroed element is 0 whatever it was", has_nan_or_infinity),
    Difference("(group|instance)_norm", "refusal", "PyTorch alone refuses.*(dtype|scalar type)", "autograd/norms.h", "any floating dtypes (torch wants x's, or f32"),
    Difference("(group|instance)_norm", "refusal", "PyTorch alone refuses.*(greater than 0|out of range)", "autograd/norms.h", "x may have no elements (which torch refuses)",
               lambda case: any(0 in t["shape"] for t in case["tensors"])),
    Difference("(group|instance)_norm", "gradient|second", "nan|inf", "autograd/ops.h", "which gradients are NaN and which are infinite", has_nan_or_infinity),
    Difference("(group|instance)_norm", "second", "a second, PyTorch has none", "autograd/ops.h", "A bias without a weight has second derivatives",
               lambda case: case["args"]["weight"] is None),
    Difference("instance_norm", "written", "PyTorch nan", "autograd/norms.h", "a batch without samples leaves them unchanged (torch: NaN)"),
    Difference("local_response_norm", "refusal", "PyTorch alone refuses.*view size", "autograd/norms.h", "x may have any strides (torch accepts some)"),
    Difference("normalize", "gradient|second", "nan|zeros, PyTorch none", "autograd/norms.h", "Its derivative is that of trek_norm and trek_clamp"),
    Difference("local_response_norm", "refusal", "trek alone refuses.*dtype .* is not supported", "autograd/norms.h", "Dtypes: floating."),
    Difference("bilinear", "refusal", "trek alone refuses.*dtype .* is not supported", "autograd/ops.h", "(or NULL) give [..., out]. Dtypes: floating. The call holds"),
    Difference("linear", "refusal", "trek alone refuses.*weight: .* must have 2 dimensions", "autograd/ops.h", "x [..., in], weight [out, in]"),
    Difference("histogram", "value", "", "autograd/statistics.h", "If low equals high they are x's minimum and maximum",  # an element on an edge
               lambda case: case["args"]["low"] == case["args"]["high"]),
    Difference("igammac?", "refusal", "no derivative with respect to a", "autograd/special.h", "the one with respect to a fails with UNSUPPORTED in backward"),
    Difference("ldexp", "refusal", "trek alone refuses.*exponent: dtype .* must be an integer dtype", "autograd/special.h", "exponent has an integer dtype"),
    Difference("ndtr", "value", "PyTorch 0, in f64 0", "autograd/special.h", "precisely also where it is small"),
    Difference("adaptive_avg_pool1d", "refusal", "trek alone refuses.*x: .*must have 3 dimensions", "autograd/spatial.h", "x [N, C, L] -> [N, C, length]"),
    Difference("feature_alpha_dropout", "refusal", "trek alone refuses.*at least 2 dimensions", "autograd/norms.h", "with whole channels of x [N, C, ...]"),
    Difference("feature_alpha_dropout", "refusal", "trek alone refuses.*dtype .* is not supported", "autograd/norms.h", "instead of single elements. Dtypes: floating."),
]

# What counterparts.py lets trek take and PyTorch does not, or the other way round.
ADAPTED = [
    ("tensor/op_opts.h", "a window wholly in the padding gives the lowest number"),
    ("autograd/ops.h", "index is 1-D (or a scalar) and has any integer dtype"),
    ("autograd/ops.h", "index has as many dimensions as x and any integer dtype"),
    ("autograd/ops.h", "indices [...] of any integer dtype"),
    ("autograd/losses.h", "labels [N, ...] of any integer dtype"),
    ("autograd/losses.h", "labels [...] of any integer dtype"),
    ("autograd/ops.h", "convolution and pooling of x [N, C, H, W]"),
    ("autograd/losses.h", "logits [N, C, ...]"),
    ("autograd/ops.h", "x and branch have one shape and are promoted as by trek_add"),
    ("autograd/losses.h", "the loss of 16-bit x is f32"),
    ("autograd/reductions.h", "the first one of equal elements, as i64. It takes one dimension, or trek_dims_all()"),
    ("autograd/ops.h", "Fails with DTYPE if condition is not bool"),
    ("nn/layers.h", "the epsilon of the dtype, f32's for 16-bit dtypes"),
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
