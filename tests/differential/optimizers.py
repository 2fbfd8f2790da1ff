# SPDX-License-Identifier: Apache-2.0
"""Optimizers, clipping and loss scaling against torch.optim: parameters of any dtype, groups, frozen and unused ones,
over several steps. 16-bit parameters are updated in f32 and rounded, as optim/optimizer.h says: PyTorch does so over
f32 copies."""
import ctypes
import math

import torch

from headers import ZERO
from trek import CPU, DTYPES, headers, shape

OPTIMIZER = {f.name[5:]: f for f in headers.functions.values() if f.header in ("optim/clip.h", "optim/groups.h", "optim/optimizer.h", "optim/optimizer_state.h", "optim/optimizers.h")}
SCALER = {f.name[5:]: f for f in headers.functions.values() if f.header == "optim/scaler.h"}
KINDS = ("sgd", "adam", "adamw", "rmsprop", "rprop", "adagrad", "adadelta", "adamax", "asgd", "nadam", "radam", "lion", "lamb", "lars", "adafactor", "muon")
DRIVEN = {"optimizer_new", "optimizer_free", "optimizer_step", "optimizer_zero_grad", "optimizer_set_lr", "optimizer_set_group_lr", "optimizer_lr",
          "optimizer_group_lr", "optimizer_add_group", "clip_grad_norm", "clip_grad_value", "grad_scaler_new", "grad_scaler_free", "grad_scaler_scale",
          "grad_scaler_unscale", "grad_scaler_step", "grad_scaler_update", "grad_scaler_value"}
HELPERS = {"with_state": "tests/optim/test_low_state.c", "optimizer_vectors": "tests/optim/test_optimizer_around.c", "optimizer_regroup": "tests/optim/test_optimizer_around.c",
           "optimizer_reset": "tests/optim/test_optimizer_around.c", "total_norm": "tests/nn/test_parameters.c", "grad_scaler_save": "checkpoints", "grad_scaler_load": "checkpoints",
           "optimizer_save": "tests/optim/test_optimizer_save.c", "optimizer_load": "tests/optim/test_optimizer_save.c"}


def covered():
    known = set(KINDS) | DRIVEN | set(HELPERS)
    return list(KINDS), [f"{n}: optimizers.py does not call it" for n in {**OPTIMIZER, **SCALER} if n not in known]


