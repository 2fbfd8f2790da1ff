# SPDX-License-Identifier: Apache-2.0
"""Doxygen's XML of the public headers as pages of Sphinx's C domain: one page for each header, in the header's order, one of the
functions of core.h, one of all names. A function is shown with its comment, its counterpart in PyTorch (counterparts.py), and its
example in docs/snippets.md if it has one."""
import re
import xml.etree.ElementTree as ET

import counterparts

FOLDERS = {"tensor": "Tensors, devices, errors, scopes", "autograd": "Variables and differentiable ops", "nn": "Modules, layers, state",
           "data": "Datasets, transforms, loaders", "optim": "Optimizers and schedules", "graph": "Flows, graphs, metrics, the timeline",
           "onnx": "Export to ONNX", "distributed": "Training on many ranks", "monitor": "Watching a run"}


def escaped(text):
    return re.sub(r"([\\*`_|])", r"\\\1", re.sub(r"\s+", " ", text or ""))


def named(text):
    """Text with names of the library as code, which conf.py links."""
    parts = re.split(r"(\b(?:trek|TREK)_\w+\b(?:\(\))?)", text or "")
    shown = ""
    for k, part in enumerate(parts):
        shown += f"\\ ``{part}``\\ " if k % 2 else escaped(part)
    return shown


def inline(node):
    """A paragraph's text; what stands on its own in it is left to blocks()."""
    shown = named(node.text)
    for child in node:
        words = "".join(child.itertext())
        if child.tag in ("computeroutput", "ref") and words.strip():
            shown += f"\\ ``{words.strip()}``\\ "
        elif child.tag == "linebreak":
            shown += "\n\n"
        elif child.tag not in ("programlisting", "itemizedlist", "simplesect"):
            shown += inline(child)
        shown += named(child.tail)
    return shown


def code_text(node):
    shown = node.text or ""
    for child in node:
        shown += (" " if child.tag == "sp" else code_text(child)) + (child.tail or "")
    return shown


def blocks(description):
    """Lines of reStructuredText of a description."""
    lines = []
    for para in description.iter("para") if description is not None else ():
        flat = ET.Element("para")
        flat.text = para.text
        for child in para:
            if child.tag == "programlisting":
                lines += paragraphs(flat) + [".. code-block:: c", "", *["   " + code_text(line) for line in child.iter("codeline")], ""]
                flat = ET.Element("para")
                flat.text = child.tail
            else:
                flat.append(child)
        lines += paragraphs(flat)
    return lines


def paragraphs(node):
    return [line for part in inline(node).split("\n\n") if part.strip() for line in (tidy(part), "")]


def tidy(text):
    """Without the joints that inline markup does not need; a line begins with what means a list only if it is an item of one."""
    text = re.sub(r"\\ (?=\s|$)", "", re.sub(r"(^|\s)\\ (?=``)", r"\1", text.strip()))
    if text.startswith("- "):
        return text
    return re.sub(r"^([-+#]|\w+[.)])(?=\s)", r"\\\1", text)


def indented(lines):
    return ["   " + line if line else "" for line in lines]


def told(member):
    return blocks(member.find("briefdescription")) + blocks(member.find("detaileddescription"))


def plain(text):
    text = re.sub(r"\s*__attribute__\s*\(\(.*?\)\)(\))*", "", text or "")
    return re.sub(r"\s+", " ", text).replace("( *", "(*").replace("(* ", "(*").strip()


def declaration(member):
    """Without typedef, static, extern and the struct's name."""
    definition = plain(member.findtext("definition"))
    shown = definition if "(*" in definition else plain(member.findtext("definition") + (member.findtext("argsstring") or ""))
    return re.sub(r"\b\w+::", "", re.sub(r"^(?:(?:typedef|static|extern|inline) )+", "", shown))


def examples_of(page):
    """The code of docs/snippets.md for each function that a heading names."""
    found = {}
    for heading, code in re.findall(r"^### ([^\n]*)\n(?:(?!#|```)[^\n]*\n)*```c\n(.*?)^```", page, re.S | re.M):
        found.update({name: code.splitlines() for name in heading.split(", ")})
    return found


