# SPDX-License-Identifier: Apache-2.0
"""The goals for speed on GPUs, and what results of gpu_bench.py say of each: reached, missed, not
measured, or only tried (elsewhere, or at a smaller scale). Goals that are ratios compare with PyTorch in the same run."""
import math

GPT2_SHAPES = ["qkv 768-2304 + bias", "projection 768-768 + bias", "up 768-3072 + bias + gelu", "down 3072-768 + bias"]
MEMORY = ["add", "row sum", "layer norm forward", "layer norm forward+backward", "rms norm forward", "rms norm forward+backward",
          "residual + layer norm forward", "residual + layer norm forward+backward", "softmax forward", "softmax forward+backward",
          "gelu forward", "gelu forward+backward", "dropout forward", "dropout forward+backward"]


class Results:
    """Looks figures up; None for what was not measured."""

    def __init__(self, results, copied):
        self.rows, self.copied = {(r["work"], name): row for r in results for name, row in r["rows"].items()}, copied

    def row(self, work, measure):
        return self.rows.get((work, measure), {"trek": {}, "torch": {}})

    def best(self, work, measure, key="us", side="trek"):
        timed = [m for m in self.row(work, measure)[side].values() if "us" in m]
        return min(timed, key=lambda m: m["us"]).get(key) if timed else None

    def ratio(self, work, measure, key="ratio"):
        return self.row(work, measure).get(key)

    def over(self, work, measure, key="ratio"):
        """trek's time over PyTorch's."""
        value = self.ratio(work, measure, key)
        return 1 / value if value else None

    def mode(self, work, measure, mode, key="us"):
        return self.row(work, measure)["trek"].get(mode, {}).get(key)

    def mode_over(self, work, measure, mode, key):
        """trek's figure in a mode over that of PyTorch's eager mode."""
        return over(self.mode(work, measure, mode, key), self.row(work, measure)["torch"].get("eager", {}).get(key))

    def share(self, work, measure):
        """Of the copy bandwidth, in per cent."""
        rate = self.best(work, measure, "gb_s")
        return 100 * rate / self.copied if rate and self.copied else None

    def beyond(self, work, measure, base, per=1):
        mine, bare = self.best(work, measure), self.best("launch", base)
        return (mine - bare * per) if mine is not None and bare is not None else None


def over(mine, theirs):
    return mine / theirs if mine and theirs else None


def worst(values, pick):
    """The worst of those that there are, and how many are missing."""
    there = [v for v in values if v is not None]
    return (pick(there) if there else None), len(values) - len(there)


def mean(values):
    there = [v for v in values if v is not None]
    return (math.exp(sum(map(math.log, there)) / len(there)) if there else None), len(values) - len(there)


