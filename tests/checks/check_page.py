#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The live page and the report in headless Chromium: what they show is what was recorded, while a run goes on, after its end and after
a rank has died; several runs, a phone's width, dark and light, the keyboard, names that attack, accessibility by axe-core.

Usage: check_page.py <libtrek.so> [--pictures FOLDER] [--program PROGRAM]
--pictures also writes screenshots there. --program: what trains for a moment where TREK_LOG_DIR and TREK_MONITOR are set; by default this
script, which writes a run and serves the page itself, as such a program would (--write)."""
import argparse
import base64
import ctypes
import functools
import json
import math
import os
import pathlib
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import zlib

import axe_core_python
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

AXE = next(pathlib.Path(axe_core_python.__file__).parent.rglob("axe.min.js"))
HOSTILE = "<img src=x onerror=\"window.hit=1\">'\"</script><script>window.hit=1</script>"
PNG = ("iVBORw0KGgoAAAANSUhEUgAAAAgAAAAIAQMAAAD+wSzIAAAABlBMVEX///+/v7+jQ3Y5AAAADklEQVQI12P4AIX8EAgALgAD/aNpbtEAAAAASUVORK5CYII=")
SVG = """<svg xmlns="http://www.w3.org/2000/svg" width="200" height="290" viewBox="0 0 200 290" role="img"><style>.b{fill:red}</style>
<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path class="m" d="M0 0L8 4L0 8z"/></marker></defs>
<g><rect class="i" x="50" y="10" width="100" height="30" rx="15"/><text x="100" y="30" text-anchor="middle">input</text></g>
<g><title>fc1</title><rect class="b" x="50" y="70" width="100" height="30" rx="5"/><rect class="f" x="50" y="70" width="100" height="30" rx="5" fill-opacity="0.40"/><text x="100" y="90" text-anchor="middle">fc1: linear</text></g>
<g><title>relu</title><rect class="b" x="50" y="130" width="100" height="30" rx="5"/><text x="100" y="150" text-anchor="middle">relu</text></g>
<g><title>fc2</title><rect class="b" x="50" y="190" width="100" height="30" rx="5"/><text x="100" y="210" text-anchor="middle">fc2: linear</text></g>
<g><rect class="o" x="50" y="250" width="100" height="30" rx="15"/><text x="100" y="270" text-anchor="middle">output</text></g>
<path class="e" marker-end="url(#a)" d="M100 40L100 70"/><path class="e" marker-end="url(#a)" d="M100 100L100 130"/>
<path class="e" marker-end="url(#a)" d="M100 160L100 190"/><path class="e" marker-end="url(#a)" d="M100 220L100 250"/></svg>"""
NODES = [
    {"name": "input", "kind": "input", "op": "input"},
    {"name": "fc1", "kind": "module", "op": "linear", "details": "784, 128", "shape": "f32[64, 128]", "parameters": 100480, "calls": 1, "time_ms": 3.25, "forward_ms": 1.25,
     "backward_ms": 2, "mult_adds": 6422528, "bytes": 401920, "output_bytes": 32768},
    {"name": "relu", "kind": "module", "op": "relu", "shape": "f32[64, 128]", "parameters": 0, "calls": 1, "time_ms": 0.5, "forward_ms": 0.3, "backward_ms": 0.2, "mult_adds": 0,
     "bytes": 65536, "output_bytes": 32768},
    {"name": "fc2", "kind": "module", "op": "linear", "details": "128, 10", "shape": "f32[64, 10]", "parameters": 1290, "calls": 1, "time_ms": 1.25, "forward_ms": 0.5,
     "backward_ms": 0.75, "mult_adds": 81920, "bytes": 5160, "output_bytes": 2560},
    {"name": "output", "kind": "output", "op": "output"}]
LINKS = [{"from": "input", "to": "fc1", "port": 0}, {"from": "fc1", "to": "relu", "port": 0}, {"from": "relu", "to": "fc2", "port": 0}, {"from": "fc2", "to": "output", "port": 0},
         {"from": "fc1", "to": "fc2", "port": 1, "label": "skip"}]


def small_png(levels):
    """Two by two, gray."""
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    rows = bytes([0, *levels[:2], 0, *levels[2:]])
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 2, 8, 0, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")).decode()


PNGS = [small_png([0, 50 + k, 100, 200]) for k in range(3)]


# --- runs, as a program would write them ---------------------------------------------------------------

class Writer:
    """The file of one process."""

    def __init__(self, folder, run, process=0, processes=1, ranks=(0, 1), started=None, pid=None, host=None, arguments=("--epochs", "3")):
        self.path = pathlib.Path(folder) / run
        self.path.mkdir(exist_ok=True)
        self.file = open(self.path / f"process-{process}.jsonl", "a", buffering=1)
        self.now = started or time.time() - 600
        self.ranks = ranks
        self.add("run", version=1, run=run, program="/tmp/train", arguments=list(arguments), host=host or socket.gethostname(), pid=pid or os.getpid(), process=process,
                 processes=processes, ranks=[{"rank": k, "device": f"cpu:{k}", "name": "a CPU"} for k in ranks], epochs=3, trek="0.1.0", started=self.now, parameters=101770)

    def add(self, kind, **fields):
        self.file.write(json.dumps({"kind": kind, "time": self.now, **fields}) + "\n")

    def told_of_ranks(self, states=None):
        self.add("ranks", anchor=12, windows=True, window=8, drift=0.0125, ranks=[
            {"rank": k, "computing_s": 0.7 - 0.08 * i, "waiting_s": 0.1 + 0.08 * i, "reducing_s": 0.15, "interval_s": 1.0, "share": 1 / (2 + i), "samples_per_s": 1000 - 100 * i,
             "samples": 100, "steps": 10, "state": (states or {}).get(k, "computing")} for i, k in enumerate(self.ranks)])

    def close(self, status=None, **more):
        if status:
            self.add("end", status=status, **more)
        self.file.close()


def loss_at(k, seed=0):
    return 2.3 * math.exp(-k / 120) + 0.05 + 0.06 * math.sin(k * 1.7 + seed) * math.exp(-k / 300)


def train(w, first, count, seed=0, every=100):
    """Steps of a run; returns the losses."""
    losses = []
    for k in range(first, first + count):
        w.now += 1
        losses.append(loss_at(k, seed))
        w.add("scalars", step=k, epoch=k // every, values={"loss": losses[-1], "lr": 1e-3 * min(1, (k + 1) / 50) * (1 - k / 400), "gradient_norm": 1.5 + math.cos(k / 9 + seed),
                                                           "samples_per_s": 5200 + 300 * math.sin(k / 5)})
        if k % every == every - 1:
            w.add("scalars", step=k, epoch=k // every, at="epoch", values={"loss": losses[-1], "evaluation_loss": losses[-1] + 0.04, "accuracy": 1 - losses[-1] / 3})
        w.add("progress", epoch=k // every, epochs=3, batch=k % every + 1, batches=every, step=k, eta_s=300 - k, seconds=k + 1)
        w.told_of_ranks()
        if k % 2 == 0:
            w.add("system", memory_bytes=3.1e8 + 1e6 * k, memory_peak_bytes=4e8, cpu_percent=187.5, trek_bytes={"cpu": 2.2e7}, temperature_c=61.5, power_w=34.2,
                  devices=[{"device": "cpu:0", "memory_bytes": 3.1e8, "temperature_c": 61.5}])
    return losses


def histograms(w, step, names=("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")):
    for i, name in enumerate(names):
        for of in ("parameter", "gradient"):
            wide = 0.05 + step / 4000 + 0.02 * i
            edges = [wide * (k - 15) / 5 for k in range(31)]
            counts = [round(1000 * math.exp(-((k - 14.5) / 5) ** 2 / 2)) for k in range(30)]
            w.add("histogram", name=name, of=of, step=step, edges=edges, counts=counts, min=edges[0], max=edges[-1], mean=0.001, std=wide, nonfinite=0)


def others(w):
    w.add("graph", step=0, steps=0, svg=SVG, nodes=[{k: n[k] for k in n if k in ("name", "kind", "op", "details", "parameters")} for n in NODES], links=LINKS)
    w.add("graph", step=5, steps=3, svg=SVG, nodes=NODES, links=LINKS)
    w.add("text", name="sample", step=10, text="Once upon a time")
    for step, png in enumerate(PNGS):
        w.add("image", name="digits", step=step * 10, width=2, height=2, png=png)
    w.add("log", level="info", text="the data set has 60000 samples", rank=0)
    w.add("log", level="warning", text="the loss has risen for 20 steps", rank=1)
    w.add("event", name="checkpoint", text="model.safetensors written")


# --- the page ------------------------------------------------------------------------------------------

class Options(ctypes.Structure):
    _fields_ = [("folder", ctypes.c_char_p), ("port", ctypes.c_int), ("address", ctypes.c_char_p), ("token", ctypes.c_char_p)]


class Page:
    def __init__(self, library, folder):
        self.library = library
        self.page = ctypes.c_void_p(library.trek_page_serve(ctypes.byref(Options(str(folder).encode(), -1, None, None))))
        if not self.page:
            raise SystemExit(f"no page: {library.trek_error().decode()}")
        self.url = library.trek_page_address(self.page).decode()

    def close(self):
        self.library.trek_page_free(ctypes.byref(self.page))


def load(path):
    library = ctypes.CDLL(path)
    library.trek_page_serve.restype = ctypes.c_void_p
    library.trek_page_address.restype = library.trek_error.restype = ctypes.c_char_p
    return library


def browser(width=1360, height=900, dark=False):
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for place in ("/usr/bin/chromium", "/usr/bin/google-chrome"):
        if os.path.exists(place):
            options.binary_location = place
            break
    service = webdriver.ChromeService("/usr/bin/chromedriver") if os.path.exists("/usr/bin/chromedriver") else None
    driver = webdriver.Chrome(options=options, service=service)
    size(driver, width, height)
    scheme(driver, dark)
    return driver


def size(driver, width, height=900, scale=1):
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False})


def scheme(driver, dark):
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})


def until(driver, script, what, seconds=15):
    """Waits until the script says something true, and returns that."""
    ends = time.time() + seconds
    while time.time() < ends:
        value = driver.execute_script(f"return {script}")
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"never came: {what}: {script}")


def go(driver, url, *runs):
    driver.get("about:blank")
    driver.get(url + ("#" + ",".join(runs) if runs else ""))
    until(driver, "window.trek && trek.ready && document.querySelectorAll('#cards .card').length > 0", "the page")


def tab(driver, name):
    driver.find_element(By.ID, f"tab-{name}").click()
    time.sleep(0.25)


def chart(driver, name):
    return driver.find_element(By.CSS_SELECTOR, f'.chart[data-name="{name}"]')


def said(driver, name):
    return chart(driver, name).find_element(By.CSS_SELECTOR, ".plot").get_attribute("aria-valuetext")


def points(driver, run, name, process=0, label=""):
    return driver.execute_script("return trek.series(...arguments)", run, name, process, label)


def quiet(driver):
    """Nothing was refused, and nothing has failed."""
    bad = [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE" and "favicon" not in entry["message"]]
    assert not bad, bad
    assert not driver.execute_script("return window.hit"), "a name was run"


def accessible(driver, where):
    driver.execute_cdp_cmd("Runtime.evaluate", {"expression": AXE.read_text()}) # not as the page: its policy forbids that
    result = driver.execute_async_script("const done = arguments[arguments.length - 1]; axe.run().then(done, e => done({violations: [{id: String(e), nodes: []}]}))")
    found = [f"{v['id']}: {[n.get('target') for n in v['nodes']][:4]} {[n.get('failureSummary', '')[:200] for n in v['nodes']][:1]}" for v in result["violations"]]
    assert not found, f"{where}: {found}"


def no_sideways(driver, where):
    wide = driver.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert wide[0] <= wide[1], f"{where}: it is {wide[0]} wide, the window {wide[1]}"


TABS = ("charts", "table", "ranks", "histograms", "graph", "media", "log")


# --- what is checked -----------------------------------------------------------------------------------

def check_running(d, page, folder, pictures):
    """Values, at once and as they come."""
    w = Writer(folder, "running", ranks=(0, 1, 2, 3))
    losses = train(w, 0, 150)
    go(d, page.url, "running")
    until(d, "trek.series('running', 'loss') && trek.series('running', 'loss').value.length === 150", "150 points")
    got = points(d, "running", "loss")
    assert got["value"] == losses and got["step"] == list(range(150)), "other values"
    assert points(d, "running", "epoch/accuracy")["value"] == [1 - losses[99] / 3]
    until(d, f"document.querySelector('.chart[data-name=loss] .plot').getAttribute('aria-valuetext').startsWith('last ')", "the chart's text")
    assert said(d, "loss").split()[1] == d.execute_script("return String(+arguments[0].toPrecision(5))", losses[-1]), said(d, "loss")
    losses += train(w, 150, 30)
    until(d, "trek.series('running', 'loss').value.length === 180", "points that came later")
    assert points(d, "running", "loss")["value"] == losses
    half = json.dumps({"kind": "scalars", "time": w.now, "step": 180, "epoch": 1, "values": {"loss": 0.125, "odd": "NaN"}}) + "\n"
    w.file.write(half[:30])
    w.file.flush()
    polls = d.execute_script("return trek.polls")
    until(d, f"trek.polls > {polls + 1}", "two more looks")
    assert len(points(d, "running", "loss")["value"]) == 180, "half a line was read"
    w.file.write(half[30:])
    w.file.flush()
    until(d, "trek.series('running', 'loss').value.length === 181", "the other half")
    assert points(d, "running", "odd")["value"] == ["NaN"]
    until(d, "document.querySelector('#cards .card').textContent.includes('0.125')", "the loss of the card")
    card = d.find_element(By.CSS_SELECTOR, "#cards .card").text
    for part in ("running", "Epoch", "2 of 3", "ETA", "Ranks", "101770"):
        assert part in card, f"{part} is not in {card}"
    quiet(d)
    return w


def check_chart(d, page, folder, pictures):
    """Smoothing, axes, zoom, the keyboard, hover."""
    go(d, page.url, "running")
    until(d, "trek.charts.get('loss') && trek.charts.get('loss').box", "the chart")
    smooth = d.execute_script("return trek.smooth([1, 2, NaN, 4], 0.5).map(v => Number.isNaN(v) ? 'NaN' : v)")
    assert smooth[2] == "NaN" and all(abs(a - b) < 1e-12 for a, b in zip((smooth[0], smooth[1], smooth[3]), (1, (0.25 + 1) / 0.75, (0.625 + 2) / 0.875))), smooth
    plot = chart(d, "loss").find_element(By.CSS_SELECTOR, ".plot")
    plot.click()
    plot.send_keys(Keys.HOME)
    until(d, "document.querySelector('.chart[data-name=loss] .plot').getAttribute('aria-valuetext').startsWith('step 0: ')", "the first point")
    plot.send_keys(Keys.ARROW_RIGHT)
    value = d.execute_script("return String(+arguments[0].toPrecision(5))", loss_at(1))
    until(d, f"document.querySelector('.chart[data-name=loss] .plot').getAttribute('aria-valuetext') === 'step 1: loss {value}'", "the second point")
    plot.send_keys("+")
    until(d, "trek.charts.get('loss').range !== null && document.querySelector('.chart[data-name=loss] .plot').getAttribute('aria-valuemax') < 180", "zoomed by keyboard")
    plot.send_keys(Keys.ESCAPE)
    until(d, "trek.charts.get('loss').range === null", "back by Escape")
    d.execute_script("document.querySelector('#main').scrollIntoView()")
    ActionChains(d).move_to_element_with_offset(plot, -60, 0).click_and_hold().move_by_offset(80, 0).release().perform()
    a, b = until(d, "trek.charts.get('loss').range", "zoomed by dragging")
    assert 0 < a < b < 181 and 0.2 < (b - a) / 180 < 0.5, (a, b)
    ActionChains(d).double_click(plot).perform()
    until(d, "trek.charts.get('loss').range === null", "back by a double click")
    ActionChains(d).move_to_element(plot).perform()
    until(d, "!document.querySelector('.chart[data-name=loss] .tip').hidden && document.querySelector('.chart[data-name=loss] .tip').textContent.includes('loss')", "what is under the mouse")
    for axis in ("time", "epoch", "step"):
        Select(d.find_element(By.ID, "axis")).select_by_value(axis)
        until(d, f"trek.settings.axis === '{axis}'", axis)
    d.find_element(By.ID, "log").click()
    d.execute_script("const s = document.getElementById('smoothing'); s.value = 0.6; s.dispatchEvent(new Event('input'))")
    until(d, "trek.settings.log && trek.settings.smoothing === 0.6", "settings")
    ink = until(d, "(c => { const p = c.getContext('2d').getImageData(60, 0, c.width - 60, c.height - 30).data; let n = 0; for (let k = 3; k < p.length; k += 4) n += p[k] > 200; return n })(document.querySelector('.chart[data-name=loss] canvas'))", "a line")
    assert ink > 100
    quiet(d)


def check_gaps(d, page, folder, pictures):
    """Where values are not finite the line has a gap; 100,000 points are drawn in a moment."""
    w = Writer(folder, "long", ranks=(0,))
    w.now -= 99000
    for k in range(100000):
        w.now += 1
        if k % 500 == 0:
            w.add("scalars", step=k, epoch=0, values={"flat": "NaN" if 30000 <= k < 60000 else 1.0})
        w.add("scalars", step=k, epoch=0, values={"big": math.sin(k / 9000) + (20 if k == 54321 else 0)})
    w.close("done")
    go(d, page.url, "long")
    until(d, "trek.series('long', 'big') && trek.series('long', 'big').value.length === 100000", "all points", 40)
    until(d, "trek.charts.get('big')?.box && trek.charts.get('flat')?.box", "the charts")
    took = d.execute_script("const c = trek.charts.get('big'); c.paint(); const t = performance.now(); for (let k = 0; k < 10; k++) c.paint(); return (performance.now() - t) / 10")
    assert took < 50, f"{took} ms to draw 100,000 points"
    high = d.execute_script("return trek.charts.get('big').extent()[3]")
    assert high > 20, "a point that stands alone is lost"
    columns = d.execute_script("""trek.charts.get('flat').paint(); // it may show what was there a moment ago
      const c = document.querySelector('.chart[data-name=flat] canvas'), box = trek.charts.get('flat').box, s = c.width / c.clientWidth, out = [];
      for (const part of [0.1, 0.45, 0.8]) {
        const x = Math.round((box.l + part * (box.r - box.l)) * s), p = c.getContext('2d').getImageData(x, 0, 1, Math.round(box.b * s)).data;
        let n = 0;
        for (let k = 0; k < p.length; k += 4) n += p[k + 3] > 150 && Math.max(p[k], p[k + 1], p[k + 2]) - Math.min(p[k], p[k + 1], p[k + 2]) > 90;
        out.push(n);
      }
      return out""")
    assert columns[0] > 0 and columns[1] == 0 and columns[2] > 0, columns
    print(f"100,000 points are drawn in {took:.1f} ms")
    quiet(d)


def check_ranks(d, page, folder, pictures):
    """Lanes; one process dies, and its ranks are lost."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    a, b = Writer(folder, "job", 0, 2, (0, 1)), Writer(folder, "job", 1, 2, (2, 3), pid=os.getpid())
    for w in (a, b):
        train(w, 0, 60)
    go(d, page.url, "job")
    tab(d, "ranks")
    until(d, "document.querySelectorAll('#lanes .lane').length === 4", "four lanes")
    assert not d.find_elements(By.CSS_SELECTOR, ".lane.lost")
    lane = d.find_element(By.CSS_SELECTOR, '.lane[data-rank="1"]').text
    for part in ("Rank 1", "33.33 %", "900", "62 %", "18 %", "15 %", "61.5", "34.2 W"):
        assert part in lane, f"{part} is not in {lane}"
    whole = d.find_element(By.CSS_SELECTOR, "#lanes .whole").text
    for part in ("anchor 12", "windows of batches (8)", "drift 0.0125"):
        assert part in whole, whole
    b.add("run", version=1, run="job", host=socket.gethostname(), pid=dead.pid, process=1, processes=2, ranks=[])
    path = b.path / "process-1.jsonl" # as if the process that is gone had written it
    path.write_text(re.sub(r'"pid": ?\d+', f'"pid":{dead.pid}', path.read_text(), count=1) + " " * 0)
    until(d, "document.querySelectorAll('#lanes .lane.lost').length === 2", "two lost ranks")
    assert "lost" in d.find_element(By.CSS_SELECTOR, '.lane[data-rank="3"]').text
    until(d, "document.querySelector('#cards .card').textContent.includes('died')", "the run's state")
    assert "2 lost" in d.find_element(By.CSS_SELECTOR, "#cards .card").text
    until(d, "document.getElementById('live').textContent.length > 0", "it was announced")
    a.now += 40
    a.told_of_ranks({1: "lost"})
    a.add("event", name="process lost", text="process 1 does not answer")
    until(d, "document.querySelectorAll('#lanes .lane.lost').length === 3", "a third")
    if pictures:
        shot(d, pictures / "live-page-ranks.png")
    a.close("failed", error="TREK_ERR_PEER: rank 2 is gone")
    until(d, "document.querySelector('#cards .card .error').textContent.includes('rank 2 is gone')", "the error")
    assert "failed" in d.find_element(By.CSS_SELECTOR, "#cards .card .badge").text
    tab(d, "log")
    lines = d.find_element(By.ID, "lines").text
    assert "process lost: process 1 does not answer" in lines and "TREK_ERR_PEER" in lines
    quiet(d)


