# SPDX-License-Identifier: Apache-2.0
# step_table.py FOLDER [--build BUILD]: the tables of docs/lab/gpt2-on-paper.md, what each kernel of a training step of GPT-2 124M at
# batch 64 x 1024 in bf16 moves and computes. FOLDER gets what kernels counted on emulated PTX (tests/ptx/step.c), a file for each
# run; runs whose file is not there are made by the programs of BUILD, two at a time, after `ninja ptx tests/ptx/step`.
#
# Attention is counted at its true length and depth, for one head, and multiplied by the heads there are. The rest of a step is
# counted at the true width for 1 and 2 layers, 2 and 4 sequences of 64 tokens, and 2048 and 4096 words (MODELS below). What a
# kernel does is taken as linear in the layers, in the tokens and in the words, and in tokens x layers and tokens x words:
#     f(layers, tokens, words) = a + b layers + c tokens + d layers tokens + words (e + f tokens)
# These six numbers follow from the six runs, for each kernel and for each thing that is counted. So what a launch, a row, a
# parameter and a logit cost are told apart, and none of them grows with what it does not depend on. The update is counted for two
# numbers of parameters, and is linear in them. A norm's backward begins at most BLOCKS blocks (norm_backward.cu), which a few tokens
# do not fill: it is counted for two numbers of rows that do, so that what a block costs is not scaled with the rows. Products, which cuBLASLt makes and nothing here runs, are from their shapes.
#
# limit: bytes at the memory's speed or operations at the arithmetic's, whichever takes longer. Bytes are what warps ask for, each
# once a warp: sectors that a warp asks for again are taken to come out of the L1 (the second half of eight f32, a norm's weights),
# which is an assumption. Of attention the limit has what must be moved at least once, since the L2 has the rest. estimate: the limit, or
# instructions at the rate at which a GPU can start them where that takes longer; products at 65 % of the tensor cores. Nothing is
# measured.
import argparse
import concurrent.futures
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from report import FIELDS, MAXIMA, read, readable  # pylint: disable=wrong-import-position

F32, TENSOR, ISSUE = 67e12, 989e12, 528 * 1.755e9  # a second, of an H100 SXM and of an H200 alike
MEMORY = {"H100": 3.35e12, "H200": 4.8e12}
PRODUCTS = 0.65  # of the tensor cores, that the estimate gives to products
WIDTH, DEPTH, SEQUENCE = 768, 64, 64  # SEQUENCE: of tests/ptx/step.c
LAYERS, TOKENS, WORDS, HEADS, BATCH, LENGTH = 12, 64 * 1024, 50304, 12, 64, 1024
MODELS = [(1, 2, 2048), (2, 2, 2048), (1, 4, 2048), (2, 4, 2048), (1, 2, 4096), (1, 4, 4096)]  # layers, sequences, words
UPDATES = [1 << 17, 1 << 18]  # parameters
PARAMETERS = (12 * WIDTH * WIDTH + 13 * WIDTH) * LAYERS + (WORDS + LENGTH + 2) * WIDTH
NORMS = [2112, 4224]  # rows, for both of which the grid of a norm's backward is full
NORM_BACKWARD = "kernel_norm_norm_backward.ptx"
ATTENTIONS = {"mma": "own", "wgmma": "wgmma"}  # kernels, TREK_CUDA_ATTENTION
COUNTED = [f for f in FIELDS if f not in MAXIMA]
# Files of kernels, and names; the first that fits.
GROUPS = (
    ("attention", r"kernel_attention_", r""),
    ("loss rows and gradients", r"kernel_reduce_(linear_)?cross_entropy", r""),
    ("norms", r"kernel_norm_", r""),
    ("GELU", r"", r"gelu"),
    ("the rest", r"", r""),
)
# From reading the code and from measured ceilings of the same shapes, in ms: as it was by default, on an H100; and with wgmma
# attention, kept logits, launches ordered for the L2 and shorter norms and GELU, on an H200.
READ = {"products": ("75-78", "71"), "attention": ("35-45", "14-16"), "loss rows and gradients": ("11.6", "3.5"), "norms": ("11", "7"),
        "GELU": ("9.5", "4.5"), "the rest": ("7", "5"), "together": ("155", "106"), "K tokens/s": ("420", "615")}


# -- runs ---------------------------------------------------------------------------


def file_of(folder, *words):
    return os.path.join(folder, "-".join(map(str, words)) + ".txt")


