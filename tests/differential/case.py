# SPDX-License-Identifier: Apache-2.0
"""Runs a case on both sides: values, gradients, gradients of gradients, and what was written to."""
import contextlib
import ctypes
import math

import torch

from counterparts import Refuses, counterpart
from draw import fill
from trek import CPU, DTYPES, FLOATS, Device, Refused, Wrong, headers, shape, vector

GUARD = 64  # bytes before and after memory that is lent to trek
PATTERN = 0x5A
ROOM = 8192  # for parts
Opts = headers.structs["trek_backward_opts"]


class Input:
    """A tensor of a case: its memory, and how it is looked at."""

    def __init__(self, spec):
        self.spec, self.dtype = spec, DTYPES[spec["dtype"]]
        sizes, layout = spec["shape"], spec["layout"]
        n = len(sizes)
        self.flipped = False
        if not layout or n == 0:
            self.sizes, self.strides, self.offset, numel = sizes, contiguous(sizes), 0, math.prod(sizes)
            self.plain = True
        else:
            extent = [1 if layout["expand"][d] else max(sizes[d] - 1, 0) * layout["step"][d] + min(sizes[d], 1) + layout["before"][d] + layout["after"][d]
                      for d in range(n)]
            unit, step = [0] * n, 1
            for d in reversed(layout["order"]):
                unit[d] = step
                step *= extent[d]
            numel = step
            self.strides, self.offset = [0] * n, 0
            for d in range(n):
                if layout["expand"][d]:
                    continue
                self.strides[d] = unit[d] * layout["step"][d]
                self.offset += unit[d] * layout["before"][d]
                if layout["flip"][d] and sizes[d] > 1:
                    self.offset += self.strides[d] * (sizes[d] - 1)
                    self.strides[d] *= -1
                    self.flipped = True
            self.sizes, self.plain = sizes, False
            if numel == 0:
                self.offset = 0
        given = spec["values"]
        self.values = fill(given["draw"], given["seed"], spec["dtype"], sizes) if isinstance(given, dict) else number_tensor(given, self.dtype, sizes)
        self.numel = numel
        # memory with a guard on both sides
        size = self.values.element_size()
        self.memory = torch.full((2 * GUARD + numel * size,), PATTERN, dtype=torch.uint8)
        self.base = self.memory[GUARD:GUARD + numel * size].view(self.dtype)
        if self.dtype == torch.bool:
            self.base.zero_()
        if self.values.numel():
            self.store(self.base, self.values)
            if not self.plain:
                self.values = self.look(self.base)
        self.before = self.memory.clone()

    def store(self, base, values):
        if self.flipped:
            index = self.places()
            base[index.reshape(-1)] = values.reshape(-1)
        elif self.plain:
            base.copy_(values.reshape(-1))
        elif any(s == 0 and n > 1 for s, n in zip(self.strides, self.sizes)):
            view = torch.as_strided(base, [1 if s == 0 else n for s, n in zip(self.strides, self.sizes)], self.strides, base.storage_offset() + self.offset)
            view.copy_(values[tuple(slice(0, 1) if s == 0 else slice(None) for s in self.strides)])
        else:
            torch.as_strided(base, self.sizes, self.strides, base.storage_offset() + self.offset).copy_(values)

    def places(self):
        at = torch.full([1] * len(self.sizes), self.offset, dtype=torch.int64)
        for d, (n, s) in enumerate(zip(self.sizes, self.strides)):
            at = at + (torch.arange(n) * s).reshape([-1 if k == d else 1 for k in range(len(self.sizes))])
        return at

    def look(self, base):
        """The elements, in torch: a view of base unless a stride is negative."""
        if self.plain:
            return base.view(self.sizes)
        if self.flipped:
            return base[self.places()]
        return torch.as_strided(base, self.sizes, self.strides, base.storage_offset() + self.offset)

    def torch(self):
        """A copy of memory and view for PyTorch."""
        base = self.base.clone()
        return base, self.look(base)

    def trek(self, lib):
        """A tensor for trek; a new reference."""
        if self.plain and self.spec["own"]:
            return lib.tensor(self.values.contiguous())
        return lib.view(self.base, self.sizes, self.strides, self.offset)

    def damage(self):
        """Whether memory before, after or between the elements was written to."""
        if torch.equal(self.memory, self.before):
            return False
        outside = torch.ones(len(self.memory), dtype=torch.bool)
        if self.values.numel():
            size = self.values.element_size()
            elements = outside[GUARD:GUARD + self.numel * size].view(self.numel, size)
            elements[torch.arange(self.numel) if self.plain else self.places().reshape(-1)] = False
        return not torch.equal(self.memory[outside], self.before[outside])


