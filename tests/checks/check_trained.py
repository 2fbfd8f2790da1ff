#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The examples at a small size, on data that they make: they end well, come to what a broken model would not, what they save can be
read by others; stopped by a signal and called again they come to the same bits. ddp_bench: the library's loop comes to the bits of the one that is written out, every mode learns.

Usage: check_trained.py <folder of the programs> quickstart|mnist|runs|ddp_bench|char_rnn|char_gpt|cifar10|gpt2|bert <number of CPU ranks>
"""
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import tempfile

folder, name, ranks = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2], int(sys.argv[3])
LENET = {"0.weight": [6, 1, 5, 5], "0.bias": [6], "3.weight": [16, 6, 5, 5], "3.bias": [16], "7.weight": [120, 256], "7.bias": [120],
         "9.weight": [84, 120], "9.bias": [84], "11.weight": [10, 84], "11.bias": [10]}


def run(*arguments, devices=None):
    environment = {**os.environ, "TREK_DEVICES": devices} if devices else os.environ
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=240, env=environment)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, arguments))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout, done.stderr


def losses(text, epochs):
    found = [float(loss) for loss in re.findall(r"^epoch \d+\S*  loss ([\d.e-]+)", text, re.M)]
    if len(found) != epochs or not found[-1] < 0.7 * found[0]:
        sys.exit(f"{epochs} epochs with losses that fall were expected:\n{text}")
    return found


def check_file(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    shapes = {key: entry["shape"] for key, entry in header.items()}
    if shapes != LENET or max(entry["data_offsets"][1] for entry in header.values()) != len(data) - 8 - size:
        sys.exit(f"{path.name} holds {shapes}")


def quickstart(work):
    out, err = run(folder / "quickstart", work / "nothing", devices=",".join(f"cpu:{r}" for r in range(ranks)))
    if "Training on generated digits instead." not in err:
        sys.exit(f"it does not say that digits are generated:\n{err}")
    failed = subprocess.run([folder / "quickstart", work / "nothing"], capture_output=True, text=True, timeout=240,
                            env={**os.environ, "TREK_DEVICES": "cpu:0,none:7"})
    if failed.returncode == 0 or failed.stdout or "none:7" not in failed.stderr:
        sys.exit(f"after an error it goes on:\n{failed.stdout}{failed.stderr}")
    return losses(out, 5)


def mnist(work):
    saved = work / "mnist.safetensors"
    out, err = run(folder / "mnist", "--epochs", "2", "--ranks", str(ranks), "--save", saved)  # which loads it again, too
    found = losses(err, 2)
    accuracy = float(re.search(r"^test accuracy ([\d.]+)$", out, re.M).group(1))
    if accuracy < 0.7 or "the first test image shows digit " not in out:
        sys.exit(f"an accuracy of {accuracy}:\n{out}{err}")
    check_file(saved)
    if [path.name for path in work.iterdir()] != [saved.name]:
        sys.exit(f"other files are left: {sorted(path.name for path in work.iterdir())}")
    return found


def results(text):
    """What does not depend on the speed, of the last epoch that is printed."""
    return re.findall(r"^epoch .* test accuracy [\d.]+", text, re.M)[-1]


def stopped(command):
    """What it prints when it is interrupted after its first epoch."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=240)[0]
    if process.returncode != 130 or not re.search("^stopped; ", rest, re.M):
        sys.exit(f"it should have stopped in good order, not ended with {process.returncode}:\n{first}{rest}")


def runs(work):
    os.environ.pop("TREK_DATA", None)
    start = [folder / "runs", "--epochs", "3", "--ranks", str(ranks), "--folder"]
    whole = run(*start, work / "whole")[0]
    stopped([*start, work / "parts"])
    again = run(*start, work / "parts")[0]
    if results(again) != results(whole):
        sys.exit(f"stopped in between it came to another result:\n{again}instead of\n{whole}")
    if run(*start, work / "parts")[0] != f"trained; the state is in {work / 'parts'}\n":
        sys.exit("there was nothing left to train")
    kept = sorted(path.name for path in (work / "whole").iterdir())
    if kept != ["best.safetensors", "step-000000000375.safetensors"]:
        sys.exit(f"it left {kept}")
    others = [run(*start, work / policy, "--policy", policy)[0] for policy in ("cadence", "async")]
    return losses(whole, 3), [losses(text, 3) for text in others]


