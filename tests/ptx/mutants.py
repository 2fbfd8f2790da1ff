# SPDX-License-Identifier: Apache-2.0
# mutants.py PTX_FOLDER TEST_FOLDER: whether what executes PTX, and the tests that run on it, notice a kernel that is broken.
# Each mutant is one change in the text of one kernel; a program of the suite runs with it, and must fail. Before, each program
# must pass a case with the texts as they are; that it passes the others is for the suite's other tests to say.
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile

folder, tests = sys.argv[1:3]
limit = 900  # seconds of a program: only one that never ends takes as long


def body_of(text, entry):
    """Where the kernel's text begins and ends."""
    head = re.search(r"\.entry\s+\S*" + entry, text)
    if not head:
        sys.exit("no kernel " + entry)
    return head.start(), text.index("\n}\n", head.start())


def change(text, entry, pattern, replacement, which):
    """The text with the which-th place of the pattern in the kernel changed."""
    start, end = body_of(text, entry)
    places = list(re.finditer(pattern, text[start:end]))
    if not places:
        sys.exit("%s has no %s" % (entry, pattern))
    at = places[which]
    new = replacement(at) if callable(replacement) else at.expand(replacement)
    return text[: start + at.start()] + new + text[start + at.end() :]


def run(program, case, ptx, copy, file=""):
    """Whether it passes with a mutant of the file, and the first fault that it tells of"""
    env = dict(os.environ, TREK_CUDA_ATTENTION="wgmma" if "wgmma" in file else "own")
    env.update(TREK_FAKE_L2="384K", TREK_THREADS="1", TREK_TEST_PTX=ptx, TREK_TEST_CASE=case, TREK_TEST_PTX_COPY=copy, TREK_TEST_PTX_ORDER="random")
    try:
        done = subprocess.run([os.path.join(tests, "test_" + program)], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit)
    except subprocess.TimeoutExpired:
        return False, "has not ended"
    said = done.stdout.decode(errors="replace")
    if done.returncode == 0 and not re.search(r"\[ +OK +\] %s$" % case, said, re.M):
        sys.exit("test_%s has no case %s, or skips it" % (program, case))
    fault = re.search(r"fake cuda: kernel \S+: (.*)", said) or re.search(r"ERROR: (.*)", said)
    return done.returncode == 0, fault.group(1) if fault else ""


BARRIER = (r"bar\.sync\s+0;", "")
SOFTMAX = ("kernel_reduce_softmax", "cuda_rows", ("test_softmax",))
LOSSES = ("kernel_reduce_cross_entropy", "cuda_rows", ("test_losses",))
ATTENTION = ("kernel_attention_attention_mma", "attention", ("large_masks_of_whole_rows", "bf16_is_f64_rounded"))  # a second, and a minute
HOPPER = ("kernel_attention_attention_wgmma", "attention", ("bf16_tiles_end_anywhere",))
HOPPER_BACK = ("kernel_attention_attention_wgmma_backward", "attention", ("bf16_tiles_end_anywhere",))
NORMS = ("kernel_norm_norm_forward", "cuda_rows", ("test_norms",))
GRADIENTS = ("kernel_norm_norm_backward", "cuda_rows", ("test_norms",))
ACTIVATIONS = ("kernel_elementwise_activation", "cuda_rows", ("test_gelu",))
EMBEDDING = ("kernel_moves_embedding_backward", "cuda_rows", ("test_embedding",))
SUMS = ("kernel_reduce_reduce", "cuda_rows", ("test_reductions",))
ADAM = ("optimizer_adam", "optim", ("updates_equal_the_formulas",))
CLIP = ("kernel_optim_update", "optim", ("clip_norm_and_value",))
HEAD_ROWS = ("kernel_reduce_linear_cross_entropy", "fused", ("many_classes",))
HEAD = ("kernel_reduce_linear_cross_entropy", "fused", ("loss_equals_linear_and_cross_entropy",))
SMALL = {"cuda_rows": "test_losses", "attention": "large_masks_of_whole_rows", "optim": "updates_equal_the_formulas",
         "fused": "loss_equals_linear_and_cross_entropy"}  # what each program must pass before
