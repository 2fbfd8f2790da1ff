#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times trek on a GPU beside PyTorch on the same GPU in the same run.

    gpu_bench.py --build DIR [--device cuda:0] [--json FILE] [--modes eager,compile,reduce-overhead] NAME...
    gpu_bench.py --list            the works, what matters most first
    gpu_bench.py --table FOLDER    all bench-*.json there as one table, and the goals beside what was reached

Both sides measure the same things under the same names: trek-gpu-bench (tests/bench/gpu) and
gpu_peer.py. The ratio is PyTorch's best time over trek's best: above 1 trek is faster. Without
PyTorch, or without its CUDA, trek's figures stand alone."""
import argparse
import json
import os
import pathlib
import subprocess
import sys

import gpu_goals

MODELS = ["mlp", "convnet", "convnet_last", "transformer", "residual_tower", "gated_routing", "iterative_refine", "feedback_fixed"]
WORKS = ["launch", "eager", "replay", "matmul", "gpt2_products", "memory", "linear_cross_entropy", "adamw", "attention", "gpt2_64", "gpt2_4", "gpt2_1", "offload_gpt2", "resnet", "fp8"]
WORKS += ["model_" + name for name in MODELS]
ALONE = ["fp8"]  # works of trek's side alone: 8-bit products beside its own bf16 ones
# The same works with a variable set, where the plain work has what the library chooses: the work, the variable, its value.
VARIANTS = {f"{work}_{kernels}": (work, "TREK_CUDA_ATTENTION", kernels) for work in ("attention", "gpt2_64") for kernels in ("own", "wgmma", "cudnn")}
VARIANTS["linear_cross_entropy_pieces"] = ("linear_cross_entropy", "TREK_CUDA_LOGITS", "pieces")
SERVED_BY = {"own": "mma", "wgmma": "wgmma", "cudnn": "cudnn"}  # what trek_device_paths calls them
WORKS += VARIANTS
GROUPS = {"models": [name for name in WORKS if name.startswith("model_")], "gpt2": ["gpt2_64", "gpt2_4", "gpt2_1"]}
STOPPED, STOPPED_STATUS = "stopped after", 75  # at a limit, which is no failure
FOLDER = pathlib.Path(__file__).resolve().parent
# What is not there to be measured, so that nobody takes it for forgotten.
MISSING = {MODELS[-1]: ["gru_seq", "lstm_seq", "conv_autoenc"]}
COLUMNS = 11  # of the table
# What trek-gpu-bench appends to a measure's name: how it was done.
MODES = ["eager", "captured", "captured-kept", "fused", "kept", "offloaded"]


def json_lines(command, environment, limit):
    """Runs a program; its lines of JSON, and what else it said if it failed. Prints the paths that it took."""
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit)
        text, problem = done.stdout, done.stderr[-1500:] if done.returncode else ""
    except subprocess.TimeoutExpired as expired:
        text = expired.stdout or ""
        text, problem = text.decode() if isinstance(text, bytes) else text, f"{STOPPED} {limit} s"
    except OSError as error:
        text, problem = "", str(error)
    print("".join(line + "\n" for line in text.splitlines() if line.startswith("path: ")), end="")
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]
    return lines, problem


def split_mode(measure):
    """Steps come as "NAME eager" and "NAME captured": modes of one measure."""
    for mode in MODES:
        if measure.endswith(" " + mode):
            return measure[:-len(mode) - 1], mode
    return measure, "eager"


def not_served(kernels, paths):
    """"" if the attention that a variant is named for served all of its calls, otherwise what did."""
    said = []
    for what in ("attention", "attention_backward"):
        calls = {p["path"]: p["calls"] for p in paths if p["what"] == what and p["calls"]}
        if set(calls) != {SERVED_BY[kernels]}:
            said.append(f"{what}: " + (", ".join(f"{n} by {path}" for path, n in calls.items()) or "no call"))
    return f"not by {kernels}: " + "; ".join(said) if said else ""


def before(path, name):
    """Trek's figures of an earlier run, as lines that it printed: PyTorch's are put beside them."""
    try:
        old = json.loads(pathlib.Path(path).read_text())
    except (OSError, TypeError, ValueError):
        return [], "not measured before"
    if not isinstance(old, dict) or old.get("work") != name:
        return [], "not measured before"
    lines = [{"paths": old.get("paths", []), "report": old.get("report", [])}]
    lines += [{"measure": measure, "mode": mode, **figures} for measure, row in old["rows"].items() for mode, figures in row["trek"].items()]
    return lines, old["problem"]


