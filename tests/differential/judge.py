# SPDX-License-Identifier: Apache-2.0
"""Whether trek's numbers are as good as PyTorch's.

The truth is PyTorch in f64. A number of trek's is right if it is within a few units in the last place of what PyTorch
gives in the same dtypes, or of the truth, plus a multiple of PyTorch's own error: element by element, and if that
fails by what the tensor as a whole shows of PyTorch's error, and by how far the truth itself moves when the inputs do by
half a unit in the last place (sums that cancel). Infinities and NaN are those of PyTorch or of the truth."""
import math
import re

import torch

from case import run_torch
from draw import FLOATS
from headers import root

ULPS = {torch.float32: 6, torch.float64: 24, torch.bfloat16: 2.5, torch.float16: 2.5}
TIMES = 3  # of PyTorch's own error
# Rows whose derivative is taken from the rounded result: 1 - y^2 is off by the rounding of y.
FROM_RESULT = set(re.findall(r"^TREK_(?:PUBLIC_)?OP\((\w+), .*, S\(O\(0\)\), none\)", (root / "tensor/ops.def").read_text(), flags=re.M))


def ulp(t, dtype):
    info = torch.finfo(dtype)
    smallest = info.tiny * info.eps
    return torch.clamp(t.abs() * info.eps, min=smallest * 2)


def close(value, want, allowed):
    """Elements that are within what is allowed, or the same infinity or NaN."""
    same = (value == want) | (value.isnan() & want.isnan())
    return same | ((value - want).abs() <= allowed)


