#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every public function is named by a test: in code of tests/ that is built, not in a comment, a message, what the preprocessor
leaves out, a declaration or a cast to void, and not in a benchmark alone."""
import pathlib
import re
import sys

import public

NO_CODE = re.compile(r"""/\*.*?\*/ | //(?:\\\n|[^\n])* | R"(\w*)\(.*?\)\1" | "(?:\\.|[^"\\\n])*" | '(?:\\[^\n']{1,9}|\\'|[^'\\\n])'""", re.S | re.X)
LEFT_OUT = re.compile(r"^[ \t]*#[ \t]*if[ \t]+0\b.*?^[ \t]*#[ \t]*(?:endif|else|elif)\b", re.S | re.M)
UNUSED = re.compile(r"\(void\)\s*\w+\s*;|^(?:TREK_API|extern)\b[^;{=]*;|^(?:\w+[ \t*]+)+trek_\w+\([^;{]*\);", re.M)


def names(text):
    """What begins with trek_ and is used."""
    for pattern in (NO_CODE, LEFT_OUT, UNUSED):
        text = pattern.sub(" ", text)
    return set(re.findall(r"\btrek_\w+", text))


def built(root):
    """The sources under tests/ that some meson.build lists, by path or name, and all headers."""
    listed = "\n".join(build.read_text() for build in (root / "tests").rglob("meson.build"))
    words = set(re.findall(r"[\w.]+", listed))
    for source in sorted((root / "tests").rglob("*")):
        if source.suffix in (".c", ".h", ".cc") and "bench" not in source.relative_to(root).parts:
            if source.suffix == ".h" or words & {source.name, source.stem, source.stem.removeprefix("test_")}:
                yield source


SAMPLES = {"x = trek_a(1); y = 'c' + trek_b;": {"trek_a", "trek_b"}, "/* trek_a(1) */ // trek_b \\\n trek_c()\n": set(), 'f("trek_a(1) \\" trek_b");': set(),
           "f('\"', trek_a); g(\"trek_b\");": {"trek_a"}, "f('\\'', \"trek_a\");": set(), 'f("/*"); trek_a(); g("*/");': {"trek_a"},
           "#if 0\ntrek_a();\n#endif\ntrek_b();": {"trek_b"}, "(void)trek_a;\nextern int trek_b(int x);\nint trek_c(void);\n": set(),
           "R\"(trek_a \" )\" trek_b": {"trek_b"}, "    int x = trek_a(\n        1);": {"trek_a"}, "static int (*f)(int) = trek_a;": {"trek_a"}}

root = pathlib.Path(sys.argv[1])
declared = public.declared(root)
named = set().union(*(names(source.read_text()) for source in built(root)))
failures = [f"names() finds {sorted(names(text))} in {text!r}" for text, wanted in SAMPLES.items() if names(text) != wanted]
failures += [f"{header} declares {name}, which no test names" for name, header in sorted(declared.items()) if name not in named]
if len(declared) < 100:
    failures.append(f"only {len(declared)} declarations were found: is this check reading the headers?")
print("\n".join(failures) or f"{len(declared)} public functions, all named by tests")
sys.exit(bool(failures))
