#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The built site: every internal link and anchor leads somewhere, ids are unique, pictures have a text, nothing is loaded from
elsewhere; every public function, variable, type, field of an enumeration and macro has its entry in the reference, and every function and
variable its comment there.

Usage: check_site.py <source root> <folder of the site>   where docs/site/build.py has put it
"""
import html.parser
import pathlib
import re
import sys
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import public  # noqa: E402


class Page(html.parser.HTMLParser):
    """What a page links to, its ids, and what is wrong with it by itself."""

    def __init__(self, path):
        super().__init__()
        self.links, self.ids, self.wrong, self.drawings = [], set(), [], 0
        self.title, self.headings, self.reading = "", 0, False
        self.feed(path.read_text(encoding="utf-8"))
        if not self.title.strip():
            self.wrong.append("it has no title")
        if self.headings != 1 and path.name not in ("genindex.html", "search.html"):
            self.wrong.append(f"it has {self.headings} headings of the first level")

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if values.get("id"):
            if values["id"] in self.ids:
                self.wrong.append(f"the id {values['id']} occurs twice")
            self.ids.add(values["id"])
        self.reading = tag == "title" and not self.title
        self.headings += tag == "h1"
        self.drawings += tag == "svg" and "drawing" in (values.get("class") or "")
        if tag == "html" and not values.get("lang"):
            self.wrong.append("it does not say its language")
        if tag == "img" and values.get("alt") is None or tag == "svg" and "drawing" in (values.get("class") or "") and not values.get("aria-label"):
            self.wrong.append(f"a picture without a text: {values}")
        target = values.get("href") if tag in ("a", "link") else values.get("src")
        if target:
            self.links.append((tag, target))

    def handle_data(self, data):
        if self.reading:
            self.title += data

    def handle_endtag(self, tag):
        self.reading = False


def bad_links(name, page, pages, root):
    for tag, target in page.links:
        parts = urllib.parse.urlsplit(target)
        if parts.scheme or parts.netloc:
            if tag != "a" and parts.scheme != "data":
                yield f"{name} loads {target}"
            continue
        place = name if not parts.path else str((root / name).parent.joinpath(urllib.parse.unquote(parts.path)).resolve().relative_to(root))
        if not (root / place).is_file():
            yield f"{name}: the link {target} leads nowhere"
        elif parts.fragment and place in pages and urllib.parse.unquote(parts.fragment) not in pages[place].ids:
            yield f"{name}: the link {target} leads to no such place"


def missing_names(source, site, pages):
    """Public names without an entry, and those without a comment."""
    anchors = {i for name, page in pages.items() if name.startswith("reference/") for i in page.ids}
    told = dict(line.split() for line in (site / "names.txt").read_text().splitlines())
    declared = public.declared(source)
    for name in sorted(set(told) | set(declared)):
        if "c." + name not in anchors and not any(i.endswith("." + name) for i in anchors):
            yield f"the reference has no {name}"
        elif name in declared and told.get(name) != "1":
            yield f"{name} has no comment"


def main():
    source, site = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    root = site / "html"
    pages = {str(path.relative_to(root)): Page(path) for path in sorted(root.rglob("*.html"))}
    failures = [f"{name}: {wrong}" for name, page in pages.items() for wrong in page.wrong]
    failures += [wrong for name, page in pages.items() for wrong in bad_links(name, page, pages, root)]
    failures += list(missing_names(source, site, pages))
    wanted = sum(len(re.findall(r"^<!-- drawing: ", path.read_text(), re.M)) for path in (source / "docs").rglob("*.md"))
    drawn = sum(page.drawings for page in pages.values())
    if drawn != wanted or not drawn:
        failures.append(f"{wanted} drawings are asked for, the site has {drawn}")
    if len(pages) < 100:
        failures.append(f"only {len(pages)} pages were built")
    links = sum(len(page.links) for page in pages.values())
    print("\n".join(failures) or f"{len(pages)} pages, {links} links, {drawn} drawings")
    return bool(failures)


sys.exit(main())
