# SPDX-License-Identifier: Apache-2.0
"""What the steps of a part left in the folder of work, read for the page and for what is printed at the end."""
import io
import json
import pathlib
import re
import sys
import tarfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
import gpu_bench  # noqa: E402

COUNTED = re.compile(r"path: (.*): (\d+) calls(?:, (\d+) refused(?: \(the last: (.*)\))?)?$")
MOST_BYTES = 14 << 20  # of the archive of logs


def lines_of(path):
    try:
        return [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return []


def log_lines(work, part, step):
    return lines_of(work / "logs" / f"{part}.{step}.log")


def machine(work, result):
    """(what, which) of the machine and of what was tried on it."""
    part = result["part"]
    rows = [("date", result["date"]), ("commit", result["commit"])]
    rows += [line.partition(": ")[::2] for name in ("machine.txt", "machine_end.txt") for line in lines_of(work / name)]
    rows += [("device, as trek sees it", line) for line in log_lines(work, part, "devices")]
    return rows + [("PyTorch", line) for line in log_lines(work, part, "pytorch")[-1:]]


def paths(work, result):
    """What programs say of the paths that they took, a line for each: the calls of all steps together."""
    found = {}  # what was called how: [calls, refused, why the last were refused, steps]
    for step in result["steps"]:
        for line in log_lines(work, result["part"], step["name"]):
            if line.startswith("path: "):
                match = COUNTED.match(line)
                entry = found.setdefault(match[1] if match else line[len("path: "):].strip(), [0, 0, [], []])
                if match:
                    entry[0], entry[1] = entry[0] + int(match[2]), entry[1] + int(match[3] or 0)
                    entry[2] += [match[4]] if match[4] and match[4] not in entry[2] else []
                entry[3] += [step["name"]] if step["name"] not in entry[3] else []
    return [what + (f": {calls} calls" if calls or refused else "") + (f", {refused} refused ({'; '.join(why)[:200]})" if refused else "") +
            f" [{steps[0]}{f' and {len(steps) - 1} others' if len(steps) > 1 else ''}]" for what, (calls, refused, why, steps) in found.items()]


def measures(work, part):
    """What the works of the benchmark measured, as gpu_bench.py wrote it."""
    found = []
    for path in sorted((work / part).glob("bench-*.json")):
        try:
            found.append(json.loads(path.read_text()))
        except ValueError:  # one that was cut short
            pass
    return sorted(found, key=lambda r: gpu_bench.WORKS.index(r["work"]) if r["work"] in gpu_bench.WORKS else 99)


def kernels(work, part):
    try:
        return json.loads((work / part / "kernels.json").read_text())
    except (OSError, ValueError):
        return None


def figure(mode, m):
    """One mode's figures in few words."""
    text = f"{mode} {m['tokens_s'] / 1e3:.0f} K tokens/s, {m['us'] / 1e3:.2f} ms" if "tokens_s" in m else f"{mode} {m['us']:.2f} us"
    text += "".join(f", {m[key]:.{digits}f} {unit}" for key, unit, digits in (("tflops", "TFLOP/s", 0), ("gb_s", "GB/s", 0)) if m.get(key))
    return text + (f", loss {m['loss']}" if "loss" in m else "")


def speeds(one):
    """A line for each measure of a work."""
    lines = []
    for name, row in one["rows"].items():
        modes = [figure(mode, m) for mode, m in row["trek"].items() if "us" in m] + \
            [f"PyTorch {figure(mode, m)}" for mode, m in row["torch"].items() if "us" in m] + \
            [f"{side}{mode} failed: {m['error'][:80]}" for side, key in (("", "trek"), ("PyTorch ", "torch")) for mode, m in row[key].items() if "error" in m]
        lines.append(f"{one['work']}, {name}: " + "; ".join(modes))
    return lines


def archive(work, part):
    """The logs and records of a part as bytes of a .tar.gz; the middle of long files is left out where it would be too large."""
    files = [path for folder in ("logs", "steps") for path in sorted((work / folder).glob(f"{part}.*"))] + sorted((work / part).glob("*")) + \
        sorted(work.glob("machine*.txt"))
    for most in (1 << 22, 1 << 19, 1 << 16, 1 << 13):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=6) as tar:
            for path in files:
                try:
                    data = path.read_bytes() if path.is_file() and path.suffix not in (".lock", ".now") else b""
                except OSError:
                    continue
                if len(data) > most:
                    data = data[:most // 2] + b"\n...\n" + data[-most // 2:]
                if data:
                    entry = tarfile.TarInfo(f"{path.parent.name}/{path.name}" if path.parent != work else path.name)
                    entry.size, entry.mtime = len(data), int(path.stat().st_mtime)
                    tar.addfile(entry, io.BytesIO(data))
        if len(packed.getvalue()) <= MOST_BYTES:
            break
    return packed.getvalue()
