# SPDX-License-Identifier: Apache-2.0
"""Builds an example with the package, and runs it."""
import os

from conan import ConanFile
from conan.tools.build import can_run
from conan.tools.gnu import PkgConfigDeps


class Example(ConanFile):
    settings = "os", "arch", "compiler", "build_type"
    test_type = "explicit"

    def requirements(self):
        self.requires(self.tested_reference_str)

    def layout(self):
        self.folders.build = "build"

    def generate(self):
        PkgConfigDeps(self).generate()

    def _examples(self):
        return os.path.join(self.source_folder, "..", "..", "..", "examples")

    def build(self):
        self.run(f"PKG_CONFIG_PATH={self.generators_folder} make -C {self._examples()} OUT={self.build_folder} cadence_sim")

    def test(self):
        if can_run(self):
            self.run(f"{os.path.join(self.build_folder, 'cadence_sim')} --help", env="conanrun")
