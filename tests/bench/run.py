#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs trek-bench against PyTorch, interleaved, and prints a table.

    run.py --program BUILD/tests/bench/trek-bench [--python PYTHON] [NAME...]

Each work is set up once on each side and then measured in turns: trek, peer, trek, peer, ...
Threads may spin for a while after their work, so that each turn begins when the side before it
uses no core any more. Then each side is measured alone: the others' processes are stopped.
The peer runs with one thread and with two, as installed and tuned (allocator settings, passive
waiting); the best of all is what the goals are held against. Check values (losses of ten
steps from the same weights, which PyTorch gives in f64, too) must agree, to 1e-5 or as well as
PyTorch's own f32 does, or the work counts as failed. PYTHON is one that
imports torch; without it only trek is measured. Written: a markdown table to standard
output, everything measured to --json FILE.
"""
import argparse
import datetime
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
UNWANTED = ("OPENBLAS_", "OMP_", "GOMP_", "KMP_", "MKL_", "ATEN_", "MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD", "DNNL_")
TUNED = {"MALLOC_TOP_PAD_": "1073741824", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000",
         "OMP_WAIT_POLICY": "PASSIVE"}
TOLERANCE = 1e-5

# name: (unit, goals). Goals: "ns" at most, "ratio" of the peer's time at most, "stream" share at least,
# "solo" share of two independent programs at least, "bytes" beside the model and "peak" of resident memory at most.
WORKS = {
    "add-1": ("ns", {"ns": 40}), "add-4": ("ns", {"ns": 40}), "mul-4": ("ns", {"ns": 40}),
    "chain": ("ns", {"ns": 110}), "chain-both": ("ns", {"ns": 110}),
    "mlp-tiny": ("us", {"ns": 4500}), "mlp-tiny-watched": ("us", {"ns": 4545}),
    "mlp": ("us", {"ratio": 0.3}), "mlp-near": ("us", {"ratio": 0.35}),
    "lenet": ("us", {"ratio": 0.25}), "lenet-near": ("us", {"ratio": 0.52}), "lenet-near2": ("us", {"ratio": 0.52}),
    "lenet-few": ("us", {"ratio": 0.25}),
    "resnet18": ("ms", {"ratio": 0.7}),
    "mlp-deep": ("ms", {"ratio": 0.9}),
    "char-gpt": ("ms", {"ratio": 0.65}), "char-gpt-near": ("ms", {"ratio": 0.75}),
    "char-gpt-few": ("ms", {"ratio": 0.65}),
    "gpt2": ("ms", {"ratio": 0.6, "peak": 2.3e9}),
    "resnet18-bf16": ("ms", {"ratio": 1}), "mlp-deep-bf16": ("ms", {"ratio": 1}), "char-gpt-bf16": ("ms", {"ratio": 1}),
    "gpt2-bf16": ("ms", {"ratio": 1}),
    "adamw": ("ms", {"stream": 0.95, "ratio": 0.5}),
    "softmax": ("us", {"stream": 0.95, "ratio": 0.5}), "softmax-near": ("us", {"stream": 0.73, "ratio": 0.65}),
    "layer-norm": ("us", {"stream": 0.95, "ratio": 0.5}), "layer-norm-near": ("us", {"stream": 0.73, "ratio": 0.65}),
    "lstm-64": ("ms", {"ratio": 0.5}), "lstm-1": ("ms", {"ratio": 0.5}), "gru-64": ("ms", {"ratio": 0.5}), "gru-1": ("ms", {"ratio": 0.5}),
    "reduce-large": ("ms", {"stream": 0.9}), "reduce-small": ("us", {"ns": 1000}),
    "ranks-lenet": ("us", {"solo": 0.97}), "ranks-mlp": ("ms", {"solo": 0.97}),
    "start": ("ms", {"ns": 20e6, "bytes": 12 * 2**20}),
}
WITHOUT_PEER = ("mlp-tiny-watched", "reduce-large", "reduce-small", "start")
UNITS = {"ns": 1, "us": 1e3, "ms": 1e6}


def clean_environment(extra=None):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(UNWANTED)}
    environment.update(extra or {})
    return environment


class Server:
    """A program that holds one work ready and measures it when asked."""

    def __init__(self, label, command, extra=None):
        self.label, self.samples, self.streams, self.near, self.last = label, [], [], [], {}
        self.alone = []
        self.process = subprocess.Popen(command, env=clean_environment(extra), stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.first = self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.label} ended: exit status {self.process.wait()}")
        return json.loads(line)

    def ask(self, repetitions, ms):
        self.process.stdin.write(f"{repetitions} {ms}\n")
        self.process.stdin.flush()

    def answer(self):
        self.last = self.read()
        self.samples += self.last["ns"]
        self.streams += self.last.get("stream_gb_s", [])
        self.near += self.last.get("near_stream_gb_s", [])

    def turn(self, options):
        self.ask(options.repetitions, options.ms)
        self.answer()
        self.settle(options.wait)

    def turn_alone(self, others, options):
        """A turn that counts apart from the others, while their processes are stopped."""
        for other in others:
            other.process.send_signal(signal.SIGSTOP)
        try:
            self.ask(options.repetitions, options.ms)
            self.last = self.read()
            self.alone += self.last["ns"]
            self.settle(options.wait)
        finally:
            for other in others:
                other.process.send_signal(signal.SIGCONT)

    def used_ns(self):
        """Time on a core of all its threads."""
        used, tasks = 0, f"/proc/{self.process.pid}/task"
        for task in os.listdir(tasks):
            try:
                with open(f"{tasks}/{task}/schedstat", encoding="ascii") as file:
                    used += int(file.read().split()[0])
            except FileNotFoundError:  # the thread has ended
                pass
        return used

    def settle(self, limit):
        """Waits until none of its threads runs; raises if they do not stop."""
        deadline = time.monotonic() + limit
        while True:
            begin, before = time.monotonic_ns(), self.used_ns()
            time.sleep(0.01)
            if self.used_ns() - before < (time.monotonic_ns() - begin) // 20:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.label} goes on using the cores after its work")

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @property
    def median(self):
        return statistics.median(self.samples)


def busy_cores(seconds=0.5):
    """Cores' worth of work that others do now."""
    def jiffies():
        with open("/proc/stat", encoding="ascii") as file:
            values = [int(x) for x in file.readline().split()[1:9]]
        return sum(values) - values[3] - values[4]
    before = jiffies()
    time.sleep(seconds)
    return (jiffies() - before) / os.sysconf("SC_CLK_TCK") / seconds


