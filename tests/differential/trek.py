# SPDX-License-Identifier: Apache-2.0
"""The shared library, bound by what its headers say, and tensors between it and PyTorch."""
import ctypes
import os

import torch

from headers import Headers, Unknown

HEADERS = [
    "tensor/status.h",
    "tensor/log.h",
    "tensor/types.h",
    "tensor/dtypes.h",
    "tensor/devices.h",
    "tensor/shapes.h",
    "tensor/op_opts.h",
    "tensor/scope.h",
    "tensor/tensor.h",
    "tensor/creation.h",
    "tensor/copies.h",
    "tensor/layout.h",
    "tensor/dlpack.h",
    "tensor/print.h",
    "tensor/memory.h",
    "autograd/var.h",
    "autograd/leaf.h",
    "autograd/activations.h",
    "autograd/arithmetic.h",
    "autograd/reductions.h",
    "autograd/shapes.h",
    "autograd/basic_losses.h",
    "autograd/embedding.h",
    "autograd/losses.h",
    "autograd/norms.h",
    "autograd/parts.h",
    "autograd/spatial.h",
    "autograd/special.h",
    "autograd/resample.h",
    "autograd/linalg.h",
    "autograd/fft.h",
    "autograd/statistics.h",
    "autograd/take.h",
    "autograd/ops.h",
    "autograd/pointwise.h",
    "autograd/backward.h",
    "autograd/grad.h",
    "nn/module.h",
    "nn/params.h",
    "nn/module_tree.h",
    "nn/module_values.h",
    "nn/basic_layers.h",
    "nn/spatial.h",
    "nn/resample.h",
    "nn/activations.h",
    "nn/transformer.h",
    "nn/embedding.h",
    "nn/layers.h",
    "nn/norms.h",
    "nn/parametrize.h",
    "nn/routers.h",
    "nn/lora.h",
    "optim/optimizer.h",
    "optim/optimizers.h",
    "optim/groups.h",
    "optim/optimizer_state.h",
    "optim/clip.h",
    "optim/scaler_opts.h",
    "optim/scaler.h",
    "optim/schedule.h",
    "optim/schedules.h",
]
headers = Headers(*HEADERS)
DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16,
          "i64": torch.int64, "i32": torch.int32, "u8": torch.uint8, "bool": torch.bool}
DTYPE_NUMBER = {name: headers.enums["trek_dtype"]["TREK_" + name.upper()] for name in DTYPES}
DTYPE_OF = {number: name for name, number in DTYPE_NUMBER.items()}
NAME_OF = {dtype: name for name, dtype in DTYPES.items()}
FLOATS = ("f32", "f64", "bf16", "f16")
Shape = headers.structs["trek_shape"]
os.environ["TREK_DEVICES"] = "cpu:0"  # where layers are whose device is left out
Device = headers.structs["trek_device"]
CPU = Device(headers.enums["trek_device_type"]["TREK_CPU"], 0)


class Refused(Exception):
    """trek set an error."""


class Wrong(Exception):
    """A call broke the rules of errors: NULL without one, or one beside a result."""


class _DlTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64)]


class _DlManaged(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
                ("flags", ctypes.c_uint64), ("tensor", _DlTensor)]


_CODES = {"f32": (2, 32), "f64": (2, 64), "f16": (2, 16), "bf16": (4, 16), "i64": (0, 64), "i32": (0, 32), "u8": (1, 8), "bool": (6, 8)}


class Library:
    """trek's functions under their names without `trek_`."""

    def __init__(self, path):
        self._library = ctypes.CDLL(path)
        for function in headers.functions.values():
            bound = getattr(self._library, function.name, None)
            if bound is None:
                continue
            try:
                bound.restype = headers.type(function.result)
                bound.argtypes = [headers.type(kind) for kind, _ in function.params]
            except Unknown:  # takes a callback, or any number of arguments
                continue
            setattr(self, function.name[5:], bound)
        self.keep = []  # what imported memory belongs to

    def ok(self, result, what=""):
        """The result of a call that makes something, or Refused."""
        if result is None or result == 0:
            raise self.refusal(what)
        return result

    def done(self, status, what=""):
        if status != 0:
            raise self.refusal(what)

    def refusal(self, what=""):
        status, message = self.error_status(), self.error().decode("utf-8", "replace")
        self.error_clear()
        if status == 0:
            return Wrong(f"{what} failed without an error")
        return Refused(f"{self.status_name(status).decode()}: {message}")

    def clean(self, what):
        """Nothing failed: no error may be there."""
        if self.error_status() != 0:
            message = self.error().decode("utf-8", "replace")
            self.error_clear()
            raise Wrong(f"{what} gave a result and the error {message!r}")

    def tensor(self, source):
        """A tensor of trek's own memory with a (contiguous) torch tensor's values; a new reference."""
        return self.ok(self.tensor_from_data(source.data_ptr(), shape(source.shape), DTYPE_NUMBER[NAME_OF[source.dtype]], CPU), "tensor_from_data")

    def view(self, base, sizes, strides, offset):
        """A tensor over a torch tensor's memory, of any strides; a new reference."""
        n = len(sizes)
        managed = _DlManaged(1, 0, None, None, 0)
        t = managed.tensor
        t.data, t.device_type, t.device, t.ndim = base.data_ptr(), 1, 0, n
        (t.code, t.bits), t.lanes = _CODES[NAME_OF[base.dtype]], 1
        sizes_, strides_ = (ctypes.c_int64 * max(n, 1))(*sizes), (ctypes.c_int64 * max(n, 1))(*strides)
        t.shape, t.strides, t.offset = sizes_, strides_, offset * base.element_size()
        self.keep.append((managed, sizes_, strides_, base))
        return self.ok(self.tensor_from_dlpack(ctypes.addressof(managed)), "tensor_from_dlpack")

    def read(self, tensor):
        """A torch tensor with a trek tensor's shape, dtype and values."""
        s = self.tensor_shape(tensor)
        name = DTYPE_OF.get(self.tensor_dtype(tensor), "invalid")
        if not 0 <= s.ndim <= 8 or name == "invalid":
            raise Wrong(f"a result of {s.ndim} dimensions and dtype {name}")
        out = torch.empty(s.sizes[:s.ndim], dtype=DTYPES[name])
        self.done(self.tensor_to_host(tensor, DTYPE_NUMBER[name], out.data_ptr(), out.numel() * out.element_size()), "tensor_to_host")
        return out

    def read_var(self, var):
        return self.read(self.var_data(var))


def shape(sizes):
    made = Shape()
    made.ndim = len(sizes)
    for k, size in enumerate(sizes):
        made.sizes[k % 8] = size
    return made


def vector(pointers):
    """An array of pointers; NULL for none."""
    return (ctypes.c_void_p * max(len(pointers), 1))(*pointers)
