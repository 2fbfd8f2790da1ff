# SPDX-License-Identifier: Apache-2.0
"""What a part of tests/gpu.sh found, as one page that is worth reading alone."""
import kernels
import results
from results import gpu_bench

import gpu_goals

FENCE = "`" * 3


def cell(text):
    return " ".join(str(text).replace("|", "\\|").split())


def machine(work, result):
    return ["| | |", "|---|---|"] + [f"| {cell(what)} | {cell(which)} |" for what, which in results.machine(work, result)]


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
        counts = f"| {s['passed']} | {s['failed']} | {s['skipped']}" if s["status"] in ("passed", "failed") else "| - | - | -"
        lines.append(f"| {s['name']} | {s['status']} | {s['seconds']:.0f} {counts} | {cell(s['reason'])} |")
    return lines


def measures(work, part):
    found = results.measures(work, part)
    if not found:
        return []
    lines = ["", "## Measures", ""]
    if not all(r.get("full") for r in found):
        lines += ["**Not on a GPU, or at a smaller scale: these figures say that the programs run, and nothing else.**", ""]
    return lines + [gpu_bench.table(found), "", "## Goals", "", gpu_goals.table(found, gpu_bench.copy_rate(found))]


def profile(found):
    """The longest kernels, if ncu ran."""
    if not found:
        return []
    whole = "" if found["whole"] else " ncu was stopped before it had seen both steps."
    return [f"One step of GPT-2 at 64 x 1024, {found['mode']}, attention: {found['attention']}.{whole}", ""] + kernels.table(found["kernels"])


def section(title, lines):
    return ["", f"## {title}", ""] + lines if lines else []


def text(work, result):
    part, steps = result["part"], result["steps"]
    lines = [f"# trek on a GPU: {part}", "", f"**{counts(result)}**", ""] + machine(work, result)
    lines += ["", "## First problems"] + first_problems(steps) if result["failed"] else []
    unfinished = [f"* {s['name']}: {s['reason']}" for s in steps if s["status"] == "unfinished"]
    lines += section("Not finished", unfinished)
    lines += section("Agreement at real size", ([FENCE] + agreed + [FENCE]) if (agreed := results.log_lines(work, part, "agreement")[-40:]) else [])
    lines += section("Paths taken", ["* " + line for line in results.paths(work, result)])
    try:
        lines += measures(work, part)
    except Exception as error:  # figures that make no table keep nothing else from being written
        lines += ["", "## Measures", "", f"no table could be made of them: {type(error).__name__}: {cell(error)}"]
    lines += section("The longest kernels", profile(results.kernels(work, part)))
    return "\n".join(lines + ["", "## Steps", ""] + listed(steps)) + "\n"


def counts(result):
    return "{passed} passed, {failed} failed, {skipped} skipped, {unfinished} not finished".format(**result)
