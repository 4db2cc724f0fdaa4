"""Compile the C parts of crckpt. Without a C compiler crckpt has no tracker, and holds with a script."""

from __future__ import annotations

import os
import re
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
        if reason := _compile([Path(self.root, "scripts/build-preload"), *files.values()]):
            for file in files.values():
                file.unlink(missing_ok=True)
            # scripts/build-wheel sets it: a wheel for others must be whole.
            if os.environ.get("CRCKPT_NEEDS_COMPILER"):
                raise RuntimeError(reason)
            self.app.display_warning(
                f"{reason}: crckpt gets no tracker, and dumps interrupt system calls; "
                "install gcc and libc6-dev, then install crckpt again"
            )
            return
        if not editable:
            build_data["force_include"] |= {str(file): name for name, file in files.items() if file.exists()}
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the compiled files: the wheel contains them."""
        self._built.cleanup()


def _compile(words: list[Path]) -> str:
    """Compile; return why that failed, in one line, or nothing."""
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    if done.returncode == _NO_COMPILER:
        return "there is no C compiler"
    missing = re.search(r"fatal error: (\S+): No such file", done.stderr)
    if missing:
        return f"the C library's headers are missing ({missing[1]})"
    error = re.search(r"error: .*", done.stderr)
    lines = done.stderr.strip().splitlines()
    return f"the C compiler fails ({error[0] if error else lines[-1] if lines else f'status {done.returncode}'})"