class Judge:
    """Compares the results of a case; PyTorch's f64 run is made when first needed."""

    def __init__(self, case, inputs, function, theirs):
        self.case, self.inputs, self.function, self.theirs = case, inputs, function, theirs
        self._truth, self._moved = None, None
        floats = [i.values for i in inputs if i.dtype.is_floating_point]
        self.unbounded = any(bool(v.isinf().any()) for v in floats)
        self.extreme = any(isinstance(t["values"], dict) and t["values"]["draw"] == "extreme" for t in case["tensors"])
        self.repeated = any(t["layout"] and any(t["layout"]["expand"]) for t in case["tensors"])
        broadcasts = len({tuple(t["shape"]) for t in case["tensors"]}) > 1
        self.apart = {"value": case.get("pointwise", False)}  # number k from numbers k: judged one by one
        self.apart["gradient"] = self.apart["second"] = self.apart["value"] and not broadcasts

    def run(self, change=None):
        floats = any(t["dtype"] in FLOATS for t in self.case["tensors"])
        return run_torch(self.case, self.inputs, self.function, True if floats else "all", change)

    def truth(self):
        if self._truth is None:
            self._truth = self.run()
        return self._truth

    def moved(self):
        """The truth at inputs that are moved by relative roundings."""
        if self._moved is None:
            self._moved = []
            coarse = max([float(torch.finfo(i.dtype).eps) for i in self.inputs if i.dtype.is_floating_point] or [2.0**-24])
            for n in range(4):
                rng = torch.Generator().manual_seed(n)
                self._moved.append(self.run(lambda x: x * (1 + (torch.rand(x.shape, generator=rng, dtype=torch.float64) - 0.5) * max(coarse, 2.0**-49))))
        return self._moved

    def compare(self, what, value, want, get):
        """A complaint, or None. get: the same part of another result."""
        if (value is None) != (want is None):
            one = value if want is None else want
            if what == "second" and bool(one.isnan().all()):
                return None
            if not bool((one != 0).any()):
                return None if what != "gradient" else f"{'a gradient of zeros' if want is None else 'no gradient'}, PyTorch {'none' if want is None else 'zeros'}"
            return f"{'no' if value is None else 'a'} {what}, PyTorch has {'none' if want is None else 'one'}: {brief(one)}"
        if value is None:
            return None
        if value.shape != want.shape:
            return f"shape {list(value.shape)}, PyTorch {list(want.shape)}"
        if value.dtype != want.dtype:
            return f"dtype {value.dtype}, PyTorch {want.dtype}".replace("torch.", "")
        if value.numel() == 0:
            return None
        if not value.dtype.is_floating_point:
            return None if torch.equal(value, want) else self.complain(value, want, None, value != want)
        return self.compare_floats(what, value, want, get, 2 if what == "value" else 4 if what == "gradient" else 16)

    def compare_floats(self, what, value, want, get, slack):
        dtype, v, t = value.dtype, value.double(), want.double()
        few = ULPS[dtype] * slack
        if dtype == torch.float64 and not self.apart[what]:  # PyTorch's own sums round as well
            few *= max(1.0, math.sqrt(max(i.values.numel() for i in self.inputs)) / 4)
        fine = close(v, t, ulp(t, dtype) * few)
        if dtype in (torch.float32, torch.float64):  # PyTorch's vectors flush what is below the normal numbers
            fine |= (v - t).abs() <= 1024 * torch.finfo(dtype).tiny  # x times such a one, too
        if dtype == torch.float64 and what == "value" and not self.apart[what]:  # differences of larger numbers, as a loss near 0
            fine |= (v - t).abs() <= 4 * torch.finfo(dtype).eps * max(self.largest(), self.strain(1))
        if what != "value":  # f64 has no better truth beside it: rounding of what was saved
            fine |= ~v.isfinite() & ~t.isfinite()
            fine |= (v - t).abs() <= few * torch.finfo(torch.float64).eps
            if self.case["name"] in FROM_RESULT:
                fine |= (v - t).abs() <= few * float(torch.finfo(dtype).eps)
        if self.unbounded and (not self.apart["value"] or len(self.inputs) == 1):  # of one input: the limit is better than NaN
            fine |= t.isnan() | (~v.isfinite() & ~t.isfinite())
        if bool(fine.all()):
            return None
        truth = self.part(get, self.truth())
        if truth is None or truth.shape != value.shape:
            return self.complain(value, want, truth, ~fine)
        r = truth.double()
        rounded = r.to(dtype).double()  # an infinity where the dtype has no such number
        own = torch.where(t.isfinite() & r.isfinite(), (t - r).abs(), torch.zeros(()).double())
        fine |= close(v, rounded, ulp(r, dtype) * few + TIMES * slack * own)
        if bool(fine.all()):
            return None
        usable = r.isfinite() & t.isfinite()
        if bool(usable.any()):
            relative = (own / ulp(r, dtype))[usable]
            by_ulps = ulp(r, dtype) * float(torch.clamp(relative, max=1e6).median()) * TIMES * slack
            widest = float(r[usable].abs().max())
            fine |= close(v, rounded, by_ulps)
            if not self.apart[what]:
                widest = max(widest, 1.0) * self.strain(2 if what == "gradient" else 3) if what != "value" else widest
                fine |= close(v, rounded, torch.full_like(r, TIMES * slack * float(own[usable].max()) + few * float(torch.finfo(dtype).eps) * widest * 0.25))
        if bool(fine.all()):
            return None
        coarse = max([float(torch.finfo(i.dtype).eps) for i in self.inputs if i.dtype.is_floating_point] or [2.0**-24])
        wander = torch.zeros_like(r)
        for other in self.moved():
            o = self.part(get, other)
            if o is not None and o.shape == r.shape:
                wander = torch.maximum(wander, torch.nan_to_num((o.double() - r).abs(), 0, 0, 0))
        largest = self.largest()
        if what == "gradient" and self.case["plan"]["head"] == "mean" and coarse > torch.finfo(dtype).eps:  # 1 / n is rounded, and then added up n times
            fine |= close(v, rounded, r.abs() * coarse)
        if what != "value" and not self.apart[what]:  # what cancels to nothing, as a softmax of one
            fine |= close(v, rounded, torch.full_like(r, few * float(torch.finfo(dtype).eps) * min(largest, 1e6)))
        widest = float(r[usable].abs().max()) if bool(usable.any()) else 0.0
        largest = widest if self.apart[what] else max(widest, largest)
        if what != "value" and self.case["name"] == "attention":  # of the saved log-sum-exp
            fine |= close(v, rounded, torch.full_like(r, 2.0**-23 * largest * max(widest, 1.0)))
        cap = 64 * coarse * torch.clamp(r.abs(), min=largest)
        if not self.apart[what] and self.repeated:  # equal numbers round one way
            fine |= close(v, rounded, r.abs() * float(torch.finfo(dtype).eps) * max(i.values.numel() for i in self.inputs) / 4)
        if self.extreme and not self.apart[what]:  # terms beside which the sum is nothing
            cap = torch.full_like(r, math.inf)
        fine |= close(v, rounded, torch.minimum(wander, cap) * TIMES * slack)
        return None if bool(fine.all()) else self.complain(value, want, truth, ~fine)

    @staticmethod
    def part(get, result):
        try:
            return get(result)
        except IndexError:
            return None  # refused before it came to this

    def largest(self):
        """Of the terms that may be summed, which are products: that of each input."""
        made = 1.0
        for i in self.inputs:
            if i.dtype.is_floating_point and i.values.numel():
                made *= max(1.0, min(float(torch.nan_to_num(i.values.double(), 0, 0, 0).abs().max()), 1e6))
        return made

    def strain(self, times):
        """By how much a norm of nearly equal numbers magnifies roundings, which tiny rows leave to chance: by 1 / deviation each time."""
        name = self.case["name"]
        if name in ("std", "variance"):
            return 100.0
        if "norm" not in name:
            return 1.0
        size, deviation = self.least_deviation()
        return 1 / math.sqrt(1e-5) if size is None else max(size, 1.0) / min(deviation, 1.0) ** times

    def least_deviation(self):
        """The largest number of what is normalized, and the least deviation of a row; None where nothing is."""
        args = self.case["args"]
        rows = [self.inputs[args[n]["tensor"]].values.double() for n in ("x", "branch") if isinstance(args.get(n), dict)]
        if not rows or "eps" not in args or not rows[0].numel():
            return None, None
        x = torch.nan_to_num(sum(rows), 0, 0, 0)
        if self.case["name"] == "group_norm":  # rows are a sample's groups
            x = x.reshape(x.shape[0], args["groups"], -1)
        count = 1 if self.case["name"] == "group_norm" else x.ndim - 2 if self.case["name"] == "instance_norm" else args.get("normalized_dims")
        dims = tuple(range(x.ndim - count, x.ndim)) if count else (0, *range(2, x.ndim))
        spread = (x * x).mean(dims) if self.case["name"] == "rms_norm" else x.var(dims, unbiased=False)
        if args.get("training") is False and isinstance(args.get("running_var"), dict):
            spread = torch.nan_to_num(self.inputs[args["running_var"]["tensor"]].values.double(), 0, 0, 0).clamp(min=0)
        return float(x.abs().max()), math.sqrt(max(float(spread.min()) + args["eps"], 1e-12))

    def complain(self, value, want, truth, wrong):
        at = int(torch.nonzero(wrong.reshape(-1))[0])
        place = [int(k) for k in torch.unravel_index(torch.tensor(at), value.shape)] if value.ndim else []
        text = f"{int(wrong.sum())} of {value.numel()} differ: at {place} {value.reshape(-1)[at].item():.9g}, PyTorch {want.reshape(-1)[at].item():.9g}"
        if truth is not None and truth.shape == value.shape:
            text += f", in f64 {truth.reshape(-1)[at].item():.12g}"
        return text

    def all(self, ours):
        """The first complaint of all that a result shows: (kind, text), or None."""
        theirs = self.theirs
        for note in ours.notes:
            return ("rules", note)
        if ours.error or theirs.error:
            if ours.error and theirs.error:
                return None if ours.error[0] == theirs.error[0] or {ours.error[0], theirs.error[0]} <= {"forward", "backward"} else \
                    ("refusal", f"trek refuses in {ours.error[0]} ({ours.error[1]}), PyTorch in {theirs.error[0]} ({theirs.error[1]})")
            one, name = (ours.error, "trek") if ours.error else (theirs.error, "PyTorch")
            return ("refusal", f"{name} alone refuses, in {one[0]}: {one[1]}")
        if len(ours.outs) != len(theirs.outs):
            return ("value", f"{len(ours.outs)} results, PyTorch {len(theirs.outs)}")
        for k, (o, t) in enumerate(zip(ours.outs, theirs.outs)):
            complaint = self.compare("value", o, t, lambda r, k=k: r.outs[k])
            if complaint:
                return ("value", f"result {k}: {complaint}")
        if ours.needs != theirs.needs:
            return ("gradient", f"results require gradients: {ours.needs}, PyTorch {theirs.needs}")
        for k, (source, o, t) in enumerate(zip(self.inputs, ours.written, theirs.written)):
            seen = source.look(t)
            if not source.flipped or not self.case["name"].endswith("_"):
                complaint = self.compare("value", o, seen, lambda r, k=k: self.inputs[k].look(r.written[k]))
                if complaint:
                    return ("written", f"input {k} after the call: {complaint}")
        for part, have, want in (("gradient", ours.grads, theirs.grads), ("second", ours.second, theirs.second)):
            for k in sorted(set(have) | set(want)):
                complaint = self.compare(part, have.get(k), want.get(k), lambda r, k=k, part=part: (r.grads if part == "gradient" else r.second).get(k))
                if complaint:
                    who = f"input {k}" if k < 100 else f"cotangent {k - 100}"
                    return (part, f"{'gradient' if part == 'gradient' else 'second derivative'} of {who}: {complaint}")
        return None


def brief(t):
    values = t.reshape(-1)[:6].tolist()
    return f"{[float(f'{v:.5g}') for v in values]}{'...' if t.numel() > 6 else ''}"