def goals(r):
    """(work, goal in words, value, limit, whether the value has to be at least the limit, unit, values missing)."""
    launch, graph = "launch of an empty kernel, host", "launch of a graph of 20, host"
    products = [r.over("gpt2_products", f"{shape} {way}") for shape in GPT2_SHAPES for way in ("forward", "forward+backward")]
    models = ["mlp", "convnet", "transformer", "residual_tower", "gated_routing", "iterative_refine", "feedback_fixed"]
    all_memory = [" ".join([name, dtype] if ward == "" else [name, dtype, ward]) for dtype in ("f32", "bf16") for name, _, ward in
                  (m.replace(" forward", "|forward", 1).partition("|") for m in MEMORY)]
    slowest, missing_memory = worst([r.share("memory", name) for name in all_memory], min)
    eager, missing_eager = mean([r.ratio("model_" + m, m, "ratio_eager") for m in models])
    compiled, missing_compiled = mean([r.ratio("model_" + m, m, "ratio_compiled") for m in models])
    least, missing_least = worst([r.ratio("model_" + m, m) for m in models], min)
    product, missing_products = worst(products, max)
    rows = [("eager op, host, beyond the launch", r.beyond("eager", "100 mul, each, forward, host", launch), 0.15, False, "us", 0),
            # a multiplication with one gradient is two launches
            ("the same with backward", r.beyond("eager", "100 mul, each, forward+backward, host", launch, 2), 0.3, False, "us", 0),
            ("replay of a captured step, host, beyond a bare graph's launch", host_of_replay(r, graph), 5, False, "us", 0)]
    rows += [(f"matmul 8192 {name}, of PyTorch's time", r.over("matmul", "8192 " + name), 1.02, False, "x", 0) for name in ("bf16", "f16", "tf32")]
    rows += [("products of GPT-2, the slowest, of PyTorch's best time", product, 1.02, False, "x", missing_products),
             ("kernels bound by memory, the slowest, of copying", slowest, 90, True, "%", missing_memory),
             ("linear + cross entropy in one op, speed of eager's", inverse(r.mode_over("linear_cross_entropy", "forward+backward", "fused", "us")),
              1.6, True, "x", 0),
             ("the same in pieces, peak memory of eager's",
              over(r.mode("linear_cross_entropy_pieces", "forward+backward", "fused", "peak_mib"),
                   r.row("linear_cross_entropy", "forward+backward")["torch"].get("eager", {}).get("peak_mib")), 0.1, False, "x", 0)]
    rows += [(f"AdamW + clip, 124 M parameters, {name}, of copying", r.share("adamw", f"{name} clip + update"), 92, True, "%", 0)
             for name in ("f32", "bf16")]
    rows += [("attention, causal bf16, forward + backward, of PyTorch's time", r.over("attention", "causal bf16 forward+backward"), 1.1, False, "x", 0),
             ("models, geometric mean, speed of eager's", eager, 3, True, "x", missing_eager + 3),
             ("models, geometric mean, speed of compiled", compiled, 1.3, True, "x", missing_compiled + 3),
             ("models, the slowest, speed of PyTorch's best", least, 1, True, "x", missing_least + 3),
             ("GPT-2 124 M, 64 x 1024, tokens/s", thousand(r.best("gpt2_64", "64 x 1024", "tokens_s")), 600, True, "K", 0),
             ("the same, speed of compiled", r.ratio("gpt2_64", "64 x 1024", "ratio_compiled"), 1.25, True, "x", 0),
             ("GPT-2 124 M, 4 x 1024, a step", thousandth(r.best("gpt2_4", "4 x 1024")), 7.5, False, "ms", 0),
             ("GPT-2 124 M, 1 x 256, a step", thousandth(r.best("gpt2_1", "1 x 256")), 1.6, False, "ms", 0),
             ("GPT-2 124 M, 64 x 1024, peak memory of eager's", r.ratio("gpt2_64", "64 x 1024", "peak_eager"), 0.55, False, "x", 0),
             ("the same, of compiled", r.ratio("gpt2_64", "64 x 1024", "peak_compiled"), 0.85, False, "x", 0)]
    return rows


def inverse(value):
    return 1 / value if value else None


def thousand(value):
    return value / 1e3 if value is not None else None


def thousandth(value):
    return value * 1e-3 if value is not None else None


def host_of_replay(r, graph):
    replay, bare = r.mode("replay", "small step, host", "captured"), r.best("launch", graph)
    return replay - bare if replay is not None and bare is not None else None


def table(results, copied):
    lines = ["| goal | limit | result | |", "|---|---|---|---|"]
    full = all(r.get("full") for r in results)
    for name, value, limit, at_least, unit, missing in goals(Results(results, copied)):
        verdict = "not measured" if value is None else "only tried" if not full else "reached" if (value >= limit if at_least else value <= limit) else "missed"
        if value is not None and full and missing:
            verdict += f" by those measured, {missing} are not"
        found = "" if value is None else f"{value:.4g} {unit}"
        lines.append(f"| {name} | {'at least' if at_least else 'at most'} {limit} {unit} | {found} | {verdict} |")
    return "\n".join(lines)
