#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What tests/count.py, and with it tests/run.sh, makes of what programs say: also of one that has run nothing.

Usage: check_count.py <source root>
"""
import json
import pathlib
import subprocess
import sys
import tempfile

CASES = [  # result of the program, its output, passed failed skipped
    ("OK", "[==========] tests: Running 2 test(s).\n[==========] tests: 2 test(s) run.\n[  PASSED  ] 2 test(s).\n", "2 0 0"),
    ("FAIL", "[==========] 3 test(s) run.\n[  PASSED  ] 1 test(s).\n[  FAILED  ] 2 test(s), listed below:\n\n 2 FAILED TEST(S)\n", "1 2 0"),
    ("OK", "[==========] 2 test(s) run.\n[  PASSED  ] 1 test(s).\n[  SKIPPED ] 1 test(s), listed below:\n\n 1 SKIPPED TEST(S)\n", "1 0 1"),
    ("OK", "a check that says something\n", "1 0 0"),
    ("SKIP", "there is no such engine\n", "0 0 1"),
    ("FAIL", "died in the middle\n", "0 1 0"),
    ("TIMEOUT", "[==========] Running 5 test(s).\n", "0 1 0"),
    # the case that was asked for is not one of the program's
    ("OK", "[==========] tests: Running 0 test(s).\n[==========] tests: 0 test(s) run.\n[  PASSED  ] 0 test(s).\n", "0 0 0"),
]
failures = []
for result, said, expected in CASES:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as log:
        log.write(json.dumps({"name": "program", "result": result, "stdout": said, "stderr": ""}) + "\n")
        log.flush()
        counted = subprocess.run([sys.executable, str(pathlib.Path(sys.argv[1]) / "tests/count.py"), log.name],
                                 capture_output=True, text=True).stdout.strip()
    if counted != expected:
        failures.append(f"{result}: {counted} instead of {expected}:\n{said}")
print("\n".join(failures) or f"{len(CASES)} programs")
sys.exit(bool(failures))