def check_gpus(d, page, folder, pictures):
    """What ranks' own GPUs tell is theirs; what the machine of a process tells is not; a process whose file comes late."""
    def started(process, **told):
        w = Writer(folder, "gpus", process, 2, (process,))
        w.add("run", version=1, run="gpus", host=socket.gethostname(), pid=os.getpid(), process=process, processes=2,
              ranks=[{"rank": process, "device": f"cuda:{process}", "name": f"Fake GPU {process}"}])
        w.told_of_ranks()
        w.add("system", memory_bytes=3.1e8, power_w=34.2, temperature_c=61.5, devices=[{"device": f"cuda:{process}", "memory_total_bytes": 80 << 30, **told}])
        return w
    writers = [started(0, memory_bytes=2 << 30, temperature_c=71, power_w=301.5, utilization_percent=91, throttled="power")]
    go(d, page.url, "gpus")
    tab(d, "ranks")
    until(d, "document.querySelectorAll('#lanes .lane').length === 1", "a lane")
    lane = d.find_element(By.CSS_SELECTOR, '.lane[data-rank="0"]').text
    for part in ("cuda:0 · Fake GPU 0", "2.00 GiB of 80.0 GiB", "91 %", "71 °C", "301.5 W", "Slowed down"):
        assert part in lane, f"{part} is not in {lane}"
    writers.append(started(1, throttled="no"))
    until(d, "document.querySelectorAll('#lanes .lane').length === 2", "the lane of a process that came late")
    until(d, "document.querySelector('.lane[data-rank=\"1\"]').textContent.includes('80.0 GiB')", "its memory")
    lane = d.find_element(By.CSS_SELECTOR, '.lane[data-rank="1"]').text
    assert "Fake GPU 1" in lane and "34.2" not in lane and "61.5" not in lane and "Slowed down" not in lane, lane
    for w in writers:
        w.close("done")
    quiet(d)


