# SPDX-License-Identifier: Apache-2.0
"""What a part of tests/gpu.sh found, as one page that is worth reading alone."""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
import gpu_bench  # noqa: E402
import gpu_goals  # noqa: E402

FENCE = "`" * 3


def cell(text):
    return " ".join(str(text).replace("|", "\\|").split())


def lines_of(path):
    try:
        return [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return []


def machine(out, result):
    """(what, which) of the machine and of what was tried on it."""
    part = result["part"]
    rows = [("date", result["date"]), ("commit", result["commit"])]
    for line in lines_of(out / "machine.txt"):
        rows.append(line.partition(": ")[::2])
    rows += [("device, as trek sees it", line) for line in lines_of(out / "logs" / f"{part}.devices.log")]
    rows += [("PyTorch", line) for line in lines_of(out / "logs" / f"{part}.pytorch.log")[-1:]]
    return ["| | |", "|---|---|"] + [f"| {cell(what)} | {cell(which)} |" for what, which in rows]


def first_problems(steps):
    lines = []
    for step in steps:
        if step["status"] != "failed":
            continue
        told = step["problems"][:8]
        told += [line for line in step["last"][-(12 - len(told)):] if line.strip() not in told]
        lines += ["", f"### {step['name']}: {step['reason']}", "", f"`{step['log']}`", "", FENCE] + [line[:300].replace(FENCE, "'''") for line in told] + [FENCE]
    return lines


def listed(steps):
    lines = ["| step | status | seconds | passed | failed | skipped | |", "|---|---|---|---|---|---|---|"]
    for s in steps:
        counts = "| - | - | -" if s["status"] in ("skipped", "left") else f"| {s['passed']} | {s['failed']} | {s['skipped']}"
        lines.append(f"| {s['name']} | {s['status']} | {s['seconds']:.0f} {counts} | {cell(s['reason'])} |")
    return lines


def measures(folder):
    found = []
    for path in sorted(folder.glob("bench-*.json")):
        try:
            found.append(json.loads(path.read_text()))
        except ValueError:  # one that was cut short
            pass
    found.sort(key=lambda r: gpu_bench.WORKS.index(r["work"]) if r["work"] in gpu_bench.WORKS else 99)
    if not found:
        return []
    lines = ["", "## Measures", ""]
    if not all(r.get("full") for r in found):
        lines += ["**Not on a GPU, or at a smaller scale: these figures say that the programs run, and nothing else.**", ""]
    copied = gpu_bench.copy_rate(found)
    return lines + [gpu_bench.table(found), "", "## Goals", "", gpu_goals.table(found, copied)]


def text(out, result):
    part, steps = result["part"], result["steps"]
    lines = [f"# trek on a GPU: {part}", "", "**{passed} passed, {failed} failed, {skipped} skipped".format(**result) +
             (f", {len(result['left'])} steps of them left for the next call**" if result["left"] else "**"), ""]
    lines += machine(out, result)
    if result["failed"]:
        lines += ["", "## First problems"] + first_problems(steps)
    try:
        lines += measures(out / "lease" if part == "lease" else out) if part in ("lease", "bench") else []
    except Exception as error:  # figures that make no table keep nothing else from being written
        lines += ["", "## Measures", "", f"no table could be made of them: {type(error).__name__}: {cell(error)}"]
    lines += ["", "## Steps", ""] + listed(steps)
    if result["left"]:
        lines += ["", "## Left for the next call", "", ", ".join(result["left"])]
    return "\n".join(lines) + "\n"
