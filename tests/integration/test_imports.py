"""Modules that commands import while they work: python-ptrace and psutil only where they are used."""

from __future__ import annotations

import dataclasses
import re
import sys

from cases import CASES
from command import Crckpt
from trees import started

UNWANTED_MODULES = {"psutil", "ptrace"}
IMPORT_LINE = re.compile(r"^import time:.*\|\s*(\w+)[\w.]*$", re.MULTILINE)


def find_imports(crckpt: Crckpt, *words: str) -> set[str]:
    """The top-level modules that a command imports. Its helper processes import their own."""
    reporting = dataclasses.replace(crckpt, before=(sys.executable, "-X", "importtime"))
    return set(IMPORT_LINE.findall(reporting.run(*words).err))


def test_dump_restore_and_show_import_no_slow_module(crckpt: Crckpt) -> None:
    with started(next(case for case in CASES if case.name == "threads")) as tree:
        pid = str(tree.pid)
        first = find_imports(crckpt, "dump", pid, "job")
        assert "msgspec" in first, "imports are listed"
        tracked = find_imports(crckpt, "dump", pid, "job", "--incremental")
        stopped = find_imports(crckpt, "dump", pid, "job", "--stop")
        tree.wait_gone()
        restored = find_imports(crckpt, "restore", "job", "--detach")
    shown = find_imports(crckpt, "show", "job", "--files", "--maps")
    assert [words & UNWANTED_MODULES for words in (first, tracked, stopped, restored, shown)] == [set()] * 5


def test_only_show_ps_imports_ptrace_for_the_names_of_system_calls(crckpt: Crckpt) -> None:
    with started(next(case for case in CASES if case.name == "threads")) as tree:
        crckpt.run("dump", str(tree.pid), "job")
    assert find_imports(crckpt, "show", "job", "--ps") & UNWANTED_MODULES == {"ptrace"}