def interrupted(command):
    """Called, stopped by a signal in the midst of training, and called again; what the second call prints."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    seen = process.stderr.readline()  # an epoch's line, of the progress
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=240)
    launched = "trek-run" in command[0]  # of processes beside others trek-run knows that they are to end
    told = launched or f"stopped; the same command continues from {command[-1]}\n" in rest[1]
    if process.returncode != (0 if launched else 130) or not told or not seen.startswith("epoch 1/") or rest[0]:
        sys.exit(f"it should have stopped in good order, not ended with {process.returncode}:\n{seen}{rest[1]}{rest[0]}")
    return run(*command)


def learns(work, program, arguments, pattern, good, launcher=()):
    """A run and an interrupted one, which come to the same file; the number that the pattern finds in what they print."""
    os.environ.pop("TREK_DATA", None)
    start = [*map(str, launcher), str(folder / program), *arguments]
    out, err = run(*start, "--save", str(work / "whole.safetensors"))
    found = re.search(pattern, out, re.M)
    if not found or not good(float(found.group(1))):
        sys.exit(f"it has not learnt:\n{out}{err}")
    parts = ["--save", str(work / "parts.safetensors"), "--checkpoint", str(work / "checkpoint")]
    interrupted([*start, *parts])
    if (work / "whole.safetensors").read_bytes() != (work / "parts.safetensors").read_bytes():
        sys.exit("stopped in between it came to another model")
    if run(*start, *parts)[1]:
        sys.exit("there was nothing left to train")
    return float(found.group(1)), out


def char_rnn(work):
    launcher = [] if ranks == 1 else [folder.parent / "tools" / "trek-run", "-n", ranks]  # each process has one rank
    arguments = ["--width", "96", "--lr", "5e-3", "--epochs", "3"]
    return learns(work, "char_rnn", arguments, r"^test loss ([\d.]+)$", lambda loss: loss < 0.6, launcher)


def char_gpt(work):
    return learns(work, "char_gpt", ["--ranks", str(ranks), "--epochs", "8"], r"^test loss ([\d.]+)$", lambda loss: loss < 1)


def write_bytes_tokenizer(place):
    """GPT-2's two files, of a tokenizer whose tokens are bytes: number k is byte k."""
    shown = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    others = [b for b in range(256) if b not in shown]
    names = {**{b: chr(b) for b in shown}, **{b: chr(256 + k) for k, b in enumerate(others)}}
    (place / "vocab.json").write_text(json.dumps({names[b]: b for b in range(256)}))
    (place / "merges.txt").write_text("#version: 0.2\n")


def gpt2(work):
    """What is trained is exported in Hugging Face's layout, loaded again by way of a tokenizer, writes the same; is trained further."""
    loss, out = learns(work, "gpt2", ["--ranks", str(ranks), "--epochs", "5", "--temperature", "0"], r"^training loss ([\d.]+)$", lambda loss: loss < 1.2)
    text = out.split("\n", 1)[1]
    place = work / "folder"
    place.mkdir()
    program = folder / "gpt2"
    run(program, "--quiet", "--ranks", str(ranks), "--epochs", "5", "--checkpoint", work / "checkpoint", "--export", place)
    write_bytes_tokenizer(place)
    again = run(program, "--model", place, "--temperature", "0")[0]
    if len(text) < 40 or again != text:
        sys.exit(f"the model that was exported writes\n{again}instead of\n{text}")
    tokens = work / "tokens.bin"
    tokens.write_bytes(b"".join(struct.pack("<H", b) for b in b"the fox sees the sea.\n" * 400))
    further = run(program, "--model", place, "--data", tokens, "--epochs", "3", "--quiet", "--ranks", str(ranks))[0]
    if not float(re.search(r"^training loss ([\d.]+)$", further, re.M).group(1)) < 0.3 * loss:
        sys.exit(f"training further with tokens should have lowered the loss:\n{further}")
    return loss, text


def bert(work):
    os.chdir(work)  # where it makes its table
    accuracy, _ = learns(work, "bert", ["--ranks", str(ranks)], r"^test accuracy ([\d.]+)$", lambda accuracy: accuracy > 0.8)
    if (work / "bert.csv").read_text().count("\n") < 1000:
        sys.exit("it has made no table")
    return accuracy


def cifar10(work):
    return learns(work, "cifar10", ["--ranks", str(ranks), "--workers", str(ranks)], r"^test accuracy ([\d.]+)$", lambda accuracy: accuracy > 0.9)


def ddp_bench(work):
    report = work / "report.md"
    os.environ.pop("TREK_DATA", None)
    run(folder / "ddp_bench", "--model", "mlp,lenet", "--epochs", "2", "--samples", "256", "--batch-size", "16", "--windows", "2",
        "--ranks", str(ranks), "--seeds", "2", "--report", report)
    found = []
    for model in report.read_text().split("\n## ")[1:]:
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in model.split("\n") if line.startswith("| ")]
        head, rows = rows[0], {row[0]: dict(zip(rows[0], row)) for row in rows[1:]}
        for one, other in ("solo", "solo-run"), ("setup", "sync"):
            if rows[one]["parameters"] != rows[other]["parameters"]:
                sys.exit(f"{one} and {other} come to other bits:\n{model}")
        tests = {mode: float(row["test loss"].split()[0]) for mode, row in rows.items()}
        if len(rows) < 7 or not all(test < 2.31 for test in tests.values()) or any(len(row) != len(head) for row in rows.values()):
            sys.exit(f"all modes should learn:\n{model}")
        found += [tests["solo"], tests["cadence-params"]]
    return found


with tempfile.TemporaryDirectory() as work:
    print(f"{name} on {ranks} ranks: losses {globals()[name](pathlib.Path(work))}")