ROOT = r"sqrt\.rn\.f64\s+(\S+), (\S+);", r"mov.f64 \1, \2;"
# whose case comes to the kernel at once: programs go on for long until they pass
OTHERS = (
    (NORMS, "norm_rows_kernelIfLi1E", "a shuffle goes elsewhere", r"shfl\.sync\.bfly", "shfl.sync.down", 0),
    (NORMS, "norm_rows_kernelIfLi1E", "a deviation is not inverted", r"rcp\.rn\.f32\s+(\S+), (\S+);", r"mov.f32 \1, \2;", 0),
    (GRADIENTS, "grad_rows_kernelIfLi1ELi16E", "barrier 1 is dropped", *BARRIER, 1),
    (GRADIENTS, "combine_kernelIfE", "a part is taken away", r"add\.rn\.f32", "sub.rn.f32", 0),
    (GRADIENTS, "combine_kernelIfE", "barrier 0 is dropped", *BARRIER, 0),
    (ACTIVATIONS, r"trek_flat_kernelI\S*gelu_erf_backward_functorI9trek_bf16EES2_S2_S2_", "an inverse is not taken", r"rcp\.approx\.ftz\.f32\s+(\S+), (\S+);", r"mov.f32 \1, \2;", 0),
    (ACTIVATIONS, r"trek_flat_kernelI\S*gelu_erf_backward_functorIfEEfff", "an exponential is not taken", r"ex2\.approx\.ftz\.f32\s+(\S+), (\S+);", r"mov.f32 \1, \2;", 0),
    (EMBEDDING, "embedding_starts", "runs begin elsewhere", r"setp\.eq\.s32", "setp.ne.s32", 0),
    (EMBEDDING, "embedding_runsIfLi4E", "a row is taken away", r"add\.rn\.f32", "sub.rn.f32", 0),
    (SUMS, "trek_reduce_kernelI6sum_opIfELi4E", "barrier 1 is dropped", *BARRIER, 1),
    (SUMS, "trek_reduce_splitsI6sum_opIfE", "splits end one late", r"setp\.ge\.s32", "setp.gt.s32", 0),
    (ADAM, "trek_apply_kernelI9adam_ruleE", "no root of the second moment", *ROOT, 2),
    (ADAM, "trek_apply_kernelI9adam_ruleE", "no root of its correction", *ROOT, 0),
    (ADAM, "trek_apply_kernelI9adam_ruleE", "barrier 0 is dropped", *BARRIER, 0),
    (CLIP, "norm_parts_kernel", "barrier 0 is dropped", *BARRIER, 0),
    (CLIP, "norm_parts_kernel", "barrier 3 is dropped", *BARRIER, 3),
    (CLIP, "_Z11norm_kernel", "barrier 0 is dropped", *BARRIER, 0),
    (HEAD_ROWS, "rows_kernelI9trek_bf16S0_E", "barrier 1 is dropped", *BARRIER, 1),
    (HEAD_ROWS, "rows_kernelI9trek_bf16S0_E", "barrier 2 is dropped", *BARRIER, 2),
    (HEAD_ROWS, "rows_kernelI9trek_bf16S0_E", "the last barrier is dropped", *BARRIER, -1),
    (HEAD_ROWS, "rows_kernelI9trek_bf16S0_E", "a sum's power has no shift", r"fma\.rn\.f32\s+(%f\d+), (%f\d+), (%f\d+), %f\d+;", r"mul.rn.f32 \1, \2, \3;", 0),
    (HEAD_ROWS, "rows_kernelI9trek_bf16S0_E", "the label's gradient is as another's", r"st\.global\.u16\s+\[[^]]*\], %rs\d+;", "", -1),
    (HEAD_ROWS, "rows_kernelI9trek_bf16S0_E", "a row's logits are not held", r"st\.shared\.v4\.u32\s+\[[^]]*\], \{[^}]*\};", "", 0),
    (HEAD, "rows_kernelIddE", "the last barrier is dropped", *BARRIER, -1),
    (HEAD, "totals_kernel", "barrier 0 is dropped", *BARRIER, 0),
    (HEAD, "column_sums_kernelIddE", "a row is taken away", r"add\.rn\.f64", "sub.rn.f64", 0),
    (HEAD, "scaled_kernelIddE", "a mean is a sum", r"div\.rn\.f64\s+(\S+), (\S+), (\S+);", r"mov.f64 \1, \2;", 0),
)
MMA = r"(mma\.sync\S+ \{[^}]*\}, \{)([^}]*)(\}, \{)(%\w+),(%\w+)\}"
PAIR = r"cvt\.rn\.bf16x2\.f32 (%\w+), (%\w+), (%\w+);"
# the same bits, of which the upper half is made with a register that has no value: no result shows it
HALF = r"\g<0> { .reg .b32 none; mul.lo.u32 none, none, 0; add.u32 none, none, \1; prmt.b32 \1, \1, none, 0x7610; }"
A = r"(mma\.sync\S+ \{[^}]*\}, \{)(%\w+),(%\w+),"


