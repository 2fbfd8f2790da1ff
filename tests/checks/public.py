# SPDX-License-Identifier: Apache-2.0
"""What is public: the headers that are listed to be installed, and what they declare. For the checks beside it."""
import re


def headers(root):
    """Paths of the headers that are installed, core.h and trek.h aside."""
    found = []
    folders = re.findall(r"^ *subdir\('(\w+)'\)", (root / "meson.build").read_text(), re.M)  # not those where something is built
    for build in sorted(path for folder in folders for path in (root / folder).rglob("meson.build")):
        for listed in re.findall(r"trek_headers\s*\+=\s*\{([^}]*)\}", build.read_text()):
            found += [build.parent / name for name in re.findall(r"'([\w/]+\.h)'", listed)]
    return found


def declared(root):
    """Each function and variable: the header that declares it."""
    found = {}
    for header in headers(root):
        text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)
        for declaration in re.findall(r"TREK_API\b([^;{]*);", text):
            match = re.search(r"\b(trek_\w+)\s*\(", declaration) or re.search(r"\b(trek_\w+)\s*(?:\[[^]]*\])?\s*$", declaration)
            if match:
                found[match.group(1)] = header.relative_to(root)
    return found


def reached(root, header):
    """A header and all that it includes, by their paths from the root."""
    found, waiting = set(), [header]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += re.findall(r'^#include "([^"]+)"', (root / name).read_text(), re.M)
    return found


def first(root):
    """Each function of core.h: the header that declares it."""
    headers_of_core = reached(root, "core.h")
    return {name: header for name, header in declared(root).items() if str(header) in headers_of_core}
