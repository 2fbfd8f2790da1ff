#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/run.sh installs what its stages use, on a machine that has nothing of it; a package that this system does not have does
not keep the others away. apt-get, dpkg and sudo are stand-ins that write down what they are asked for.

Usage: check_packages.py <source root>
"""
import os
import pathlib
import subprocess
import sys
import tempfile

root = pathlib.Path(sys.argv[1]).resolve()
# what the stages call, and the headers that the build looks for
FIRST = {"meson": "meson", "ninja": "ninja-build", "gcc": "gcc", "g++ (the fake CUDA device)": "g++", "python3": "python3",
         "pkg-config": "pkg-config", "zlib.h": "zlib1g-dev", "cmocka.h": "libcmocka-dev", "dnnl.h": "libdnnl-dev", "mpi.h": "libopenmpi-dev",
         "mpirun": "openmpi-bin", "gloo": "libgloo-dev", "LAPACK": "liblapack3", "FFTW": "libfftw3-single3", "FFTW of f64": "libfftw3-double3", "protobuf-c/protobuf-c.h": "libprotobuf-c-dev", "protoc-c": "protobuf-c-compiler",
         "png.h": "libpng-dev", "jpeglib.h": "libjpeg-dev", "ip and tc (links between machines)": "iproute2"}
ALL = {"clang": "clang", "clang-format": "clang-format", "clang-tidy": "clang-tidy", "venv": "python3-venv", "qemu-aarch64": "qemu-user",
       "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu", "make": "make", "cmake": "cmake", "dh": "debhelper", "dpkg-buildpackage": "dpkg-dev", "its libc": "libc6-dev-arm64-cross"}
UNKNOWN = "libgloo-dev"  # older systems have none
APT = f"""#!/bin/bash
echo "$*" >>"$(dirname "$0")/asked"
for word in "$@"; do [ "$word" != {UNKNOWN} ] || {{ echo "E: Unable to locate package {UNKNOWN}"; exit 100; }}; done
for word in "$@"; do touch "$(dirname "$0")/has.$word"; done
"""


def installed(*words):
    """What is there after tests/run.sh, and what it said."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for tool, text in (("apt-get", APT), ("dpkg", '#!/bin/bash\n[ -e "$(dirname "$0")/has.$2" ]\n'), ("sudo", '#!/bin/bash\nshift\nexec "$@"\n')):
            (folder / tool).write_text(text)
            (folder / tool).chmod(0o755)
        done = subprocess.run(["bash", str(root / "tests/run.sh"), *words], capture_output=True, text=True, timeout=60,
                              env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "TREK_TEST_WORK": f"{folder}/work"})
        return {place.name[4:] for place in folder.glob("has.*")}, done.stdout


failures = []
there, said = installed("stage", "none")
for use, package in (FIRST | ALL).items():
    if package not in there and package != UNKNOWN:
        failures.append(f"{package} is not installed: {use}")
if UNKNOWN not in said:
    failures.append(f"nothing is said of {UNKNOWN}, which cannot be had: {said}")
print("\n".join(failures) or f"{len(FIRST | ALL)} packages")
sys.exit(bool(failures))