def options(rng, name):
    zero = ZERO
    if name == "sgd":
        momentum = rng.choice([0.0, 0.9, 0.5])
        nesterov = momentum > 0 and rng.random() < 0.3
        return {"lr": rng.choice([0.1, 0.01]), "momentum": momentum, "dampening": 0.0 if nesterov else rng.choice([0.0, 0.0, 0.3]),
                "weight_decay": rng.choice([0.0, 0.0, 0.1]), "nesterov": nesterov, "maximize": rng.random() < 0.2}
    if name == "rmsprop":
        return {"lr": rng.choice([0.1, 0.01, 0.0]), "alpha": rng.choice([0.0, 0.9, 0.25]), "eps": rng.choice([0.0, 1e-3]),
                "weight_decay": rng.choice([0.0, 0.0, 0.1]), "momentum": rng.choice([0.0, 0.9]), "centered": rng.random() < 0.4,
                "maximize": rng.random() < 0.2}
    if name == "rprop":
        return {"lr": rng.choice([0.0, 0.1]), "eta_minus": rng.choice([0.0, 0.25]), "eta_plus": rng.choice([0.0, 1.5]), "step_min": rng.choice([0.0, 0.05, zero]),
                "step_max": rng.choice([0.0, 0.12]), "maximize": rng.random() < 0.2}
    common = {"lr": rng.choice([0.1, 0.01]), "weight_decay": rng.choice([0.0, 0.1]), "maximize": rng.random() < 0.2}
    if name == "adagrad":
        return {**common, "lr_decay": rng.choice([0.0, 0.1]), "initial_accumulator_value": rng.choice([0.0, 0.5]), "eps": rng.choice([0.0, 1e-3])}
    if name == "adadelta":
        return {**common, "lr": rng.choice([0.0, 0.1]), "rho": rng.choice([0.0, 0.5, zero]), "eps": rng.choice([0.0, 1e-3])}
    if name == "asgd":
        return {**common, "lambd": rng.choice([0.0, 0.1, zero]), "alpha": rng.choice([0.0, 1.0, zero]), "t0": rng.choice([0.0, 1.0, zero])}
    if name == "lars":
        return {**common, "momentum": rng.choice([0.0, 0.5, zero]), "trust_coefficient": rng.choice([0.0, 0.5, zero]), "eps": rng.choice([0.0, 1e-3])}
    if name == "adafactor":
        return {**common, "lr": rng.choice([0.0, 0.3]), "beta2_decay": rng.choice([0.0, -0.5, zero]), "eps1": rng.choice([0.0, 1e-4]),
                "eps2": rng.choice([0.0, 0.1]), "d": rng.choice([0.0, 2.0])}
    if name == "muon":
        del common["maximize"]
        return {**common, "momentum": rng.choice([0.0, 0.3, 0.5, zero]), "no_nesterov": rng.random() < 0.3, "ns_steps": rng.choice([0.0, 0.0, 1.0]),
                "eps": rng.choice([0.0, 1e-3]), "adjust_lr": rng.randrange(3), "adam": rng.random() < 0.3, "beta1": rng.choice([0.0, 0.5]),
                "beta2": rng.choice([0.0, 0.9])}
    betas = {"beta1": rng.choice([0.0, 0.5, zero]), "beta2": rng.choice([0.0, 0.9, zero])}
    if name == "lion":
        return {**common, **betas}
    common = {**common, **betas, "eps": rng.choice([0.0, 1e-3])}
    if name in ("adamax", "lamb"):
        return common
    if name == "nadam":
        return {**common, "momentum_decay": rng.choice([0.0, zero, 0.5]), "decoupled_weight_decay": rng.random() < 0.4}
    if name == "radam":
        return {**common, "beta2": rng.choice([0.0, 0.9, 0.7]), "decoupled_weight_decay": rng.random() < 0.4}
    return {**common, "weight_decay": rng.choice([0.0, 0.1, zero]), "amsgrad": rng.random() < 0.3}


def draw(rng, name):
    count = rng.randrange(1, 5)
    dims = (2, 3) if name == "muon" else (0, 3) if name != "adafactor" else (0, 5)
    dtypes = rng.choice([["f32"], ["f64"], ["f32", "f64"], ["bf16"], ["f16"], ["f32", "bf16", "f16", "f64"]])
    if name == "adafactor":  # where dtypes meet, PyTorch takes the first one's epsilon for all
        dtypes = rng.choice([["f32"], ["f64"], ["bf16"], ["f16"]])
    return {"name": name, "opts": options(rng, name), "group": options(rng, name) if count > 1 and rng.random() < 0.3 else None,
            "params": [{"dtype": rng.choice(dtypes), "shape": [rng.choice([1, 2, 3, 7, 17, 65, 0][:5 if name == "adafactor" else 7]) for _ in range(rng.randrange(*dims))],
                        "frozen": rng.random() < 0.1, "skip": [rng.random() < 0.15 for _ in range(8)]} for _ in range(count)],
            "steps": rng.randrange(1, 8), "clip": rng.choice([None, None, ["norm", 1.0], ["norm", 0.1], ["value", 0.3]]),
            "scaler": rng.random() < 0.15, "new_lr": rng.choice([0.0, 0.5]), "seed": rng.getrandbits(31)}


