"""Compile the C parts of crckpt. Without a C compiler crckpt has no tracker, and holds with a script."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_NO_COMPILER = 20
_PRELOAD = "crckpt/tracking/preload"
_BUILT = (f"{_PRELOAD}/libpreload.so", "crckpt/criu/hold-action", f"{_PRELOAD}/librestore.so")


class BuildHook(BuildHookInterface[Any]):
    """hatchling calls this for a wheel and for an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the libraries and the program to the wheel, which then runs only on this architecture."""
        # An editable install uses the files in place. For a wheel the source may be read-only: do not write there.
        editable = version == "editable"
        self._built = TemporaryDirectory()
        files = {
            name: Path(self.root, name) if editable else Path(self._built.name, Path(name).name) for name in _BUILT
        }
        for file in files.values():
            file.unlink(missing_ok=True)
        status = subprocess.run([Path(self.root, "scripts/build-preload"), *files.values()], check=False).returncode
        if status == _NO_COMPILER:
            self.app.display_warning("no C compiler: crckpt gets no tracker, and dumps interrupt system calls")
            return
        if status != 0:
            raise RuntimeError(f"scripts/build-preload ended with {status}")
        if not editable:
            build_data["force_include"] |= {str(file): name for name, file in files.items() if file.exists()}
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the compiled files: the wheel contains them."""
        self._built.cleanup()
