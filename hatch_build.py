"""Compiles crckpt/tracking/preload.c and its neighbours; without a C compiler crckpt has no tracker."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_NO_COMPILER = 20


class BuildHook(BuildHookInterface[Any]):
    """Called by hatchling for a wheel, and for an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the library to the wheel, which then fits this kind of machine only."""
        # An editable install is used where it lies. Else the source may be read-only, and is left as it is.
        editable = version == "editable"
        self._built = TemporaryDirectory()
        library = Path(self.root, "crckpt/tracking") if editable else Path(self._built.name)
        library /= "libpreload.so"
        library.unlink(missing_ok=True)
        status = subprocess.run([Path(self.root, "scripts/build-preload"), library], check=False).returncode
        if status == _NO_COMPILER:
            self.app.display_warning("no C compiler: crckpt gets no tracker, and dumps interrupt system calls")
            return
        if status != 0:
            raise RuntimeError(f"scripts/build-preload ended with {status}")
        if not editable:
            build_data["force_include"][str(library)] = "crckpt/tracking/libpreload.so"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The wheel has it."""
        self._built.cleanup()
