#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The examples read their arguments strictly: what is no number, or out of range, is said, and nothing is trained.

Usage: check_examples.py <folder of the programs>
"""
import pathlib
import subprocess
import sys

folder = pathlib.Path(sys.argv[1]).resolve()
WRONG = [
    ("mnist", ["--lr", "abc"], 2, "--lr takes a number from 1e-12 to 1e+06, not abc"),
    ("mnist", ["--lr", "-1"], 2, "--lr takes a number"),
    ("mnist", ["--lr", "nan"], 2, "--lr takes a number"),
    ("mnist", ["--lr", "0.1x"], 2, "--lr takes a number"),
    ("mnist", ["--ranks", "x"], 2, "--ranks takes a whole number from 1 to 1024, not x"),
    ("mnist", ["--ranks", "0"], 2, "--ranks takes a whole number"),
    ("mnist", ["--ranks", "1.5"], 2, "--ranks takes a whole number"),
    ("mnist", ["--epochs", "0"], 2, "--epochs takes a whole number from 1 on, not 0"),
    ("mnist", ["--epochs", "99999999999999999999"], 2, "--epochs takes a whole number"),
    ("mnist", ["--batch-size", ""], 2, "--batch-size takes a whole number"),
    ("mnist", ["--seed", "-1"], 2, "--seed takes a whole number, not -1"),
    ("mnist", ["--epochs"], 2, "--epochs takes a whole number from 1 on, not nothing"),
    ("mnist", ["--speed", "1"], 2, "there is no option --speed"),
    ("mnist", ["--save", "/no/such/folder/model"], 1, "/no/such/folder/model cannot be written: No such file or directory"),
    ("mnist", ["--trace", "/no/such/folder/trace", "--save", "model"], 1, "/no/such/folder/trace cannot be written"),
    ("mnist", ["--quiet", "1"], 2, "there is no option 1"),
    ("char_rnn", ["--ranks", "2"], 2, "there is no option --ranks"),
    ("char_rnn", ["--temperature", "0"], 2, "--temperature takes a number from 0.001 to 1000, not 0"),
    ("char_rnn", ["--data", "/no/such/text", "--quiet"], 1, "/no/such/text"),
    ("char_gpt", ["--heads", "3", "--quiet"], 1, "multiple"),
    ("char_gpt", ["--window", "1"], 2, "--window takes a whole number from 2 to 65536, not 1"),
    ("cifar10", ["--depth", "10"], 2, "--depth takes 8, 14, 20, ..., not 10"),
    ("cifar10", ["--data", "/no/such/folder"], 1, "/no/such/folder"),
    ("gpt2", ["--model", "/no/such/folder"], 1, "/no/such/folder/config.json"),
    ("gpt2", ["--window", "300", "--quiet"], 1, "--window is at most 256, the model's positions"),
    ("gpt2", ["--data", "/no/such/text", "--quiet"], 1, "/no/such/text cannot be read"),
    ("bert", ["--window", "2"], 2, "--window takes a whole number from 3 to 4096, not 2"),
    ("bert", ["--data", "/no/such/table.csv"], 1, "/no/such/table.csv"),
    ("runs", ["--policy", "fast"], 2, "--policy takes sync, cadence or async, not fast"),
    ("runs", ["--patience", "-1"], 2, "--patience takes a whole number from 0 on, not -1"),
    ("runs", ["--epochs", "1", "--folder", "/no/such/folder"], 1, ".checkpoint_folder: /no/such/folder cannot be made: No such file"),
    ("reinforce", ["--updates", "9"], 2, "--updates takes a whole number from 10 on, not 9"),
    ("reinforce", ["--expect", "much"], 2, "--expect takes a number"),
    ("ddp_bench", ["--model", "lstm"], 2, "unknown model lstm; known are logistic mlp lenet conv_ae char_rnn gpt_nano resnet resnet_graph"),
    ("ddp_bench", ["--model", "mlp,"], 2, "unknown model ; known are"),
    ("ddp_bench", ["--mode", "solo,fast"], 2, "unknown mode fast; known are solo solo-run solo-grains setup windows sync grains cadence"),
    ("ddp_bench", ["--slow", "1,2,3"], 2, "--slow takes at most 2 factors from 1 to 1000, such as 1,2.5,1~5, not 1,2,3"),
    ("ddp_bench", ["--slow", "1,"], 2, "--slow takes at most 2 factors"),
    ("ddp_bench", ["--report", "/no/such/folder/report.md"], 1, "/no/such/folder/report.md cannot be written"),
    ("cadence_sim", ["--ratio", "abc"], 2, "--ratio takes a number from 1 to 10000, not abc"),
    ("cadence_sim", ["--from", "2.5"], 2, "--from takes a whole number from 2 to 65536, not 2.5"),
    ("cadence_sim", ["--network", "star"], 2, "--network takes ring, tree or hierarchical, not star"),
]
failures = []
for name, arguments, status, message in WRONG:
    done = subprocess.run([folder / name, *arguments], capture_output=True, text=True, timeout=60, cwd=folder)
    if done.returncode != status or message not in done.stderr or done.stdout:
        failures.append(f"{name} {' '.join(arguments)}: ended with {done.returncode}: {done.stdout}{done.stderr}")
for name, shared in ("char_rnn", "tinyshakespeare/input.txt"), ("char_gpt", "tinyshakespeare/input.txt"), ("cifar10", "cifar10"):
    if f"default: {shared} in TREK_DATA" not in subprocess.run([folder / name, "--help"], capture_output=True, text=True, timeout=60).stdout:
        failures.append(f"{name} --help does not say what it takes from TREK_DATA")
for arguments, status in ((["--help"], 0), (["--epochs"], 2), (["data", "more"], 2)):
    done = subprocess.run([folder / "quickstart", *arguments], capture_output=True, text=True, timeout=60)
    if done.returncode != status or not done.stdout.startswith("usage: ") or done.stderr:
        failures.append(f"quickstart {arguments}: ended with {done.returncode}: {done.stdout}{done.stderr}")
for name in sorted({name for name, *_ in WRONG}):
    done = subprocess.run([folder / name, "--help"], capture_output=True, text=True, timeout=60, cwd=folder)
    lines = done.stdout.split("\n")
    options = [line for line in lines if line.startswith("  --")]
    told = [line for line in options if len(line.split("  ", 2)[2].strip()) > 3]
    failures += [f"{name} --help gives two defaults: {line}" for line in options if line.count("(default") > 1]
    if done.returncode or done.stderr or len(options) < 4 or len(told) != len(options) or options[-1].split() != ["--help", "this", "text"]:
        failures.append(f"{name} --help: ended with {done.returncode}: {done.stdout}{done.stderr}")
print("\n".join(failures) or f"{len(WRONG)} wrong calls are refused")
sys.exit(bool(failures))