def mutants(text_of):
    """((file, program, cases), kernel, what is done, pattern, replacement, which place) of each"""
    found = list(OTHERS)
    for kernel in ("attention_mma_kernelI9trek_bf16Li64E", "gradient_mma_kernelI9trek_bf16Li64ELi64ELi1ELi4ELb0E", "gradient_mma_kernelI9trek_bf16Li64ELi64ELi1ELi4ELb1E"):
        text = text_of(ATTENTION[0])
        start, end = body_of(text, kernel)
        for n in range(2):  # a third one, at a gradient's end, follows another with no shared memory between
            found.append((ATTENTION, kernel, "barrier %d is dropped" % n, *BARRIER, n))
        for n in range(len(re.findall(r"cp\.async\.wait_group", text[start:end]))):
            found.append((ATTENTION, kernel, "wait %d lets one more copy go on" % n, r"cp\.async\.wait_group\s+(\d+);", lambda m: "cp.async.wait_group %d;" % (int(m.group(1)) + 1), n))
        found.append((ATTENTION, kernel, "fragments of B are swapped", MMA, r"\1\2\3\5,\4}", 0))
        found.append((ATTENTION, kernel, "fragments of A are swapped", A, r"\1\3,\2,", 3))
        found.append((ATTENTION, kernel, "halves of a pair are swapped", PAIR, r"cvt.rn.bf16x2.f32 \1, \3, \2;", 0))
        found.append((ATTENTION, kernel, "half of a pair has no value", PAIR, HALF, 0))
        found.append((ATTENTION, kernel, "a matrix is not turned", r"x4\.trans", "x4", 0))
    for depth in (64, 128):
        found += hopper_mutants(HOPPER, "attention_wgmma_kernelI9trek_bf16Li%dE" % depth, text_of(HOPPER[0]))
    for depth, of_keys in ((64, 0), (128, 1)):  # one each of queries and of keys, of both sizes of tiles; below, all four
        found += hopper_mutants(HOPPER_BACK, "gradient_wgmma_kernelI9trek_bf16Li%dELb%dE" % (depth, of_keys), text_of(HOPPER_BACK[0]))
    for depth, of_keys in ((64, 0), (64, 1), (128, 0), (128, 1)):  # what gradients alone have
        kernel = "gradient_wgmma_kernelI9trek_bf16Li%dELb%dE" % (depth, of_keys)
        found.append((HOPPER_BACK, kernel, "what is not seen stays", r"selp\.f32\s+(%f\d+), 0fFF800000, \1, %p\d+;", "", 0))
        found.append((HOPPER_BACK, kernel, "the last rows to be weighed are not turned", r", 1, 1, 1, 1;", ", 1, 1, 1, 0;", -1))
        for which in (0, -1):
            found.append((HOPPER_BACK, kernel, "a query's number %d has another sign" % which, r"neg\.f32\s+(%f\d+), (%f\d+);", r"mov.f32 \1, \2;", which))
        for which in (0, 1) if of_keys else ():
            found.append((HOPPER_BACK, kernel, "a query's number %d is not handed over" % which, r"st\.shared\.f32\s+\[[^]]*\], %f\d+;", "", which))
        for which in (1, 3) if of_keys else ():  # before numbers are said to be there, and to have been read
            found.append((HOPPER_BACK, kernel, "meeting %d of a warp's lanes is dropped" % which, r"bar\.warp\.sync\s+-1;", "", which))
    found += order_mutants(text_of)
    found += largest_mutants(ATTENTION, "attention_mma_kernelI9trek_bf16Li64E")
    found += largest_mutants(HOPPER, "attention_wgmma_kernelI9trek_bf16Li64E")
    for group, kernels in ((SOFTMAX, ("forward_linesI9trek_bf16E", "backward_linesIfE")), (LOSSES, ("loss_kernelIfLi1E",))):
        text = text_of(group[0])
        for kernel in kernels:
            start, end = body_of(text, kernel)
            # each second one waits until a reduction before has been read, and these kernels' buffers were not used before
            for n in range(1, len(re.findall(BARRIER[0], text[start:end])), 2):
                if group is SOFTMAX or n == 1:
                    found.append((group, kernel, "barrier %d is dropped" % n, *BARRIER, n))
    for kernel in ("forward_rowsIfLi4E", "backward_rowsIfLi4E"):
        found.append((SOFTMAX, kernel, "a row ends one late", r"setp\.ge\.s32", "setp.gt.s32", 0))
    return found


NUMBER = r"(%r\d+), %r\d+, %r\d+;"