def contiguous(sizes):
    strides, step = [0] * len(sizes), 1
    for d in reversed(range(len(sizes))):
        strides[d] = step
        step *= max(sizes[d], 1)
    return strides


def number_tensor(values, dtype, sizes):
    if dtype.is_floating_point:
        return torch.tensor([float(v) for v in values], dtype=torch.float64).to(dtype).reshape(sizes)
    return torch.tensor([int(v) for v in values], dtype=torch.int64).to(dtype).reshape(sizes)


class Result:
    """What a side gave. error: (stage, text) if it refused."""

    def __init__(self):
        self.outs, self.grads, self.second, self.written = [], {}, {}, []
        self.error, self.extra, self.notes = None, {}, []


def cotangent(plan, k, dtype, sizes, stage=0):
    """Numbers that every dtype holds exactly."""
    rng = torch.Generator().manual_seed((plan["seed"] + 7919 * k + 104729 * stage) % 2**63)
    return (torch.randint(-6, 7, tuple(sizes), generator=rng).double() / 4).to(dtype)


MORE_RESULTS = ("logabsdet", "residual", "hn", "cn", "indices", "inverse", "counts", "mean", "max", "edges")  # parameters through which a function gives another one


def arguments(case, function, tensor, make_opts):
    """Values for the parameters; `tensor` turns a reference into one of the side's tensors."""
    made = []
    for kind, name in function.params:
        value = case["args"].get(name)
        if kind == "trek_var *":
            made.append(tensor(value))
        elif kind == "trek_var * const *":
            made.append([tensor(v) for v in value])
        elif kind.endswith("_opts *"):
            made.append(None if value is None else make_opts(kind.split()[1], {k: tensor(v) if is_ref(v) else v for k, v in value.items()}))
        elif name in ("count", "capacity") or kind == "trek_var * *":
            continue
        else:
            made.append(value)
    return made


def is_ref(value):
    return isinstance(value, dict) and "tensor" in value


# --- PyTorch ------------------------------------------------------------------------------------------------


def run_torch(case, inputs, function, wide=False, change=None):
    """wide: everything in f64, for the truth; integers too where the result is a float without a floating input. change: applied
    to the values of floating inputs."""
    result, plan = Result(), case["plan"]
    tensors, leaves, bases = [], [], []
    for spec, source in zip(case["tensors"], inputs):
        base, view = source.torch()
        if wide == "all" or (wide is True and spec["dtype"] in FLOATS):
            view = view.double()
        elif wide == "f32" and spec["dtype"] in ("bf16", "f16"):
            view = view.float()
        if wide and not case["name"].endswith("_"):
            view = view.contiguous()  # the truth owes nothing to a layout
        if change is not None and spec["dtype"] in FLOATS:
            view = change(view)
        leaf = view.detach()
        if spec["grad"]:
            leaf = leaf.requires_grad_()
        used = leaf
        if spec["grad"] and spec["way"] == "scale":
            used = leaf * 1.0
        elif spec["grad"] and spec["way"] == "turn" and leaf.ndim >= 2 and not wide:
            used = leaf.transpose(0, -1).contiguous().transpose(0, -1)
        tensors.append(used)
        leaves.append(leaf)
        bases.append(base)
    if plan["shared"] and len(tensors) == 1:
        tensors = [tensors[0].narrow(0, *part) for part in plan["shared"]]
        refs = iter(range(2))
        tensor = lambda ref: tensors[next(refs)]
    else:
        tensor = lambda ref: None if ref is None else tensors[ref["tensor"]]
    stage = "forward"
    try:
        with torch.no_grad() if case["name"].endswith("_") else contextlib.nullcontext():
            outs = counterpart(case["name"], wide is True)(*arguments(case, function, tensor, lambda kind, o: o))
        outs = list(outs) if isinstance(outs, (list, tuple)) else [outs]
        result.outs = [o.detach().clone() for o in outs]
        result.needs = [o.requires_grad for o in outs]
        if not case["name"].endswith("_"):
            stage = "backward"
            torch_gradients(case, result, outs, leaves, wide)
    except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, ZeroDivisionError, OverflowError, AssertionError, Refuses) as e:
        result.error = (stage if stage == "forward" else result.stage, f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}")
    result.written = [base for base in bases]
    return result


