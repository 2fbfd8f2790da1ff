#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What trek exports against the onnx package's checker and onnxruntime: layers, functions, graphs and the zoo's models, at the
sizes of the export and at others.
    usage: check_onnx.py <path of onnx_tool> [--seed N] [--only NAME]      (needs numpy, safetensors, onnx and onnxruntime)"""
import argparse
import collections
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
from safetensors import safe_open

# What a model may lack at an opset: no op for it there.
NOT_AT = {17: {"f_bitwise_and", "f_bitwise_not", "f_bitwise_xor", "fold", "embedding_bag_2", "embedding_bag_offsets_2"}}
# Kernels that onnxruntime lacks on CPUs, whatever wrote the model: the checker's word has to do.
NO_KERNEL = ("NOT_IMPLEMENTED", "is invalid", "Could not find an implementation")
LEAST = 300  # models
MEMORY = pathlib.Path("/dev/shm")  # where syncing a file costs nothing


def read(path):
    found = collections.defaultdict(dict)
    with safe_open(path, "np") as file:
        for name in file.keys():
            kind, _, rest = name.partition(".")
            found[kind][rest] = file.get_tensor(name)
    return found


def compare(name, session, values, number):
    inputs, wanted = values[f"in{number}"], values[f"out{number}"]
    taken = {i.name for i in session.get_inputs()}
    assert set(inputs) == taken, f"{name}: inputs {sorted(taken)}, not {sorted(inputs)}"
    assert {o.name for o in session.get_outputs()} == set(wanted), f"{name}: outputs"
    got = dict(zip(wanted, session.run(list(wanted), inputs)))
    for key, want in wanted.items():
        have = got[key]
        assert have.dtype == want.dtype and have.shape == want.shape, f"{name}.{key} at sizes {number}: {have.dtype} {have.shape}, not {want.dtype} {want.shape}"
        if want.dtype.kind == "f":
            rtol = {2: 4e-3, 4: 1e-4, 8: 1e-6}[want.dtype.itemsize]
            scale = max(1e-3, float(np.abs(want[np.isfinite(want)]).max(initial=0)))
            np.testing.assert_allclose(have, want, rtol=rtol, atol=rtol * 0.1 * scale, err_msg=f"{name}.{key} at sizes {number}")
        else:
            np.testing.assert_array_equal(have, want, err_msg=f"{name}.{key} at sizes {number}")


def check(path):
    """The problem, None; and whether it ran."""
    name = path.stem
    try:
        onnx.checker.check_model(str(path), full_check=True)
        model = onnx.load(str(path), load_external_data=False)
        if any(v.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16 for v in model.graph.input):
            return None, False
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        try:
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            if any(text in str(error) for text in NO_KERNEL):
                print(f"  {name}: only checked: {str(error).splitlines()[0][:160]}")
                return None, False
            raise
        values = read(path.with_suffix(".safetensors"))
        for number in range(2):
            compare(name, session, values, number)
        return None, True
    except Exception as error:  # all problems of all models, not the first
        return f"{name}: {str(error)[:1200]}", False


arguments = argparse.ArgumentParser()
arguments.add_argument("tool")
arguments.add_argument("--seed", type=int, default=1)
arguments.add_argument("--only")
arguments.add_argument("--keep")
arguments.add_argument("--opsets", default="17,21")
options = arguments.parse_args()
problems = []
for opset in map(int, options.opsets.split(",")):
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        folder = options.keep or folder
        pathlib.Path(folder).mkdir(exist_ok=True)
        tool = subprocess.run([options.tool, folder, str(options.seed), str(opset)], capture_output=True, text=True)
        said = {line.partition(":")[0] for line in tool.stdout.splitlines() if ": " in line}
        unexpected = [line for line in tool.stdout.splitlines() if line.partition(":")[0] not in NOT_AT.get(opset, ())]
        problems += [f"opset {opset}: not exported: {line}" for line in unexpected]
        problems += [f"opset {opset}: {name} exports, where ONNX has nothing for it" for name in NOT_AT.get(opset, set()) - said]
        if tool.returncode:
            problems.append(f"onnx_tool: {tool.returncode}: {tool.stderr}")
        paths = sorted(pathlib.Path(folder).glob("*.onnx"))
        results = [check(path) for path in paths if not options.only or options.only in path.stem]
        problems += [f"opset {opset}: {problem}" for problem, _ in results if problem]
        print(f"opset {opset}: {len(results)} models, {sum(ran for _, ran in results)} of them run")
        if len(paths) < LEAST:
            problems.append(f"opset {opset}: only {len(paths)} models")
print("\n".join(problems))
sys.exit(bool(problems))
