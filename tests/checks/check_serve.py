#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The example serve answers several clients at once with the digits that mnist's file gives, refuses what is no request, outlives
clients that go away or never finish, and ends in good order while requests are under way.

Usage: check_serve.py <folder of the programs>
"""
import concurrent.futures
import http.client
import json
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile

folder = pathlib.Path(sys.argv[1]).resolve()


def fail(text):
    sys.exit(f"serve: {text}")


def ask(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, body)
    reply = connection.getresponse()
    return reply.status, json.loads(reply.read())


def raw(port, data):
    """The status line that comes for bytes; nothing for a connection that is closed without."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as s:
        s.sendall(data)
        s.shutdown(socket.SHUT_WR)
        return s.recv(64).split(b"\r\n")[0].decode()


def picture(k):
    """A ring or a bar, another one for each k."""
    image = [0.0] * 784
    for y in range(5, 23):
        for x in range(8, 20):
            far = ((x - 13.5) / 5) ** 2 + ((y - 13.5) / 8) ** 2
            image[28 * y + x] = float(abs(far - 1) < 0.4) if k % 2 else float(abs(x - 12 - k % 3) < 2)
    return image


def check_answers(port):
    if ask(port, "GET", "/health") != (200, {"status": "ok"}):
        fail("it is not well")
    status, one = ask(port, "POST", "/predict", json.dumps({"images": [picture(1), picture(0)]}))
    if status != 200 or one["digits"] != [0, 1]:
        fail(f"a ring and a bar are {one}")
    if any(abs(sum(row) - 1) > 1e-4 or len(row) != 10 or row.index(max(row)) != digit
           for row, digit in zip(one["probabilities"], one["digits"])):
        fail(f"these are no probabilities: {one}")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        bodies = [json.dumps({"images": [picture(k + i) for i in range(k % 5 + 1)]}) for k in range(40)]
        alone = [ask(port, "POST", "/predict", body) for body in bodies]
        if list(pool.map(lambda body: ask(port, "POST", "/predict", body), bodies)) != alone:
            fail("several clients at once get other answers than one")


def check_refusals(port):
    image = json.dumps(picture(0))
    for body in ["", "{}", "[]", '{"images": []}', '{"images": [[1, 2]]}', '{"images": [' + image[:-1] + ", 0]]}",
                 '{"images": [' + image + "]} x", '{"images": [' + image.replace("0.0", "nan", 1) + "]}",
                 '{"images": [' + image.replace("0.0", "7", 1) + "]}", '{"images": [' + ", ".join(["[]"] * 70) + "]}",
                 "{" * 5000, '{"images": [' + ", ".join([json.dumps([0] * 784)] * 65) + "]}", "\0"]:
        status, reply = ask(port, "POST", "/predict", body)
        if status != 400 or not reply["error"]:
            fail(f"{body[:60]} gives {status}, {reply}")
    for wanted, reply in [(404, ask(port, "GET", "/secret")), (405, ask(port, "GET", "/predict")),
                          (413, ask(port, "POST", "/predict", " " * ((1 << 20) + 1)))]:
        if reply[0] != wanted:
            fail(f"{wanted} was expected, not {reply}")
    for data, wanted in [(b"", ""), (b"\r\n\r\n", "HTTP/1.1 400 Bad Request"), (b"GET /health", "HTTP/1.1 400 Bad Request"),
                         (b"A" * 20000, "HTTP/1.1 400 Bad Request"), (b"\0\0\0", ""),
                         (b"POST /predict HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "HTTP/1.1 400 Bad Request"),
                         (b"POST /predict HTTP/1.1\r\nContent-Length: 9999999999999999999999\r\n\r\n", "HTTP/1.1 413 Content Too Large"),
                         (b"POST /predict HTTP/1.1\r\nContent-Length: 50\r\n\r\n{", "HTTP/1.1 400 Bad Request")]:
        got = raw(port, data)
        if got != wanted:
            fail(f"{data[:40]} gives {got!r}, not {wanted!r}")


with tempfile.TemporaryDirectory() as work:
    model = pathlib.Path(work) / "model.safetensors"
    if subprocess.run([folder / "serve", "--model", model], capture_output=True).returncode != 1:
        fail("it starts without a model")
    subprocess.run([folder / "mnist", "--epochs", "2", "--save", model], check=True, capture_output=True)
    for stop in signal.SIGTERM, signal.SIGINT:
        server = subprocess.Popen([folder / "serve", "--model", model, "--port", "0", "--threads", "3"], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True)
        try:
            port = int(server.stdout.readline().rsplit(":", 1)[1])
            check_answers(port)
            check_refusals(port)
        except BaseException:
            server.kill()
            raise
        idle = socket.create_connection(("127.0.0.1", port))  # says nothing, and goes while the server ends
        server.send_signal(stop)
        idle.close()
        out, err = server.communicate(timeout=60)
        if server.returncode or out != "stopped\n" or err:
            fail(f"it ended with {server.returncode}: {out}{err}")
print("serve answers, refuses and ends")