def rows_of(d):
    """The table of nodes: name and op, shape, parameters, milliseconds, memory."""
    return d.execute_script("return [...document.querySelectorAll('#graphs tbody tr')].map(r => [...r.children].map(c => c.textContent))")


def figures(d):
    """What is told of the node that one points at."""
    return d.execute_script("return Object.fromEntries([...document.querySelectorAll('.figures > div')].map(e => [e.firstChild.textContent, e.lastChild.textContent]))")


def heat_of(d):
    return d.execute_script("return Object.fromEntries([...document.querySelectorAll('.picture [data-node]')].map(e => [e.dataset.node, Number(e.querySelector('.f').getAttribute('fill-opacity'))]))")


def expect_heat(d, key, nodes):
    most = max(n[key] for n in nodes if key in n)
    wanted = {n["name"]: 0.6 * n[key] / most for n in nodes if key in n}
    got = heat_of(d)
    assert got.keys() == wanted.keys() and all(abs(got[name] - wanted[name]) < 1e-3 for name in wanted), (key, got, wanted)


def check_graph(d, w, pictures):
    """The table, the colours and what is told of a node are what was recorded; all of it by the keyboard, too."""
    tab(d, "graph")
    until(d, "document.querySelectorAll('.picture svg [data-node]').length === 3", "the graph")
    assert d.execute_script("return document.querySelectorAll('.picture style, .picture script').length") == 0
    assert "Means of 3 measured steps" in d.find_element(By.ID, "graphs").text
    by_time = [["fc1 linear", "f32[64, 128]", "100480", "3.25", "", "393 KiB"], ["fc2 linear", "f32[64, 10]", "1290", "1.25", "", "5.04 KiB"], ["relu relu", "f32[64, 128]", "–", "0.5", "", "64.0 KiB"]]
    assert rows_of(d) == by_time, rows_of(d)
    expect_heat(d, "time_ms", NODES)
    Select(d.find_element(By.ID, "heat")).select_by_value("memory")
    until(d, "document.querySelector('#graphs tbody tr:nth-child(2)').dataset.node === 'relu'", "another order")
    assert rows_of(d) == [by_time[0], by_time[2], by_time[1]]
    expect_heat(d, "bytes", NODES)
    bars = d.execute_script("return [...document.querySelectorAll('#graphs .bar')].map(e => parseFloat(e.style.width))")
    assert all(abs(a - 100 * b / 401920) < 0.01 for a, b in zip(bars, (401920, 65536, 5160))), bars
    ActionChains(d).move_to_element(d.find_element(By.CSS_SELECTOR, ".picture [data-node=fc2] .b")).perform()
    until(d, "document.querySelector('.figures dd').textContent === 'fc2'", "the node under the mouse")
    assert figures(d) == {"Node": "fc2", "Kind": "linear (128, 10)", "Gives": "f32[64, 10]", "Parameters": "1290", "Time a step": "1.25 ms", "Forward": "0.5 ms", "Backward": "0.75 ms",
                          "Activations": "5.04 KiB", "Result": "2.50 KiB", "Multiply-adds": "81.92 K", "Runs a step": "1", "From": "relu, fc1 (skip)", "To": "output"}, figures(d)
    if pictures:
        shot(d, pictures / "live-page-graph.png")
    places = []
    for name in ("fc1", "relu", "fc2"): # nothing moves while one points at others
        ActionChains(d).move_to_element(d.find_element(By.CSS_SELECTOR, f".picture [data-node={name}] .b")).perform()
        until(d, f"document.querySelector('.figures dd').textContent === '{name}'", name)
        places.append(d.execute_script("return document.querySelector('.picture').offsetTop"))
    assert len(set(places)) == 1, places
    d.find_element(By.ID, "heat").click()
    d.find_element(By.ID, "heat").send_keys(Keys.ESCAPE)
    for _ in range(2): # the drawing, then a node of it
        ActionChains(d).send_keys(Keys.TAB).perform()
    assert d.switch_to.active_element.get_attribute("data-node") == "fc1", d.switch_to.active_element.get_attribute("outerHTML")[:200]
    for key, name in ((Keys.ARROW_DOWN, "relu"), (Keys.END, "fc2"), (Keys.ARROW_LEFT, "relu"), (Keys.HOME, "fc1")):
        ActionChains(d).send_keys(key).perform()
        e = d.switch_to.active_element
        assert e.get_attribute("data-node") == name and figures(d)["Node"] == name, name
        assert d.execute_script("return getComputedStyle(arguments[0]).outlineStyle", e) != "none", f"one does not see that {name} has the focus"
        assert e.get_attribute("aria-label").startswith(name + "; Kind: "), e.get_attribute("aria-label")
    accessible(d, "a graph")
    slower = [{**n, "time_ms": 9.5, "forward_ms": 4.5, "backward_ms": 5} if n["name"] == "fc2" else n for n in NODES]
    w.add("graph", step=700, steps=6, svg=SVG, nodes=slower, links=LINKS)
    until(d, "document.getElementById('graphs').textContent.includes('Means of 6 measured steps')", "new figures")
    assert figures(d)["Node"] == "fc1"
    Select(d.find_element(By.ID, "heat")).select_by_value("time")
    until(d, "document.querySelector('#graphs tbody tr').dataset.node === 'fc2'", "the order by time")
    expect_heat(d, "time_ms", slower)
    assert rows_of(d)[0] == ["fc2 linear", "f32[64, 10]", "1290", "9.5", "", "5.04 KiB"]