def wait_for_quiet(options):
    """The load when it began; raises if the machine stays busy."""
    deadline = time.monotonic() + options.wait
    while True:
        busy = busy_cores()
        if busy <= options.max_busy or options.allow_load:
            return busy
        if time.monotonic() > deadline:
            raise RuntimeError(f"the machine is busy ({busy:.2f} cores used by others); --allow-load measures all the same")
        time.sleep(1)


def distance(ours, theirs):
    """Largest difference of check values, relative to those above 1."""
    if len(ours) != len(theirs):
        return float("inf")
    return max((abs(a - b) / max(1.0, abs(b)) if a == a and b == b else float("inf") for a, b in zip(ours, theirs)), default=0.0)


def check(trek, peers, result):
    """trek's check values against PyTorch's in f64 where there are such; for PyTorch's own f32, how far it is from those."""
    exact = next((peer.first["exact"] for peer in peers if "exact" in peer.first), None)
    if exact:
        result["difference"] = distance(trek.first["checks"], exact)
        result["peer_difference"] = max(distance(peer.first["checks"], exact) for peer in peers)
    elif peers:
        result["difference"] = max(distance(trek.first["checks"], peer.first["checks"]) for peer in peers)


def peer_servers(name, options):
    if not options.python or name in WITHOUT_PEER:
        return []
    servers = []
    settings = [("as installed", {}, []), ("tuned", TUNED, [])]
    if options.compile and name.startswith(("mlp", "lenet", "resnet")):
        settings.append(("compiled", TUNED, ["--compile"]))
    for label, extra, arguments in settings:
        for threads in [options.threads] if options.threads else range(len(os.sched_getaffinity(0)), 0, -1):
            command = [options.python, os.path.join(HERE, "peer.py"), "--serve", "--threads", str(threads), *arguments, name]
            if not servers:
                command.insert(2, "--exact")
            servers.append(Server(f"{label}, {threads} thread" + ("s" if threads > 1 else ""), command, extra))
            if name.startswith("ranks"):
                return servers  # for its losses only
    return servers