def torch_options(name, o):
    zero = ZERO
    real = lambda value, default: 0.0 if value == zero else value if value else default
    if name == "sgd":
        return {"lr": o["lr"], "momentum": o["momentum"], "dampening": o["dampening"], "weight_decay": o["weight_decay"], "nesterov": o["nesterov"],
                "maximize": o["maximize"], "foreach": False}
    if name == "rmsprop":
        return {"lr": real(o["lr"], 0.01), "alpha": real(o["alpha"], 0.99), "eps": real(o["eps"], 1e-8), "weight_decay": o["weight_decay"],
                "momentum": o["momentum"], "centered": o["centered"], "maximize": o["maximize"], "foreach": False}
    if name == "rprop":
        return {"lr": real(o["lr"], 0.01), "etas": (o["eta_minus"] or 0.5, o["eta_plus"] or 1.2), "maximize": o["maximize"], "foreach": False,
                "step_sizes": (real(o["step_min"], 1e-6), o["step_max"] or 50)}
    common = {"lr": real(o["lr"], 1.0), "weight_decay": real(o["weight_decay"], 0.01 if name == "adamw" else 0.0), "maximize": o.get("maximize", False)}
    if name == "lion":
        return {**common, "betas": (real(o["beta1"], 0.9), real(o["beta2"], 0.99))}
    if name == "lamb":
        return {**common, "betas": (real(o["beta1"], 0.9), real(o["beta2"], 0.999)), "eps": real(o["eps"], 1e-6)}
    if name == "asgd":
        return {**common, "lr": o["lr"], "lambd": real(o["lambd"], 1e-4), "alpha": real(o["alpha"], 0.75), "t0": real(o["t0"], 1e6), "foreach": False}
    if name == "lars":
        return {**common, "momentum": real(o["momentum"], 0.9), "trust": real(o["trust_coefficient"], 1e-3), "eps": real(o["eps"], 1e-8)}
    if name == "muon":
        return {**common, "weight_decay": o["weight_decay"] or 0.1, "momentum": real(o["momentum"], 0.95), "nesterov": not o["no_nesterov"],
                "steps": int(o["ns_steps"] or 5), "eps": o["eps"] or (1e-8 if o["adam"] else 1e-7), "adam": o["adam"],
                "adjust": (None, "match_rms_adamw", "spectral_unclamped")[o["adjust_lr"]], "betas": (o["beta1"] or 0.9, o["beta2"] or 0.999)}
    common["foreach"] = False
    if name == "adafactor":
        return {**common, "lr": o["lr"] or 0.01, "beta2_decay": real(o["beta2_decay"], -0.8), "eps": (o["eps1"] or None, o["eps2"] or 1e-3), "d": o["d"] or 1.0}
    if name == "adagrad":
        return {**common, "lr_decay": o["lr_decay"], "initial_accumulator_value": o["initial_accumulator_value"], "eps": real(o["eps"], 1e-10)}
    if name == "adadelta":
        return {**common, "rho": real(o["rho"], 0.9), "eps": real(o["eps"], 1e-6)}
    common = {**common, "betas": (real(o["beta1"], 0.9), real(o["beta2"], 0.999)), "eps": real(o["eps"], 1e-8)}
    if name == "nadam":
        common["momentum_decay"] = real(o["momentum_decay"], 4e-3)
    return {**common, **{k: o[k] for k in ("amsgrad", "decoupled_weight_decay") if k in o}}


class Lion(torch.optim.Optimizer):
    """The paper's, which PyTorch has not."""

    def __init__(self, params, **options):
        super().__init__(params, options)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = -p.grad if group["maximize"] else p.grad
                mean = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                beta1, beta2 = group["betas"]
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * (beta1 * mean + (1 - beta1) * g).sign())
                mean.mul_(beta2).add_((1 - beta2) * g)


class Plain(torch.optim.Optimizer):
    """What PyTorch has not, or not in the parameters' precision, by its paper; update(p, g, state, group)."""

    def __init__(self, params, **options):
        super().__init__(params, options)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.numel():
                    self.state[p]["step"] = self.state[p].get("step", 0) + 1
                    self.update(p, -p.grad if group["maximize"] else p.grad, self.state[p], group)


def moments(g, state, betas):
    mean, square = state.setdefault("exp_avg", torch.zeros_like(g)), state.setdefault("exp_avg_sq", torch.zeros_like(g))
    mean.lerp_(g, 1 - betas[0])
    square.mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
    return mean / (1 - betas[0] ** state["step"]), (square / (1 - betas[1] ** state["step"])).sqrt()


class Lamb(Plain):
    def update(self, p, g, state, group):
        mean, root = moments(g, state, group["betas"])
        way = mean / (root + group["eps"]) + group["weight_decay"] * p
        size, length = float(p.double().norm()), float(way.double().norm())
        p.sub_(group["lr"] * (size / length if size and length else 1.0) * way)