def check_media(d, w):
    """Images over their steps: the slider shows each, and stays where it was put."""
    tab(d, "media")
    card = "[...document.querySelectorAll('#media .card')].find(e => e.textContent.includes('digits'))"
    until(d, f"{card} && {card}.querySelector('img').naturalWidth === 2", "the image")
    assert "Once upon a time" in d.find_element(By.ID, "media").text

    def shows(step):
        return f"{card}.querySelector('img').src === 'data:image/png;base64,{PNGS[step]}' && {card}.textContent.includes('step {step * 10}')"
    until(d, shows(2), "the last one")
    slider = d.execute_script(f"return {card}.querySelector('input')")
    slider.send_keys(Keys.ARROW_LEFT)
    until(d, shows(1), "the one before")
    assert slider.get_attribute("aria-valuetext") == "step 10"
    level = d.execute_script(f"const c = document.createElement('canvas'), i = {card}.querySelector('img'); c.getContext('2d').drawImage(i, 0, 0, 2, 2); return [...c.getContext('2d').getImageData(0, 0, 2, 2).data]")
    assert [level[k] for k in (0, 4, 8, 12)] == [0, 51, 100, 200], level
    polls = d.execute_script("return trek.polls")
    w.add("image", name="digits", step=30, width=2, height=2, png=PNGS[0])
    until(d, f"trek.polls > {polls + 1} && {card}.querySelector('input').max === '3'", "one more")
    assert d.execute_script("return " + shows(1)), "it has moved"
    slider.send_keys(Keys.END)
    until(d, f"{card}.textContent.includes('step 30')", "the newest")
    w.add("image", name="digits", step=40, width=2, height=2, png=PNGS[1])
    until(d, f"{card}.textContent.includes('step 40')", "the next, as it comes")
    accessible(d, "images")