def measure_ranks(name, options, result):
    """Two ranks of one thread each against two one-rank programs at once."""
    solo_name = name.replace("ranks", "solo")
    ranks = Server("ranks", [options.program, "--serve", name])
    solos = [Server("solo", [options.program, "--serve", solo_name], {"TREK_THREADS": "1"}) for _ in range(2)]
    peers = peer_servers(name, options)
    try:
        check(ranks, peers, result)
        for _ in range(options.rounds):
            ranks.ask(options.repetitions, 4 * options.ms)
            ranks.answer()
            for solo in solos:
                solo.ask(options.repetitions, 4 * options.ms)
            for solo in solos:
                solo.answer()
        result["trek_ns"], result["trek_version"] = ranks.median, ranks.first["version"]
        result["ranks"] = ranks.last["ranks"]
        result["samples_per_s"] = ranks.last["samples"] / ranks.median * 1e9
        result["solo_samples_per_s"] = sum(solo.last["samples"] / solo.median * 1e9 for solo in solos)
        result["solo"] = result["samples_per_s"] / result["solo_samples_per_s"]
        result["trek_samples"], result["solo_samples"] = ranks.samples, [solo.samples for solo in solos]
    finally:
        for server in [ranks, *solos, *peers]:
            server.close()


def measure_work(name, options, result):
    trek = Server("trek", [options.program, "--serve", name], {"TREK_THREADS": str(options.threads)} if options.threads else None)
    peers = []
    try:
        peers = peer_servers(name, options)
        check(trek, peers, result)
        servers = [trek, *peers]
        for server in servers:
            server.settle(options.wait)
        for _ in range(options.rounds):
            for server in servers:
                server.turn(options)
        for server in servers:
            server.turn_alone([other for other in servers if other is not server], options)
        result.update({"trek_ns": trek.median, "trek_version": trek.first["version"], "trek_min_ns": min(trek.samples), "trek_samples": trek.samples,
                       "trek_alone_ns": statistics.median(trek.alone)})
        result.update({k: v for k, v in trek.last.items() if k in ("parameters", "resident_beside_model", "peak_resident")})
        result["peers"] = {peer.label: {"ns": peer.median, "samples": peer.samples, "alone_ns": statistics.median(peer.alone),
                                        "peak_resident": peer.last.get("peak_resident")} for peer in peers}
        if trek.streams:
            result["stream_gb_s"] = statistics.median(trek.streams)
            result["gb_s"] = trek.last["bytes"] / trek.median
            result["stream"] = result["gb_s"] / result["stream_gb_s"]
        if trek.near:
            result["near_stream_gb_s"] = statistics.median(trek.near)
        for peer in peers:
            result["peer_version"] = {k: peer.first[k] for k in ("version", "blas", "capability", "features")}
    finally:
        for server in [trek, *peers]:
            server.close()


def measure_start_of_peer(options, result):
    times, resident = [], 0
    for _ in range(5):
        begin = time.perf_counter_ns()
        with subprocess.Popen([options.python, os.path.join(HERE, "peer.py"), "--first-step"], env=clean_environment(),
                              stdout=subprocess.PIPE, text=True) as process:
            resident = int(process.stdout.readline())
            times.append(time.perf_counter_ns() - begin)
    result["peers"] = {"as installed": {"ns": statistics.median(times), "samples": times, "resident_beside_model": resident}}


