#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether a test program runs the cases that TREK_TEST_CASE names, and fails if it has none of that name:
check_choice.py PROGRAM, which is test_print.c's."""
import os
import re
import subprocess
import sys

EVERY = {"as_numpy", "without_locale", "to_streams", "to_nowhere"}
CHOICES = {"": EVERY, "*": EVERY, "to_*": {"to_streams", "to_nowhere"}, "to_nowher?": {"to_nowhere"}, "as_numpy": {"as_numpy"}, "-": set(),
           "to_nowher": None, "no_such_*": None, "to_nowhere?": None} # None: it has no such case


def main() -> None:
    for chosen, wanted in CHOICES.items():
        done = subprocess.run([sys.argv[1]], env=dict(os.environ, TREK_TEST_CASE=chosen), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=100, check=False)
        passed = set(re.findall(r"^\[ +OK +\] (\w+)$", done.stdout, re.M))
        refusal = f"TREK_TEST_CASE: {chosen}; none of the {len(EVERY)} cases has that name\n\n 1 FAILED TEST(S)\n"
        if (done.returncode != 0) != (wanted is None) or (refusal in done.stdout) != (wanted is None) or passed != (wanted or set()):
            sys.exit(f"TREK_TEST_CASE={chosen}: status {done.returncode}, and not {wanted or refusal}:\n{done.stdout}")


if __name__ == "__main__":
    main()