def check_others(d, page, folder, pictures):
    """Histograms and their button, the graph, texts, images, log lines."""
    w = Writer(folder, "others")
    train(w, 0, 20)
    others(w)
    go(d, page.url, "others")
    tab(d, "histograms")
    os.utime(w.path / "process-0.jsonl")
    until(d, "!document.getElementById('want').disabled", "the button")
    d.find_element(By.ID, "want").click()
    ends = time.time() + 5
    while not (w.path / "want-histograms").exists() and time.time() < ends:
        time.sleep(0.05)
    (w.path / "want-histograms").unlink()
    for step in range(0, 200, 20):
        histograms(w, step)
    until(d, "document.querySelectorAll('#histograms .histogram').length === 4", "histograms")
    until(d, "document.querySelector('.histogram p').textContent.startsWith('step 180: mean 0.001')", "their numbers")
    Select(d.find_element(By.ID, "of")).select_by_value("gradient")
    until(d, "document.querySelectorAll('#histograms .histogram').length === 4 && document.querySelector('.histogram h4').textContent === 'fc1.weight'", "gradients")
    check_graph(d, w, pictures)
    check_media(d, w)
    tab(d, "log")
    assert "60000 samples" in d.find_element(By.ID, "lines").text
    Select(d.find_element(By.ID, "level")).select_by_value("2")
    until(d, "!document.getElementById('lines').textContent.includes('60000') && document.getElementById('lines').textContent.includes('has risen')", "warnings alone")
    w.close("done")
    tab(d, "charts")
    until(d, "document.querySelector('#cards .badge').textContent === 'done'", "the end")
    assert d.find_element(By.CSS_SELECTOR, ".progress").get_attribute("aria-valuenow") == "100"
    quiet(d)


