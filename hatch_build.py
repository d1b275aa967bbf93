"""Builds the optional C kernel of scrapy_dedupe into wheels and working copies.

``SCRAPY_DEDUPE_KERNEL=auto`` (default) builds a pure Python wheel if the kernel cannot be built, for instance without a
C compiler; ``require`` fails then, and ``no`` does not try. All versions of CPython from 3.11 on can load the kernel,
which uses only the limited API.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "SCRAPY_DEDUPE_KERNEL"
SOURCE = "scrapy_dedupe/_kernel.c"
BINARIES = "_kernel.*"


class KernelBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        wanted = os.environ.get(VARIABLE, "auto")
        if wanted not in ("auto", "require", "no"):
            raise ValueError(f"{VARIABLE} is {wanted!r}. Allowed: auto, require, no.")
        package = Path(self.root, SOURCE).parent
        if version == "editable":
            # Also if no new one is built: the one of an earlier installation may be outdated.
            for path in package.glob(BINARIES):
                if path.suffix in (".so", ".pyd"):
                    path.unlink()
        if wanted == "no" or sys.implementation.name != "cpython":
            return
        self._folder = tempfile.mkdtemp()
        try:
            binary = build(Path(self.root, SOURCE), self._folder)
        except Exception as error:
            if wanted == "require":
                raise RuntimeError(f"The C kernel cannot be built: {error}") from error
            self.app.display_warning(f"The C kernel is not built; Python code is used instead. ({error})")
            return
        if version == "editable":
            shutil.copy(binary, package)  # Python imports the working copy itself
        else:
            build_data["force_include"][str(binary)] = f"scrapy_dedupe/{binary.name}"
        platform = self.build_config.builder.get_best_matching_tag().rpartition("-")[2]
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{platform}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_folder"):
            shutil.rmtree(self._folder, ignore_errors=True)


def build(source: Path, folder: str) -> Path:
    """Compile the kernel below *folder*. setuptools knows the compilers of all systems."""
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    is_msvc = sys.platform == "win32"
    extension = Extension(
        f"{source.parent.name}.{source.stem}",
        [str(source)],
        extra_compile_args=["/O2"] if is_msvc else ["-O3", "-g0"],
        py_limited_api=True,
    )
    command = build_ext(Distribution({"ext_modules": [extension]}))
    command.build_lib = folder
    command.build_temp = str(Path(folder, "objects"))
    command.ensure_finalized()
    command.run()
    return Path(command.get_ext_fullpath(extension.name))
