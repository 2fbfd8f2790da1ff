# SPDX-License-Identifier: Apache-2.0
"""Sphinx's settings, and what links code to the reference. The pages are staged by build.py."""
import pathlib
import re

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform

project = "trek"
copyright = "the authors of trek"  # noqa: A001
extensions = ["myst_parser"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
primary_domain = "c"
highlight_language = "none"
html_theme = "furo"
html_title = "trek"
html_copy_source = False
html_show_sphinx = False
html_use_index = False  # the search, and a page for each header
html_static_path = ["static"]
html_css_files = ["trek.css"]
html_search_scorer = str(pathlib.Path(__file__).parent / "static" / "scorer.js")  # exact names first
html_theme_options = {"navigation_with_keys": True}
myst_heading_anchors = 4
c_maximum_signature_line_length = 100
toc_object_entries = False  # thousands of names in the sidebar of every page
NAME = re.compile(r"\b(?:trek|TREK)_\w+")


def targets(env):
    """Where each public name is described: (page, anchor)."""
    found = {}
    for name, _, kind, page, anchor, _ in env.get_domain("c").get_objects():
        if kind not in ("member", "functionParam"):
            found[name.rsplit(".", 1)[-1]] = (page, anchor)
    return found


class LinkNames(SphinxPostTransform):
    """Names in code spans lead to the reference, but for that on its own page's entry."""
    default_priority = 400

    def run(self, **_):
        if self.app.builder.format != "html":
            return
        if not hasattr(self.env, "trek_targets"):
            self.env.trek_targets = targets(self.env)
        for literal in list(self.document.findall(nodes.literal)):
            if isinstance(literal.parent, (nodes.reference, nodes.title)) or len(literal.children) != 1:
                continue
            parts = self.linked(literal.astext())
            if any(isinstance(part, nodes.reference) for part in parts):
                literal.children = []
                literal.extend(parts)

    def linked(self, text):
        parts, at = [], 0
        for match in NAME.finditer(text):
            target = self.env.trek_targets.get(match[0])
            if target:
                page, anchor = target
                uri = self.app.builder.get_relative_uri(self.env.docname, page) + "#" + anchor
                parts += [nodes.Text(text[at:match.start()]), nodes.reference("", match[0], internal=True, refuri=uri)]
                at = match.end()
        return [part for part in [*parts, nodes.Text(text[at:])] if part.astext()]


def link_code(app, page, template, context, doctree):
    """Names in blocks of C likewise; tables may be scrolled."""
    if not doctree or "body" not in context:
        return
    found = getattr(app.env, "trek_targets", {})

    def link(match):
        target = found.get(match[2])
        if not target:
            return match[0]
        return f'<a class="{match[1]}" href="{app.builder.get_relative_uri(page, target[0])}#{target[1]}">{match[2]}</a>'
    context["body"] = re.sub(r'<span class="(n|nf|kt|nb|nc)">((?:trek|TREK)_\w+)</span>', link, context["body"])


def setup(app):
    app.add_post_transform(LinkNames)
    app.connect("html-page-context", link_code)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
