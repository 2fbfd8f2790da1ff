#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pages of the built site by axe-core (WCAG 2 A and AA, and its good practice) in headless Chromium: all dark and at a
phone's width, where none may be wider than the screen, and some light and wide.

Usage: check_accessible.py <html folder> [page...]   needs the package axe-core-python, whose axe.min.js is used
"""
import functools
import http.server
import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading

SECONDS = 900
DRIVER = """<!doctype html><title>axe</title><iframe id="page"></iframe><script>
const frame = document.getElementById("page"), wait = (ms) => new Promise((done) => setTimeout(done, ms));
const load = (url) => new Promise((done) => { frame.onload = done; frame.src = url; });
async function one(page, theme, width) {
    frame.style.width = width + "px"; frame.style.height = "900px";
    await load("/" + page);
    const inside = frame.contentDocument, script = inside.createElement("script");
    inside.body.dataset.theme = theme;
    script.src = "/axe.min.js";
    await new Promise((done) => { script.onload = done; inside.head.append(script); });
    await wait(50);
    const found = await frame.contentWindow.axe.run(inside, { resultTypes: ["violations"] });
    const wide = inside.documentElement.scrollWidth - inside.documentElement.clientWidth;
    return { page, theme, width, passes: found.passes.length, wide, wrong: found.violations.map((v) =>
        v.id + " (" + v.impact + "): " + v.help + ": " + v.nodes.slice(0, 3).map((n) => n.target + " " + n.html.slice(0, 120)).join("; ")) };
}
(async () => {
    const results = [];
    for (const [page, theme, width] of CASES)
        results.push(await one(page, theme, width).catch((e) => ({ page, theme, width, passes: 0, wide: 0, wrong: ["" + e] })));
    await fetch("/results", { method: "POST", body: JSON.stringify(results) });
})();
</script>"""


class Server(http.server.SimpleHTTPRequestHandler):
    """The site, axe, the page that drives; what that reports."""
    pages, results, done = {}, [], threading.Event()

    def do_GET(self):
        body = self.pages.get(self.path)
        if body is None:
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Type", "text/javascript" if self.path.endswith(".js") else "text/html")
        self.end_headers()
        return self.wfile.write(body.encode())

    def do_POST(self):
        Server.results = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()
        Server.done.set()

    def log_message(self, *_):
        pass


def main():
    root = pathlib.Path(sys.argv[1])
    package = importlib.util.find_spec("axe_core_python")
    pages = sys.argv[2:] or [p.name for p in sorted(root.glob("*.html")) if p.name != "search.html"] + [
        "reference/graph-draw.html", "reference/optim-sam.html"]
    cases = [(page, "dark", 390) for page in pages]
    cases += [(page, "light", 1200) for page in sys.argv[2:] or ["index.html", "scopes-and-errors.html", "reference/optim-sam.html"]]
    Server.pages = {"/axe.min.js": (pathlib.Path(package.origin).parent / "axe.min.js").read_text(encoding="utf-8"),
                    "/driver": DRIVER.replace("CASES", json.dumps(cases))}
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Server, directory=str(root)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:  # its children write there after it has ended
        browser = subprocess.Popen([shutil.which("chromium"), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
                                    "--remote-debugging-port=0", "--window-size=1400,1000", f"http://127.0.0.1:{server.server_port}/driver"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        came = Server.done.wait(SECONDS)
        browser.terminate()
        browser.wait()
    failures = [f"{r['page']}, {r['theme']}, {r['width']} wide: {wrong}" for r in Server.results for wrong in r["wrong"]]
    failures += [f"{r['page']} is {r['wide']} wider than a screen of {r['width']}" for r in Server.results if r["wide"] > 0]
    if not came or len(Server.results) != len(cases) or not all(r["passes"] for r in Server.results):
        failures.append(f"axe has looked at {sum(r['passes'] > 0 for r in Server.results)} of {len(cases)} pages")
    print("\n".join(failures) or f"{len(cases)} views of {len(pages)} pages")
    return bool(failures)


sys.exit(main())
