#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sums what the programs of one meson test run report: prints "passed failed skipped".

A cmocka program reports its own tests; a check, or a program that died before
its summary, counts as one, and one whose cases were all left out (TREK_TEST_CASE=-) as none."""
import json
import pathlib
import re
import sys

passed = failed = skipped = 0
log = pathlib.Path(sys.argv[1])
for line in log.read_text().splitlines() if log.exists() else []:
    test = json.loads(line)
    text = (test.get("stdout") or "") + "\n" + (test.get("stderr") or "")
    good = sum(map(int, re.findall(r"^\[  PASSED  \] (\d+) test", text, re.M)))
    bad = sum(map(int, re.findall(r"^ *(\d+) FAILED TEST", text, re.M)))
    left = sum(map(int, re.findall(r"^ *(\d+) SKIPPED TEST", text, re.M)))
    broken = test["result"] not in ("OK", "EXPECTEDFAIL", "SKIP")
    if test["result"] == "SKIP":
        left += 1
    elif broken and not bad:
        bad += 1
    elif not broken and not good and not left and not re.search(r"^\[=+\].* 0 test\(s\) run", text, re.M):
        good += 1
    if broken:
        print(f"FAILED: {test['name']} ({test['result']})", file=sys.stderr)
        whys = (r"^\[  FAILED  \] .*$|^(?:\[  ERROR   \] ---|ERROR:) .*(?:\n(?!\[|ERROR:).*){0,5}"
                r"|^.*ERROR: \w+Sanitizer.*$|^WARNING: ThreadSanitizer.*$")
        for why in re.findall(whys, text, re.M)[:12]: # with the lines that follow a message: it may be one of several
            print("    " + why.replace("\n", "\n    "), file=sys.stderr)
    passed, failed, skipped = passed + good, failed + bad, skipped + left
print(passed, failed, skipped)
