#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Watched runs, read by others: what trek_export_tensorboard writes is read by tensorboard, trek_export_open_metrics by Prometheus's
client, and each value is the one that the run's files hold.

Usage: check_tensorboard.py <libtrek.so>
"""
import base64
import ctypes
import json
import math
import os
import pathlib
import struct
import sys
import tempfile
import zlib

import numpy as np
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from google.protobuf import text_format
from tensorboard import context
from tensorboard.backend.event_processing import data_provider, event_accumulator, plugin_event_multiplexer
from tensorboard.compat.proto import config_pb2, event_pb2, graph_pb2
from tensorboard.plugins import base_plugin
from tensorboard.plugins.graph import graphs_plugin

trek = ctypes.CDLL(sys.argv[1])
trek.trek_export_open_metrics.restype = ctypes.c_void_p
trek.trek_error.restype = ctypes.c_char_p
random = np.random.default_rng(3)
NAMES = ["loss", "lr", "a name, \"quoted\"\nof two lines", "größe/层", "x" * 300]


def png(width, height, kind, channels):
    """A picture of noise, written by hand: signature, header, data, end."""
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    rows = b"".join(b"\0" + random.integers(0, 256, width * channels, dtype=np.uint8).tobytes() for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def number(value):
    return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


class Run:
    """The files of a run, and what has to come out."""

    def __init__(self, folder, processes):
        self.folder, self.time = folder, 1.7e9
        folder.mkdir()
        self.files = [open(folder / f"process-{k}.jsonl", "w") for k in range(processes)]
        self.scalars, self.histograms, self.images, self.texts, self.order = {}, [], [], [], []
        for k in range(processes):
            self.add(k, "run", version=1, run=folder.name, program="p", arguments=[], host="elsewhere", pid=1, process=k, processes=processes,
                     ranks=[{"rank": k, "device": "cpu:0"}])

    def add(self, process, kind, /, **fields):
        self.time += 0.25
        self.files[process].write(json.dumps({"kind": kind, "time": self.time, **fields}) + "\n")

    def tell(self, process, step):
        """One record of a kind by chance."""
        kind = random.choice(["scalars", "scalars", "epoch", "histogram", "image", "text", "log", "event", "of the future"])
        before = f"process-{process}/" if process else ""
        if kind in ("scalars", "epoch"):
            values = {name: float(random.choice([random.normal(), random.normal() * 1e30, math.nan, math.inf, -math.inf, 0.0]))
                      for name in random.choice(NAMES, 2, replace=False)}
            more = {"at": "epoch"} if kind == "epoch" else {}
            self.add(process, "scalars", step=step, epoch=1, values={name: number(value) for name, value in values.items()}, **more)
            for name, value in values.items():
                self.scalars.setdefault(before + ("epoch/" if more else "") + name, []).append((step, value, self.time))
        elif kind == "histogram":
            counts, edges = np.histogram(random.normal(size=500), 64)
            of = str(random.choice(["parameter", "gradient", "other"]))
            self.add(process, kind, name="fc.weight", of=of, step=step, edges=edges.tolist(), counts=counts.tolist(), min=float(edges[0]), max=float(edges[-1]),
                     mean=0.25, std=1.5, nonfinite=0)
            self.histograms.append((before + ("gradient/" if of == "gradient" else "") + "fc.weight", step, edges, counts))
        elif kind == "image":
            colour, channels = [(0, 1), (2, 3), (4, 2), (6, 4)][random.integers(4)]
            picture = png(5, 7, colour, channels)
            self.add(process, kind, name="drawn", step=step, width=5, height=7, png=base64.b64encode(picture).decode())
            self.images.append((before + "drawn", step, picture))
        elif kind in ("text", "log", "event"):
            words = "words \"of\"\n" + "x" * int(random.integers(0, 300))
            fields = {"text": {"name": "note", "step": step}, "log": {"level": "info", "rank": 0}, "event": {"name": "checkpoint"}}[kind]
            self.add(process, kind, text=words, **fields)
            tag = {"text": "note", "log": "log/info", "event": "event/checkpoint"}[kind]
            self.texts.append((before + tag + "/text_summary", words))
        else:
            self.add(process, kind, step=step, anything=[1, {"deep": None}])


# A record of a graph: a group's links end inside it, names have dots, and marks that TensorBoard knows not.
NODES = [{"name": "x", "kind": "input", "op": "input"},
         {"name": "body", "kind": "group", "op": "sequential", "parameters": 20, "shape": "f32[6, 4]", "time_ms": 2.5, "bytes": 192},
         {"name": "body.0", "kind": "module", "op": "linear", "details": "4, 4", "parameters": 20, "shape": "f32[6, 4]", "time_ms": 2.0, "bytes": 96},
         {"name": "body.1", "kind": "module", "op": "tanh", "parameters": 0, "shape": "f32[6, 4]", "time_ms": 0.5, "bytes": 96.4},
         {"name": "a head:2", "kind": "module", "op": "odd", "parameters": 0}, {"name": "sum", "kind": "merge", "op": "add"},
         {"name": "broken", "kind": "module", "op": "odd", "shape": "f32[3, x]", "time_ms": "NaN"}, {"name": "scalar", "kind": "module", "op": "mean", "shape": "f32[]", "time_ms": 0.001},
         {"name": "output", "kind": "output", "op": "output"}, {"op": "nameless"}]
LINKS = [{"from": "x", "to": "body.0", "port": 0}, {"from": "body.0", "to": "body.1", "port": 0}, {"from": "a head:2", "to": "sum", "port": 1}, {"from": "body.1", "to": "sum", "port": 0},
         {"from": "body.1", "to": "a head:2", "port": 0}, {"from": "sum", "to": "output", "port": 0}, {"from": None, "to": "sum"}]
DEFINED = {"x": ("input", [], None), "body/0": ("linear", ["x"], [6, 4]), "body/1": ("tanh", ["body/0"], [6, 4]), "a_head_2": ("odd", ["body/1"], None),
           "sum": ("add", ["body/1", "a_head_2"], None), "broken": ("odd", [], None), "scalar": ("mean", [], []), "output": ("output", ["sum"], None)}
STATS = {"body/0": (2000, 96, [6, 4]), "body/1": (500, 96, [6, 4]), "scalar": (1, None, [])}


def fail(*words):
    sys.exit(" ".join(map(str, words)))


def same(a, b):
    return a == b or math.isnan(a) and math.isnan(b)


def narrow(value):
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def check_board(run, path):
    if trek.trek_export_tensorboard(str(run.folder).encode(), str(path).encode()):
        fail("it is not written:", trek.trek_error().decode())
    data, at, events = path.read_bytes(), 0, 0
    while at < len(data):  # every byte belongs to a record
        length = struct.unpack("<Q", data[at:at + 8])[0]
        event_pb2.Event.FromString(data[at + 12:at + 12 + length])
        at, events = at + 16 + length, events + 1
    board = event_accumulator.EventAccumulator(str(path), size_guidance={name: 0 for name in ("scalars", "images", "histograms", "tensors")})
    board.Reload()  # which compares the checksums
    tags = board.Tags()
    for tag, points in run.scalars.items():
        found = sorted((event.step, repr(narrow(event.value)), event.wall_time) for event in board.Scalars(tag))
        if found != sorted((step, repr(narrow(value)), time) for step, value, time in points):
            fail(tag, "is", found, "not", points)
    if set(tags["scalars"]) != set(run.scalars):
        fail("curves:", tags["scalars"])
    left = [(event.step, tag, event.histogram_value) for tag in tags["histograms"] for event in board.Histograms(tag)]
    for tag, step, edges, counts in run.histograms:
        like = [h for s, t, h in left if (s, t) == (step, tag)]
        if not any(h.bucket_limit == edges[1:].tolist() and h.bucket == counts.tolist() and h.num == counts.sum() and h.sum == 0.25 * h.num
                   and h.sum_squares == h.num * (1.5 ** 2 + 0.25 ** 2) and h.min == edges[0] for h in like):
            fail("histogram", tag, step)
    pictures = [(tag, event.step, event.encoded_image_string, event.width, event.height) for tag in tags["images"] for event in board.Images(tag)]
    if sorted(pictures) != sorted((tag, step, picture, 5, 7) for tag, step, picture in run.images):
        fail("images")
    texts = [(tag, event.tensor_proto.string_val[0].decode()) for tag in tags["tensors"] for event in board.Tensors(tag)]
    if sorted(texts) != sorted(run.texts) or len(left) != len(run.histograms):
        fail("texts:", texts)
    for tag in tags["tensors"]:
        if board.SummaryMetadata(tag).plugin_data.plugin_name != "text":
            fail(tag, "is no text")
    return events


def check_graph(work):
    """What tensorboard's own graph plug-in makes of the file."""
    run = Run(work / "graph", 2)
    bare = [{k: n[k] for k in n if k in ("name", "kind", "op", "details", "parameters")} for n in NODES]
    run.add(0, "graph", step=0, steps=0, svg="<svg/>", nodes=bare, links=LINKS)
    run.add(0, "graph", step=5, steps=3, svg="<svg/>", nodes=NODES, links=LINKS)
    run.add(1, "graph", step=9, steps=3, svg="<svg/>", nodes=[{"name": "another", "op": "x"}], links=[])
    for file in run.files:
        file.close()
    board = work / "board" / "graph"
    board.mkdir(parents=True)
    if trek.trek_export_tensorboard(str(run.folder).encode(), str(board / "events.out.tfevents.1").encode()):
        fail("it is not written:", trek.trek_error().decode())
    multiplexer = plugin_event_multiplexer.EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(board.parent))
    multiplexer.Reload()
    plugin = graphs_plugin.GraphsPlugin(base_plugin.TBContext(data_provider=data_provider.MultiplexerDataProvider(multiplexer, str(board.parent))))
    here, tag = context.RequestContext(), "step 5: the mean of 3"
    info = plugin.info_impl(here, "")["graph"]
    if not info["run_graph"] or list(info["tags"]) != [tag] or not info["tags"][tag]["profile"]:
        fail("the plug-in sees", info)
    graph = text_format.Parse(plugin.graph_impl(here, "graph", None, False, "")[0], graph_pb2.GraphDef())
    found = {node.name: (node.op, list(node.input), [d.size for d in node.attr["_output_shapes"].list.shape[0].dim] if "_output_shapes" in node.attr else None) for node in graph.node}
    if found != DEFINED:
        fail("the graph is", found)
    body = {node.name: node.attr for node in graph.node}["body/0"]
    if body["parameters"].i != 20 or body["details"].s != b"4, 4":
        fail("attributes:", body)
    metadata = text_format.Parse(plugin.run_metadata_impl(here, "", "graph", tag)[0], config_pb2.RunMetadata())
    stats = {node.node_name: (node.all_end_rel_micros, node.memory[0].total_bytes if node.memory else None,
                              [d.size for d in node.output[0].tensor_description.shape.dim] if node.output else None)
             for device in metadata.step_stats.dev_stats for node in device.node_stats}
    if stats != STATS or any(node.all_start_micros <= 0 for device in metadata.step_stats.dev_stats for node in device.node_stats):
        fail("figures:", stats)
    return len(found)