def torch_gradients(case, result, outs, leaves, wide):
    plan = case["plan"]
    result.stage = "backward"
    heads = [(k, o) for k, o in enumerate(outs) if o.requires_grad]
    wanted = [(k, leaf) for k, leaf in enumerate(leaves) if leaf.requires_grad]
    if not heads or not wanted:
        return
    seeds = []
    if plan["head"] != "seed":
        heads = [(k, o.sum() if plan["head"] == "sum" else o.sum() / max(o.numel(), 1)) for k, o in heads]
        if plan["head"] == "mean":
            heads = [(k, outs[k].mean() if outs[k].numel() else h) for k, h in heads]
    for k, o in heads:
        seed = cotangent(plan, k, o.dtype, o.shape) if plan["head"] == "seed" else torch.ones_like(o)
        seeds.append(seed.requires_grad_() if plan["seed_grad"] and plan["head"] == "seed" else seed)
    grads = torch.autograd.grad([o for _, o in heads], [leaf for _, leaf in wanted], seeds, create_graph=plan["create"], retain_graph=True,
                                allow_unused=True)
    if plan["way"] == "leaf" and plan["twice"]:
        grads = [None if g is None else g * 2 for g in grads]
    result.grads = {k: None if g is None else g.detach() for (k, _), g in zip(wanted, grads)}
    if not plan["second"]:
        return
    result.stage = "second"
    joined = [(k, g) for (k, _), g in zip(wanted, grads) if g is not None and g.requires_grad]
    targets = wanted + ([(100 + k, s) for (k, _), s in zip(heads, seeds)] if plan["seed_grad"] and plan["head"] == "seed" else [])
    if joined:
        weights = [cotangent(plan, k, g.dtype, g.shape, 1) for k, g in joined]
        made = torch.autograd.grad([g for _, g in joined], [t for _, t in targets], weights, allow_unused=True)
        result.second = {k: None if g is None else g.detach() for (k, _), g in zip(targets, made)}
    else:
        result.second = {k: None for k, _ in targets}


# --- trek ---------------------------------------------------------------------------------------------------


