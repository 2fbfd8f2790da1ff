#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""State files against the safetensors package: it reads what trek writes, trek reads what it writes.
    usage: check_safetensors.py <path of state_tool>      (needs numpy, safetensors and xxhash)"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import xxhash
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "zoo"))
from numbers_of_tests import numbers  # noqa: E402

params = {"0.weight": (3, 2, 3, 3), "0.bias": (3,), "1.weight": (3,), "1.bias": (3,), "3.weight": (4, 12), "3.bias": (4,)}
want = {name: numbers(100 + k, int(np.prod(shape))).reshape(shape) for k, (name, shape) in enumerate(params.items())}
buffers = {"1.running_mean": np.zeros(3, np.float32), "1.running_var": np.ones(3, np.float32), "1.num_batches_tracked": np.zeros((), np.int64)}
with tempfile.TemporaryDirectory() as folder:
    ours, theirs = pathlib.Path(folder) / "ours.safetensors", pathlib.Path(folder) / "theirs.safetensors"
    subprocess.run([sys.argv[1], "write", str(ours)], check=True)
    found = load_file(ours)
    assert set(found) == set(want) | set(buffers), sorted(found)
    for name, values in {**want, **buffers}.items():
        assert found[name].dtype == values.dtype and found[name].shape == values.shape and (found[name] == values).all(), name
    raw = ours.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    method, own, *sums = header.pop("__metadata__")["trek.checksum"].split()
    assert method == "trek-xxh64" and own == xxhash.xxh64_hexdigest(raw[:start].replace(own.encode(), b"0" * 16, 1))
    places = sorted(item["data_offsets"] for item in header.values())
    assert sums == [xxhash.xxh64_hexdigest(raw[start + a : start + b]) for a, b in places]
    with safe_open(ours, "np") as file:  # carried over with the metadata, it would be wrong
        save_file(found, theirs, file.metadata())
    result = subprocess.run([sys.argv[1], "read", str(theirs)], capture_output=True, text=True)
    assert result.returncode and "trek.checksum" in result.stderr, result.stderr
    save_file({**want, **buffers}, theirs)
    subprocess.run([sys.argv[1], "read", str(theirs)], check=True)
    # a set that three processes have written: an index, and whole tensors in files of each
    launcher = pathlib.Path(sys.argv[1]).parent.parent / "tools/trek-run"
    single, index = pathlib.Path(folder) / "job.safetensors", pathlib.Path(folder) / "set.safetensors.index.json"
    for path in single, index:
        subprocess.run([launcher, "-n", "3", sys.argv[1], "checkpoint", str(path)], check=True)
    expected, told = load_file(single), json.loads(index.read_text())
    places = told["weight_map"]
    assert set(places) == set(expected), sorted(set(places) ^ set(expected))
    assert told["metadata"]["total_size"] == sum(values.nbytes for values in expected.values())
    written = {}
    for name in set(places.values()):
        with safe_open(pathlib.Path(folder) / name, "np") as file:
            assert set(file.keys()) == {key for key, place in places.items() if place == name}, name
            assert file.metadata()["format"] == "pt"
            for key in file.keys():
                values = file.get_tensor(key)
                assert values.dtype == expected[key].dtype and (values == expected[key]).all(), key
                written[name] = written.get(name, 0) + values.nbytes
    assert len(written) == 3 and sorted(path.name for path in pathlib.Path(folder).glob("set.*-of-*")) == sorted(written)
    total = sum(written.values())
    assert all(total / 6 < size < total / 2 for size in written.values()), written
print("safetensors reads ours, trek reads theirs")
