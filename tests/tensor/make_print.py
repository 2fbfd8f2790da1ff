#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes print.txt: how NumPy (2.x) prints the arrays that tests/tensor/test_print.c prints.

usage: make_print.py > print.txt      Entries end with a line "--"; the same cases in the same order.
"""
import numpy as np

f4, f8 = np.float32, np.float64


def show(values, shape, dtype):
    print(np.array(values, dtype=f8).reshape(shape).astype(dtype))
    print("--")


a = [1, 2, 3, 4.5, -1, 0.25]
show(a, (2, 3), f4)
show(a, 6, np.int64)
show([1e-10, 1, 1000, np.nan, np.inf, -np.inf], 6, f8)
show([1 / 3, 2 / 3, 1e5], 3, f8)
show([1 / 3, 2 / 3, 1e5], 3, f4)
show([1, 2, 3], 3, f4)
show([1, 0, 3], (3, 1), bool)
show([1], 1, f4)
show([1], (), f4)
show([], (0, 3), f4)
show([0.1, 0.12, 123456789.0], 3, f8)
show([0.1, 0.2, 0.3, 1e-5], (2, 1, 2), f4)
show([3.14159265358979], (), f8)
show([3.14159265358979], 1, np.float16)
show(np.arange(100), 100, f4)
show(np.arange(100), (2, 2, 25), f4)
show(np.arange(2000), (20, 100), f4)
show(np.arange(3000), (10, 10, 30), np.int64)
show([200, 7, 0], 3, np.uint8)
