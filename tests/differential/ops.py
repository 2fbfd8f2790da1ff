# SPDX-License-Identifier: Apache-2.0
"""Calls of the functions of autograd/ops.h and of the headers that it includes."""
import math
import re

import differences
import draw_layers  # noqa: F401 (draws)
import draw_moves  # noqa: F401
import draw_windows  # noqa: F401
import arithmetic  # noqa: F401 (draws, and PyTorch's, of its functions)
import embedding  # noqa: F401
import take  # noqa: F401
import linalg  # noqa: F401
import parts  # noqa: F401
import losses  # noqa: F401
import space  # noqa: F401
import special  # noqa: F401
from case import Input, run_torch, run_trek
from counterparts import ELSEWHERE, counterpart
from draw import FLOATS, SHAPED, draw_case, generic
from headers import ZERO, root, text_of
from judge import Judge
from shrink import candidates  # noqa: F401 (of a kind)
from trek import headers

OPS = tuple(f"autograd/{name}.h" for name in ("activations", "arithmetic", "basic_losses", "embedding", "fft", "linalg", "losses", "norms", "ops", "parts", "pointwise", "reductions", "resample", "shapes", "spatial", "special", "statistics", "take"))
FUNCTIONS = {f.name[5:]: f for f in headers.functions.values() if f.header in OPS}


def pointwise_names():
    """Functions of the header's element-wise sections: number k of a result comes from number k of the inputs."""
    names, inside = set(), False
    for line in "".join(text_of(f"autograd/{name}.h") for name in ("activations", "arithmetic", "ops", "pointwise")).splitlines():
        if line.startswith("/* -- "):
            inside = line.startswith(("/* -- element-wise", "/* -- with a number", "/* -- two inputs", "/* -- in place",
                                      "/* -- activations: one pass"))
        elif inside:
            names |= set(re.findall(r"\btrek_(\w+)\(", line))
    return names


POINTWISE = pointwise_names()


def covered():
    mine, missing = [], []
    for name, function in FUNCTIONS.items():
        if name in ELSEWHERE:
            continue
        if counterpart(name) is None:
            missing.append(f"{name}: PyTorch has no function of that name; counterparts.py says no other")
            continue
        if name not in SHAPED:
            unknown = [kind for kind, _ in function.params if kind not in
                       ("trek_var *", "trek_var * *", "trek_dims_list", "bool", "double", "int", "int64_t") and kind not in headers.enums]
            if unknown:
                missing.append(f"{name}: nobody knows how to draw {', '.join(unknown)}")
                continue
        mine.append(name)
    missing += [f"row {row}: no public function" for row in rows() if row not in FUNCTIONS and row not in RENAMED]
    return mine, missing


# Rows of ops.def whose public function has another name.
RENAMED = {"div_rounded": "div_mode", "sigmoid_mul": "glu", "silu_mul": "swiglu"}


def rows():
    """Rows of the op table that are public and take inputs."""
    text = (root / "tensor/ops.def").read_text()
    for name, flags in re.findall(r"^TREK_(?:PUBLIC_)?OP\((\w+), \w+, \w+, \w+, ([^,]+),", text, flags=re.M):
        if not re.search(r"TREK_OP_(INTERNAL|FILL)\b", flags):
            yield name


def draw(rng, name):
    return draw_case(rng, FUNCTIONS[name], name in POINTWISE)


def how(name):
    return "drawn by the types and names of its parameters" if name not in SHAPED else "drawn by draw_" + SHAPED[name].__name__[5:]


def weight_complaint(case, inputs, ours):
    """trek_loss_weight against a count of its own."""
    have, args, name = ours.extra.get("weight"), case["args"], case["name"]
    if have is None or ours.error:
        return None
    tensor = lambda ref: inputs[ref["tensor"]].values if ref else None
    opts = args.get("opts") or {"reduction": 0, "ignore_index": 0, "weight": None}
    weights = tensor(opts.get("weight"))
    if opts.get("reduction", 0) != 0 or args.get("reduction", 0) != 0:
        want = math.nan
    elif "entropy" in name or name.startswith("nll_loss"):
        labels = tensor(args["labels"])
        deep = "weight" in args and tensor(args["weight"]).ndim > 2
        if labels.is_floating_point() and name == "linear_cross_entropy" and not deep:
            want = float(math.prod(labels.shape[:-1])) if labels.shape[-1] else 0.0
        elif labels.is_floating_point():
            want = float(labels.shape[0] * math.prod(labels.shape[2:])) if labels.shape[1] else 0.0
        else:
            ignore = {0: -100, ZERO: 0}.get(opts["ignore_index"], opts["ignore_index"])
            counted = labels.long()[labels.long() != ignore]
            want = float(counted.numel()) if weights is None else float(weights.double()[counted].sum())
    elif name.startswith("kl_div") and not opts.get("per_element"):
        x = tensor(args["log_probabilities"])
        want = float(x.shape[0]) if x.ndim else 1.0
    elif name in ("mse_loss_with", "l1_loss_with") and weights is not None:
        want = float(weights.double().sum())
    elif name == "ctc_loss":
        x = tensor(args["log_probs"])
        want = float(x.shape[1]) if x.ndim == 3 else 1.0
    elif name in ROWS_OF:
        want = float(math.prod(tensor(args[ROWS_OF[name]]).shape[:-1]))
    else:
        want = float(ours_numel(inputs, args))
    if math.isnan(want) and math.isnan(have) or abs(have - want) <= 1e-2 * max(abs(want), 1):
        return None
    return ("value", f"trek_loss_weight is {have}, should be {want}")


