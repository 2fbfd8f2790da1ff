#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sampling against the transformers package: what trek_filter_logits leaves of random logits is what the processors of its
generate() leave, and the same scores.

    usage: check_generate.py <path of libtrek.so>      (needs numpy, torch and transformers)"""
import ctypes
import math
import sys

import numpy as np
import torch
from transformers.generation import logits_process as theirs

ROWS, WORDS = 3, 211
lib = ctypes.CDLL(sys.argv[1])


class Shape(ctypes.Structure):
    _fields_ = [("ndim", ctypes.c_int), ("sizes", ctypes.c_int64 * 8)]


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("index", ctypes.c_int)]


class Scope(ctypes.Structure):
    _fields_ = [("depth", ctypes.c_uint32), ("serial", ctypes.c_uint32)]


class Options(ctypes.Structure):
    _fields_ = [("temperature", ctypes.c_double), ("top_k", ctypes.c_int64), ("top_p", ctypes.c_double),
                ("repetition_penalty", ctypes.c_double), ("seed", ctypes.c_uint64), ("step", ctypes.c_uint64),
                ("seen", ctypes.POINTER(ctypes.POINTER(ctypes.c_int64))), ("n_seen", ctypes.POINTER(ctypes.c_int64))]


lib.trek_tensor_from_data.restype = lib.trek_var_from.restype = lib.trek_filter_logits.restype = ctypes.c_void_p
lib.trek_tensor_from_data.argtypes = [ctypes.c_void_p, Shape, ctypes.c_int, Device]
lib.trek_var_from.argtypes = lib.trek_var_data.argtypes = [ctypes.c_void_p]
lib.trek_var_data.restype = lib.trek_tensor_data.restype = ctypes.c_void_p
lib.trek_tensor_data.argtypes = [ctypes.c_void_p]
lib.trek_filter_logits.argtypes = [ctypes.c_void_p, ctypes.POINTER(Options)]
lib.trek_scope_begin.restype, lib.trek_scope_end.argtypes = Scope, [Scope]
lib.trek_error.restype = ctypes.c_char_p
lib.trek_dtype_name.restype, lib.trek_dtype_name.argtypes = ctypes.c_char_p, [ctypes.c_int]
F64 = next(k for k in range(16) if lib.trek_dtype_name(k) == b"f64")


def ours(logits, seen, options):
    scope = lib.trek_scope_begin()
    data = np.ascontiguousarray(logits, np.float64)
    rows = (ctypes.POINTER(ctypes.c_int64) * ROWS)(*(row.ctypes.data_as(ctypes.POINTER(ctypes.c_int64)) for row in seen))
    counts = (ctypes.c_int64 * ROWS)(*(len(row) for row in seen))
    shape = Shape(2, (ctypes.c_int64 * 8)(ROWS, WORDS))
    var = lib.trek_var_from(lib.trek_tensor_from_data(data.ctypes.data, shape, F64, Device(0, 0)))
    made = lib.trek_filter_logits(var, Options(seen=rows, n_seen=counts, **options))
    assert made, lib.trek_error()
    at = ctypes.cast(lib.trek_tensor_data(lib.trek_var_data(made)), ctypes.POINTER(ctypes.c_double))
    result = np.ctypeslib.as_array(at, (ROWS, WORDS)).copy()
    lib.trek_scope_end(scope)
    return result


def expected(logits, seen, options):
    scores, ids = torch.tensor(logits), torch.tensor(np.stack(seen))
    steps = [(theirs.RepetitionPenaltyLogitsProcessor, "repetition_penalty"), (theirs.TemperatureLogitsWarper, "temperature"),
             (theirs.TopKLogitsWarper, "top_k"), (theirs.TopPLogitsWarper, "top_p")]
    for step, name in steps:
        if options.get(name):
            scores = step(options[name])(ids, scores)
    return scores.numpy()


rng, cases = np.random.default_rng(1), 0
for temperature in (0, 0.4, 1.7):
    for top_k in (0, 1, 12, WORDS):
        for top_p in (0, 0.1, 0.75, 0.98):
            for penalty in (0, 0.7, 1.3):
                logits = rng.normal(0, 3, (ROWS, WORDS))
                seen = [rng.integers(0, WORDS, 9) for _ in range(ROWS)]
                options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "repetition_penalty": penalty}
                one, other = ours(logits, seen, options), expected(logits, seen, options)
                assert (np.isinf(one) == np.isinf(other)).all(), (options, np.isfinite(one).sum(1), np.isfinite(other).sum(1))
                kept = np.isfinite(one)
                assert np.allclose(one[kept], other[kept], rtol=1e-14, atol=0), options
                assert not math.isnan(one.max())
                cases += 1
print(f"{cases} combinations of {ROWS} rows leave the same tokens")
