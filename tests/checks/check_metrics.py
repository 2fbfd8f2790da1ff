#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Metrics against scikit-learn's of the same random sets, by themselves and recorded on 1, 2 and 3 ranks whose batches do not divide.
    usage: check_metrics.py <path of metrics_tool>      (needs numpy and scikit-learn)"""
import json
import pathlib
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import sklearn.metrics as sk

warnings.filterwarnings("ignore")  # of absent classes, which are part of the sets
DTYPES = {"float32": "F32", "float64": "F64", "int64": "I64"}
MICRO, MACRO, WEIGHTED, EACH = 1, 2, 3, 4
AVERAGES = {MICRO: "micro", MACRO: "macro", WEIGHTED: "weighted", EACH: None}
rng = np.random.default_rng(5)
N, C, L, D = 157, 5, 4, 3


def softmax(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def write(path, arrays):
    header, at, data = {}, 0, b""
    for name, array in arrays.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": DTYPES[str(array.dtype)], "shape": array.shape, "data_offsets": [at, at + len(raw)]}
        at, data = at + len(raw), data + raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


# scores of few values have many ties; class 4 is never a target of "few"
scores = np.round(rng.random((N, C)) * 12) / 16 + 1 / 16
chances = softmax(rng.normal(size=(N, C)))
chances = chances / chances.sum(axis=1, keepdims=True)
arrays = {"scores": scores, "chances": chances, "logits": rng.normal(size=(N, C)), "classes": rng.integers(0, C, N), "few": rng.integers(0, C - 1, N),
          "guess": rng.integers(0, C, N), "score": np.round(rng.random(N) * 20) / 20, "bit": rng.integers(0, 2, N),
          "label_scores": np.round(rng.random((N, L)) * 20) / 20, "labels": rng.integers(0, 2, (N, L)), "number": rng.normal(size=N) + 3,
          "near": rng.normal(size=N) + 3, "numbers": rng.normal(size=(N, D)) * 4, "nears": rng.normal(size=(N, D)), "weights": rng.random(N) * 2,
          "short": rng.normal(size=N).astype(np.float32)}
arrays["guess"][arrays["guess"] == 2] = 1  # never predicted
arrays["labels"][:, 1] = 0  # a label that nobody has
a = arrays
requests = []  # (line without ranks and batch, what is expected)


def add(pred, target, kind, want, weight=None, **spec):
    words = " ".join(f"{key}={value}" for key, value in spec.items())
    requests.append((f"{pred} {target} {weight or '-'} {kind} {words}", np.atleast_1d(np.asarray(want, dtype=float)).ravel()))


for weight in (None, "weights"):
    w = a[weight] if weight else None
    hard = {"sample_weight": w}
    for target in ("classes", "few"):
        for source, chosen in (("scores", a["scores"].argmax(axis=1)), ("guess", a["guess"])):
            y = a[target]
            add(source, target, "accuracy", sk.accuracy_score(y, chosen, **hard), weight, classes=C)
            add(source, target, "confusion", sk.confusion_matrix(y, chosen, labels=range(C), **hard), weight, classes=C)
            for average, name in AVERAGES.items():
                labels = {"labels": range(C)} if name is None else {}
                for zero in (0, 1):
                    more = {**hard, **labels, "average": name, "zero_division": zero}
                    add(source, target, "precision", sk.precision_score(y, chosen, **more), weight, classes=C, average=average, zero_division=zero)
                    add(source, target, "recall", sk.recall_score(y, chosen, **more), weight, classes=C, average=average, zero_division=zero)
                    add(source, target, "f1", sk.f1_score(y, chosen, **more), weight, classes=C, average=average, zero_division=zero)
                    add(source, target, "f1", sk.fbeta_score(y, chosen, beta=0.5, **more), weight, classes=C, average=average, zero_division=zero, beta=0.5)
    for k in (1, 2, 3):
        add("chances", "classes", "accuracy", sk.top_k_accuracy_score(a["classes"], a["chances"], k=k, **hard), weight, classes=C, top_k=k)
    add("chances", "classes", "auroc", sk.roc_auc_score(a["classes"], a["chances"], multi_class="ovr", average="macro", **hard), weight, classes=C)
    add("chances", "classes", "auroc", sk.roc_auc_score(a["classes"], a["chances"], multi_class="ovr", average="weighted", **hard), weight, classes=C,
        average=WEIGHTED)
    add("logits", "classes", "auroc", sk.roc_auc_score(a["classes"], softmax(a["logits"]), multi_class="ovr", **hard), weight, classes=C, logits=1)
    one_hot = np.eye(C, dtype=int)[a["classes"]]
    for average, name in AVERAGES.items():
        add("scores", "classes", "auroc", sk.roc_auc_score(one_hot, a["scores"], average=name, **hard), weight, classes=C, average=average)
        add("scores", "classes", "average_precision", sk.average_precision_score(one_hot, a["scores"], average=name, **hard), weight, classes=C, average=average)
        add("label_scores", "labels", "average_precision", sk.average_precision_score(a["labels"], a["label_scores"], average=name, **hard), weight,
            classes=L, multilabel=1, average=average)
        for kind, function in (("precision", sk.precision_score), ("recall", sk.recall_score), ("f1", sk.f1_score)):
            want = function(a["labels"], a["label_scores"] > 0.5, average=name, zero_division=0, **hard)
            add("label_scores", "labels", kind, want, weight, classes=L, multilabel=1, average=average)
    add("label_scores", "labels", "confusion", sk.multilabel_confusion_matrix(a["labels"], a["label_scores"] > 0.5, **hard), weight, classes=L, multilabel=1)
    add("score", "bit", "auroc", sk.roc_auc_score(a["bit"], a["score"], **hard), weight)
    add("score", "bit", "average_precision", sk.average_precision_score(a["bit"], a["score"], **hard), weight)
    for kind, function in (("accuracy", sk.accuracy_score), ("precision", sk.precision_score), ("recall", sk.recall_score), ("f1", sk.f1_score),
                           ("confusion", sk.confusion_matrix)):
        add("score", "bit", kind, function(a["bit"], a["score"] > 0.5, **hard), weight)
    for pred, target in (("near", "number"), ("short", "number")):
        add(pred, target, "mse", sk.mean_squared_error(a[target], a[pred], **hard), weight)
        add(pred, target, "rmse", np.sqrt(sk.mean_squared_error(a[target], a[pred], **hard)), weight)
        add(pred, target, "mae", sk.mean_absolute_error(a[target], a[pred], **hard), weight)
        add(pred, target, "r2", sk.r2_score(a[target], a[pred], **hard), weight)
    for average, name in ((0, "uniform_average"), (EACH, "raw_values")):
        for kind, function in (("mse", sk.mean_squared_error), ("mae", sk.mean_absolute_error), ("r2", sk.r2_score)):
            add("nears", "numbers", kind, function(a["numbers"], a["nears"], multioutput=name, **hard), weight, outputs=D, average=average)
    add("nears", "numbers", "r2", sk.r2_score(a["numbers"], a["nears"], multioutput="variance_weighted", **hard), weight, outputs=D, average=WEIGHTED)
    chance = softmax(a["logits"])[np.arange(N), a["classes"]]
    add("logits", "classes", "perplexity", np.exp(np.average(-np.log(chance), weights=w)), weight)
    kept = a["classes"] != 2
    left = {"sample_weight": w[kept] if weight else None}
    chosen = a["scores"].argmax(axis=1)
    add("scores", "classes", "accuracy", sk.accuracy_score(a["classes"][kept], chosen[kept], **left), weight, classes=C, ignore_index=2)
    add("scores", "classes", "f1", sk.f1_score(a["classes"][kept], chosen[kept], average="weighted", **left), weight, classes=C, ignore_index=2, average=WEIGHTED)
    if weight is None:
        add("scores", "classes", "accuracy", sk.recall_score(a["classes"], chosen, average="macro"), classes=C, average=MACRO)

ways = [(0, 200), (0, 31), (1, 32), (2, 13), (3, 7), (3, 2)]
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "set.safetensors"
    write(path, {name: array.astype(np.int64) if array.dtype.kind == "i" else array for name, array in arrays.items()})
    lines = [f"{ranks} {batch} {line}" for line, _ in requests for ranks, batch in ways]
    done = subprocess.run([sys.argv[1], str(path)], input="\n".join(lines) + "\n", capture_output=True, text=True)
answers = done.stdout.splitlines()
assert done.returncode == 0 and len(answers) == len(lines), done.stderr[-2000:]
failures = []
for k, (line, answer) in enumerate(zip(lines, answers)):
    want = requests[k // len(ways)][1]
    got = np.array([] if answer.startswith("error") else answer.split(), dtype=float)
    if got.shape != want.shape or not np.allclose(got, want, rtol=1e-12, atol=1e-13, equal_nan=True):
        failures.append(f"{line}: {answer[:100]} instead of {want}")
    first = answers[k - k % len(ways)]
    if answer != first and "perplexity" not in line and "logits" not in line:
        failures.append(f"{line}: {answer[:100]} is not the bits of {first[:100]}")
print("\n".join(failures[:20]) or f"{len(requests)} metrics of scikit-learn, each in {len(ways)} divisions of the set")
sys.exit(bool(failures))
