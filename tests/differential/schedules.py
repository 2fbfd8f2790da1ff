# SPDX-License-Identifier: Apache-2.0
"""Schedules of optim/schedule.h against torch.optim.lr_scheduler, step by step."""
import ctypes
import math

import torch
from torch.optim import lr_scheduler as ls

from headers import ZERO
from trek import headers

FUNCTIONS = {f.name[5:]: f for f in headers.functions.values() if f.header in ("optim/schedule.h", "optim/schedules.h")}
HELPERS = {"schedule_lr": "read after each schedule", "plateau_observe": "called by plateau_lr's cases"}
STEPS = 40


def rate(rng):
    return rng.choice([0.1, 1e-3, 1.0, 0.05])


def scheduled(lr, make):
    """Learning rates of the first steps."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    schedule, rates = make(optimizer), []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


def draw_onecycle(rng):
    three = rng.random() < 0.4
    return {"max": rate(rng), "total": rng.choice([20, 30, 50, 60]), "opts": {"pct_start": rng.choice([0.0, 0.1, 0.4] if three else [0.0, 0.1, 0.5, 0.9]),
            "div_factor": rng.choice([0.0, 10.0]), "final_div_factor": rng.choice([0.0, 100.0]), "anneal": rng.randrange(2), "three_phase": three}}


def torch_onecycle(a):
    """From `total` on the rate stays, where PyTorch refuses to go on."""
    o, optimizer = a["opts"], torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=a["max"])
    schedule = ls.OneCycleLR(optimizer, a["max"], total_steps=a["total"], pct_start=o["pct_start"] or 0.3, div_factor=o["div_factor"] or 25,
                             final_div_factor=o["final_div_factor"] or 1e4, anneal_strategy=("cos", "linear")[o["anneal"]], cycle_momentum=False,
                             three_phase=o["three_phase"])
    rates = []
    for step in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if step < a["total"] - 1:
            schedule.step()
    return rates


MODES = ("triangular", "triangular2", "exp_range")


def torch_cyclic(a):
    o = a["opts"]
    up = o["step_size_up"] or 2000
    return scheduled(a["base"], lambda opt: ls.CyclicLR(opt, a["base"], a["max"], up, o["step_size_down"] or up, MODES[o["mode"]], o["gamma"] or 1.0,
                                                        cycle_momentum=False))


def torch_plateau(a):
    o = a["opts"]
    lr = o["lr"] or 1e-3
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    schedule = ls.ReduceLROnPlateau(optimizer, "max" if o["maximize"] else "min", o["factor"] or 0.1, {0: 10, ZERO: 0}.get(o["patience"], o["patience"]),
                                    {0.0: 1e-4, ZERO: 0.0}.get(o["threshold"], o["threshold"]), "abs" if o["absolute"] else "rel", o["cooldown"], o["min_lr"])
    rates = []
    for metric in a["metrics"]:
        schedule.step(metric)
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


# name: (arguments, PyTorch's rates)
DRAWN = {
    "constant_lr": (lambda r: {"lr": rate(r)}, lambda a: [a["lr"]] * STEPS),
    "step_lr": (lambda r: {"lr": rate(r), "step_size": r.randrange(1, 9), "gamma": r.choice([0.1, 0.5, 0.9, 1.0])},
                lambda a: scheduled(a["lr"], lambda o: ls.StepLR(o, a["step_size"], a["gamma"]))),
    "multistep_lr": (lambda r: {"lr": rate(r), "milestones": [r.randrange(0, 30) for _ in range(r.randrange(0, 6))], "gamma": r.choice([0.1, 0.5, 2.0])},
                     lambda a: multistep(a)),
    "cosine_lr": (lambda r: {"lr": rate(r), "total": r.randrange(1, 60), "min": r.choice([0.0, 1e-4])}, lambda a: cosine(a)),
    "exponential_lr": (lambda r: {"lr": rate(r), "gamma": r.choice([0.5, 0.9, 1.0])},
                       lambda a: scheduled(a["lr"], lambda o: ls.ExponentialLR(o, a["gamma"]))),
    "polynomial_lr": (lambda r: {"lr": rate(r), "total": r.randrange(1, 60), "power": r.choice([1.0, 2.0, 0.5])},
                      lambda a: scheduled(a["lr"], lambda o: ls.PolynomialLR(o, a["total"], a["power"]))),
    "inverse_sqrt_lr": (lambda r: {"lr": rate(r), "timescale": r.randrange(1, 20)},
                        lambda a: scheduled(a["lr"], lambda o: ls.LambdaLR(o, lambda t: math.sqrt(a["timescale"] / (t + a["timescale"]))))),
    "onecycle_lr": (draw_onecycle, torch_onecycle),
    "cyclic_lr": (lambda r: {"base": 0.01, "max": rate(r) + 0.01, "opts": {"step_size_up": r.randrange(0, 9), "step_size_down": r.randrange(0, 9),
                             "mode": r.randrange(3), "gamma": r.choice([0.0, 0.9])}}, torch_cyclic),
    "warmup_lr": (lambda r: {"steps": r.randrange(0, 9), "lr": rate(r), "gamma": 0.9},
                  lambda a: [a["lr"] * (t + 1) / a["steps"] if t < a["steps"] else a["lr"] * 0.9 ** (t - a["steps"]) for t in range(STEPS)]),
    "scaled_lr": (lambda r: {"lr": rate(r), "gamma": r.choice([0.5, 0.9]), "factor": r.choice([0.25, 1.0, 3.0])},
                  lambda a: scheduled(a["lr"] * a["factor"], lambda o: ls.ExponentialLR(o, a["gamma"]))),
    "linear_lr": (lambda r: {"lr": rate(r), "start": r.choice([1 / 3, 1.0, 0.1]), "end": r.choice([1.0, 0.0, 0.5]), "total": r.randrange(1, 60)},
                  lambda a: scheduled(a["lr"], lambda o: ls.LinearLR(o, a["start"], a["end"], a["total"]))),
    "cosine_restarts_lr": (lambda r: {"lr": rate(r), "first": r.randrange(1, 12), "mult": r.randrange(1, 4), "min": r.choice([0.0, 1e-4])},
                           lambda a: scheduled(a["lr"], lambda o: ls.CosineAnnealingWarmRestarts(o, a["first"], a["mult"], a["min"]))),
    "wsd_lr": (lambda r: {"lr": rate(r), "warmup": r.randrange(0, 9), "stable": r.randrange(0, 20), "decay": r.randrange(0, 20), "min": r.choice([0.0, 1e-4]),
                          "anneal": r.randrange(3)}, lambda a: wsd(a)),
    "lambda_lr": (lambda r: {"lr": rate(r), "power": r.choice([0.5, 1.0])},
                  lambda a: scheduled(a["lr"], lambda o: ls.LambdaLR(o, lambda t: (t + 1) ** -a["power"]))),
    "sequential_lr": (lambda r: {"lr": rate(r), "total": r.randrange(1, 9), "gamma": r.choice([0.5, 0.9]), "milestone": r.randrange(1, 20), "more": r.randrange(1, 9)},
                      lambda a: sequential(a)),
    "chained_lr": (lambda r: {"lr": rate(r), "total": r.randrange(1, 9), "gamma": r.choice([0.5, 0.9])},
                   lambda a: scheduled(a["lr"], lambda o: ls.ChainedScheduler([ls.LinearLR(o, 0.5, 1.0, a["total"]), ls.ExponentialLR(o, a["gamma"])]))),
    "plateau_lr": (lambda r: {"opts": {"lr": r.choice([0.0, 0.1]), "factor": r.choice([0.0, 0.5]), "patience": r.choice([0, ZERO, 1, 3]),
                              "threshold": r.choice([0.0, ZERO, 0.1]), "absolute": r.random() < 0.4, "maximize": r.random() < 0.4,
                              "cooldown": r.choice([0, 0, 2]), "min_lr": r.choice([0.0, 1e-3])},
                              "metrics": [r.choice([1.0, 0.9, 0.95, 0.5, 1.2, math.nan if r.random() < 0.1 else 1.0]) for _ in range(STEPS)]}, torch_plateau),
}


def wsd(a):
    """PyTorch has no such schedule."""
    down = (lambda p: 0.5 * (1 - math.cos(math.pi * p)), lambda p: p, math.sqrt)[a["anneal"]]

    def at(t):
        if t < a["warmup"]:
            first = a["lr"] if a["stable"] else a["lr"] + (a["min"] - a["lr"]) * down(0.0 if a["decay"] else 1.0)
            return first * (t + 1) / a["warmup"]
        t -= a["warmup"] + a["stable"]
        return a["lr"] if t < 0 else a["lr"] + (a["min"] - a["lr"]) * down(min(t / a["decay"], 1.0) if a["decay"] else 1.0)

    return [at(t) for t in range(STEPS)]


def sequential(a):
    """Three schedules; PyTorch's goes by differences from step to step, ours by closed forms."""
    linear = lambda t: a["lr"] * (0.5 + 0.5 * min(t / a["total"], 1.0))
    end = a["milestone"] + a["more"]
    return [linear(t) if t < a["milestone"] else a["lr"] * a["gamma"] ** (t - a["milestone"]) if t < end else a["lr"] * 0.1 for t in range(STEPS)]