def check_metrics(run):
    pointer = trek.trek_export_open_metrics(str(run.folder).encode())
    if not pointer:
        fail("no metrics:", trek.trek_error().decode())
    text = ctypes.string_at(pointer).decode()
    trek.trek_string_free(ctypes.byref(ctypes.c_void_p(pointer)))
    last = {}
    for tag, points in run.scalars.items():
        if not tag.startswith("process-"):
            name = tag.removeprefix("epoch/") if tag.startswith("epoch/") else tag
            last[name, "epoch" if tag.startswith("epoch/") else "step"] = points[-1][1]
    found = {(sample.labels["name"], sample.labels["at"]): sample.value for family in text_string_to_metric_families(text)
             for sample in family.samples if sample.name == "trek_scalar"}
    if any(not same(found.get(key, 1e99), value) for key, value in last.items()):
        fail("metrics:", found, "not", last)
    return len(found)


def main():
    events = metrics = 0
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        for k in range(6):
            run = Run(work / f"run{k}", 1 + k % 3)
            for step in range(40):
                for process in range(len(run.files)):
                    run.tell(process, step)
            for file in run.files:
                file.write('{"kind":"scalars","time":1,"st')  # a line that is not whole
                file.close()
            events += check_board(run, work / f"events.out.tfevents.{k}")
            metrics += check_metrics(run) if k % 3 == 0 else 0  # of several processes' curves the last one counts
        nodes = check_graph(work)
        before = set(os.listdir(work))
        if not trek.trek_export_tensorboard(str(work / "nothing").encode(), str(work / "x.tfevents").encode()) or set(os.listdir(work)) != before:
            fail("a run that is not there is written")
    print(f"{events} events and a graph of {nodes} nodes read by tensorboard, {metrics} curves by Prometheus's client")


main()
