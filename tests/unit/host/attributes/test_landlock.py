"""Detect whether a program is in a Landlock domain."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest
from confined_program import CONFINED, needs_root
from target_processes import compile_program, running
from trees import wait_for

from crckpt.errors import HostCannot
from crckpt.helper.calls.remote_calls import Order, carry_out
from crckpt.host.attributes.inside import has_landlock_domain, kernel_has_landlock
from crckpt.host.proc.status import read_stat


@needs_root
@pytest.mark.skipif(not kernel_has_landlock(), reason="this kernel has no Landlock")
@pytest.mark.parametrize("user", ["root", "nobody"])
@pytest.mark.parametrize("confined", ["free", "confined"])
def test_landlock_domain_is_detected_for_any_user(user: str, confined: str) -> None:
    with running("/usr/bin/python3", "-c", CONFINED, user, confined) as process:
        (answer,) = carry_out([Order(process.pid, process.pid, "ask")])
        assert answer.why == ""
        assert ("landlock" in answer.values) == (confined == "confined")


@needs_root
@pytest.mark.skipif(not kernel_has_landlock(), reason="this kernel has no Landlock")
def test_comparison_process_has_no_resources_of_ours() -> None:
    """The process belongs to the program's user, who may read its memory and inject code."""
    seen: dict[str, object] = {}

    def look(other: int) -> int:
        place = Path(f"/proc/{other}")
        seen["words"] = (place / "cmdline").read_bytes()
        seen["descriptors"] = sorted(int(entry.name) for entry in (place / "fd").iterdir())
        seen["files"] = {str(entry.readlink()).partition(":")[0] for entry in (place / "fd").iterdir()}
        seen["session"] = os.getsid(other) == other
        seen["owner"] = place.stat().st_uid
        return 0

    with running("/usr/bin/python3", "-c", CONFINED, "nobody", "free") as process:
        assert not has_landlock_domain(process.pid, look)
    assert seen == {"words": b"cat\0", "descriptors": [0, 1, 2], "files": {"pipe"}, "session": True, "owner": 65534}


@needs_root
@pytest.mark.skipif(not kernel_has_landlock(), reason="this kernel has no Landlock")
def test_killed_comparison_process_is_an_error() -> None:
    def end(other: int) -> int:
        os.kill(other, signal.SIGKILL)
        return -errno.ESRCH

    with running("/usr/bin/python3", "-c", CONFINED, "nobody", "confined") as process, pytest.raises(HostCannot):
        has_landlock_domain(process.pid, end)


@needs_root
@pytest.mark.skipif(not kernel_has_landlock(), reason="this kernel has no Landlock")
def test_other_thread_does_not_answer_for_the_main_one(tmp_path: Path) -> None:
    """Each thread has its own domain."""
    with running(compile_program("entered.c", tmp_path, "-pthread"), "partly uninterruptible") as process:
        wait_for(lambda: read_stat(process.pid).state == "D", 10, "vfork to wait")
        (answer,) = carry_out([Order(process.pid, process.pid, "ask")])
        assert answer.why == f"the main thread of PID {process.pid} is in uninterruptible sleep"
        (child,) = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        os.kill(child, signal.SIGKILL)