def environment(build):
    fake = os.path.join(build, "tests", "fake_cuda")
    libraries = {"TREK_%s_LIBRARY" % n.upper(): os.path.join(fake, "libfake_%s.so" % n) for n in ("cublaslt", "cudnn", "nccl", "nvml")}
    return dict(os.environ, TREK_PLUGIN_PATH=os.path.join(fake, "plugin"), TREK_TEST_DEVICE="cuda:0", TREK_TEST_PTX=os.path.join(build, "tests", "ptx"),
                TREK_TEST_ROOT=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."), TREK_TEST_BUILD=build,
                TREK_FAKE_GPU_MEMORY="4G", TREK_FAKE_LATE="0", **libraries)


def run_one(build, path, kernels, *words):
    new = path + ".new"  # counts add up in a file, so each run has one of its own
    if os.path.exists(new):
        os.remove(new)
    env = dict(environment(build), TREK_TEST_PTX_COUNTS=new, TREK_CUDA_ATTENTION=kernels)
    done = subprocess.run([os.path.join(build, "tests", "ptx", "step")] + [str(w) for w in words], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise SystemExit("step %s: status %d\n%s" % (" ".join(map(str, words)), done.returncode, done.stdout))
    os.rename(new, path)


def run_missing(build, folder):
    os.makedirs(folder, exist_ok=True)
    tasks = [(file_of(folder, "model", *model), "own", "model") + model for model in MODELS]
    tasks += [(file_of(folder, "update", n), "own", "update", n) for n in UPDATES]
    tasks += [(file_of(folder, "norm", n), "own", "norm", n) for n in NORMS]
    tasks += [(file_of(folder, "attention", name), asked, "attention", LENGTH, 1) for name, asked in ATTENTIONS.items()]
    tasks = [task for task in tasks if not os.path.exists(task[0])]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda task: run_one(build, *task), sorted(tasks, reverse=True)))


def files_of_kernels(folder):
    """The file that each kernel is in, by its symbol."""
    files = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".ptx"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                files.update((entry, name) for entry in re.findall(r"\.entry (\w+)\(", file.read()))
    return files


def group_of(file, name):
    return next(group for group, files, names in GROUPS if re.search(files, file) and re.search(names, name))


# -- from counts to a step of the true size -------------------------------------------------


def at_true_size(f):
    """f: what each of MODELS counted, in their order."""
    few, many = (MODELS[k][1] * SEQUENCE for k in (0, 2))
    at = (TOKENS - few) / (many - few)

    def of_tokens(one, two):
        return one + at * (two - one)
    one_layer, two_layers = of_tokens(f[0], f[2]), of_tokens(f[1], f[3])
    words = of_tokens(f[4] - f[0], f[5] - f[2]) / (MODELS[4][2] - MODELS[0][2])
    # what depends on which words there are is not quite linear: sums of an embedding's gradient
    return max(0, one_layer + (LAYERS - 1) * (two_layers - one_layer) + (WORDS - MODELS[0][2]) * words)


def scaled_model(folder):
    runs = [read(file_of(folder, "model", *model)) for model in MODELS]
    none = dict.fromkeys(FIELDS, 0)
    for name in sorted(set().union(*runs)):
        yield name, {field: at_true_size([run.get(name, none)[field] for run in runs]) for field in COUNTED}


def linear(folder, what, sizes, size):
    """What each kernel counts at `size`, on the line through what it counted at two sizes."""
    few, many = (read(file_of(folder, what, n)) for n in sizes)
    none = dict.fromkeys(FIELDS, 0)
    at = (size - sizes[0]) / (sizes[1] - sizes[0])
    for name, k in many.items():
        less = few.get(name, none)
        yield name, {field: less[field] + at * (k[field] - less[field]) for field in COUNTED}


def scaled_norms(folder, files):
    """Backward of all norms of a step."""
    few, many = (read(file_of(folder, "norm", n)) for n in NORMS)
    for name, k in linear(folder, "norm", NORMS, TOKENS):
        if files.get(name) == NORM_BACKWARD:
            if few[name]["blocks"] != many[name]["blocks"]:
                raise SystemExit("%s: its grid is not full at %d rows: NORMS must be larger" % (name, NORMS[0]))
            yield name, {field: (2 * LAYERS + 1) * k[field] for field in COUNTED}


def scaled_attention(folder, kernels):
    times = LAYERS * BATCH * HEADS
    for name, counts in read(file_of(folder, "attention", kernels)).items():
        yield name, {field: times * counts[field] for field in COUNTED}


def row_of(group, name, k):
    """(group, name, bytes, operations, limit, estimates); seconds on an H100, and on an H200 for the last."""
    asked, flops = k["least_sectors"] * 32, k["flops"] + k["tensor_flops"]
    moved = attention_bytes(name) if group == "attention" else asked
    computes = k["flops"] / F32 + k["tensor_flops"] / TENSOR
    limits = [max(moved / memory, computes) for memory in MEMORY.values()]
    return (group, name, asked, flops, limits[0], *[max(limit, k["instructions"] / ISSUE) for limit in limits])