# Losses of rows, and the input whose rows they are.
ROWS_OF = {"cosine_embedding_loss": "x", "triplet_margin_loss": "anchor", "multi_margin_loss": "logits", "multilabel_margin_loss": "x",
           "multilabel_soft_margin_loss": "x", "info_nce": "query"}


def ours_numel(inputs, args):
    import torch
    first = args.get("x") or args.get("probabilities") or args.get("log_probabilities")
    return torch.broadcast_tensors(inputs[first["tensor"]].values, inputs[args["target"]["tensor"]].values)[0].numel()


def run(lib, case):
    name = case["name"]
    function = FUNCTIONS[name]
    case["pointwise"] = name in POINTWISE
    inputs = [Input(t) for t in case["tensors"]]
    theirs = run_torch(case, inputs, function)
    if differences.fault(theirs.error):
        theirs = widened(case, inputs, function)
        if theirs is None:
            return None, True
    ours = run_trek(lib, case, inputs, function)
    if ours.error and ours.error[0] == "forward" and ours.error[1].startswith("TREK_ERR_DTYPE") and theirs.outs and all(o.numel() == 0 for o in theirs.outs):
        return None, True  # a dtype that PyTorch takes only where there is nothing to compute
    if name == "dropout" and 0 < case["args"]["p"] < 1 and case["args"]["training"]:
        return dropped(case, inputs, ours), False
    complaint = Judge(case, inputs, function, theirs).all(ours) or weight_complaint(case, inputs, ours) or guard(inputs)
    return complaint, bool(ours.error and theirs.error)


def dropped(case, inputs, ours):
    """A random result: zeros, and the rest divided by 1 - p; the gradient has the same places."""
    if ours.error or ours.notes:
        return ("rules", str(ours.error or ours.notes))
    x, out = inputs[0].values.double(), ours.outs[0].double()
    kept = x / (1 - case["args"]["p"])
    fine = (out == 0) | ((out - kept).abs() <= 0.01 * kept.abs()) | (kept.isnan() & out.isnan()) | ~kept.isfinite() & ~out.isfinite()
    return None if bool(fine.all()) else ("value", "a number is neither 0 nor x / (1 - p)")


def widened(case, inputs, function):
    """PyTorch in f32, rounded: for 16-bit calls that it has no kernel for. None: it refuses that, too."""
    if not any(t["dtype"] in ("bf16", "f16") for t in case["tensors"]):
        return None
    low = next(i.dtype for i, t in zip(inputs, case["tensors"]) if t["dtype"] in ("bf16", "f16"))
    made = run_torch(case, inputs, function, "f32")
    if made.error:
        return None
    narrow = lambda t: t.to(low) if t is not None and t.is_floating_point() and t.dtype.itemsize == 4 else t
    made.outs = [narrow(t) for t in made.outs]
    made.grads = {k: None if g is None else g.to(inputs[k].dtype) for k, g in made.grads.items()}
    made.second = {k: None if g is None else g.to(inputs[k].dtype if k < 100 else low) for k, g in made.second.items()}
    made.written = [t.to(i.dtype) for t, i in zip(made.written, inputs)]
    return made


def guard(inputs):
    for k, source in enumerate(inputs):
        if source.damage():
            return ("memory", f"memory around or between the elements of input {k} was written to")
    return None


def describe(case):
    """One line that a person can read."""
    def tensor(ref):
        if ref is None:
            return "NULL"
        t = case["tensors"][ref["tensor"]]
        values = t["values"] if isinstance(t["values"], list) else t["values"]["draw"]
        text = f"{t['dtype']}{t['shape']}" + ("" if isinstance(values, list) and len(values) > 12 else f" {values}")
        if t["layout"]:
            plain = list(range(len(t["shape"])))
            text += " " + ", ".join(f"{k} {v}" for k, v in t["layout"].items() if any(v) and not (k == "order" and v == plain) and not (k == "step" and set(v) == {1}))
        return text + (" leaf" if t["grad"] else "") + (f" through {t['way']}" if t["way"] else "")

    def value(v):
        if isinstance(v, dict) and "tensor" in v:
            return tensor(v)
        if isinstance(v, dict):
            return "{" + ", ".join(f"{k} {value(x)}" for k, x in v.items() if x) + "}"
        if isinstance(v, list) and v and isinstance(v[0], dict):
            return "[" + "; ".join(tensor(x) for x in v) + "]"
        return repr(v)

    plan = case["plan"]
    words = [plan["way"], plan["head"]] + [k for k in ("create", "second", "twice", "retain", "seed_grad", "seed_layout", "write") if plan[k]]
    words += [f"x and y are parts {plan['shared']} of it"] if plan["shared"] else []
    return f"{case['name']}(" + ", ".join(f"{k}={value(v)}" for k, v in case["args"].items()) + ")  gradients: " + " ".join(words)
