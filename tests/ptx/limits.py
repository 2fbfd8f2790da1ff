# SPDX-License-Identifier: Apache-2.0
# limits.py PTX_FOLDER [--all] [--table] [--arch N]... [--counts FILE]...: what ptxas makes of kernels for each architecture, against
# what a block may have there: registers of all its threads, shared memory; and registers that spilled. Without --all it is a few
# kernels that matter, one of each kind, cut from their files, half a minute of one core for six architectures.
#
# One text serves all: where nvcc could make another program for compute_80 than for compute_90, --same compares the two. Threads of
# a block are what the kernel bounds them to; of one that does not, what launches had (--counts: files that TREK_TEST_PTX_COUNTS
# named), else as many as there can be. Shared memory is that of the code, and with --counts the most of a launch: launches fit the
# device they were made for (TREK_FAKE_SHARED), which the machine itself sees to.
#
# Of each file, and of all: how many kernels there are, and lines of code, which is what whoever builds the plug-in waits for.
import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from report import read, readable  # pylint: disable=wrong-import-position

FEATURES = ".target sm_90a"  # of a text that is for one architecture
REGISTERS = 65536  # of a multiprocessor, all of which one block may have
SHARED = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}  # KB of a block that opts in
STATIC = 48  # KB of it that need no opting in
MOST = 1024  # threads of a block that says nothing

# What nvcc has to make, and a user to wait for: lines of PTX and kernels. A core takes a second for some 3500 lines, and as long for
# two dozen kernels, whose launches are compiled for the host. Files that may have more say why.
LINES, KERNELS = 45000, 125
MANY = {"kernel_elementwise_pointwise": (150, "each function has two small ones, its values and its derivative")}
ALL_LINES, ALL_KERNELS = 1095000, 1390
LONG = {
    "kernel_attention_attention_mma": (95000, "a kernel for each depth, all in registers"),
    "kernel_attention_attention": (65000, "rows of a thread in registers, thrice"),
    "kernel_norm_norm_backward": (60000, "rows in registers, of three lengths"),
}

# file: kernels of it, by parts of their names
CHOSEN = {
    "kernel_attention_attention_mma": ("attention_mma_kernelI9trek_bf16Li64E", "gradient_mma_kernelI9trek_bf16Li64ELi64ELi1ELi4ELb"),
    "kernel_attention_attention_wgmma": ("attention_wgmma_kernelI9trek_bf16Li",),
    "kernel_attention_attention_wgmma_backward": ("gradient_wgmma_kernelI9trek_bf16Li",),
    "kernel_products_matmul": ("9trek_bf16",),
    "kernel_reduce_softmax": ("forward_rowsI9trek_bf16Li8E", "backward_linesI9trek_bf16E"),
    "kernel_reduce_linear_cross_entropy": ("rows_kernelI9trek_bf16S0_E", "rows_kernelIf9trek_bf16E"),
    "kernel_norm_norm_forward": ("norm_long_kernelI9trek_bf16E",),
    "kernel_norm_norm_backward": ("grad_long_kernelI9trek_bf16E", "combine_kernelIfE"),
    "kernel_moves_embedding_backward": ("embedding_rowsI9trek_bf16Li8E",),
    "kernel_optim_update": ("norm_parts_kernel",),
    "optimizer_adam": ("trek_slice_kernelI9adam_rulefE",),
}

# Kernels that may spill: (part of the name, bytes, why)
SPILLS = (
    ("attention_mma_kernelI9trek_bf16Li64E", 164, "sums of 32 x 64 outputs and fragments of q want more than the 255 that a thread can have"),
    ("gradient_mma_kernelI9trek_bf16Li64ELi64ELi1ELi4ELb0E", 32, "for sm_120 alone: four registers"),
)


def entries(text):
    """(name, begin, end) of each kernel in the text"""
    found = []
    for head in re.finditer(r"^(?:\.\w+ )*\.entry\s+(\S+?)\(", text, re.M):
        found.append((head.group(1), head.start(), text.index("\n}", head.start()) + 2))
    return found