class Run:
    """One run of a case on trek."""

    def __init__(self, lib, case, inputs, function):
        self.lib, self.case, self.inputs, self.function, self.plan = lib, case, inputs, function, case["plan"]
        self.result = Result()

    def go(self):
        lib = self.lib
        lib.error_clear()
        lib.keep.clear()
        before = lib.tape_size()
        scope = lib.scope_begin()
        self.stage, self.leaves = "forward", []
        try:
            self.forward_and_back()
        except Refused as e:
            self.result.error = (self.stage, str(e))
        except Wrong as e:
            self.result.notes.append(str(e))
        if self.recording_off:
            lib.no_grad_end()
        for leaf in self.leaves:  # a gradient with a graph holds its leaf, as in PyTorch
            lib.var_zero_grad(leaf)
            lib.var_release(leaf)
        lib.scope_end(scope)
        if lib.error_status() != 0:
            self.result.notes.append(f"an error was left behind: {lib.error().decode()}")
            lib.error_clear()
        if lib.tape_size() != before:
            self.result.notes.append(f"{lib.tape_size() - before} nodes stay on the tape")
        return self.result

    recording_off = False

    def forward_and_back(self):
        lib, case = self.lib, self.case
        self.used = []
        for spec, source in zip(case["tensors"], self.inputs):
            tensor = source.trek(lib)
            leaf = lib.ok(lib.var_new(tensor, spec["grad"]), "var_new")
            lib.tensor_release(tensor)
            self.leaves.append(leaf)
            used = leaf
            if spec["grad"] and spec["way"] == "scale":
                used = lib.ok(lib.mul_scalar(leaf, 1.0), "mul_scalar")
            elif spec["grad"] and spec["way"] == "turn" and len(spec["shape"]) >= 2:
                used = lib.ok(lib.transpose(lib.contiguous(lib.transpose(leaf, 0, -1)), 0, -1), "transpose")
            self.used.append(used)
        if case["name"].endswith("_"):
            lib.no_grad_begin()
            self.recording_off = True
            if self.plan["shared"]:
                self.used = [lib.narrow(self.used[0], 0, *part) for part in self.plan["shared"]]
        outs = self.call()
        lib.clean(case["name"])
        self.result.outs = [lib.read_var(o) for o in outs]
        self.result.needs = [lib.var_requires_grad(o) for o in outs]
        if "loss" in case["name"] or "entropy" in case["name"] or case["name"].startswith(("kl_div", "bce", "info_nce")):
            self.result.extra["weight"] = lib.loss_weight(outs[0])
            lib.error_clear()
        if not self.recording_off:
            self.stage = "backward"
            self.gradients(outs)
        self.result.written = [lib.read_var(leaf) for leaf in self.leaves]

    def call(self):
        lib, case = self.lib, self.case
        keep, given, extra = [], [], {}
        shared = iter(self.used)
        var = lambda ref: None if ref is None else next(shared) if self.plan["shared"] else self.used[ref["tensor"]]
        values = iter(arguments(case, self.function, var, lambda kind, o: struct(kind, o, keep)))
        for kind, name in self.function.params:
            if name == "count":
                given.append(len(case["args"]["list"]))
            elif name == "capacity":
                given.append(ROOM)
            elif kind == "trek_var * *":
                extra[name] = vector([None] * ROOM)
                given.append(extra[name])
            else:
                value = next(values)
                if kind in ("trek_dims_list", "trek_shape"):
                    value = shape(value)
                elif kind == "trek_device":
                    value = Device(*value)
                elif kind == "const char *":
                    value = value.encode()
                elif kind == "trek_var * const *":
                    value = vector(value)
                elif kind.endswith("_opts *") and value is not None:
                    keep.append(value)
                    value = ctypes.addressof(value)
                given.append(value)
        made = getattr(lib, case["name"])(*given)
        if self.function.result == "int":
            if made < 0:
                raise lib.refusal(case["name"])
            return [extra["parts"][k] for k in range(made)]
        return [lib.ok(made, case["name"])] + [lib.ok(extra[name][0], name) for name in MORE_RESULTS if name in extra]

    def seed(self, k, out):
        """The cotangent of an output; a variable."""
        lib, s = self.lib, self.lib.var_shape(out)
        source = cotangent(self.plan, k, self.result.outs[k].dtype, s.sizes[:s.ndim])
        if self.plan["seed_layout"] and source.ndim:
            memory = source.transpose(0, -1).contiguous()
            made = lib.view(memory.reshape(-1), list(source.shape), list(memory.transpose(0, -1).stride()), 0)
        else:
            memory = None
            made = lib.tensor(source)
        var = lib.ok(lib.var_new(made, bool(self.plan["seed_grad"])), "var_new")
        lib.tensor_release(made)
        self.leaves.append(var)
        self.seeds[k] = (var, source)
        return var

    def gradients(self, outs):
        lib, plan, result = self.lib, self.plan, self.result
        self.seeds = {}
        heads = [(k, o) for k, o in enumerate(outs) if lib.var_requires_grad(o)]
        wanted = [k for k, spec in enumerate(self.case["tensors"]) if spec["grad"]]
        if not heads or not wanted:
            return
        if plan["head"] != "seed":
            head = lib.sum if plan["head"] == "sum" else lib.mean
            heads = [(k, lib.ok(head(o, shape([]), False) if result.outs[k].numel() else lib.sum(o, shape([]), False), plan["head"])) for k, o in heads]
        seeds = [self.seed(k, o) if plan["head"] == "seed" else None for k, o in heads]
        opts = Opts(retain_graph=plan["retain"] or (plan["way"] == "leaf" and plan["twice"]), create_graph=plan["create"])
        if plan["way"] == "leaf" and len(heads) == 1:
            for time in range(2 if plan["twice"] else 1):
                lib.done(lib.backward_with(heads[0][1], seeds[0], ctypes.byref(opts)), "backward")
            grads = {k: lib.var_grad(self.leaves[k]) for k in wanted}
        else:
            made = vector([None] * len(wanted))
            lib.done(lib.grad(vector([o for _, o in heads]), len(heads), vector([self.leaves[k] for k in wanted]), len(wanted), vector(seeds),
                              ctypes.byref(opts), made), "grad")
            grads = {k: made[j] for j, k in enumerate(wanted)}
        lib.clean("backward")
        if plan["way"] == "leaf" and plan["twice"] and len(heads) > 1:
            grads = {k: None if g is None else lib.ok(lib.mul_scalar(g, 2.0), "mul_scalar") for k, g in grads.items()}
        result.grads = {k: None if g is None else lib.read_var(g) for k, g in grads.items()}
        if plan["second"]:
            self.stage = "second"
            self.second_derivatives(grads, heads, wanted)
        if plan["write"] and plan["way"] == "leaf" and len(heads) == 1 and not plan["create"]:
            self.stage = "write"
            self.write_gradients({k: g for k, g in grads.items() if g is not None}, outs)

    def second_derivatives(self, grads, heads, wanted):
        lib, plan = self.lib, self.plan
        joined = [(k, g) for k, g in grads.items() if g is not None and lib.var_requires_grad(g)]
        extra = [k for k in self.seeds] if plan["seed_grad"] and plan["head"] == "seed" else []
        targets = [(k, self.leaves[k]) for k in wanted] + [(100 + k, self.seeds[k][0]) for k in extra]
        if not joined:
            self.result.second = {k: None for k, _ in targets}
            return
        weights = []
        for k, g in joined:
            s = lib.var_shape(g)
            weights.append(lib.ok(lib.var_from(lib.tensor(cotangent(plan, k, self.result.grads[k].dtype, s.sizes[:s.ndim], 1))), "var_from"))
        made = vector([None] * len(targets))
        lib.done(lib.grad(vector([g for _, g in joined]), len(joined), vector([t for _, t in targets]), len(targets), vector(weights), None, made),
                 "grad")
        lib.clean("grad")
        self.result.second = {k: None if made[j] is None else lib.read_var(made[j]) for j, (k, _) in enumerate(targets)}

    def write_gradients(self, grads, outs):
        """Each gradient is filled with a number of its own; nothing else may change by it."""
        lib = self.lib
        outs_before = [lib.read_var(o) for o in outs]
        lib.no_grad_begin()
        self.recording_off = True
        for n, g in enumerate(grads.values()):
            lib.ok(lib.fill_(g, 3.0 + n), "fill_ of a gradient")
        for n, (k, g) in enumerate(grads.items()):
            if not bool((lib.read_var(g) == 3.0 + n).all()):
                self.result.notes.append(f"the gradient of input {k} shares memory with another")
        for before, out in zip(outs_before, outs):
            if not same(before, lib.read_var(out)):
                self.result.notes.append("writing to a gradient changed the result")
        for k, (var, source) in self.seeds.items():
            if not same(source, lib.read_var(var)):
                self.result.notes.append("writing to a gradient changed the cotangent")
        lib.no_grad_end()
        self.recording_off = False


def same(a, b):
    return torch.equal(a, b) if not a.is_floating_point() else torch.equal(torch.nan_to_num(a, 7.25), torch.nan_to_num(b, 7.25))


def struct(kind, values, keep):
    made = headers.structs[kind]()
    for name, value in values.items():
        if isinstance(value, list):
            field = getattr(made, name)
            for k, v in enumerate(value):
                field[k] = v
        elif value is not None:
            setattr(made, name, value)
    return made


def run_trek(lib, case, inputs, function):
    return Run(lib, case, inputs, function).go()
