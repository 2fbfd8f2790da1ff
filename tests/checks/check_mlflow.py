#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Watched runs, read by MLflow: what trek_export_mlflow writes is read by mlflow's own file store, through its client, and each value is
the one that the run's files hold.

Usage: check_mlflow.py <libtrek.so>
"""
import base64
import ctypes
import json
import math
import os
import pathlib
import sys
import tempfile
import urllib.parse

os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # newer versions ask for it
from mlflow.entities import Metric
from mlflow.store.tracking.file_store import FileStore

import numpy as np

trek = ctypes.CDLL(sys.argv[1])
trek.trek_error.restype = ctypes.c_char_p
random = np.random.default_rng(5)
PICTURE = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
# A name, and what MLflow has of it; what is None there is not known before: another's place was taken.
NAMES = {"loss": "loss", "lr": "lr", "loss/train": "loss_/train", "größe 2": "größe 2", 'a "b"\n(c)': "a _b___c_", "../../up": "_/_/up", "/root": "_/root",
         "a//b": "a/_/b", "a/./b": "a_/_/b", "x" * 300: "x" * 200, "x" * 301: "x" * 200 + "_", "tail/": "tail/_", "ⅷ∑": "ⅷ_"}


def fail(*words):
    sys.exit(" ".join(map(str, words)))


def told(value):
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


class Run:
    def __init__(self, folder, end, program="the program"):
        self.folder, self.time, self.points, self.end = folder, 1.7e9, {}, end
        folder.mkdir(parents=True)
        self.files = [open(folder / f"process-{k}.jsonl", "w") for k in range(2)]
        for k in range(2):
            self.add(k, "run", version=1, run=folder.name, program=program, arguments=["--lr", "0.1"], host="elsewhere", pid=1, process=k, processes=2,
                     epochs=3, trek="0.1.0", started=1.7e9, parameters=99, ranks=[{"rank": k, "device": f"cuda:{k}", "name": "a GPU"}])

    def add(self, process, kind, /, **fields):
        self.time += 0.25
        self.files[process].write(json.dumps({"kind": kind, "time": self.time, **fields}) + "\n")

    def curve(self, name, step, value):
        self.points.setdefault(name, []).append((step, value, round(self.time * 1000)))

    def fill(self):
        for name in NAMES:  # in this order they find their places
            self.scalars(0, name, 0, "step")
        for step in range(1, 30):
            for process in range(2):
                self.scalars(process, str(random.choice(list(NAMES))), step, random.choice(["step", "epoch"]))
        self.add(1, "ranks", ranks=[{"rank": 1, "share": 0.5, "steps": 29, "computing_s": 0.25, "interval_s": 1}])
        self.curve("rank/1/share", 29, 0.5), self.curve("rank/1/computing", 29, 0.25)
        self.add(1, "system", memory_bytes=1e9, devices=[{"device": "cuda:1", "power_w": 250.5, "throttled": "heat"}])
        for name, value in (("memory_bytes", 1e9), ("cuda:1/power_w", 250.5), ("cuda:1/throttled", 1.0)):
            self.curve(f"process-1/system/{name}", 29, value)
        self.add(0, "image", name="drawn (1)", step=7, width=1, height=1, png=base64.b64encode(PICTURE).decode())
        self.add(0, "graph", svg="<svg>the graph</svg>", nodes=[])
        self.add(0, "event", name="checkpoint", text="written ü")
        for k in range(2):
            if self.end:
                self.add(k, "end", status=self.end, **({"error": "it broke: \"here\"\nand there"} if self.end == "failed" else {}))
            self.files[k].close()
        return self

    def scalars(self, process, name, step, at):
        value = float(random.choice([random.normal(), random.normal() * 1e300, math.nan, math.inf, -math.inf, 0.1]))
        self.add(process, "scalars", step=step, epoch=0, values={name: told(value)}, **({"at": "epoch"} if at == "epoch" else {}))
        self.curve(("process-1/" if process else "") + ("epoch/" if at == "epoch" else "") + name, step, value)


def export(run, store):
    if trek.trek_export_mlflow(str(run.folder).encode(), str(store).encode()):
        fail("it is not written:", trek.trek_error().decode())


def same(points):
    return [(step, repr(value), time) for step, value, time in points]


def check_curves(run, store, run_id):
    left = {metric.key for metric in store.get_all_metrics(run_id)}
    for name, points in run.points.items():
        found = [m.key for m in (Metric(key, 0, 0, 0) for key in left)
                 if same([(p.step, p.value, p.timestamp) for p in store.get_metric_history(run_id, m.key)]) == same(points)]
        key = NAMES.get(name)
        if len(found) != 1 or (key and found[0] != key):
            fail(f"{name!r} is", found or "nowhere", "and not", key, "among", sorted(left))
        left.remove(found[0])
    if left:
        fail("nobody wrote", left)
    return len(run.points)


def check_run(run, folder, status):
    store = FileStore(str(folder))
    experiment = store.get_experiment_by_name("the program")
    if not experiment:
        fail("no experiment")
    infos = [info for info in store.search_runs([experiment.experiment_id], "", 1) if info.info.run_name == run.folder.name]
    if len(infos) != 1 or infos[0].info.status != status:
        fail("runs", infos)
    found = infos[0]
    if found.info.start_time != 1700000000000 or (status != "RUNNING") != (found.info.end_time == round(run.time * 1000)):
        fail("times", found.info)
    expected = {"arguments": "--lr 0.1", "epochs": "3", "parameters": "99", "processes": "2", "ranks": "2", "rank/0/device": "a GPU", "rank/1/device": "a GPU"}
    if found.data.params != expected:
        fail("parameters", found.data.params)
    if found.data.tags["mlflow.runName"] != run.folder.name or found.data.tags["trek.host"] != "elsewhere":
        fail("tags", found.data.tags)
    if (status == "FAILED") != (found.data.tags.get("trek.error") == "it broke: \"here\"\nand there"):
        fail("the error", found.data.tags)
    artifacts = pathlib.Path(urllib.parse.unquote(urllib.parse.urlparse(found.info.artifact_uri).path))
    if (artifacts / "images/drawn _1_/7.png").read_bytes() != PICTURE or (artifacts / "graph.svg").read_text() != "<svg>the graph</svg>":
        fail("artifacts")
    if "process 0 checkpoint: written ü\n" not in (artifacts / "log.txt").read_text():
        fail("the log")
    return check_curves(run, store, found.info.run_id)


def main():
    curves = 0
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        folder = work / "ml runs ü"
        for end, status in (("done", "FINISHED"), ("failed", "FAILED"), ("stopped", "KILLED")):
            run = Run(work / "runs" / end, end).fill()
            for _ in range(2):  # the second takes the first one's place
                export(run, folder)
            curves += check_run(run, folder, status)
        store = FileStore(str(work / "theirs"))
        own = store.create_experiment("the program")
        export(run, work / "theirs")
        if len(list((work / "theirs" / own).iterdir())) != 2:
            fail("an experiment that MLflow made is not used")
        before = sorted(os.listdir(folder))
        if any(name.startswith(".trek") for name in before):
            fail("something is left behind:", before)
        if not trek.trek_export_mlflow(str(work / "nothing").encode(), str(folder).encode()) or sorted(os.listdir(folder)) != before:
            fail("a run that is not there is written")
    print(f"{curves} curves read by mlflow")


main()
