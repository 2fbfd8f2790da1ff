#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two steps of GPT-2 at 64 x 1024, kernel by kernel, by ncu.

  kernels.py NCU LIMIT FOLDER PROGRAM [OPTIONS]   profiles what was fastest in FOLDER's bench-gpt2_64*.json, writes kernels.json
                                                  there and prints the table. Status 75: ncu was stopped at LIMIT seconds
  kernels.py FILE.csv                             the table of what `ncu --csv --page raw` printed, as of two steps"""
import csv
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

MOST, STEPS, WIDTH = 28, 2, 58
METRICS = {"gpu__time_duration.sum": "ms", "dram__bytes.sum": "gb"}
UNITS = {"ns": 1e-6, "nsecond": 1e-6, "us": 1e-3, "usecond": 1e-3, "ms": 1, "msecond": 1, "s": 1e3, "second": 1e3,
         "byte": 1e-9, "Kbyte": 1e-6, "Mbyte": 1e-3, "Gbyte": 1, "Tbyte": 1e3}
SHORTER = [(r"\(anonymous namespace\)::|<unnamed>::", ""), (r"\((?:int|bool|unsigned int|long|cudaDataType_t)\)", ""), (r"\btrek_(?=\w)", ""),
           (r"_kernel\b", ""), (r"_functor\b", ""), (r"\bunsigned int\b", "uint"), (r"\bunsigned short\b", "ushort"), (r", none\b", ""), (r"\s*([,<>])\s*", r"\1")]


def short(name):
    """A kernel's name without its result, its parameters and what all names have in common."""
    for pattern, text in SHORTER[:2]:
        name = re.sub(pattern, text, name)
    depth = 0
    for at, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            name = name[:at]
            break
    name = re.sub(r"^(?:void|static|[\w:]+\s)*\s(?=[\w:~]+(?:<|$))", "", name.strip())
    for pattern, text in SHORTER[2:]:
        name = re.sub(pattern, text, name)
    return name if len(name) <= WIDTH else name[:WIDTH - 2] + ".."


def read(lines):
    """Rows of ncu's raw page, from the line of names on; units stand below it."""
    lines = [line for line in lines if line.startswith('"')]
    start = next((k for k, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    rows = list(csv.reader(lines[start:]))
    names, units, found = rows[0], rows[1], []
    if units[0]:  # no line of units: ns and bytes
        rows.insert(1, [""] * len(names))
        units = rows[1]
    where = {key: names.index(metric) for metric, key in METRICS.items() if metric in names}
    kernel = names.index("Kernel Name")
    for row in rows[2:]:
        if len(row) != len(names):  # cut short
            continue
        one = {"name": short(row[kernel])}
        for key, at in where.items():
            try:
                one[key] = float(row[at].replace(",", "")) * UNITS.get(units[at], 1e-6 if key == "ms" else 1e-9)
            except ValueError:  # "n/a"
                one[key] = 0.0
        found.append(one)
    return found


def summed(found, steps=STEPS):
    """Kernels of one name together, for one step, the longest first."""
    kernels = {}
    for one in found:
        entry = kernels.setdefault(one["name"], {"name": one["name"], "ms": 0.0, "count": 0, "gb": 0.0})
        entry["ms"] += one.get("ms", 0) / steps
        entry["gb"] += one.get("gb", 0) / steps
        entry["count"] += 1 / steps
    return sorted(kernels.values(), key=lambda entry: -entry["ms"])


def table(kernels, most=MOST):
    """Lines of a Markdown table, of one step."""
    lines = ["| kernel | ms | % | count | GB | GB/s |", "|---|---:|---:|---:|---:|---:|"]
    total = {key: sum(k[key] for k in kernels) for key in ("ms", "count", "gb")}
    rest = [{"name": f"{len(kernels) - most} others", **{key: sum(k[key] for k in kernels[most:]) for key in total}}] if len(kernels) > most else []
    for k in kernels[:most] + rest + [{"name": "together", **total}]:
        rate = k["gb"] / k["ms"] * 1e3 if k["ms"] else 0
        share = 100 * k["ms"] / total["ms"] if total["ms"] else 0
        lines.append(f"| {k['name']} | {k['ms']:.3f} | {share:.1f} | {k['count']:g} | {k['gb']:.2f} | {rate:.0f} |")
    return lines


def fastest(folder):
    """(time, TREK_CUDA_ATTENTION, which of the program's measures, its mode) of the gpt2_64 that took the least time: eager where it
    was the captured one, since that has the same kernels."""
    found = []
    for path in folder.glob("bench-gpt2_64*.json"):
        try:
            rows = json.loads(path.read_text())["rows"].values()
        except (OSError, KeyError, ValueError):
            continue
        whose = path.stem.removeprefix("bench-gpt2_64").lstrip("_") or "auto"
        for modes in (list(row["trek"].items()) for row in rows):
            names = [name for name, _ in modes]
            for mode, m in modes:
                plain = mode.replace("captured", "eager") if mode.replace("captured", "eager") in names else mode
                found += [(m["us"], whose, names.index(plain) + 1, plain)] if "us" in m else []
    return min(found, default=(0, "auto", 1, "eager"))


def profile(ncu, limit, folder, *program):
    folder = pathlib.Path(folder)
    us, whose, measure, mode = fastest(folder)
    file = folder / "ncu.csv"
    file.unlink(missing_ok=True)
    command = [ncu, "--metrics", ",".join(METRICS), "--clock-control", "none", "--cache-control", "none", "--profile-from-start", "off",
               "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(file), *program, "--profile", str(measure), "gpt2_64"]
    print(f"gpt2_64, {mode}, TREK_CUDA_ATTENTION={whose}", f"({us / 1e3:.1f} ms without ncu)" if us else "(not measured before)", flush=True)
    process = subprocess.Popen(command, env=dict(os.environ, TREK_CUDA_ATTENTION=whose), start_new_session=True)
    try:
        code = process.wait(float(limit))
    except subprocess.TimeoutExpired:  # what it has seen so far is worth a table
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        code = None
    kernels = summed(read(file.read_text(errors="replace").splitlines() if file.exists() else []))
    if kernels:
        (folder / "kernels.json").write_text(json.dumps({"mode": mode, "attention": whose, "whole": code == 0, "kernels": kernels}))
        print("\n".join(table(kernels)))
    elif code is not None:
        print("error: ncu has printed no kernel" + "".join("\n" + line for line in (file.read_text(errors="replace").splitlines()[-5:] if file.exists() else [])))
    if code is None:
        print(f"ncu was stopped after {limit} s")
    return 75 if code is None else code or not kernels


def main():
    if len(sys.argv) == 2:
        print("\n".join(table(summed(read(pathlib.Path(sys.argv[1]).read_text().splitlines())))))
        return 0
    return profile(*sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
