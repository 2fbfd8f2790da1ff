#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Examples at a small size: each comes to what a broken model does not come to, is the same on two ranks, goes on where it was
stopped with the bits of a run that was not, says what its options are, and refuses others.

Usage: check_learned.py <folder of the programs> custom_op|dcgan|distill|dqn|regression|reinforce|unequal|vae
"""
import pathlib
import re
import signal
import struct
import subprocess
import sys
import tempfile
import zlib

folder, name = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]


def call(*arguments):
    return subprocess.run([folder / name, *map(str, arguments)], capture_output=True, text=True, timeout=200, cwd=work)


def run(*arguments):
    done = call(*arguments)
    if done.returncode:
        sys.exit(f"{name} {' '.join(map(str, arguments))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def number(pattern, text):
    found = re.search(pattern, text)
    if not found:
        sys.exit(f"{name}: {pattern} was expected in:\n{text}")
    return float(found.group(1))


def within(value, least, most):
    if not least <= value <= most:
        sys.exit(f"{name}: {value} is not between {least} and {most}")
    return value


def check_options():
    done = call("--help")
    listed = re.findall(r"^  (--[a-z-]+)", done.stdout, re.M)
    if done.returncode or done.stderr or len(listed) < 3 or listed[-1] != "--help":
        sys.exit(f"{name} --help gives {done.returncode}:\n{done.stdout}{done.stderr}")
    for wrong in ["--speed", "1"], ["--seed", "x"], ["--seed"], ["--seed", "-1"]:
        done = call(*wrong)
        if done.returncode != 2 or done.stdout or wrong[0] not in done.stderr:
            sys.exit(f"{name} {wrong} ended with {done.returncode}: {done.stdout}{done.stderr}")


def check_resume(whole, part, *start):
    """A run that ends early, and one that is interrupted somewhere, go on to the file that an uninterrupted run writes."""
    run(*start, *whole, "--save", "whole")
    run(*start, *part, "--checkpoint", "kept")
    run(*start, *whole, "--checkpoint", "kept", "--save", "again")
    process = subprocess.Popen([folder / name, *map(str, [*start, *whole]), "--checkpoint", "stopped"], cwd=work,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    (process.stdout if name == "unequal" else process.stderr).readline()  # an epoch is over
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=100)
    told = "stopped; the same command continues from stopped\n" in err
    if (process.returncode, told) not in ((130, True), (0, False)):  # or it was done before the signal came
        sys.exit(f"{name} should have stopped in good order, not ended with {process.returncode}: {err}")
    run(*start, *whole, "--checkpoint", "stopped", "--save", "later")
    texts = {file: (work / file).read_bytes() if (work / file).exists() else b"" for file in ("whole", "again", "later")}
    if texts["whole"] != texts["again"]:
        sys.exit(f"{name}: what was resumed is not what an uninterrupted run comes to")
    if texts["later"] and texts["whole"] != texts["later"]:
        sys.exit(f"{name}: what was interrupted is not what an uninterrupted run comes to")


def picture(path):
    """Width, height and bytes of a gray PNG."""
    data = (work / path).read_bytes()
    width, height, depth, kind = struct.unpack(">IIBB", data[16:26])
    at, packed = 8, b""
    while at < len(data):
        size = struct.unpack(">I", data[at:at + 4])[0]
        packed += data[at + 8:at + 8 + size] if data[at + 4:at + 8] == b"IDAT" else b""
        at += 12 + size
    if data[:8] != b"\x89PNG\r\n\x1a\n" or (depth, kind) != (8, 0) or len(zlib.decompress(packed)) != height * (width + 1):
        sys.exit(f"{name}: {path} is no gray PNG")
    return width, height


def custom_op():
    right, wrong = run("--steps", 200), call("--wrong")
    if "the gradient is correct\n" not in right or wrong.returncode != 1 or "gradcheck: the gradient of input 0" not in wrong.stderr:
        sys.exit(f"the check of the gradient: {right}{wrong.stdout}{wrong.stderr}")
    return within(number(r"accuracy ([\d.]+)", right), 0.95, 1)  # guessing gives 0.5


def dcgan():
    check_resume(["--epochs", 2], ["--epochs", 1], "--digits", 320)
    text = run("--epochs", 4, "--digits", 2000, "--images", "images", "--expect", 3.6)
    if picture("images/drawn-4.png") != (224, 224):
        sys.exit("the picture is of another size")
    one, two = (number(r"score ([\d.]+) of", run("--epochs", 2, "--digits", 1600, "--ranks", ranks)) for ranks in (1, 2))
    within(two, 0.8 * one, 1.25 * one)  # to rounding, which a hundred steps of two players make grow
    if call("--epochs", 1, "--digits", 320, "--expect", 6).returncode != 1:
        sys.exit("a beginner should not score 6")
    return within(one, 3, 10), within(number(r"score ([\d.]+) of", text), 3.6, 10)  # three classes: 3.5, one: 1.1 to 1.8, a grey: 1


def distill():
    start = ["--labels", 0, "--teacher", "teacher", "--teacher-epochs", 2]
    first = run(*start, "--epochs", 8)
    if "the teacher, 80202 parameters" not in first or "the teacher" in run(*start, "--epochs", 1):
        sys.exit(f"a teacher that is there should be taken:\n{first}")
    check_resume(["--epochs", 3], ["--epochs", 1], *start)
    two = number(r"student.* accuracy ([\d.]+)", run(*start, "--epochs", 8, "--ranks", 2))
    one = number(r"student.* accuracy ([\d.]+)", first)
    return within(one, 0.6, 1), within(two, one - 0.03, one + 0.03)  # it never saw a label; guessing gives 0.1


def dqn():
    check_resume(["--updates", 600], ["--updates", 300])
    texts = run("--updates", 2000, "--expect", 90), run("--updates", 2000, "--ranks", 2, "--expect", 90)  # by chance: 20
    if call("--updates", 30, "--expect", 199).returncode != 1:
        sys.exit("a beginner should not come to 199 steps")
    return [number(r"up for ([\d.]+)", text) for text in texts]


def regression():
    check_resume(["--epochs", 12], ["--epochs", 5])
    (work / "own.csv").write_text("a,price\n" + "".join(f"{k % 17},{3 * (k % 17) + 1}\n" for k in range(200)))
    within(number(r"test error ([\d.]+)", run("--data", "own.csv", "--target", "price")), 0, 1.5)
    done = call("--data", "own.csv", "--target", "cost")
    if done.returncode != 1 or "the fields are: a, price" not in done.stderr:
        sys.exit(f"a column that is not there: {done.stderr}")
    return within(number(r"test error ([\d.]+)", run()), 0.95, 1.6)  # a straight line: 2.6, the mean alone: 5


def reinforce():
    check_resume(["--updates", 40], ["--updates", 20])
    for file in "kept", "stopped":
        (work / file).unlink(missing_ok=True)
    check_resume(["--updates", 40], ["--updates", 20], "--ranks", 3)
    (work / "kept").write_bytes((work / "whole").read_bytes())
    done = call("--updates", 40, "--checkpoint", "kept")
    if done.returncode != 1 or "was not written by this program" not in done.stderr:
        sys.exit(f"a file of weights alone: {done.stderr}")
    if call("--updates", 10, "--expect", 150).returncode != 1:
        sys.exit("a beginner should not come to 150 steps")
    return [within(number(r"mean return ([\d.]+) of", run("--updates", 40, "--ranks", ranks)), 120, 200) for ranks in (1, 2)]


def unequal():
    check_resume(["--mode", "equal", "--epochs", 3], ["--mode", "equal", "--epochs", 1], "--slow", "1,1")
    shares = {}
    for mode in "equal", "shares", "windows":
        text = run("--mode", mode, "--epochs", 3, "--batch-size", 32)
        within(number(r"epoch 3 .* test accuracy ([\d.]+)", text), 0.7, 1)
        shares[mode] = [float(share) for share in re.findall(r"rank 2, slowed by 12: +([\d.]+)%", text)]
    if any(not 28 < share < 36 for share in shares["equal"]) or shares["shares"][-1] > 25 or "window: the slowest rank runs" not in text:
        sys.exit(f"the slow rank's shares: {shares}")
    if min(shares["windows"]) > 25 or call("--slow", "1,x").returncode != 2 or call("--mode", "fast").returncode != 2:
        sys.exit(f"the slow rank's shares: {shares}, or a bad option is taken")
    return shares


def vae():
    check_resume(["--epochs", 3], ["--epochs", 1])
    start = ["--epochs", 8, "--images", "images", "--samples", 24]
    one, two = (number(r"test bound: ([\d.]+)", run(*start, "--ranks", ranks)) for ranks in (1, 2))
    if (picture("images/drawn.png"), picture("images/reconstructed.png")) != ((224, 84), (224, 224)):
        sys.exit("the pictures are of other sizes")
    return within(one, 150, 250), within(two, one - 8, one + 8)  # a decoder that sees nothing: 263


with tempfile.TemporaryDirectory() as made:
    work = pathlib.Path(made)
    check_options()
    print(f"{name}: {globals()[name]()}")