def check_several(d, page, folder, pictures):
    for k in range(3):
        w = Writer(folder, f"sweep-{k}")
        train(w, 0, 250, seed=k * 2)
        histograms(w, 0)
        others(w)
        w.close("done") if k < 2 else w.file.flush()
    os.utime(w.path / "process-0.jsonl")
    go(d, page.url, "sweep-0", "sweep-1", "sweep-2")
    until(d, "trek.charts.get('loss') && trek.charts.get('loss').lines.length === 3", "three lines")
    colours = d.execute_script("return trek.charts.get('loss').lines.map(l => l.colour)")
    assert len(set(colours)) == 3
    legend = chart(d, "loss").find_element(By.CSS_SELECTOR, ".legend").text
    assert all(f"sweep-{k}" in legend for k in range(3)), legend
    d.execute_script("const s = document.getElementById('smoothing'); s.value = 0.7; s.dispatchEvent(new Event('input'))")
    time.sleep(0.4)
    if pictures:
        shot(d, pictures / "live-page-light.png")
        scheme(d, True)
        time.sleep(0.6)
        shot(d, pictures / "live-page-dark.png")
        scheme(d, False)
    [box for box in d.find_elements(By.CSS_SELECTOR, "#runs li") if "sweep-1" in box.text][0].find_element(By.TAG_NAME, "input").click()
    until(d, "trek.charts.get('loss').lines.length === 2", "one switched off")
    quiet(d)


def rows(d):
    return d.execute_script("return [...document.querySelectorAll('#table-body tr')].map(r => [...r.children].map(c => c.querySelector('input') ? c.querySelector('input').value : c.textContent))")


def check_table(d, page, folder, pictures):
    """Runs as rows: their figures, what differs of their configuration, order, filter, notes, groups of seeds; the command line in their
    cards; training and evaluation in one chart; ticks."""
    values = {}
    for k, (lr, seed) in enumerate(((0.1, 1), (0.1, 2), (0.01, 1), (0.01, 2))):
        w = Writer(folder, f"table-{k}", arguments=["data set", "--lr", lr, f"--seed={seed}", "--amp", "--epochs", "3"])
        values[k] = [2 - 0.1 * k - 0.01 * seed * step for step in range(3)]
        for step, value in enumerate(values[k]):
            w.now += 60
            w.add("progress", epoch=step + 1, epochs=3, batch=0, batches=10, step=10 * (step + 1), eta_s=0, seconds=60 * (step + 1))
            w.add("scalars", step=10 * (step + 1), epoch=step, at="epoch", values={"loss": value - 1, "evaluation_loss": value, "accuracy": 0.5 + 0.1 * step - 0.01 * k})
        w.close("done")
    go(d, page.url, *(f"table-{k}" for k in range(4)))
    until(d, "trek.charts.get('epoch/loss') && trek.charts.get('epoch/loss').lines.length === 8", "training and evaluation in one chart")
    told = d.execute_script("return trek.charts.get('epoch/loss').lines.map(l => [l.label, l.dashed, l.series.name])")
    assert [dashed for _, dashed, _ in told] == [False] * 4 + [True] * 4, told  # training first
    assert ["table-0 · training", False, "epoch/loss"] in told and ["table-0 · evaluation", True, "epoch/evaluation_loss"] in told, told
    assert d.execute_script("return !trek.charts.has('epoch/evaluation_loss') && trek.charts.get('epoch/accuracy').lines.every(l => !l.dashed)")
    card = d.find_element(By.CSS_SELECTOR, "#cards .card[data-key='table-0']")
    card.find_element(By.TAG_NAME, "summary").click()
    assert card.find_element(By.TAG_NAME, "pre").text == "/tmp/train 'data set' --lr 0.1 --seed=1 --amp --epochs 3", card.text
    facts_ = dict(zip([e.text for e in card.find_elements(By.CSS_SELECTOR, ".called dt")], [e.text for e in card.find_elements(By.CSS_SELECTOR, ".called dd")]))
    assert facts_ == {"argument 1": "data set", "lr": "0.1", "seed": "1", "amp": "yes", "epochs": "3", "ranks of the job": "2"}, facts_
    tab(d, "table")
    assert Select(d.find_element(By.ID, "table-metric")).first_selected_option.text == "epoch/evaluation_loss"
    def head():
        return [e.text.split(" ↑")[0].split(" ↓")[0] for e in d.find_elements(By.CSS_SELECTOR, "#table-head th")]
    assert head() == ["Run", "State", "Last", "Best", "Min", "Max", "Step", "Time", "lr", "seed", "Note"], head()
    expected = [[f"table-{k}", "done", f"{v[-1]:g}", f"{v[-1]:g}", f"{v[-1]:g}", f"{v[0]:g}", "30", "3 m 0 s", str((0.1, 0.1, 0.01, 0.01)[k]), str(1 + k % 2), ""] for k, v in values.items()]
    assert rows(d) == expected, rows(d)
    d.find_element(By.ID, "table-differ").click()
    assert head()[8:] == ["argument 1", "lr", "seed", "amp", "epochs", "ranks of the job", "Note"], head()
    d.find_element(By.ID, "table-differ").click()
    order = lambda: [row[0] for row in rows(d)]
    best = d.find_element(By.CSS_SELECTOR, '[data-column="best"]')
    best.click()
    assert order() == ["table-3", "table-2", "table-1", "table-0"] and best.find_element(By.XPATH, "..").get_attribute("aria-sort") == "ascending"
    best.click()
    assert order() == ["table-0", "table-1", "table-2", "table-3"] and best.find_element(By.XPATH, "..").get_attribute("aria-sort") == "descending"
    Select(d.find_element(By.ID, "table-metric")).select_by_value("epoch/accuracy")
    until(d, "document.querySelector('#table-body td:nth-child(4)').textContent.startsWith('0.')", "the other metric")
    assert [row[3] for row in rows(d)] == [f"{0.7 - 0.01 * k:g}" for k in range(4)], rows(d)  # of an accuracy the largest is the best
    d.find_element(By.CSS_SELECTOR, '[aria-label="Note on table-2"]').send_keys("too slow <b>")
    find = d.find_element(By.ID, "find-row")
    find.send_keys("too SLOW")
    until(d, "document.querySelectorAll('#table-body tr').length === 1", "one row")
    assert order() == ["table-2"]
    find.clear()
    find.send_keys(" ")
    d.find_element(By.ID, "table-group").click()
    found = rows(d)
    assert len(found) == 2 and found[0][0] == "2 runs: table-0, table-1" and found[0][3].startswith("0.695 ± 0.00707") and "seed" not in head(), (found, head())
    accessible(d, "the table in groups")
    go(d, page.url, "table-2")
    tab(d, "table")
    assert rows(d)[0][-1] == "too slow <b>"  # notes are kept
    d.find_element(By.ID, "table-all").click()
    until(d, "document.querySelectorAll('#table-body tr').length > 4", "all runs")
    for call, expected in (("byteTicks(0, 5 * 2 ** 20, 5)", [k * 2 ** 20 for k in range(6)]), ("timeTicks(0, 600, 5)", [0, 120, 240, 360, 480, 600]),
                           ("timeTicks(0, 7000, 4)", [0, 1800, 3600, 5400]), ("byteTicks(0, 900, 3)", [0, 500]),
                           ("[0.25, 90, 3600, 5400, 90000].map(trek.shortTime)", ["0.25 s", "1 m 30 s", "1 h", "1 h 30 m", "1 d 1 h"])):
        got = d.execute_script("return " + (call if call.startswith("[") else "trek." + call))
        assert got == expected, (call, got)
    quiet(d)


