# SPDX-License-Identifier: Apache-2.0
"""The numbers of test_number in support/support.c."""
import numpy as np


def numbers(stream, count):
    with np.errstate(over="ignore"):
        x = np.uint32(stream) * np.uint32(0x9E3779B1) + np.arange(count, dtype=np.uint32) * np.uint32(0x85EBCA77) + np.uint32(0xC2B2AE3D)
        x ^= x >> np.uint32(15)
        x *= np.uint32(0x2C1B3C6D)
        x ^= x >> np.uint32(12)
        x *= np.uint32(0x297A2D39)
        x ^= x >> np.uint32(15)
    return ((x >> np.uint32(7)).astype(np.int64) - (1 << 24)).astype(np.float32) * np.float32(2.0**-24)


def tensor(stream, shape, scale):
    import torch  # which those who want numbers alone need not have

    count = int(np.prod(shape)) if len(shape) else 1
    values = np.float32(scale) * numbers(stream, count)
    return torch.from_numpy(values.astype(np.float64).reshape(shape))