def attention_bytes(name):
    """What a kernel of attention has to move once: so many arrays of [tokens, width] of 16 bits a layer."""
    arrays = 4 if name.startswith("attention") else 2 if name.startswith("delta") else 6
    return LAYERS * arrays * 2.0 * TOKENS * WIDTH


def product(name, m, n, k, count):
    """A row of products [m, k] x [k, n]: forward, and two of backward"""
    flops, moved = 6.0 * m * n * k * count, 3 * 2.0 * (m * k + k * n + m * n) * count
    return ("products", name, moved, flops, max(moved / MEMORY["H100"], flops / TENSOR), flops / TENSOR / PRODUCTS, flops / TENSOR / PRODUCTS)


def products():
    yield product("packed q, k, v (cuBLASLt)", TOKENS, 3 * WIDTH, WIDTH, LAYERS)
    yield product("projection (cuBLASLt)", TOKENS, WIDTH, WIDTH, LAYERS)
    yield product("up (cuBLASLt)", TOKENS, 4 * WIDTH, WIDTH, LAYERS)
    yield product("down (cuBLASLt)", TOKENS, WIDTH, 4 * WIDTH, LAYERS)
    yield product("head (cuBLASLt)", TOKENS, WORDS, WIDTH, 1)


def rows_of(folder, files, kernels):
    found = [(name, counts) for name, counts in scaled_model(folder)
             if group_of(files.get(name, ""), name) != "attention" and files.get(name) != NORM_BACKWARD]
    found += list(scaled_norms(folder, files))
    attention = list(scaled_attention(folder, kernels))
    found += [(name, counts) for name, counts in attention if group_of(files.get(name, ""), name) == "attention"]
    found += list(linear(folder, "update", UPDATES, PARAMETERS))
    names = readable([name for name, _ in found])
    rows = [row_of(group_of(files.get(name, ""), names[name]), names[name], counts) for name, counts in found]
    return sorted(list(products()) + rows, key=lambda row: -row[5])


# -- tables --------------------------------------------------------------------------------------


def by_kernel(rows, others):
    print("| kernel | GB | TFLOP | limit, ms | estimate, H100, ms | H200, ms | measured, ms |\n|---|---:|---:|---:|---:|---:|---:|")
    shown = [row for row in rows if row[5] >= 5e-5] + [row for row in others if row[0] == "attention" and row not in rows]
    for group, name, moved, flops, limit, first, second in sorted(shown, key=lambda row: -row[5]):
        print("| `%s` | %.2f | %.3f | %.2f | %.2f | %.2f |  |" % (name, moved / 1e9, flops / 1e12, limit * 1e3, first * 1e3, second * 1e3))
    small = [row for row in rows if row[5] < 5e-5]
    print("| %d others | %.2f | %.3f | %.2f | %.2f | %.2f |  |" % ((len(small),) + tuple(sum(row[c] for row in small) * by for c, by in ((2, 1e-9), (3, 1e-12), (4, 1e3), (5, 1e3), (6, 1e3)))))


def by_group(tables):
    names = ["products"] + [group[0] for group in GROUPS]
    print("| ms a step | mma, H100 | wgmma, H100 | wgmma, H200 | by reading: H100 | by reading: H200 | measured |\n|---|---:|---:|---:|---:|---:|---:|")
    columns = [(tables["mma"], 5), (tables["wgmma"], 5), (tables["wgmma"], 6)]
    sums = [[sum(row[c] for row in rows if row[0] == name) * 1e3 for rows, c in columns] for name in names]
    for name, values in zip(names, sums):
        print("| %s | %s | %s | %s |  |" % (name, " | ".join("%.1f" % v for v in values), *READ[name]))
    together = [sum(column) for column in zip(*sums)]
    print("| **together** | %s | %s | %s |  |" % (" | ".join("%.0f" % v for v in together), *READ["together"]))
    print("| K tokens/s | %s | %s | %s |  |" % (" | ".join("%.0f" % (TOKENS / v) for v in together), *READ["K tokens/s"]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--build", default="build")
    options = parser.parse_args()
    build = os.path.abspath(options.build)
    run_missing(build, options.folder)
    files = files_of_kernels(os.path.join(build, "tests", "ptx"))
    tables = {kernels: rows_of(options.folder, files, kernels) for kernels in ATTENTIONS}
    by_group(tables)
    print()
    by_kernel(tables["wgmma"], tables["mma"])


main()