def judge(result, goals):
    """Ratios to the best of the peer's settings, and whether each goal is met."""
    peers = result.get("peers", {})
    if peers:
        result["peer_ns"] = min(peer["ns"] for peer in peers.values())
        result["peer_best"] = min(peers, key=lambda label: peers[label]["ns"])
        result["ratio"] = result["trek_ns"] / result["peer_ns"]
        if "trek_alone_ns" in result:
            result["alone_ratio"] = result["trek_alone_ns"] / min(peer["alone_ns"] for peer in peers.values())
        for kind in ("as installed", "tuned", "compiled"):
            times = [peer["ns"] for label, peer in peers.items() if label.startswith(kind)]
            if times:
                result[f"peer_{kind.replace(' ', '_')}_ns"] = min(times)
    met = {}
    for goal, limit in goals.items():
        value = {"ns": result.get("trek_ns"), "bytes": result.get("resident_beside_model"),
                 "peak": result.get("peak_resident")}.get(goal, result.get(goal))
        if value is not None:
            met[goal] = value >= limit if goal in ("stream", "solo") else value <= limit
    result["goals"], result["met"] = goals, met
    scatter = 2 if result["work"].endswith("bf16") else 1  # of 16 bits: as far from f64 as PyTorch, give or take
    result["checks_agree"] = result.get("difference", 0) <= max(TOLERANCE, scatter * result.get("peer_difference", 0))


def measure(name, options):
    unit, goals = WORKS[name]
    result = {"work": name, "unit": unit, "busy_cores_before": wait_for_quiet(options)}
    if name.startswith("ranks"):
        measure_ranks(name, options, result)
    else:
        measure_work(name, options, result)
        if name == "start" and options.python:
            measure_start_of_peer(options, result)
    judge(result, goals)
    return result


# -- what is printed --------------------------------------------------------------------


def number(value, unit):
    scaled = value / UNITS[unit]
    return f"{scaled:.3g} {unit}" if scaled < 100 else f"{scaled:.0f} {unit}"


GOAL_TEXTS = {
    "ns": lambda r, g: f"at most {number(g, r['unit'])}",
    "ratio": lambda r, g: f"{g} of PyTorch's time",
    "stream": lambda r, g: f"{100 * g:.0f} % of the stream rate",
    "solo": lambda r, g: f"{g} of two programs' samples/s",
    "peak": lambda r, g: f"peak of at most {g / 1e9:.1f} GB",
    "bytes": lambda r, g: f"{g / 2**20:.0f} MiB beside the model",
}
FOUND_TEXTS = {
    "ns": lambda r: number(r["trek_ns"], r["unit"]),
    "ratio": lambda r: f"{r['ratio']:.2f}",
    "stream": lambda r: f"{100 * r['stream']:.0f} % ({r['gb_s']:.1f} of {r['stream_gb_s']:.1f} GB/s"
                        + (f"; {r['near_stream_gb_s']:.1f} in cache)" if "near_stream_gb_s" in r else ")"),
    "solo": lambda r: f"{r['solo']:.3f}",
    "peak": lambda r: f"{r['peak_resident'] / 1e9:.2f} GB",
    "bytes": lambda r: f"{r['resident_beside_model'] / 2**20:.1f} MiB",
}


def row(result):
    unit = result["unit"]
    cells = [result["work"], number(result["trek_ns"], unit)]
    for kind in ("as_installed", "tuned", "compiled"):
        key = f"peer_{kind}_ns"
        cells.append(number(result[key], unit) if key in result else "")
    found = [f"{GOAL_TEXTS[goal](result, limit)}: {FOUND_TEXTS[goal](result)} {'met' if result['met'][goal] else '**missed**'}"
             for goal, limit in result["goals"].items() if goal in result["met"]]
    cells.append("; ".join(found))
    cells.append(f"{number(result['trek_alone_ns'], unit)}" + (f"; {result['alone_ratio']:.2f}" if "alone_ratio" in result else "")
                 if "trek_alone_ns" in result else "")
    difference = f"{result['difference']:.0e}" if "difference" in result else ""
    if "peer_difference" in result:
        difference += f" (PyTorch {result['peer_difference']:.0e})"
    cells.append(difference + ("" if result["checks_agree"] else " **differs**"))
    return "| " + " | ".join(cells) + " |"


def cpu_model():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), platform.machine())


def cpu_features():
    """Those of the CPU that the kernels of one side or the other know."""
    known = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_fp16", "avx512_vnni", "amx_tile", "amx_bf16", "asimd", "bf16", "sve")
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        line = next((line for line in file if line.startswith(("flags", "Features"))), ":")
    flags = line.split(":", 1)[1].split()
    return [name for name in known if name in flags]