def order_mutants(text_of):
    """Of the heads and tiles that blocks take"""
    for file, cases in ((ATTENTION[0], ("bf16_is_f64_rounded",)), (HOPPER[0], HOPPER[2]), (HOPPER_BACK[0], HOPPER_BACK[2])):
        for kernel in re.findall(r"\.entry\s+\S*?((?:attention|gradient)_\w+?_kernelI9trek_bf16Li64E\w*?)Ev", text_of(file)):
            group = (file, "attention", cases)
            yield (group, kernel, "all heads are of the first section", r"div\.s32\s+" + NUMBER, r"mov.u32 \1, 0;", 0)
            yield (group, kernel, "a section has the heads of all that are left", r"min\.s32", "max.s32", 0)


def largest_mutants(group, kernel):
    """Of the largest score of a row; only where exponentials would not be finite does it show"""
    group = (group[0], group[1], ("bf16_sharp_scores",))
    yield (group, kernel, "the largest score is not scaled", r"(max\.f32\s+(%f\d+), %f\d+, %f\d+;\s+)mul\.rn\.f32\s+(%f\d+), (?:%f\d+, \2|\2, %f\d+);", r"\1mov.f32 \3, \2;", 0)
    yield (group, kernel, "lanes agree on the smallest of largest scores", r"(mov\.b32\s+(%f\d+), %r\d+;\s+)max(\.f32\s+%f\d+, %f\d+, \2;)", r"\1min\3", 0)


LEFT = r"(wgmma\.mma_async\S+ \{[^}]*\}, \{)(%\w+),(%\w+),"


def hopper_mutants(group, kernel, text):
    """Of a kernel of mbarriers, copies and wgmma"""
    start, end = body_of(text, kernel)
    for what, pattern, replacement in (
        ("fence %d of registers is dropped", r"wgmma\.fence\.sync\.aligned;", ""),
        ("wait %d lets products go on", r"wgmma\.wait_group\.sync\.aligned (\d);", lambda m: "wgmma.wait_group.sync.aligned %d;" % (int(m.group(1)) + 1)),
        ("products %d are never waited for", r"wgmma\.commit_group\.sync\.aligned;", ""),
        ("wait %d for an mbarrier is none", r"selp\.u32 (%\w+), 1, 0, over;", r"selp.u32 \1, 1, 1, over;"),
        ("an arrival %d is dropped", r"mbarrier\.arrive\.shared::cta\.b64 _, \[%\w+\];", ""),
        ("bytes %d are not expected", r"mbarrier\.arrive\.expect_tx(\.shared::cta\.b64 _, \[%\w+\]), %\w+;", r"mbarrier.arrive\1;"),
    ):
        for n in range(len(re.findall(pattern, text[start:end]))):
            yield (group, kernel, what % n, pattern, replacement, n)
    yield (group, kernel, "barrier 0 is dropped", *BARRIER, 0)
    yield (group, kernel, "mbarriers are not shown to copies", r"fence\.mbarrier_init\.release\.cluster;", "", 0)
    yield (group, kernel, "values are not turned", r", 1, 1, 1, 1;", ", 1, 1, 1, 0;", 0)
    yield (group, kernel, "halves of a pair are swapped", PAIR, r"cvt.rn.bf16x2.f32 \1, \3, \2;", 0)
    yield (group, kernel, "half of a pair has no value", PAIR, HALF, 0)
    for which in (0, -1):
        yield (group, kernel, "fragments of A are swapped, of product %d" % which, LEFT, r"\1\3,\2,", which)


texts = {}


def text_of(file):
    if file not in texts:
        with open(os.path.join(folder, file + ".ptx"), encoding="utf-8") as f:
            texts[file] = f.read()
    return texts[file]


def found(mutant):
    """Whether the program fails with it, by cp.async that writes late or early, and by what"""
    (file, program, cases), kernel, _, pattern, replacement, which = mutant
    with tempfile.TemporaryDirectory() as place:
        for name in os.listdir(folder):
            if name.endswith(".ptx") and name != file + ".ptx":
                os.symlink(os.path.join(os.path.abspath(folder), name), os.path.join(place, name))
        with open(os.path.join(place, file + ".ptx"), "w", encoding="utf-8") as f:
            f.write(change(text_of(file), kernel, pattern, replacement, which))
        for copy in ("late", "early"):
            for case in cases:
                passes, by = run(program, case, place, copy, file)
                if not passes:
                    return by or "results that differ"
    return None


missed = 0
for program, case in SMALL.items():
    passes, by = run(program, case, folder, "late")
    if not passes:
        sys.exit("%s %s fails without a mutant: %s" % (program, case, by))
everyone = mutants(text_of)
with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    for mutant, by in zip(everyone, pool.map(found, everyone)):
        missed += by is None
        print("%-9s %s: %s%s" % ("MISSED" if by is None else "found", mutant[1], mutant[2], "" if by is None else " (" + by[:100] + ")"), flush=True)
print("%d mutants, %d missed" % (len(everyone), missed))
sys.exit(missed != 0 or not everyone)