def check_accessibility(d, page, folder, pictures):
    for dark in (False, True):
        for width in (1360, 360):
            scheme(d, dark)
            size(d, width)
            go(d, page.url, "sweep-0", "job")
            if width == 360:
                d.find_element(By.ID, "menu").click()
            for name in TABS:
                tab(d, name)
                where = f"{name}, {width} px, {'dark' if dark else 'light'}"
                no_sideways(d, where)
                accessible(d, where)
    scheme(d, False)
    size(d, 360, 780, 2)
    go(d, page.url, "sweep-2")
    no_sideways(d, "a phone")
    if pictures:
        time.sleep(1)
        shot(d, pictures / "live-page-phone.png")
    size(d, 1360)
    quiet(d)


def check_keyboard(d, page, folder, pictures):
    """Tab reaches everything, in order, and one sees where one is; arrows change views."""
    go(d, page.url, "sweep-0")
    d.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    assert d.switch_to.active_element.get_attribute("class") == "skip"
    seen = []
    for _ in range(40):
        ActionChains(d).send_keys(Keys.TAB).perform()
        e = d.switch_to.active_element
        outline = d.execute_script("return getComputedStyle(arguments[0]).outlineStyle", e)
        assert outline != "none", f"one does not see that {e.get_attribute('outerHTML')[:120]} has the focus"
        seen.append(e.get_attribute("id") or e.get_attribute("aria-label") or e.get_attribute("type"))
    for wanted in ("theme", "find-run", "checkbox", "tab-charts", "smoothing", "axis", "log", "loss"):
        assert wanted in seen, f"{wanted} is not reached: {seen}"
    d.find_element(By.ID, "tab-charts").send_keys(Keys.ARROW_RIGHT)
    assert d.switch_to.active_element.get_attribute("id") == "tab-table"
    assert d.find_element(By.ID, "panel-table").is_displayed() and not d.find_element(By.ID, "panel-charts").is_displayed()
    background = "return getComputedStyle(document.body.parentElement).backgroundColor"
    before = d.execute_script(background)
    d.find_element(By.ID, "theme").send_keys(Keys.ENTER)
    assert d.execute_script(background) != before, "the theme stays"
    d.find_element(By.ID, "theme").send_keys(Keys.ENTER)
    assert d.execute_script(background) == before
    quiet(d)


def check_hostile(d, page, folder, pictures):
    """What a run says is text, whatever it says."""
    w = Writer(folder, "hostile", ranks=(0,))
    w.add("run", run=HOSTILE, program=HOSTILE, host=HOSTILE, pid=os.getpid(), process=0, processes=1, parameters=HOSTILE, epochs=HOSTILE, ranks=[{"rank": 0, "device": HOSTILE, "name": HOSTILE}, None])
    w.add("scalars", step=1, epoch=0, values={HOSTILE: 1, "__proto__": 2, "a/" + HOSTILE: HOSTILE, "constructor": 3})
    w.add("ranks", ranks=[{"rank": 0, "state": HOSTILE, "computing_s": HOSTILE}, None, 5], anchor=HOSTILE, windows=HOSTILE, drift=HOSTILE)
    w.add("system", memory_bytes=HOSTILE, devices=[{"device": HOSTILE, "memory_bytes": 5}, None], trek_bytes={HOSTILE: 3})
    w.add("histogram", name=HOSTILE, of="parameter", step=HOSTILE, edges=[0, 1, 2], counts=[1, "x"], min=HOSTILE)
    w.add("histogram", name="x", of="parameter", step=1, edges=[0], counts=[1, 2])
    w.add("text", name=HOSTILE, step=1, text=HOSTILE)
    w.add("image", name=HOSTILE, step=1, width=8, height=8, png=PNG)
    w.add("image", name="bad", step=1, width=8, height=8, png='" onerror="window.hit=1')
    w.add("graph", svg='<svg xmlns="http://www.w3.org/2000/svg" onload="window.hit=1"><script>window.hit=1</script><a href="javascript:window.hit=1"><text>x</text></a>'
          '<rect width="5" height="5" onclick="window.hit=1" style="fill:url(http://evil.example)" fill="url(http://evil.example/x)"/>'
          '<foreignObject><body xmlns="http://www.w3.org/1999/xhtml"><img src="x" onerror="window.hit=1"/></body></foreignObject><image href="http://evil.example/x.png"/></svg>',
          nodes=[{"name": HOSTILE, "kind": HOSTILE, "op": HOSTILE, "details": HOSTILE, "shape": HOSTILE, "time_ms": HOSTILE, "bytes": HOSTILE, "parameters": {}}, None, 5],
          links=[{"from": HOSTILE, "to": HOSTILE, "label": HOSTILE}, None, {"from": {}, "to": []}], step=HOSTILE, steps=HOSTILE)
    for level in ("info", HOSTILE, "error"):
        w.add("log", level=level, text=HOSTILE, rank=HOSTILE)
    w.add("event", name=HOSTILE, text=HOSTILE)
    w.add("progress", epoch=HOSTILE, eta_s="NaN", step=HOSTILE)
    w.add(HOSTILE)
    w.add("constructor")
    w.file.write("not JSON\n[]\nnull\n5\n{}\n" + '{"kind":"scalars","values":null}\n')
    w.close("failed", error=HOSTILE)
    for url in (page.url + "#hostile", report(page.library, folder, "hostile")):
        d.get("about:blank")
        d.get(url)
        until(d, "window.trek && trek.ready && document.querySelectorAll('#cards .card').length > 0", "the page")
        for name in TABS:
            tab(d, name)
            assert d.execute_script("return document.querySelectorAll('main img[src=x], main script, main a, main [onerror], main [onclick], main [onload], main foreignObject, main image').length") == 0, name
        assert HOSTILE in d.find_element(By.ID, "lines").text
        assert HOSTILE in d.execute_script("return document.querySelector('#media pre').textContent")
        assert d.execute_script("return document.querySelectorAll('#media img').length") == 1
        assert d.execute_script("return document.querySelector('.picture rect').attributes.length") == 2
        assert d.execute_script(f"return trek.names('hostile').includes({json.dumps(HOSTILE)}) && ({{}}).polluted === undefined")
        quiet(d)


