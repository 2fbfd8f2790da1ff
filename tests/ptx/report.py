# SPDX-License-Identifier: Apache-2.0
# report.py COUNTS [--memory GB/S] [--f32 TFLOPS] [--tensor TFLOPS]: what kernels did, from the file that TREK_TEST_PTX_COUNTS
# names, and how far each is from what a GPU could do at best: the time of its bytes at the memory's speed, and of its operations
# at the arithmetic's; of the two the longer is its limit. Beside it what keeps it from there and shows in the code: sectors that
# memory moves for each that the bytes fill, turns of shared memory lost to bank conflicts, instructions of a warp for each lane
# that works. The defaults are an H100 SXM.
import argparse
import re
import subprocess

FIELDS = ("launches blocks instructions lanes flops tensor_flops loaded stored sectors least_sectors shared conflicts barriers atomics threads block_shared").split()
MAXIMA = ("threads", "block_shared")


def read(path):
    kernels = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            name, *numbers = line.rstrip("\n").split("\t")
            if len(numbers) != len(FIELDS):
                raise SystemExit("%s: a line with %d numbers, not %d: %s" % (path, len(numbers), len(FIELDS), name))
            sums = kernels.setdefault(name, dict.fromkeys(FIELDS, 0))
            for field, number in zip(FIELDS, numbers):
                sums[field] = max(sums[field], int(number)) if field in MAXIMA else sums[field] + int(number)
    return kernels


def readable(names):
    """Without parameters and nameless namespaces, by c++filt where that is installed."""
    try:
        said = subprocess.run(["c++filt"], input="\n".join(names), stdout=subprocess.PIPE, text=True, check=True).stdout.split("\n")
    except OSError:
        return dict(zip(names, names))
    plain = [re.sub(r"\(anonymous namespace\)::|_GLOBAL__N__\w+::|^void ", "", name) for name in said]
    return dict(zip(names, [name[: end_of_name(name)] for name in plain]))


def end_of_name(name):
    depth = 0
    for at, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            return at
    return len(name)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("counts")
    parser.add_argument("--memory", type=float, default=3350, help="GB/s")
    parser.add_argument("--f32", type=float, default=67, help="TFLOPS outside tensor cores")
    parser.add_argument("--tensor", type=float, default=989, help="TFLOPS of tensor cores, bf16")
    parser.add_argument("--issue", type=float, default=528 * 1.755, help="warp instructions of the whole GPU, 10^9 a second")
    options = parser.parse_args()
    rows = []
    kernels = read(options.counts)
    names = readable(list(kernels))
    for name, k in kernels.items():
        moved = k["least_sectors"] * 32
        memory = moved / options.memory
        arithmetic = k["flops"] / (options.f32 * 1e3) + k["tensor_flops"] / (options.tensor * 1e3)
        issued = k["instructions"] / options.issue
        limit = max(memory, arithmetic)
        actual = max(k["sectors"] * 32 / options.memory, arithmetic, issued)
        rows.append((issued, [
            names[name], k["launches"], "memory" if memory >= arithmetic else "arithmetic", "%.2f" % (limit / actual if actual else 0),
            "%.2f" % (k["sectors"] / k["least_sectors"] if k["least_sectors"] else 1), "%.2f" % (k["conflicts"] / k["shared"] if k["shared"] else 0),
            "%.2f" % (k["lanes"] / (32 * k["instructions"]) if k["instructions"] else 0), k["instructions"], k["loaded"] + k["stored"],
            k["flops"] + k["tensor_flops"]]))
    rows.sort(key=lambda row: -row[0])
    head = ["kernel", "launches", "limit", "of it", "sectors", "conflicts", "lanes", "instructions", "bytes", "operations"]
    table = [head] + [[str(c) for c in row] for _, row in rows]
    widths = [max(len(row[c]) for row in table) for c in range(len(head))]
    for row in table:
        print("  ".join(c.ljust(w) if n == 0 else c.rjust(w) for n, (c, w) in enumerate(zip(row, widths))))


if __name__ == "__main__":
    main()