class Lars(Plain):
    def update(self, p, g, state, group):
        size, length, decay = float(p.double().norm()), float(g.double().norm()), group["weight_decay"]
        ratio = group["trust"] * size / (length + decay * size + group["eps"]) if group["trust"] and size and length else 1.0
        moving = state.setdefault("momentum_buffer", torch.zeros_like(p))
        moving.mul_(group["momentum"]).add_(group["lr"] * ratio * (g + decay * p))
        p.sub_(moving)


class Muon(Plain):
    """torch.optim.Muon's formulas without its bf16, and AdamW."""

    def update(self, p, g, state, group):
        p.mul_(1 - group["lr"] * group["weight_decay"])
        if group["adam"]:
            mean, root = moments(g, state, group["betas"])
            p.sub_(group["lr"] * mean / (root + group["eps"]))
            return
        buffer = state.setdefault("momentum_buffer", torch.zeros_like(p)).lerp_(g, 1 - group["momentum"])
        x = g.lerp(buffer, group["momentum"]) if group["nesterov"] else buffer.clone()
        x = x.T if p.shape[0] > p.shape[1] else x
        x = x / x.norm().clamp(min=group["eps"])
        for _ in range(group["steps"]):
            gram = x @ x.T
            x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
        x = x.T if p.shape[0] > p.shape[1] else x
        p.sub_(torch.optim._muon._adjust_lr(group["lr"], group["adjust"], p.shape) * x)


class NAdam(torch.optim.NAdam):
    """The product of the momenta in f64, where PyTorch has it in its default dtype."""

    def step(self):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            super().step()
        finally:
            torch.set_default_dtype(before)


class ASGD(torch.optim.ASGD):
    """With its rates in f64, and made of the present learning rate, where PyTorch takes the one of the step before."""

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if state:
                    state["eta"] = torch.tensor(group["lr"] / (1 + group["lambd"] * group["lr"] * float(state["step"])) ** group["alpha"], dtype=torch.float64)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            super().step()
        finally:
            torch.set_default_dtype(before)


class Adagrad(torch.optim.Adagrad):
    """Every group begins with its own initial_accumulator_value, where PyTorch takes the first argument's."""

    def __init__(self, params, **options):
        super().__init__(params, **options)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["sum"].fill_(group["initial_accumulator_value"])


CLASSES = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "rmsprop": torch.optim.RMSprop, "rprop": torch.optim.Rprop,
           "adagrad": Adagrad, "adadelta": torch.optim.Adadelta, "adamax": torch.optim.Adamax, "asgd": ASGD, "nadam": NAdam,
           "radam": torch.optim.RAdam, "lion": Lion, "lamb": Lamb, "lars": Lars, "adafactor": torch.optim.Adafactor, "muon": Muon}


def numbers(case, k, step, shape_, dtype):
    rng = torch.Generator().manual_seed(case["seed"] + 1009 * k + 7 * step)
    return torch.randn(shape_, generator=rng, dtype=torch.float64).to(dtype)


def moved(g, nudge, k):
    """Each element off by its own part of nudge[0] of itself (clipping would undo one that all share)."""
    if not nudge or not nudge[0]:
        return g
    rng = torch.Generator().manual_seed(31 * nudge[1] + k)
    return g * (1 + nudge[0] * (torch.rand(g.shape, generator=rng, dtype=torch.float64) - 0.5))


def run_torch(case, nudge=None):
    """Parameters after each step, in the dtype that they are updated in, and the norms that clipping gave. nudge: in f64, with
    gradients that are off by so much of themselves (size, seed): how far a rounding can go where sums cancel."""
    wide = lambda name: torch.float64 if nudge is not None else torch.float32 if name in ("bf16", "f16") else DTYPES[name]
    params = [numbers(case, k, 0, p["shape"], DTYPES[p["dtype"]]).to(wide(p["dtype"])).requires_grad_(not p["frozen"]) for k, p in enumerate(case["params"])]
    make = CLASSES[case["name"]]
    if case["group"]:
        optimizer = make([{"params": params[1:], **torch_options(case["name"], case["opts"])},
                          {"params": params[:1], **torch_options(case["name"], case["group"])}])
    else:
        optimizer = make(params, **torch_options(case["name"], case["opts"]))
    after, norms = [], []
    for step in range(1, case["steps"] + 1):
        for k, (p, spec) in enumerate(zip(params, case["params"])):
            p.grad = None if spec["frozen"] or spec["skip"][step] else moved(numbers(case, k, step, spec["shape"], p.dtype), nudge, k)
        if case["clip"]:
            norms.append(clip_torch(params, case["clip"]))
        if case["new_lr"] and step == 2:
            for group in optimizer.param_groups:
                group["lr"] = case["new_lr"]
        if nudge and nudge[0]:  # gradients that clipping made equal, and the rounding of parameters
            with torch.no_grad():
                for k, p in enumerate(params):
                    p.copy_(moved(p, nudge, 100 * step + k))
                    if p.grad is not None:
                        p.grad = moved(p.grad, nudge, 10000 * step + k)
        optimizer.step()
        after.append([p.detach().clone() for p in params])
    return after, norms


