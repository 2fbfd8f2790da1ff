# SPDX-License-Identifier: Apache-2.0
"""What is printed at the end of a part, for whoever gets nothing else: at most MOST characters."""
import re

import kernels
import page
import results

MOST, WIDTH = 9900, 170


def cut(lines, room, what):
    """The first lines that fit, and how many do not."""
    lines, kept = [line if len(line) <= WIDTH else line[:WIDTH - 2] + ".." for line in lines], []
    for at, line in enumerate(lines):
        if room < len(line) + 1 + (60 if at + 1 < len(lines) else 0):
            return kept + [f"  ... and {len(lines) - at} more {what}"]
        kept.append(line)
        room -= len(line) + 1
    return kept


def failures(steps):
    lines = []
    for s in steps:
        if s["status"] == "failed":
            told = s["problems"] or [line for line in s["last"] if line.strip()][-3:]
            lines += [f"FAILED {s['name']} ({s['reason']})"] + [f"    {' '.join(line.split())}" for line in told[:3]]
    return lines


def listed(steps, status):
    """Steps by their reasons."""
    reasons = {}
    for s in steps:
        if s["status"] == status:
            reasons.setdefault(s["reason"], []).append(s["name"])
    return [f"  {', '.join(names)}: {reason}" for reason, names in reasons.items()]


def longest(found):
    if not found:
        return []
    lines = [f"KERNELS of one step ({found['mode']}, attention {found['attention']}): ms, %, count, GB, GB/s"]
    for line in kernels.table(found["kernels"])[2:]:
        name, ms, share, count, gb, rate = line.strip("| ").split(" | ")
        lines.append(f"{ms:>8} {share:>4} {count:>4} {gb:>6} {rate:>5} {name}")
    return lines


def text(work, result):
    part, steps = result["part"], result["steps"]
    measured = results.measures(work, part)
    fast = [line for one in measured if one["work"].startswith("gpt2_") for line in results.speeds(one) if "tokens/s" in line or "failed" in line]
    other = [line for one in measured for line in results.speeds(one) if line not in fast]
    unfinished, skipped = listed(steps, "unfinished"), listed(steps, "skipped")
    paths = ["  " + line for line in results.paths(work, result)]
    agreed = [line for line in results.log_lines(work, part, "agreement") if not line.startswith("path: ")]
    agreed = ["  " + line for line in sorted(agreed, key=lambda line: (not line.startswith("FAILED"), not re.search("distance|same bits", line)))]
    sections = [  # lines, and the most characters of them
        ([f"==== trek on a GPU: {part}: {page.counts(result)}"], 200),
        ([f"{what}: {which}" for what, which in results.machine(work, result)], 1300),
        (failures(steps), 2100),
        (["NOT FINISHED"] + unfinished if unfinished else [], 600),
        (["SKIPPED"] + skipped if skipped else [], 400),
        (["AGREEMENT AT REAL SIZE"] + agreed if agreed else [], 900),
        (["PATHS TAKEN"] + paths if paths else [], 600),
        (["TOKENS PER SECOND"] + [piece for line in fast for piece in folded(line)] if fast else [], 1300),
        (longest(results.kernels(work, part)), 2600)]
    lines = [line for part_lines, most in sections for line in cut(part_lines, most, "lines on the page")]
    room = MOST - sum(len(line) + 1 for line in lines)
    lines += cut(["OTHER MEASURES"] + other, max(room, 100), "lines on the page") if other else []
    return "\n".join(lines)


def folded(line):
    """A measure's modes, some to a line."""
    lines, name, modes = [], *line.split(": ", 1)
    now = f"  {name}:"
    for mode in modes.split("; "):
        if len(now) + len(mode) > WIDTH - 4:
            lines.append(now)
            now = "   "
        now += f" {mode};"
    return lines + [now.rstrip(";")]
