"""Compiles crckpt/tracking/preload.c when crckpt is built; without a C compiler it has no tracker uffd-wp."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_NO_COMPILER = 20


class BuildHook(BuildHookInterface[Any]):
    """Called by hatchling for a wheel, and for an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the library to the wheel, which then fits this kind of machine only."""
        library = Path(self.root, "crckpt/tracking/libpreload.so")
        library.unlink(missing_ok=True)
        status = subprocess.run([Path(self.root, "scripts/build-preload"), library], check=False).returncode
        if status == _NO_COMPILER:
            self.app.display_warning("no C compiler: crckpt is built without its tracker uffd-wp")
            return
        if status != 0:
            raise RuntimeError(f"scripts/build-preload ended with {status}")
        build_data["artifacts"].append("/crckpt/tracking/libpreload.so")
        if version != "editable":
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