def clip_torch(params, clip):
    kind, limit = clip
    if kind == "value":
        for p in params:
            if p.grad is not None:
                p.grad.clamp_(-limit, limit)
        return None
    squares = sum((float((p.grad.double() ** 2).sum()) for p in params if p.grad is not None), 0.0)
    norm = math.sqrt(squares)
    for p in params:
        if p.grad is not None and norm > limit:
            p.grad.mul_(limit / (norm + 1e-6))
    return norm


def spec_of(lib, name, opts):
    made = headers.structs["trek_adam_opts" if name == "adamw" else f"trek_{name}_opts"]()
    for field, value in opts.items():
        setattr(made, field, value)
    return getattr(lib, name)(ctypes.byref(made))


def list_of(lib, named):
    params = ctypes.c_void_p(lib.ok(lib.params_new(), "params_new"))
    for name, var in named:
        lib.done(lib.params_add(params, name.encode(), var), "params_add")
    return params


class Run:
    def __init__(self, lib, case):
        self.lib, self.case = lib, case

    def go(self):
        lib, case = self.lib, self.case
        self.vars = []
        for k, p in enumerate(case["params"]):
            tensor = lib.tensor(numbers(case, k, 0, p["shape"], DTYPES[p["dtype"]]))
            self.vars.append(lib.ok(lib.var_new(tensor, not p["frozen"]), "var_new"))
            lib.tensor_release(tensor)
        named = [(f"p{k}", v) for k, v in enumerate(self.vars)]
        params = list_of(lib, named)
        optimizer = ctypes.c_void_p(lib.ok(lib.optimizer_new(spec_of(lib, case["name"], case["opts"]), params), "optimizer_new"))
        scaler = ctypes.c_void_p(lib.ok(lib.grad_scaler_new(None), "grad_scaler_new")) if case["scaler"] else None
        if case["group"]:
            one = list_of(lib, named[:1])
            if lib.optimizer_add_group(optimizer, one, spec_of(lib, case["name"], case["group"])) != 1:
                raise lib.refusal("optimizer_add_group")
            lib.params_free(ctypes.byref(one))
        after, norms = [], []
        try:
            for step in range(1, case["steps"] + 1):
                after.append(self.step(step, params, optimizer, scaler, norms))
        finally:
            lib.optimizer_free(ctypes.byref(optimizer))
            lib.params_free(ctypes.byref(params))
            if scaler is not None:
                lib.grad_scaler_free(ctypes.byref(scaler))
            for v in self.vars:
                lib.var_release(v)
        return after, norms

    def step(self, step, params, optimizer, scaler, norms):
        """Gradients come by backward of sum(p * g): as they do in training."""
        lib, case = self.lib, self.case
        scope = lib.scope_begin()
        lib.done(lib.optimizer_zero_grad(optimizer), "zero_grad")
        loss = None
        for k, (v, spec) in enumerate(zip(self.vars, case["params"])):
            if spec["frozen"] or spec["skip"][step]:
                continue
            wide = "f32" if spec["dtype"] in ("bf16", "f16") else spec["dtype"]
            g = numbers(case, k, step, spec["shape"], DTYPES[wide])
            if spec["dtype"] != wide:
                lib.done(lib.var_set_grad(v, lib.ok(lib.var_from(lib.tensor(g * (65536.0 if scaler else 1.0))))), "set_grad")
                continue
            term = lib.ok(lib.sum(lib.mul(v, lib.var_from(lib.tensor(g))), shape([]), False), "sum")
            term = lib.cast(term, 1)
            loss = term if loss is None else lib.ok(lib.add(loss, term), "add")
        if scaler is not None:
            one = loss if loss is not None else lib.ok(lib.var_from(lib.tensor(torch.zeros(()))))
            scaled = lib.ok(lib.grad_scaler_scale(scaler, one), "scale")
            loss = scaled if loss is not None else None
        if loss is not None:
            lib.done(lib.backward(loss), "backward")
        if scaler is not None and case["clip"]:
            lib.done(lib.grad_scaler_unscale(scaler, optimizer), "unscale")
        if case["clip"]:
            kind, limit = case["clip"]
            norms.append(lib.clip_grad_norm(params, limit) if kind == "norm" else None)
            if kind == "value":
                lib.done(lib.clip_grad_value(params, limit), "clip_grad_value")
        if case["new_lr"] and step == 2:
            lib.done(lib.optimizer_set_lr(optimizer, case["new_lr"]), "set_lr")
        if scaler is not None:
            lib.done(lib.grad_scaler_step(scaler, optimizer), "scaler_step")
            lib.done(lib.grad_scaler_update(scaler), "scaler_update")
        else:
            lib.done(lib.optimizer_step(optimizer), "optimizer_step")
        values = [lib.read_var(v) for v in self.vars]
        lib.scope_end(scope)
        return values


