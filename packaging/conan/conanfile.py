# SPDX-License-Identifier: Apache-2.0
"""trek for Conan 2, from this tree: conan create packaging/conan [-o "trek/*:cuda=True"]. Meson and Ninja are the machine's own."""
import os
import re

from conan import ConanFile
from conan.tools.files import copy, rm
from conan.tools.gnu import PkgConfigDeps
from conan.tools.layout import basic_layout
from conan.tools.meson import Meson, MesonToolchain

FEATURES = ["cuda", "mpi", "gloo", "onednn", "png", "jpeg", "onnx"]


class Trek(ConanFile):
    name = "trek"
    license = "Apache-2.0"
    description = "Training neural networks in C, with data parallelism built in"
    topics = ("neural-networks", "machine-learning", "autograd", "data-parallel")
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "fPIC": [True, False]} | {name: [True, False] for name in FEATURES}
    default_options = {"shared": True, "fPIC": True} | {name: False for name in FEATURES}
    languages = "C"
    implements = ["auto_shared_fpic"]

    def _root(self):
        return os.path.join(self.recipe_folder, "..", "..")

    def set_version(self):
        with open(os.path.join(self._root(), "tensor", "version.h"), encoding="utf-8") as header:
            self.version = ".".join(re.findall(r"#define TREK_VERSION_[A-Z]+ (\d+)", header.read()))

    def export_sources(self):
        for pattern in ["*.c", "*.h", "*.cu", "*.cuh", "*.cc", "*.def", "*.in", "*.txt", "*.proto", "*.md", "*.1", "*meson.build", "LICENSE", "examples/*"]:
            copy(self, pattern, self._root(), self.export_sources_folder, excludes=["build*", "tests/*", ".git/*"])

    def requirements(self):
        self.requires("zlib/[>=1.2.11 <2]")
        for feature, package in {"png": "libpng/[>=1.6 <2]", "jpeg": "libjpeg-turbo/[>=2 <4]", "onnx": "protobuf-c/[>=1.4 <2]"}.items():
            if self.options.get_safe(feature):
                self.requires(package)

    def layout(self):
        basic_layout(self, src_folder=".")

    def generate(self):
        PkgConfigDeps(self).generate()
        toolchain = MesonToolchain(self)
        for name in FEATURES:
            toolchain.project_options[name] = "enabled" if self.options.get_safe(name) else "disabled"
        toolchain.project_options["tests"] = toolchain.project_options["examples"] = "false"
        toolchain.generate()

    def build(self):
        meson = Meson(self)
        meson.configure()
        meson.build()

    def package(self):
        Meson(self).install()
        for unwanted in ["libtrek.a"] if self.options.shared else ["libtrek.so", "libtrek.so.*"]: # Meson makes both
            rm(self, unwanted, os.path.join(self.package_folder, "lib"))
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))

    def package_info(self):
        self.cpp_info.libs = ["trek"]
        self.cpp_info.includedirs = ["include", os.path.join("include", "trek")]
        self.cpp_info.system_libs = ["m", "dl", "pthread"]
        if not self.options.shared and self.settings.arch == "x86_64":
            self.cpp_info.system_libs.append("mvec")
        self.cpp_info.set_property("pkg_config_name", "trek")
        self.cpp_info.set_property("cmake_target_name", "trek::trek")
        self.runenv_info.append_path("TREK_PLUGIN_PATH", os.path.join(self.package_folder, "lib"))