def only(text, parts):
    """The text with kernels whose names have one of the parts"""
    for name, begin, end in reversed(entries(text)):
        if not any(part in name for part in parts):
            text = text[:begin] + text[end:]
    return text


def assembled(task):
    """{kernel: (registers, spilled bytes, static bytes of shared memory)} by ptxas"""
    text, arch, ptxas = task
    alone = "a" if FEATURES in text else ""
    if arch < 90:
        text = re.sub(r"^\.target sm_\d+", ".target sm_%d" % arch, text, count=1, flags=re.M)
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(text)
        file.flush()
        done = subprocess.run([ptxas, "-v", "-arch=sm_%d%s" % (arch, alone), file.name, "-o", os.devnull], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode or "wgmma" in done.stdout.replace("wgmma_kernel", ""):  # it warns of products that go one after the other
        sys.exit("ptxas: " + done.stdout[-2000:])
    kernels, spilled = {}, {}
    for name, properties in re.findall(r"Function properties for (\S+)\n(.*)", done.stdout):
        spilled[name] = sum(int(n) for n in re.findall(r"(\d+) bytes spill (?:stores|loads)", properties))
    for name, rest in re.findall(r"Compiling entry function '(\S+)'(.*?)(?=Compiling entry|\Z)", done.stdout, re.S):
        used = re.search(r"Used (\d+) registers.*", rest)
        static = re.search(r"(\d+) bytes smem", used.group(0))
        # what a kernel calls stands behind it, and spills for it
        called = re.findall(r"Function properties for (\S+)", rest)
        kernels[name] = (int(used.group(1)), sum(spilled[c] for c in set(called) | {name}), int(static.group(1)) if static else 0)
    return kernels


def bounds(text):
    """Threads of a block by what each kernel says of itself"""
    found = {}
    for name, begin, end in entries(text):
        said = re.search(r"\.(?:maxntid|reqntid)\s+(\d+)(?:, (\d+))?(?:, (\d+))?", text[begin:end])
        if said:
            found[name] = int(said.group(1)) * int(said.group(2) or 1) * int(said.group(3) or 1)
    return found


def faults(name, arch, threads, registers, spilled, shared):
    allowed = max([most for part, most, _ in SPILLS if part in name] or [0])
    if spilled > allowed:
        yield "sm_%d: %d bytes of registers spill" % (arch, spilled)
    # a warp has them in units of 256, from one of four parts of a multiprocessor
    if (threads + 127) // 128 * 4 * ((registers * 32 + 255) // 256 * 256) > REGISTERS:
        yield "sm_%d: %d threads with %d registers each" % (arch, threads, registers)
    if shared > SHARED[arch] * 1024:
        yield "sm_%d: %d bytes of shared memory" % (arch, shared)


def handed_over(text):
    """Kernels whose warpgroups wait for more registers (setmaxnreg) than the others leave of those that the block began with"""
    bound = bounds(text)
    for name, begin, end in entries(text):
        asked = re.findall(r"setmaxnreg\.(dec|inc)\.sync\.aligned\.u32\s+(\d+);", text[begin:end])
        if not asked:
            continue
        # one warpgroup leaves some, all others have more
        groups, all_of = bound.get(name, MOST) // 128, REGISTERS // 128 // (bound.get(name, MOST) // 128) // 8 * 8
        counts = {way: int(count) for way, count in asked}
        if len(asked) != 2 or len(counts) != 2 or counts["dec"] + (groups - 1) * counts["inc"] > groups * all_of:
            yield "%s: registers of %d warpgroups, %d each, are not handed over as %s" % (name, groups, all_of, asked)


def lengths(folder):
    """What is more than LINES and KERNELS allow"""
    lines, kernels = {}, {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".ptx"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                text = file.read()
            lines[name[:-4]], kernels[name[:-4]] = text.count("\n"), len(entries(text))
    for what, counts, limit, total in (("lines of PTX", lines, LINES, ALL_LINES), ("kernels", kernels, KERNELS, ALL_KERNELS)):
        for name, count in counts.items():
            most = (MANY if what == "kernels" else LONG).get(name, (limit,))[0]
            if count > most:
                yield "%s: %d %s, %d at most (tensor/cuda/README.md)" % (name, count, what, most)
        if sum(counts.values()) > total:
            yield "all files: %d %s, %d at most (tensor/cuda/README.md)" % (sum(counts.values()), what, total)


def is_same(one, other):
    """Whether they differ only in the target and in what names a file's own things"""
    texts = []
    for path in (one, other):
        with open(path, encoding="utf-8") as file:
            texts.append(re.sub(r"_GLOBAL__N__[0-9a-f]+_|^\.target .*", "", file.read(), flags=re.M))
    return texts[0] == texts[1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--arch", type=int, action="append", choices=sorted(SHARED))
    parser.add_argument("--counts", action="append", default=[])
    parser.add_argument("--ptxas", default="ptxas", help="the program")
    parser.add_argument("--same", nargs=2, action="append", default=[], metavar=("NAME", "FILE"),
                        help="a file's PTX for another architecture, that is to be the same")
    options = parser.parse_args()
    archs = options.arch or sorted(SHARED)
    wrong = list(lengths(options.folder))
    for name, other in options.same:
        if not is_same(os.path.join(options.folder, name + ".ptx"), other):
            wrong.append("%s: %s is not the same: the machine runs one of two programs that ship" % (name, other))
    launches = {}
    for path in options.counts:
        for name, sums in read(path).items():
            known = launches.setdefault(name, [0, 0])
            known[0], known[1] = max(known[0], sums["threads"]), max(known[1], sums["block_shared"])
    texts = {}
    for name in sorted(os.listdir(options.folder)):
        if name.endswith(".ptx") and (options.all or name[:-4] in CHOSEN):
            with open(os.path.join(options.folder, name), encoding="utf-8") as file:
                text = file.read()
            texts[name[:-4]] = text if options.all else only(text, CHOSEN[name[:-4]])
    texts = {name: text for name, text in texts.items() if entries(text)}
    missing = [] if options.all else sorted(set(CHOSEN) - set(texts))
    if missing:
        sys.exit("no PTX of " + ", ".join(missing))
    tasks = [(text, arch, options.ptxas) for text in texts.values() for arch in archs if arch == 90 or FEATURES not in text]
    rows = {}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for (text, arch, _), kernels in zip(tasks, pool.map(assembled, tasks)):
            bound = bounds(text)
            wrong += handed_over(text)
            for name, (registers, spilled, static) in kernels.items():
                threads, launched = launches.get(name, (0, 0))
                threads = bound.get(name, 0) or threads or MOST
                shared = max(static, launched)
                row = rows.setdefault(name, {"threads": threads, "shared": shared})
                row[arch] = registers
                row["spilled"] = max(row.get("spilled", 0), spilled)
                wrong += ["%s: %s" % (name, fault) for fault in faults(name, arch, threads, registers, spilled, shared)]
                if static > STATIC * 1024:
                    wrong.append("%s: sm_%d: %d bytes of static shared memory" % (name, arch, static))
    if options.table:
        names = readable(list(rows))
        head = ["kernel", "threads", "shared bytes", "spilled"] + ["sm_%d" % arch for arch in archs]
        print("| " + " | ".join(head) + " |\n|---" + "|---:" * (len(head) - 1) + "|")
        for name, row in sorted(rows.items(), key=lambda r: names[r[0]]):
            print("| %s | %s |" % (names[name], " | ".join(str(row.get(c, "")) for c in ["threads", "shared", "spilled"] + archs)))
    for line in wrong:
        print(line)
    print("%d kernels for %d architectures, %d limits passed" % (len(rows), len(archs), len(wrong)))
    sys.exit(bool(wrong) or not rows)


main()