def run(lib, case):
    from trek import Refused, Wrong
    lib.error_clear()
    scope = lib.scope_begin()
    try:
        have, norms = Run(lib, case).go()
    except (Refused, Wrong) as e:
        return ("refusal", f"trek alone refuses: {e}"), False
    finally:
        lib.error_clear()
        lib.scope_end(scope)
    want, wanted_norms = run_torch(case)
    for step, (one, other) in enumerate(zip(norms, wanted_norms)):
        if one is not None and abs(one - other) > 1e-5 * other + 1e-12:
            return ("value", f"norm of step {step + 1}: {one}, PyTorch {other}"), False
    for step, (ours, theirs) in enumerate(zip(have, want)):
        for k, (o, t) in enumerate(zip(ours, theirs)):
            t_rounded = t.to(o.dtype).double()
            eps = torch.finfo(o.dtype).eps
            allowed = (4 * eps if o.dtype in (torch.bfloat16, torch.float16) else 64 * eps) * (1 + t.double().abs()) * (step + 1)
            wrong = ~((o.double() == t_rounded) | ((o.double() - t_rounded).abs() <= allowed))
            if bool(wrong.any()):
                coarse = 2.0**-22 if t.dtype == torch.float32 else 2.0**-50
                still = run_torch(case, (0.0, 0))[0][step][k]
                wander = torch.stack([(run_torch(case, (coarse, n))[0][step][k] - still).abs() for n in range(4)]).amax(0)
                wrong &= ~((o.double() - t_rounded).abs() <= allowed + 8 * wander)
            if bool(wrong.any()):
                at = int(torch.nonzero(wrong.reshape(-1))[0])
                return ("value", f"parameter {k} after step {step + 1}: {o.reshape(-1)[at].item():.9g}, PyTorch {t.reshape(-1)[at].item():.9g}"), False
    return None, False


def how(name):
    return "optimizers.py"


def describe(case):
    params = ", ".join(f"{p['dtype']}{p['shape']}" + (" frozen" if p["frozen"] else "") for p in case["params"])
    return f"{case['name']}({case['opts']}) over {params}; {case['steps']} steps, clip {case['clip']}, scaler {case['scaler']}, second group {case['group']}"


def candidates(case):
    """Simpler cases."""
    import copy
    for key, value in (("clip", None), ("group", None), ("scaler", False), ("new_lr", 0.0), ("steps", 1), ("steps", case["steps"] - 1)):
        if case[key] != value and value != 0:
            new = copy.deepcopy(case)
            new[key] = value
            yield new
    for k in range(len(case["params"])):
        if len(case["params"]) > 1:
            new = copy.deepcopy(case)
            del new["params"][k]
            yield new
    for key, value in case["opts"].items():
        if value and key != "lr":
            new = copy.deepcopy(case)
            new["opts"][key] = type(value)()
            yield new