class Reference:
    def __init__(self, xml, examples):
        self.xml, self.examples = xml, examples
        index = ET.parse(xml / "index.xml").getroot()
        self.files = {}
        for compound in index.iter("compound"):
            if compound.get("kind") == "file":
                root = ET.parse(xml / (compound.get("refid") + ".xml")).getroot().find("compounddef")
                self.files[root.find("location").get("file")] = root
        self.names = {}  # name: whether it has a comment
        self.structs = {name.text for name in index.iterfind("compound[@kind='struct']/name")}

    def struct(self, refid):
        """(line, lines) of a struct or union."""
        root = ET.parse(self.xml / (refid + ".xml")).getroot().find("compounddef")
        name = root.find("compoundname").text
        lines = [f".. c:{root.get('kind')}:: {name}", "", *indented(told(root))]
        self.names[name] = bool(told(root)) or any(told(member) for member in root.iter("memberdef"))
        for member in root.iter("memberdef"):
            lines += ["", *indented([f".. c:member:: {declaration(member)}", "", *indented(told(member))])]
        return int(root.find("location").get("line")), name, lines

    def member(self, member):
        kind, name = member.get("kind"), member.findtext("name")
        text = told(member)
        if kind == "typedef" and not text and re.fullmatch(rf"struct {name} {name}", declaration(member)):
            text = ["Known by pointers only.", ""]
        self.names[name] = bool(text)
        if kind == "function":
            path = member.find("location").get("file")
            text = text + self.more(name, path)
        if kind in DIRECTIVES:
            return [f".. c:{DIRECTIVES[kind]}:: {declaration(member)}", "", *indented(text)]
        if kind == "define":
            parameters = member.findall("param")
            list_ = "(" + ", ".join(p.findtext("defname") or "" for p in parameters) + ")" if parameters else ""
            return [f".. c:macro:: {name}{list_}", "", *indented(text)]
        lines = [f".. c:enum:: {name}", "", *indented(text)]
        for value in member.findall("enumvalue"):
            self.names[name] = self.names[name] or bool(told(value))
            lines += ["", *indented([f".. c:enumerator:: {value.findtext('name')}", "", *indented(told(value))])]
        self.names.update({value.findtext("name"): self.names[name] for value in member.findall("enumvalue")})
        return lines

    def more(self, name, path):
        """What a function has besides its comment."""
        sentence, code = counterparts.shown(name, path), self.examples.get(name)
        lines = [tidy(sentence), ""] if sentence else []
        return lines + (["*Example:*", "", ".. code-block:: c", "", *["   " + line for line in code], ""] if code else [])

    def page(self, path, core):
        """A header's page; core: whether core.h includes it."""
        root = self.files[path]
        entries, structs = [], {}
        for inner in root.findall("innerclass"):
            line, name, lines = self.struct(inner.get("refid"))
            if "@" not in name and "::" not in name:
                entries.append((line, lines))
                structs[name] = 1
        enums = {m.findtext("name") for m in root.iter("memberdef") if m.get("kind") == "enum"}
        for section in root.findall("sectiondef"):
            title, about = section.findtext("header"), blocks(section.find("description"))
            first = True
            for member in section.findall("memberdef"):
                name, line = member.findtext("name"), int(member.find("location").get("line"))
                if member.get("kind") == "typedef" and (name in self.structs or name in enums) or name.endswith("_H") or name in HIDDEN:
                    continue
                head = [title, "-" * (2 * len(title)), "", *about, ""] if title and first else []
                first = first and not title
                entries.append((line, head + self.member(member)))
        entries.sort(key=lambda entry: entry[0])
        body = [line for _, lines in entries for line in [*lines, ""]]
        listed = [match[1] for line in body for match in [re.match(r"\.\. c:\w+:: .*?(\w+)(?:\)?\(|\[|$)", line)] if match]
        return "\n".join([path, "=" * len(path), "", f"``#include <trek/{path}>``." + included(path, core), "",
                          *blocks(root.find("briefdescription")), *blocks(root.find("detaileddescription")),
                          ".. rst-class:: names", "", " ".join(f"``{name}``" for name in listed), "", *body]) + "\n"