def report(library, folder, *runs):
    path = pathlib.Path(folder) / "report.html"
    paths = (ctypes.c_char_p * len(runs))(*[str(pathlib.Path(folder) / run).encode() for run in runs])
    assert library.trek_report_write(str(path).encode(), paths, len(runs)) == 0, library.trek_error()
    return path.as_uri()


def check_report(d, page, folder, pictures):
    """The file shows what the page shows, and loads nothing."""
    runs = ("sweep-0", "sweep-1", "job")
    what = """return Object.fromEntries([...trek.runs.values()].filter(r => r.on).map(r => [r.name, [r.state(), [...r.ranks.keys()], r.lines.map(l => l.text), [...r.media.values()].map(m => [m.name, m.all]),
      r.graph && [...r.view.nodes.values()].map(n => Object.entries(n).map(String)), [...r.histograms.values()].map(g => [g.name, g.records.length]),
      [...r.series.values()].map(s => [s.name, s.label, s.process, s.step, s.time.map(String), s.value.map(String)])]]))"""
    go(d, page.url, *runs)
    until(d, f"{json.dumps(runs)}.every(r => [...trek.runs.get(r).processes.values()].every(p => p.next > 0)) && trek.series('sweep-1', 'loss').value.length === 250", "all")
    time.sleep(1.5)
    tab(d, "graph")
    live = d.execute_script(what)
    cards = d.find_element(By.ID, "cards").text
    d.get("about:blank")
    d.get(report(page.library, folder, *runs))
    until(d, "window.trek && trek.ready", "the report")
    tab(d, "graph")
    assert d.execute_script(what) == live
    assert sorted(d.find_element(By.ID, "cards").text.split("\n")) == sorted(cards.split("\n"))
    assert d.execute_script("return performance.getEntriesByType('resource').length") == 0
    for name in TABS:
        tab(d, name)
        accessible(d, f"report, {name}")
    quiet(d)


def write(library):
    """A program that is watched, with its own page."""
    library.trek_page_from_environment.restype = ctypes.c_void_p
    page = ctypes.c_void_p(library.trek_page_from_environment(os.environ["TREK_LOG_DIR"].encode()))
    w = Writer(os.environ["TREK_LOG_DIR"], os.environ["TREK_RUN_NAME"])
    others(w)
    for k in range(40):
        train(w, k, 1)
        time.sleep(0.1)
    w.close("done")
    library.trek_page_free(ctypes.byref(page))
    return 0 if page.value is None and library.trek_error() == b"" else 1


def check_training(program, d, page, folder, pictures):
    """The page that a program serves itself, and what is there when it has ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    logs = pathlib.Path(folder) / "logs"
    logs.mkdir()
    environment = {**os.environ, "TREK_LOG_DIR": str(logs), "TREK_RUN_NAME": "trained", "TREK_MONITOR": str(port)}
    process = subprocess.Popen(program, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        ends = time.time() + 20
        while time.time() < ends and process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        go(d, f"http://127.0.0.1:{port}/", "trained")
        until(d, "trek.series('trained', 'loss') && trek.series('trained', 'loss').value.length > 0", "a loss", 30)
        d.get("about:blank") # the server goes when the program ends
    finally:
        error = process.communicate(timeout=120)[1]
    assert process.returncode == 0, error
    recorded = [json.loads(line) for line in (logs / "trained" / "process-0.jsonl").read_text().splitlines()]
    wanted = [r["values"]["loss"] for r in recorded if r["kind"] == "scalars" and r.get("at") != "epoch" and "loss" in r["values"]]
    url = report(page.library, logs, "trained")
    d.get(url)
    until(d, "window.trek && trek.ready", "the report")
    assert points(d, "trained", "loss")["value"] == wanted
    assert d.find_element(By.CSS_SELECTOR, "#cards .badge").text == "done"
    tab(d, "graph")
    graph = [r for r in recorded if r["kind"] == "graph"][-1]
    until(d, "document.querySelectorAll('.picture [data-node]').length > 0", "boxes of its nodes")
    keys = ("name", "op", "shape", "parameters", "time_ms", "forward_ms", "backward_ms", "mult_adds", "bytes", "output_bytes")
    nodes = d.execute_script("return [...trek.runs.get('trained').view.nodes.values()].map(n => arguments[0].map(key => n[key] === '' ? null : n[key]))", keys)
    assert nodes == [[n.get(key) for key in keys] for n in graph["nodes"]], nodes
    modules = [n for n in graph["nodes"] if n["kind"] in ("module", "group")]
    assert [row[0].split()[0] for row in rows_of(d)] == [n["name"] for n in sorted(modules, key=lambda n: -n.get("time_ms", 0))], rows_of(d)
    assert graph["steps"] > 0 and any(n.get("time_ms", 0) > 0 for n in modules), "nothing was measured"
    quiet(d)
    print(f"a training: {len(recorded)} records, {len(wanted)} losses")


def shot(driver, path):
    """A small picture: few colours are in it."""
    path.write_bytes(base64.b64decode(driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "optimizeForSpeed": False})["data"]))
    try:
        from PIL import Image
        Image.open(path).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    except ImportError:
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library")
    parser.add_argument("--pictures", type=pathlib.Path)
    parser.add_argument("--program", nargs=argparse.REMAINDER)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    library = load(options.library)
    if options.write:
        return write(library)
    program = options.program or [sys.executable, __file__, options.library, "--write"]
    failed = 0
    checks = [check_running, check_chart, check_gaps, check_ranks, check_gpus, check_others, check_several, check_table, check_accessibility, check_keyboard, check_hostile, check_report,
              functools.partial(check_training, program)]
    with tempfile.TemporaryDirectory() as folder:
        page = Page(library, folder)
        driver = browser()
        try:
            for check in checks:
                from_ = time.time()
                name = getattr(check, "func", check).__name__
                try:
                    check(driver, page, folder, options.pictures)
                    print(f"{name}: {time.time() - from_:.1f} s")
                except Exception:
                    failed += 1
                    print(f"{name} FAILED")
                    traceback.print_exc(file=sys.stdout)
        finally:
            driver.quit()
            page.close()
    return failed


if __name__ == "__main__":
    sys.exit(main())
