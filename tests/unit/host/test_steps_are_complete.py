"""Each change of a store file is a step, so that tests of crashes find all of them in the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

CRCKPT: Final = Path(__file__).resolve().parents[3] / "crckpt"
WHERE: Final = ("store", "migrate", "host/disk", "host/network", "criu/hold.py")
OF_OS: Final = frozenset(
    ("fsync", "fdatasync", "write", "writev", "pwrite", "rename", "replace", "unlink", "remove", "mkdir", "rmdir")
) | {"link", "truncate", "ftruncate"}
OF_PATH: Final = frozenset(("rename", "unlink", "mkdir", "rmdir", "write_bytes", "write_text", "touch", "symlink_to"))
OTHERS: Final = {
    "migrate/wire/writer.py _make_clock": "no file of the store: an unnamed one, which ends with crckpt",
    "migrate/wire/writer.py reserve": "the same",
    "migrate/wire/writer.py _write": "messages: Connection.send has their steps",
    "host/disk/fuse.py abort_connections": "a file of FUSE's own",
    "host/network/newcomers.py newcomers_held": "commands for nft, which ends with crckpt",
    "host/disk/own_files.py make_runtime_directory": "of /run",
    "host/disk/own_files.py write_private": "of /run",
    "host/disk/own_files.py make_own_directories": "of /run",
    "criu/hold.py holds_at": "the hold is gone with CRIU",
    "criu/hold.py __init__": "the same",
    "criu/hold.py beat": "a sign of life",
}


def find_silent(path: Path) -> Iterator[str]:
    """Functions of a file that change files, and report no step."""
    for function in ast.walk(ast.parse(path.read_text())):
        if not isinstance(function, ast.FunctionDef):
            continue
        called = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
        has_step = any(isinstance(name, ast.Name) and name.id == "step" for name in called)
        if not has_step and any(map(changes_files, called)):
            yield f"{path.relative_to(CRCKPT)} {function.name}"


def changes_files(called: ast.expr) -> bool:
    if not isinstance(called, ast.Attribute):
        return False
    is_of_os = isinstance(called.value, ast.Name) and called.value.id == "os"
    return called.attr in (OF_OS if is_of_os else OF_PATH)


def test_functions_that_change_files_report_a_step() -> None:
    files = [
        file for name in WHERE for file in ([CRCKPT / name] if name.endswith(".py") else (CRCKPT / name).rglob("*.py"))
    ]
    assert len(files) > 50
    assert {name for file in files for name in find_silent(file)} == set(OTHERS)
