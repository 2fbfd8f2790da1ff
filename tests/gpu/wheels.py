#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Headers and libraries of CUDA's that came with PyTorch, where the toolkit has none: prints assignments for a shell.

    wheels.py TOOLKIT      the folder that has include/, or "-" """
import ctypes
import pathlib
import shlex
import sys

# header, variable that names the library to trek, names that trek tries by itself
WANTED = [("cublasLt.h", "TREK_CUBLASLT_LIBRARY", ["libcublasLt.so.13", "libcublasLt.so.12"]),
          ("cudnn.h", "TREK_CUDNN_LIBRARY", ["libcudnn.so.9"]),
          ("nccl.h", "TREK_NCCL_LIBRARY", ["libnccl.so.2"])]


def opens(name):
    for folder in ("", "/usr/local/cuda/lib64/", "/usr/local/cuda/targets/x86_64-linux/lib/", "/opt/cuda/lib64/", "/usr/lib/x86_64-linux-gnu/"):
        try:
            ctypes.CDLL(folder + name)
            return True
        except OSError:
            pass
    return False


def main():
    try:
        import nvidia
        roots = [pathlib.Path(path) for path in nvidia.__path__]
    except ImportError:
        return
    folders = []
    for header, variable, names in WANTED:
        included = any((pathlib.Path(folder) / header).exists() for folder in (sys.argv[1] + "/include", "/usr/include", "/usr/include/x86_64-linux-gnu"))
        found = [] if included else [path.parent for root in roots for path in sorted(root.glob(f"*/include/{header}"))]
        folders += [str(folder) for folder in found[:1] if str(folder) not in folders]
        if not any(map(opens, names)):
            here = [path for name in names for root in roots for path in sorted(root.glob(f"*/lib/{name}"))]
            if here:
                print(f"export {variable}=${{{variable}:-{shlex.quote(str(here[0]))}}}")
    if folders:  # behind the toolkit's own
        print(f"export C_INCLUDE_PATH=${{C_INCLUDE_PATH:+$C_INCLUDE_PATH:}}{shlex.quote(':'.join(folders))}")


main()
