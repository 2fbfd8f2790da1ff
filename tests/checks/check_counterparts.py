#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's counterparts (docs/site/counterparts.py): every public op, loss, layer, initialiser, optimizer, schedule and transform
has one, or is listed as a function without one. The lists, and the headings of docs/snippets.md, name functions that exist.

Usage: check_counterparts.py <source root>
"""
import pathlib
import re
import sys

import public

ANSWERED = re.compile(r"trek_(?:nn|init|transform)_")


def wanted(root, name, header):
    """Whether a function needs an answer."""
    if str(header).startswith("autograd/") or ANSWERED.match(name):
        return True
    declared = re.search(r"TREK_API\s+([\w *]+?)\s*\*?\b" + name + r"\s*\(", (root / header).read_text())
    return bool(declared) and declared[1] in ("trek_optimizer_spec", "trek_schedule")


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(root / "docs" / "site"))
    import counterparts  # noqa: PLC0415
    declared = public.declared(root)
    same = [name for names in counterparts.SAME.values() for name in names.split()]
    listed = [*counterparts.OTHERS, *counterparts.NONE, *same]
    failures = [f"counterparts.py: {name} does not exist" for name in listed if name not in declared]
    failures += [f"counterparts.py: {name} is listed twice" for name in sorted({name for name in listed if listed.count(name) > 1})]
    failures += [f"{name} ({header}): counterparts.py names no counterpart; list it in NONE if PyTorch has none"
                 for name, header in declared.items() if wanted(root, name, header) and counterparts.counterpart(name, header) is None]
    headings = re.findall(r"^### (.*)$", (root / "docs" / "snippets.md").read_text(), re.M)
    examples = [name for heading in headings for name in heading.split(", ")]
    failures += [f"docs/snippets.md: {name} does not exist" for name in examples if name not in declared]
    answered = sum(counterparts.counterpart(name, header) is not None for name, header in declared.items())
    print("\n".join(failures) or f"{answered} functions with a counterpart or a stated none, {len(examples)} with an example")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