DIRECTIVES = {"function": "function", "typedef": "type", "variable": "var"}
HIDDEN = {"TREK_API", "TREK_BEGIN", "TREK_END", "TREK_PRINTF", "TREK_DTYPE_ENUM", "TREK_STATUS_ENUM"}


def by_letter(names):
    """A page of all names, by the first letter after the prefix; each leads to its entry (conf.py)."""
    lines = ["Every name", "==========", "", f"{len(names)} functions, types, values and macros, by letter.", ""]
    groups = {}
    for name in sorted(names, key=str.lower):
        kind, letter = name.split("_", 1)[0].lower(), name.split("_", 1)[-1][:1].lower()
        groups.setdefault(letter if kind == "trek" else "other", []).append(name)
    for letter, found in sorted(groups.items(), key=lambda group: (len(group[0]), group[0])):
        lines += [letter, "-" * len(letter), "", " |nbsp| ".join(f"``{name}``" for name in found), ""]
    return "\n".join([*lines, ".. |nbsp| unicode:: 0x20", ""])


def included(path, core):
    """A sentence about the headers that include this one. trek.h includes all but one (trek.h says why)."""
    if path == "optim/update_element.h":
        return " ``<trek/trek.h>`` does not include it."
    return " It is also part of " + ("``<trek/core.h>`` and of " if core else "") + "``<trek/trek.h>``."


def first_page(first):
    """A page of the functions of core.h, by the headers that declare them; each leads to its entry (conf.py)."""
    lines = ["The functions to begin with", "===========================", "",
             f"``#include <trek/core.h>`` declares the {len(first)} functions that most programs begin with. ``#include <trek/trek.h>`` declares "
             "these and all others.", ""]
    for part, title in FOLDERS.items():
        if not any(path.startswith(part + "/") for path in first.values()):
            continue
        lines += [title, "-" * len(title), ""]
        for path in sorted({path for path in first.values() if path.startswith(part + "/")}):
            names = [name for name, where in first.items() if where == path]
            lines += [f"* :doc:`{path} <{path[:-2].replace('/', '-')}>`: " + " |nbsp| ".join(f"``{name}``" for name in names)]
        lines += [""]
    return "\n".join([*lines, ".. |nbsp| unicode:: 0x20", ""])


def write(xml, headers, first, folder, snippets):
    """Pages of the headers in `folder`, with an index; every name, and whether it has a comment. first: the functions of core.h;
    snippets: the text of the examples."""
    reference = Reference(xml, examples_of(snippets))
    parts = {}
    for path in headers:
        name = path[:-2].replace("/", "-")
        (folder / (name + ".rst")).write_text(reference.page(path, path in first.values()))
        parts.setdefault(path.split("/")[0], []).append(name)
    lines = ["Reference", "=========", "", "Every public name, a page for each header. All of it comes with ``#include <trek/trek.h>``, and the functions to begin "
             "with come with ``#include <trek/core.h>``.", "", ".. toctree::", "   :maxdepth: 1", "", "   core", ""]
    for part, title in FOLDERS.items():
        if part in parts:
            lines += [title, "-" * len(title), "", ".. toctree::", "   :maxdepth: 1", "", *["   " + name for name in sorted(parts.pop(part))], ""]
    for part, names in parts.items():
        lines += [part, "-" * len(part), "", ".. toctree::", "   :maxdepth: 1", "", *["   " + name for name in sorted(names)], ""]
    lines += ["All of them", "-----------", "", ".. toctree::", "   :maxdepth: 1", "", "   names", ""]
    (folder / "core.rst").write_text(first_page(first))
    (folder / "names.rst").write_text(by_letter(reference.names))
    (folder / "index.rst").write_text("\n".join(lines))
    return reference.names
