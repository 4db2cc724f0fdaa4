"""Free memory, and what the kernel does not let other users do with it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import psutil
import pytest
from other_user import as_user

from crckpt.host.probes import tasks
from crckpt.host.process import cgroups

GIB = 1 << 30


def test_available_memory_is_reported() -> None:
    found = tasks.memory()
    match = re.match(r"([\d.]+) GiB free of ([\d.]+)", found.found)
    assert match is not None, found.found
    free = min((psutil.virtual_memory().available, *cgroups.memory_left()))
    assert float(match[1]) == pytest.approx(free / GIB, abs=1)
    assert float(match[2]) == pytest.approx(psutil.virtual_memory().total / GIB, abs=0.1)
    assert ("the limit of crckpt's control group" in found.found) == (free < psutil.virtual_memory().available * 0.9)
    assert found.state == ("limited" if free < GIB else "ok")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_lazy_pages_are_missing_where_users_may_not_use_userfaultfd() -> None:
    allowed = Path("/proc/sys/vm/unprivileged_userfaultfd")
    if not allowed.exists() or allowed.read_text().strip() != "0":
        pytest.skip("this kernel lets all users do it, or none")

    def check() -> None:
        found = tasks.lazy_pages()
        assert (found.state, found.fix) == ("missing", "sudo crckpt doctor")
        assert found.found == "userfaultfd is refused: Operation not permitted"

    as_user(check)
    assert tasks.lazy_pages().state == "ok"
