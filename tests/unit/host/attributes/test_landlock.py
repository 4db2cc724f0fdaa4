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
from crckpt.host.proc.maps import read_maps
from crckpt.host.proc.status import read_stat, read_status
from crckpt.host.syscalls import ptrace_requests
from crckpt.host.syscalls.registers import ThreadRegisters

_ALL_THREADS = 0x40000000  # __WALL


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
@pytest.mark.parametrize("user", ["root", "nobody"])
def test_comparison_process_has_no_resources_of_ours(user: str) -> None:
    """The process belongs to the program's user, who may read its memory and inject code."""
    seen: dict[str, object] = {}

    def look(other: int) -> int:
        place = Path(f"/proc/{other}")
        status = read_status(other)
        seen["words"] = (place / "cmdline").read_bytes()
        seen["descriptors"] = list((place / "fd").iterdir())
        seen["memory"] = {each.path for each in read_maps(other)} - {"[stack]", "[vdso]", "[vvar]", "[vvar_vclock]"}
        seen["session"] = os.getsid(other) == other
        seen["users"] = set(status["Uid"].split())
        seen["filter"] = (status["Seccomp"], status["NoNewPrivs"])
        seen["rights"] = {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")}
        return 0

    with running("/usr/bin/python3", "-c", CONFINED, user, "free") as process:
        assert not has_landlock_domain(process.pid, look)
    assert seen == {
        "words": b"crckpt-comparison\0",
        "descriptors": [],
        "memory": {"/memfd:crckpt-comparison (deleted)", "[vsyscall]"},
        "session": True,
        "users": {"65534" if user == "nobody" else "0"},
        "filter": ("2", "1"),
        "rights": {"0" * 16},
    }


@needs_root
@pytest.mark.skipif(not kernel_has_landlock(), reason="this kernel has no Landlock")
@pytest.mark.parametrize("words", [(), ("/usr/bin/unshare", "--mount")], ids=["same mounts", "own mounts"])
def test_comparison_process_opens_nothing_outside_of_a_jail(words: tuple[str, ...], tmp_path: Path) -> None:
    """Other processes of the program's user may open its root and its working directory (/proc/PID/root)."""
    jail = (
        "import os, sys; os.chroot(sys.argv[1]); os.chdir('/'); os.setgroups([]); os.setresgid(*[65534] * 3);"
        "os.setresuid(*[65534] * 3); print('ready', flush=True); sys.stdin.read()"
    )
    found: list[os.stat_result] = []

    def look(other: int) -> int:
        found.extend(Path(f"/proc/{other}/{name}").stat() for name in ("root", "cwd"))
        return 0

    with running(*words, "/usr/bin/python3", "-c", jail, str(tmp_path)) as process:
        assert not has_landlock_domain(process.pid, look)
    assert [os.path.samestat(each, tmp_path.stat()) for each in found] == [True, True]


@needs_root
@pytest.mark.skipif(not kernel_has_landlock(), reason="this kernel has no Landlock")
def test_hijacked_comparison_process_makes_no_system_call() -> None:
    """Another process of the same user makes the comparison process call getpid(2), by code of its own."""
    ends: list[int] = []

    def take(other: int) -> int:
        content = Path(f"/proc/{other}/exe").read_bytes()
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            try:
                os.setgroups([])
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
                ptrace_requests.seize(other, 0)
                ptrace_requests.interrupt(other)
                os.waitpid(other, _ALL_THREADS)
                registers = ThreadRegisters.read(other)
                (code,) = (each for each in read_maps(other) if "memfd" in each.path)
                registers.set_call(code.start + content.index(b"\x0f\x05"), 39, ())
                registers.write(other)
                ptrace_requests.call("cont", other)
                os._exit(os.WTERMSIG(os.waitpid(other, _ALL_THREADS)[1]))
            finally:
                os._exit(1)
        ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return -errno.ESRCH

    with running("/usr/bin/python3", "-c", CONFINED, "nobody", "free") as process, pytest.raises(HostCannot):
        has_landlock_domain(process.pid, take)
    assert ends == [signal.SIGSYS]


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
def test_landlock_of_the_main_thread_is_not_read_from_another_thread(tmp_path: Path) -> None:
    """Each thread has its own domain."""
    with running(compile_program("entered.c", tmp_path, "-pthread"), "partly uninterruptible") as process:
        wait_for(lambda: read_stat(process.pid).state == "D", 10, "vfork to wait")
        (answer,) = carry_out([Order(process.pid, process.pid, "ask")])
        assert answer.why == f"the main thread of PID {process.pid} is in uninterruptible sleep"
        (child,) = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        os.kill(child, signal.SIGKILL)
