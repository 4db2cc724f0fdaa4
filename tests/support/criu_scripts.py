"""Scripts in place of CRIU."""

from __future__ import annotations

from pathlib import Path

VERSION = '[ "$1" = --version ] && { echo "Version: 9.9"; exit 0; }\n'


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o700)
    return path
