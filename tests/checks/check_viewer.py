#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The plug-in libtrek-monitor: libtrek.so finds it where it lies, works without it where nobody asks for it, names the package where
somebody does, and refuses one of another version.

Usage: check_viewer.py <libtrek.so> <libtrek-monitor.so>
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

library, plugin = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
PROGRAM = """
import ctypes, sys
trek = ctypes.CDLL(sys.argv[1])
trek.trek_error.restype = ctypes.c_char_p
trek.trek_page_from_environment.restype = ctypes.c_void_p
trek.trek_export_open_metrics.restype = ctypes.c_void_p
calls = {
    "page_from_environment": lambda: trek.trek_page_from_environment(sys.argv[3].encode()),
    "export_csv": lambda: trek.trek_export_csv(sys.argv[3].encode(), sys.argv[3].encode() + b".csv"),
    "export_open_metrics": lambda: trek.trek_export_open_metrics(sys.argv[3].encode()),
}
calls[sys.argv[2]]()
print(trek.trek_error_status(), trek.trek_error().decode())
"""
OTHER = """
int trek_monitor_open(int abi, const void *host, void *table, char *why, unsigned long size)
{
    (void)host; (void)why; (void)size;
    *(int *)table = abi + 1;
    return 0;
}
"""
RUN = '{"kind":"run","time":1,"version":1,"run":"a","process":0,"processes":1}\n{"kind":"scalars","time":2,"step":1,"values":{"loss":2}}\n'
failed = []


def call(library, function, run, **environment):
    """The status and the message that a program gets from one call."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TREK_", "LD_"))}
    done = subprocess.run([sys.executable, "-c", PROGRAM, library, function, run], env=clean | environment, capture_output=True, text=True,
                          timeout=100, check=False)
    status, _, message = done.stdout.strip().partition(" ")
    if done.returncode:
        failed.append(f"{function}: the program ended with {done.returncode}: {done.stderr[-300:]}")
    return status, message


def expect(what, true):
    if not true:
        failed.append(what)


with tempfile.TemporaryDirectory() as place:
    alone, beside, other = (pathlib.Path(place) / name for name in ("alone", "beside", "other"))
    run = pathlib.Path(place) / "run"
    for folder in (alone, beside, other, run):
        folder.mkdir()
    for folder in (alone, beside, other):
        shutil.copy(library, folder / "libtrek.so")
    shutil.copy(plugin, beside / "libtrek-monitor.so")
    (run / "process-0.jsonl").write_text(RUN)
    (pathlib.Path(place) / "other.c").write_text(OTHER)
    compiler = os.environ.get("CC", "cc").split()
    subprocess.run([*compiler, "-shared", "-fPIC", "-o", other / "libtrek-monitor.so", pathlib.Path(place) / "other.c"], check=True)

    status, message = call(beside / "libtrek.so", "export_csv", run)
    expect(f"with the plug-in: {status} {message}", status == "0" and not message)
    table = pathlib.Path(f"{run}.csv")
    expect("the table that was written is not that of the run", table.exists() and "loss" in table.read_text().splitlines()[0])
    status, message = call(alone / "libtrek.so", "export_csv", run, TREK_PLUGIN_PATH=str(beside))
    expect(f"named by TREK_PLUGIN_PATH: {status} {message}", status == "0")

    status, message = call(alone / "libtrek.so", "page_from_environment", run)
    expect(f"a program that asks for no page needs no plug-in: {status} {message}", status == "0" and not message)
    for function in ("page_from_environment", "export_csv", "export_open_metrics"):
        status, message = call(alone / "libtrek.so", function, run, TREK_MONITOR="0")
        version = library.name.split(".so.")[-1].split(".")
        expect(f"without the plug-in: {function}: {status} {message}", status not in ("", "0") and message.startswith(
            f"{function}: it needs libtrek-monitor, which the package libtrek{version[0]}.{version[1]}-monitor installs: "))

    status, message = call(other / "libtrek.so", "export_csv", run)
    expect(f"of another version: {status} {message}", status not in ("", "0") and message.endswith("libtrek-monitor is of another version of trek"))
print("\n".join(failed) or "found, missing and of another version: as they should")
sys.exit(bool(failed))
