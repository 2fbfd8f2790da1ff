#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""examples/fetch_mnist.sh against a server of this machine: right files come, wrong, cut and missing ones leave nothing behind;
by every program that it may fetch with.

Usage: check_fetch.py <source root>
"""
import hashlib
import http.server
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading

script = pathlib.Path(sys.argv[1]).resolve() / "examples" / "fetch_mnist.sh"
FILES = {"images.gz": b"\x1f\x8b pictures" * 5000, "labels.gz": b"\x1f\x8b what they show"}
NEEDED = ["bash", "cat", "dirname", "mkdir", "mktemp", "mv", "rm", "rmdir", "sha256sum", "tail", "timeout"]
failures = []


class Server(http.server.BaseHTTPRequestHandler):
    """/right/NAME, /wrong/ (one byte differs), /cut/ (ends early), /slow/ (never ends); else 404."""

    def do_GET(self):
        _, kind, name = self.path.split("/")
        data = FILES.get(name)
        if kind not in ("right", "wrong", "cut", "slow") or data is None:
            self.send_error(404)
            return
        last = name == "labels.gz"
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if kind == "slow" and last:
            self.server.released.wait(30)
        self.wfile.write(data[:-1] + b"!" if kind == "wrong" and last else data[:len(data) // 2] if kind == "cut" and last else data)

    def log_message(self, *_):
        pass


def tools_with(folder, fetcher):
    """A folder for PATH that has what the script needs and one program to fetch with."""
    for name in [*NEEDED, fetcher]:
        (folder / name).symlink_to(shutil.which(name))
    return str(folder)


def fetch(place, path, address, kind, before):
    folder = place / kind
    if before:
        folder.mkdir()
        (folder / "images.gz").write_bytes(b"older")
    sums = place / "sums"
    sums.write_text("".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in FILES.items()))
    environment = {"PATH": path, "TREK_MNIST_MIRROR": f"{address}/{kind}", "TREK_FETCH_SECONDS": "1" if kind == "slow" else "60"}
    done = subprocess.run([shutil.which("bash"), str(script), str(folder), str(sums)], capture_output=True, text=True, env=environment,
                          timeout=120)
    left = {file.name: file.read_bytes() for file in folder.iterdir()} if folder.exists() else None
    return done, left


def check(fetcher, address):
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        tools = place / "tools"
        tools.mkdir()
        path = tools_with(tools, fetcher)
        for kind, before, said in (("right", True, ""), ("wrong", True, "labels.gz is another file"), ("cut", False, "labels.gz"),
                                   ("absent", False, "images.gz does not come from"), ("slow", True, "does not come")):
            done, left = fetch(place, path, address, kind, before)
            wanted = FILES if kind == "right" else {"images.gz": b"older"} if before else None
            if left != wanted or bool(done.returncode) != (kind != "right") or said not in done.stdout or done.stdout.count("\n") > 1:
                failures.append(f"{fetcher}, {kind}: ended with {done.returncode}, left {sorted(left or {})}: {done.stdout}{done.stderr}")


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
server.released = threading.Event()
threading.Thread(target=server.serve_forever, daemon=True).start()
fetchers = [name for name in ("curl", "wget", "python3") if shutil.which(name)]
for name in fetchers:
    check(name, f"http://127.0.0.1:{server.server_port}")
server.released.set()
print("\n".join(failures) or f"by {', '.join(fetchers)}", flush=True)
os._exit(bool(failures))  # without waiting for those that were never to end