def multistep(a):
    """MultiStepLR wants milestone 0 before the first step: counted directly."""
    return [a["lr"] * a["gamma"] ** sum(m <= t for m in a["milestones"]) for t in range(STEPS)]


def cosine(a):
    inside = scheduled(a["lr"], lambda o: ls.CosineAnnealingLR(o, a["total"], a["min"]))
    return [rate if t <= a["total"] else a["min"] for t, rate in enumerate(inside)]


def covered():
    mine = [n for n in FUNCTIONS if n in DRAWN]
    return mine, [f"{n}: schedules.py has no counterpart" for n in FUNCTIONS if n not in DRAWN and n not in HELPERS]


def draw(rng, name):
    return {"name": name, "args": DRAWN[name][0](rng)}


def how(name):
    return "schedules.py"


def struct(kind, values):
    made = headers.structs[kind]()
    for name, value in values.items():
        setattr(made, name, value)
    return made


def rates_of(lib, case):
    name, a = case["name"], case["args"]
    if name == "plateau_lr":
        plateau = lib.plateau_lr(ctypes.byref(struct("trek_plateau_opts", a["opts"])))
        return [lib.plateau_observe(ctypes.byref(plateau), metric) for metric in a["metrics"]]
    if name == "multistep_lr":
        made = lib.multistep_lr(a["lr"], (ctypes.c_int64 * max(len(a["milestones"]), 1))(*a["milestones"]), len(a["milestones"]), a["gamma"])
    elif name == "lambda_lr":
        factor = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64, ctypes.c_void_p)(lambda t, arg: (t + 1) ** -a["power"])
        made = lib.lambda_lr(a["lr"], ctypes.cast(factor, ctypes.c_void_p), None)
    elif name in ("sequential_lr", "chained_lr"):
        several = headers.structs["trek_schedule"] * 3
        linear, end = lib.linear_lr(a["lr"], 0.5, 1.0, a["total"]), a.get("milestone", 0) + a.get("more", 0)
        if name == "chained_lr":
            made = lib.chained_lr(ctypes.byref(several(linear, lib.exponential_lr(1.0, a["gamma"]))), 2)
        else:
            made = lib.sequential_lr(ctypes.byref(several(linear, lib.exponential_lr(a["lr"], a["gamma"]), lib.constant_lr(a["lr"] * 0.1))),
                                     (ctypes.c_int64 * 2)(a["milestone"], end), 3)
    elif name == "warmup_lr":
        made = lib.warmup_lr(a["steps"], lib.exponential_lr(a["lr"], a["gamma"]))
    elif name == "scaled_lr":
        made = lib.scaled_lr(lib.exponential_lr(a["lr"], a["gamma"]), a["factor"])
    else:
        given = []
        for kind, parameter in FUNCTIONS[name].params:
            value = a[parameter]
            given.append(ctypes.byref(struct(kind.split()[1], value)) if isinstance(value, dict) else value)
        made = getattr(lib, name)(*given)
    return [lib.schedule_lr(ctypes.byref(made), step) for step in range(STEPS)]


def run(lib, case):
    lib.error_clear()
    want = DRAWN[case["name"]][1](case["args"])
    have = rates_of(lib, case)
    if lib.error_status() != 0:
        return ("refusal", str(lib.refusal())), False
    for step, (h, w) in enumerate(zip(have, want)):
        if not abs(h - w) <= 1e-9 * max(abs(w), 1e-3):
            return ("value", f"step {step}: {h:.12g}, PyTorch {w:.12g}"), False
    return None, False


def describe(case):
    return f"{case['name']}({', '.join(f'{k}={v}' for k, v in case['args'].items())})"


def candidates(case):
    return []
