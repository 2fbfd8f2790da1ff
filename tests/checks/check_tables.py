#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Arrays in files against NumPy, both ways, and tables of text against Python's csv.
    usage: check_tables.py <path of libtrek.so>      (needs numpy)"""
import csv
import ctypes
import math
import pathlib
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "differential"))
from headers import Headers, Unknown

headers = Headers("tensor/status.h", "tensor/types.h", "tensor/tensor.h", "tensor/layout.h", "data/dataset.h", "data/dataset_class.h", "data/npy.h", "data/csv.h")
library = ctypes.CDLL(sys.argv[1])
for function in headers.functions.values():
    try:
        bound = getattr(library, function.name)
        bound.restype, bound.argtypes = headers.type(function.result), [headers.type(kind) for kind, _ in function.params]
    except (AttributeError, Unknown):
        continue
DTYPE = headers.enums["trek_dtype"]
NUMBERS = {"TREK_F32": np.float32, "TREK_F64": np.float64, "TREK_F16": np.float16, "TREK_I64": np.int64, "TREK_I32": np.int32, "TREK_U8": np.uint8, "TREK_BOOL": np.bool_}
OF_TREK = {DTYPE[name]: np.dtype(kind) for name, kind in NUMBERS.items()}
OF_NUMPY = {kind: number for number, kind in OF_TREK.items()}
BECOMES = {"int8": "int32", "int16": "int32", "uint16": "int32", "uint32": "int64"}
S = headers.structs
checks = 0


def made(pointer, what):
    if not pointer:
        message = library.trek_error().decode()
        library.trek_error_clear()
        raise RuntimeError(f"{what}: {message}")
    return pointer


def array(pointer, what):
    made(pointer, what)
    have, dtype = library.trek_tensor_shape(pointer), library.trek_tensor_dtype(pointer)
    out = np.empty(have.sizes[: have.ndim], OF_TREK[dtype])
    assert library.trek_tensor_to_host(pointer, dtype, out.ctypes.data, out.nbytes) == 0
    library.trek_tensor_release(pointer)
    return out


def tensor(x):
    x = np.array(x, order="C")
    shape = S["trek_shape"](x.ndim, (ctypes.c_int64 * 8)(*x.shape))
    return made(library.trek_tensor_from_data(x.ctypes.data, shape, OF_NUMPY[x.dtype], S["trek_device"](0, 0)), "tensor")


def same(what, ours, theirs):
    global checks
    checks += 1
    theirs = theirs.astype(BECOMES.get(theirs.dtype.newbyteorder("=").name, theirs.dtype.newbyteorder("=")))
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape and np.array_equal(ours, theirs, equal_nan=ours.dtype.kind == "f"), (what, ours.dtype, theirs.dtype, ours.shape, theirs.shape)


random = np.random.default_rng(3)


def numbers(shape, kind):
    x = random.normal(0, 50, shape)
    return np.asarray(x > 0 if kind == "bool" else np.abs(x) if kind[0] == "u" else x).astype(kind)


KINDS = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "bool"]
SHAPES = [(), (0,), (1,), (7,), (3, 4), (2, 3, 4), (5, 0, 2), (1, 2, 1, 2, 1, 3)]


def check_arrays(folder):
    path = folder / "x.npy"
    for kind in KINDS:
        for shape in SHAPES:
            for order in "<>":
                for fortran in (False, True):
                    x = numbers(shape, kind)
                    x = x.astype(x.dtype.newbyteorder(order))
                    x = np.asfortranarray(x) if fortran else x
                    np.save(path, x)
                    same(f"{kind} {shape} {order} {fortran}", array(library.trek_npy_read(str(path).encode()), path), x)
            if np.dtype(kind) in OF_NUMPY:
                kept = numbers(shape, kind)
                ours = tensor(kept)
                assert library.trek_npy_write(str(path).encode(), ours) == 0, library.trek_error()
                library.trek_tensor_release(ours)
                back = np.load(path)
                assert back.dtype == kept.dtype and back.shape == kept.shape and (back == kept).all()
    for version in ((1, 0), (2, 0), (3, 0)):
        with open(path, "wb") as file:
            np.lib.format.write_array(file, numbers((3, 2), "float32"), version=version)
        assert array(library.trek_npy_read(str(path).encode()), version).shape == (3, 2)
    for odd in (np.array(["text"]), np.zeros(2, np.complex64), np.zeros(2, np.uint64), np.zeros(2, [("a", "f4")])):
        np.save(path, odd)
        assert not library.trek_npy_read(str(path).encode()) and library.trek_error_status() == headers.enums["trek_status"]["TREK_ERR_DTYPE"], odd.dtype
        library.trek_error_clear()


def check_archives(folder):
    path = folder / "x.npz"
    for save in (np.savez, np.savez_compressed):
        arrays = {f"{kind}-{len(shape)}-é": numbers(shape, kind) for kind in KINDS for shape in SHAPES}
        arrays["long"] = np.zeros((400, 300), np.float32)
        save(path, **arrays)
        npz = ctypes.c_void_p(made(library.trek_npz_open(str(path).encode()), path))
        assert library.trek_npz_count(npz) == len(arrays)
        assert [library.trek_npz_name(npz, k).decode() for k in range(len(arrays))] == list(arrays)
        for name, x in arrays.items():
            same(name, array(library.trek_npz_read(npz, name.encode()), name), x)
        library.trek_npz_close(ctypes.byref(npz))
    for compress in (False, True):
        arrays = {f"{kind}/{len(shape)} é": numbers(shape, kind) for kind in KINDS if np.dtype(kind) in OF_NUMPY for shape in SHAPES}
        arrays["long"] = np.zeros((1000, 700), np.float32)
        tensors = [tensor(x) for x in arrays.values()]
        names = (ctypes.c_char_p * len(arrays))(*(name.encode() for name in arrays))
        assert library.trek_npz_write(str(path).encode(), names, (ctypes.c_void_p * len(arrays))(*tensors), len(arrays), compress) == 0, library.trek_error()
        with np.load(path) as back:
            assert back.files == list(arrays)
            for name, x in arrays.items():
                same(name, back[name], x)
        assert not compress or path.stat().st_size < 100000
        for x in tensors:
            library.trek_tensor_release(x)


def column(dataset, field):
    place, n = library.trek_dataset_field(dataset, field.encode()), library.trek_dataset_length(dataset)
    out = (ctypes.c_void_p * library.trek_dataset_field_count(dataset))()
    indices = (ctypes.c_int64 * n)(*range(n))
    assert library.trek_dataset_get(dataset, ctypes.addressof(indices), n, ctypes.addressof(out)) == 0, library.trek_error()
    arrays = [array(x, field) for x in out]
    words, count = None, ctypes.c_int()
    pointer = library.trek_csv_words(dataset, field.encode(), ctypes.addressof(count))
    if pointer:
        words = [word.decode() for word in ctypes.cast(pointer, ctypes.POINTER(ctypes.c_char_p))[: count.value]]
    else:
        library.trek_error_clear()
    return arrays[place], words


def check_tables(folder):
    """What Python's csv writes, in its ways of quoting and ending lines."""
    path = folder / "x.csv"
    words = ["plain", 'with "quotes"', "a,b", "two\nlines", "cr\r\nlf", " spaces ", "é", "'", "1x", ";"]
    texts = ["0", "-1.5", "3.14159265358979", "1e-300", "-2.5E+10", "0.1", "123456789012345678901234567890", "5e-324", "+7", ".5", "1.", "nan", "-inf"]
    for delimiter in ",;\t":
        for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL):
            for end in ("\n", "\r\n"):
                rows = [[k, texts[k % len(texts)], words[k % len(words)], "" if k % 3 else k, "NA" if k % 4 == 0 else words[0]] for k in range(200)]
                with open(path, "w", newline="", encoding="utf-8") as file:
                    writer = csv.writer(file, delimiter=delimiter, quoting=quoting, lineterminator=end)
                    writer.writerow(["whole", "number", "a word, or two", "some", "maybe"])
                    writer.writerows(rows)
                opts = S["trek_csv_opts"](delimiter=delimiter.encode())
                dataset = ctypes.c_void_p(made(library.trek_dataset_csv(str(path).encode(), ctypes.byref(opts)), "csv"))
                with open(path, newline="", encoding="utf-8") as file:
                    read = list(csv.reader(file, delimiter=delimiter))[1:]
                same("whole", column(dataset, "whole")[0], np.array([int(row[0]) for row in read], np.int64))
                same("numbers", column(dataset, "number")[0], np.array([float(row[1]) for row in read], np.float64).astype(np.float32))
                places, have = column(dataset, "a word, or two")
                assert have == sorted(words, key=str.encode) and [have[k] for k in places] == [row[2] for row in read]
                same("some", column(dataset, "some")[0], np.array([float(row[3] or "nan") for row in read], np.float32))
                assert [row[4] == "NA" for row in read] == [k == -1 for k in column(dataset, "maybe")[0]]
                library.trek_dataset_free(ctypes.byref(dataset))
    exact = [repr(float(x)) for x in np.frombuffer(random.bytes(8 * 3000), np.float64) if math.isfinite(x)] + [f"{x:.{k % 16}f}" for k, x in enumerate(random.normal(0, 1e4, 3000))]
    path.write_text("x\n" + "\n".join(exact) + "\n")
    field = S["trek_csv_field"](name=ctypes.cast(ctypes.c_char_p(b"x"), ctypes.c_void_p), dtype=DTYPE["TREK_F64"])
    opts = S["trek_csv_opts"](fields=ctypes.addressof(field), n_fields=1)
    dataset = ctypes.c_void_p(made(library.trek_dataset_csv(str(path).encode(), ctypes.byref(opts)), "numbers"))
    same("every bit", column(dataset, "x")[0], np.array([float(text) for text in exact]))
    library.trek_dataset_free(ctypes.byref(dataset))


with np.errstate(over="ignore", invalid="ignore"), tempfile.TemporaryDirectory() as name:
    check_arrays(pathlib.Path(name))
    check_archives(pathlib.Path(name))
    check_tables(pathlib.Path(name))
print(f"{checks} comparisons with NumPy and Python's csv")