def features_used(options):
    """What trek computes with on this machine, as trek-bench-features says."""
    program = os.path.join(os.path.dirname(options.program), "trek-bench-features")
    if not os.path.exists(program):
        return "not asked: trek-bench-features is not built"
    return subprocess.run([program], env=clean_environment(), capture_output=True, text=True, check=True).stdout.strip()


def describe(options, results):
    seen = next((r["peer_version"] for r in results if "peer_version" in r), None)
    dropped = sorted(k for k in os.environ if k.startswith(UNWANTED))
    kept = sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith("TREK_"))
    return {
        "date": datetime.date.today().isoformat(), "cpu": cpu_model(), "features": " ".join(cpu_features()),
        "trek_uses": features_used(options), "pytorch_uses": seen["features"] if seen else "not measured",
        "cores": len(os.sched_getaffinity(0)),
        "threads": options.threads or "all",
        "system": f"{platform.system()} {platform.release()}", "trek": next((r["trek_version"] for r in results), "?"),
        "pytorch": f"{seen['version']} ({seen['blas']}, {seen['capability']})" if seen else "not measured",
        "environment": " ".join(kept) or "clean", "unset": " ".join(dropped) or "nothing",
        "tuned": " ".join(f"{k}={v}" for k, v in TUNED.items()), "load_average": os.getloadavg()[0],
        "rounds": options.rounds, "repetitions": options.repetitions,
    }


def print_table(machine, results):
    print(f"{machine['date']}, {machine['cpu']} ({machine['features']}), {machine['cores']} cores, {machine['system']}; trek {machine['trek']}, "
          f"PyTorch {machine['pytorch']}; load average {machine['load_average']:.2f}; TREK_ variables: {machine['environment']}; "
          f"unset: {machine['unset']}. Used by trek: {machine['trek_uses']}; by PyTorch: {machine['pytorch_uses']}. Medians of {machine['rounds']} x {machine['repetitions']} repetitions, interleaved.\n")
    print("| work | trek | PyTorch as installed | tuned | compiled | goal: found | alone; ratio | check value differs by |")
    print("|---|---|---|---|---|---|---|---|")
    for result in results:
        print(row(result))
    print(f"\nTuned: {machine['tuned']}. "
          + (f"Both on {machine['threads']} threads." if machine["threads"] != "all" else
             f"PyTorch's columns are the better of 1 and {machine['cores']} threads."))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help="the built trek-bench")
    parser.add_argument("--python", help="a Python with torch; default: this one, if it has torch")
    parser.add_argument("--compile", action="store_true", help="also torch.compile, for training steps")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repetitions", type=int, default=5, help="in each round")
    parser.add_argument("--ms", type=float, default=40, help="length of a repetition")
    parser.add_argument("--cores", type=int, default=2, help="all run on so many cores")
    parser.add_argument("--threads", type=int, help="of trek and of the peer; default: all cores, and the peer's best of 1 to all")
    parser.add_argument("--max-busy", type=float, default=0.1, help="cores that others may use at the start of a work")
    parser.add_argument("--wait", type=float, default=60, help="seconds to wait for a quiet machine")
    parser.add_argument("--allow-load", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(WORKS))
    options = parser.parse_args()
    for name in options.names:
        if name not in WORKS:
            parser.error(f"there is no work named {name}")
    if options.rounds * options.repetitions < 9:
        print("fewer than 9 repetitions: for a look only", file=sys.stderr)
    if not options.python:
        has_torch = subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, check=False).returncode == 0
        options.python = sys.executable if has_torch else None
    return options


def main():
    options = parse()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:options.cores])
    results, failed = [], []
    for name in options.names or WORKS:
        try:
            results.append(measure(name, options))
            print(row(results[-1]), file=sys.stderr, flush=True)
        except (RuntimeError, BrokenPipeError) as error:
            failed.append(name)
            print(f"{name}: {error}", file=sys.stderr, flush=True)
    machine = describe(options, results)
    print_table(machine, results)
    if failed:
        print("\nFailed: " + ", ".join(failed))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"machine": machine, "results": results, "failed": failed}, file, indent=1)
    return 1 if failed or not all(result["checks_agree"] for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