def gather(name, arguments):
    environment = dict(os.environ, TREK_PLUGIN_PATH=os.environ.get("TREK_PLUGIN_PATH", arguments.build + "/tensor/cuda"))
    extra = ["--scale", str(arguments.scale)] if arguments.scale > 1 else []
    extra += ["--ms", str(arguments.ms), "--rounds", str(arguments.rounds)]
    work, variable, value = VARIANTS.get(name, (name, None, None))
    if variable:
        environment[variable] = value
    trek = [arguments.build + "/tests/bench/gpu/trek-gpu-bench", "--device", arguments.device] + extra + [work]
    ours, problem = before(arguments.json, name) if arguments.no_trek else json_lines(trek, environment, arguments.limit)
    peer = [os.environ.get("TREK_PEER_PYTHON", sys.executable), str(FOLDER / "gpu_peer.py"), "--device", arguments.device, "--modes", arguments.modes] + extra + [name]
    theirs, peer_problem = ([], "") if arguments.no_peer or variable or name in ALONE else json_lines(peer, dict(os.environ), arguments.peer_limit)
    rows, paths, report = {}, [], []
    for side, lines in (("trek", ours), ("torch", theirs)):
        for line in lines:
            if "paths" in line:
                paths, report = line["paths"], line["report"]
                continue
            measure, mode = split_mode(line["measure"])
            mode = line.get("mode", mode)
            row = rows.setdefault(measure, {"trek": {}, "torch": {}})
            row[side][mode] = {key: line[key] for key in line if key not in ("work", "measure", "mode")}
    for row in rows.values():
        best = {side: min((m["us"] for m in row[side].values() if "us" in m), default=None) for side in ("trek", "torch")}
        row["best"] = best
        row["ratio"] = best["torch"] / best["trek"] if best["torch"] and best["trek"] else None
        eager = row["torch"].get("eager", {}).get("us")
        row["ratio_eager"] = eager / best["trek"] if eager and best["trek"] else None
        compiled = [m["us"] for mode, m in row["torch"].items() if mode != "eager" and "us" in m]
        row["ratio_compiled"] = min(compiled) / best["trek"] if compiled and best["trek"] else None
        fastest = min((m for m in row["trek"].values() if "us" in m), key=lambda m: m["us"], default={})
        peaks = {"eager": row["torch"].get("eager", {}).get("peak_mib"),
                 "compiled": min((m["peak_mib"] for mode, m in row["torch"].items() if mode != "eager" and m.get("peak_mib")), default=None)}
        for other, peak in peaks.items():
            row["peak_" + other] = fastest["peak_mib"] / peak if peak and fastest.get("peak_mib") else None
    full = arguments.scale == 1 and arguments.device.startswith("cuda")
    if variable == "TREK_CUDA_ATTENTION" and full:  # a fake device has not all of them
        problem = problem or not_served(value, paths)
    return {"work": name, "full": full, "rows": rows, "paths": paths, "report": report, "problem": problem, "peer_problem": peer_problem, "missing": MISSING.get(name.removeprefix("model_"), [])}


def number(value, digits=2):
    return "-" if value is None else f"{value:.{digits}f}"


def describe(side):
    """The modes of one side, fastest first; with peak memory where that is what they differ in."""
    timed = sorted((m["us"], mode + (f" (peak {m['peak_mib']:.0f} MiB)" if "offloaded" in side and m.get("peak_mib") else ""))
                   for mode, m in side.items() if "us" in m)
    failed = [f"{mode}: {m['error'][:60]}" for mode, m in side.items() if "error" in m]
    return ", ".join([f"{us:.2f} {mode}" for us, mode in timed] + failed) or "-"


def losses(side):
    """Each loss with the modes that have it."""
    modes = {}
    for mode, m in side.items():
        if "loss" in m:
            modes.setdefault(f"{m['loss']:.6f}", []).append(mode)
    return "; ".join(f"{loss} {', '.join(names)}" for loss, names in modes.items()) or "-"


