#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What tests/bench/gpu_bench.py makes of what trek-gpu-bench prints, by a stand-in for it: losses and tokens per second are in the
table, the paths are printed and in the JSON, and a variant whose calls another way served is a problem.

    check_gpu_bench.py SOURCE_FOLDER"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1])
STAND_IN = """#!/bin/sh
echo '{"work": "gpt2_64", "measure": "64 x 1024 eager", "us": 200000, "host_us": 1, "peak_mib": 2, "tokens_s": 327680, "loss": 10.5}'
echo '{"work": "gpt2_64", "measure": "64 x 1024 captured", "us": 100000, "host_us": 1, "peak_mib": 2, "tokens_s": 655360, "loss": 10.5}'
echo '{"work": "gpt2_64", "measure": "64 x 1024 captured-kept", "us": 150000, "host_us": 1, "peak_mib": 2, "tokens_s": 436907, "loss": 10.4375}'
backward=${BACKWARD:-$TREK_CUDA_ATTENTION}
echo "path: cuda:0 attention_backward $backward: 12 calls"
echo '{"work": "gpt2_64", "paths": [{"what": "attention", "path": "'$TREK_CUDA_ATTENTION'", "calls": 12, "refused": 0},
 {"what": "attention_backward", "path": "wgmma", "calls": 0, "refused": 0},
 {"what": "attention_backward", "path": "'$backward'", "calls": 12, "refused": 0}], "report": ["path: one"]}' | tr -d '\\n'
echo
"""


def bench(folder, work, **environment):
    path = folder / "out.json"
    path.unlink(missing_ok=True)
    done = subprocess.run([sys.executable, ROOT / "tests/bench/gpu_bench.py", "--build", folder, "--no-peer", "--json", path, work],
                          env=dict(os.environ, **environment), stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout, json.loads(path.read_text())


def main():
    wrong = []

    def check(holds, what):
        if not holds:
            wrong.append(what)

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        program = folder / "tests/bench/gpu/trek-gpu-bench"
        program.parent.mkdir(parents=True)
        program.write_text(STAND_IN)
        program.chmod(0o755)
        status, text, found = bench(folder, "gpt2_64_cudnn")
        check(status == 0 and not found["problem"], f"a variant that was served: status {status}, {found['problem']}")
        check("10.500000 eager, captured; 10.437500 captured-kept |" in text, "losses are not in the table")
        check("| 655360 |" in text, "tokens per second are not in the table")
        check("path: cuda:0 attention_backward cudnn: 12 calls" in text.splitlines(), "the paths are not printed")
        check(found["paths"][0]["calls"] == 12 and found["report"] == ["path: one"], "the paths are not in the JSON")
        status, text, found = bench(folder, "gpt2_64_cudnn", BACKWARD="mma")
        check(status == 1 and found["problem"] == "not by cudnn: attention_backward: 12 by mma", f"by another way: status {status}, {found['problem']}")
        status, text, found = bench(folder, "gpt2_64", BACKWARD="mma")
        check(status == 0, "what names no way fails")
    for line in wrong:
        print(line)
    sys.exit(bool(wrong))


main()
