#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes unicode_classes.c: which code points are letters (general categories L*) and numbers (N*), of Unicode 16, as the tokenizers
package has them: by unicodedata of Python 3.14, or the package unicodedata2 of that version.
    usage: make_unicode_classes.py > data/unicode_classes.c"""
import unicodedata

if unicodedata.unidata_version != "16.0.0":
    import unicodedata2 as unicodedata


def ranges(kind):
    found = []
    for code in range(0x110000):
        if unicodedata.category(chr(code))[0] != kind:
            continue
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return found


def table(name, kind):
    items = [f"{{ 0x{first:X}, 0x{last:X} }}," for first, last in ranges(kind)]
    lines, line = [], "   "
    for item in items:
        if len(line) + 1 + len(item) > 129:
            lines.append(line)
            line = "   "
        line += " " + item
    lines.append(line)
    print(f"const trek_code_range {name}[{len(items)}] = {{")
    print("\n".join(lines))
    print("};")
    print(f"const int {name}_count = {len(items)};")


print("/* SPDX-License-Identifier: Apache-2.0 */")
print(f"/* Written by make_unicode_classes.py: general categories of Unicode {unicodedata.unidata_version}. */")
print('#include "data/tokenizer_internal.h"\n')
table("trek_unicode_letters", "L")
print()
table("trek_unicode_numbers", "N")