def copy_rate(results):
    """The best rate of copying that either side measured in that run, in GB/s."""
    rates = [m.get("gb_s", 0) for r in results for name, row in r["rows"].items() if name.startswith("copy ")
             for side in ("trek", "torch") for m in row[side].values()]
    return max(rates, default=0)


def table(results):
    copied = copy_rate(results)
    lines = ["| work | measure | trek, us | PyTorch, us | PyTorch's best / trek's | its eager / trek's | GB/s (of copying) | TFLOP/s | tokens/s | peak memory, of its eager's | loss after 8 steps |",
             "|" + "---|" * COLUMNS]
    for result in results:
        for measure, row in result["rows"].items():
            timed = [m for m in row["trek"].values() if "us" in m]
            best = min(timed, key=lambda m: m["us"]) if timed else {}
            rate = best.get("gb_s")
            share = f" ({100 * rate / copied:.0f} %)" if rate and copied else ""
            lines.append(f"| {result['work']} | {measure} | {describe(row['trek'])} | {describe(row['torch'])} | {number(row['ratio'])} | "
                         f"{number(row['ratio_eager'])} | {number(rate, 0)}{share} | {number(best.get('tflops'), 1)} | {number(best.get('tokens_s'), 0)} | {number(row['peak_eager'])} | {losses(row['trek'])} |")
        for name in result["missing"]:
            lines.append(f"| {result['work']} | {name} | not measured: its layers do not exist |" + " |" * (COLUMNS - 3))
        for side, problem in (("trek", result["problem"]), ("PyTorch", result["peer_problem"])):
            if problem:
                last = problem.strip().splitlines()[-1]
                lines.append(f"| {result['work']} | {side} ended early | {last[:150]} |" + " |" * (COLUMNS - 3))
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--table", metavar="FOLDER")
    parser.add_argument("--build", default="build-gpu/build")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--modes", default="eager,compile,reduce-overhead")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--limit", type=int, default=100, help="seconds for trek's side of a work")
    parser.add_argument("--peer-limit", type=int, default=180, help="seconds for PyTorch's, which compiles")
    parser.add_argument("--ms", type=float, default=60, help="length of a round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--scale", type=int, default=1, help="divides sizes, to try the programs")
    parser.add_argument("--no-peer", action="store_true", help="trek's side alone")
    parser.add_argument("--no-trek", action="store_true", help="PyTorch's side alone, beside what FILE of --json has of trek's")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(WORKS))
        return 0
    if arguments.table:
        found = [json.loads(p.read_text()) for p in sorted(pathlib.Path(arguments.table).glob("bench-*.json"))]
        found.sort(key=lambda r: WORKS.index(r["work"]) if r["work"] in WORKS else 99)
        if found:
            print(table(found), gpu_goals.table(found, copy_rate(found)), sep="\n\n")
        return 0
    arguments.names = [name for given in arguments.names for name in GROUPS.get(given, [given])]
    unknown = [name for name in arguments.names if name not in WORKS]
    if unknown:
        parser.error(f"there is no work {unknown[0]}")
    results = [gather(name, arguments) for name in arguments.names or WORKS]
    print(table(results))
    if len(results) > 1:
        print("", gpu_goals.table(results, copy_rate(results)), sep="\n")
    if arguments.json:
        new = pathlib.Path(arguments.json + ".new")  # whoever is stopped here leaves what there was
        new.write_text(json.dumps(results[0] if len(results) == 1 else results, indent=1))
        new.rename(arguments.json)
    side, problem = ("torch", "peer_problem") if arguments.no_trek else ("trek", "problem")
    errors = [f"{r['work']}, {measure}, {mode}: {m['error']}" for r in results for measure, row in r["rows"].items() for mode, m in row["trek"].items() if "error" in m]
    if not arguments.no_trek:  # a mode that PyTorch has not is no failure of trek's
        print("".join(f"error: {error}\n" for error in errors), end="")
        if errors:
            return 1
    failed = [r for r in results if r[problem] or not any(m for row in r["rows"].values() for m in row[side].values() if "us" in m)]
    return 0 if not failed else STOPPED_STATUS if all(r[problem].startswith(STOPPED) for r in failed) else 1


if __name__ == "__main__":
    sys.exit(main())
