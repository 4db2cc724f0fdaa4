"""Check whether crckpt can attach to processes, restore their PIDs and clocks, and track and load their memory."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from crckpt.errors import HostCannot, error_text
from crckpt.host.probes.trial import (
    GIBIBYTE,
    Fact,
    fork,
    free_of,
    kill_child,
    limited,
    missing,
    ok,
    run_with_capabilities,
    wait_for_status,
)
from crckpt.host.process import cgroups
from crckpt.host.syscalls import memory_trials, own_process, ptrace_requests

_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_ADVANCE_S = 100_000
_TRIES = 5
_SURVIVED = 7

_UNPRIVILEGED = Path("/proc/sys/vm/unprivileged_userfaultfd")


def checkpoint_restore() -> Fact:
    """Try the call by which a restore describes a process's memory: it needs CONFIG_CHECKPOINT_RESTORE."""
    # The size of struct prctl_mm_map, with which CRIU sets where code, heap, stack and arguments are.
    try:
        size = own_process.memory_map_size()
    except OSError as error:
        return missing(
            f"this kernel has no CONFIG_CHECKPOINT_RESTORE: PR_SET_MM_MAP_SIZE: {error.strerror}",
            "nothing can be checkpointed",
            "use a distribution's kernel",
        )
    return ok(f"this kernel has CONFIG_CHECKPOINT_RESTORE (memory maps of {size} bytes)")


def pid_selection() -> Fact:
    """Make a child with a PID that has just become free."""
    for _ in range(_TRIES):
        try:
            # One that has just become free: the kernel uses all others before it uses it again.
            wanted = fork(int)
            wait_for_status(wanted)
            child = own_process.fork_with_pid(wanted)
        except FileExistsError:  # another process has got it
            continue
        except OSError as error:
            found = f"PIDs cannot be chosen by clone3: {error.strerror}"
            if error.errno == errno.EPERM:
                return limited(found, "only root can restore", "sudo crckpt doctor")
            fix = "use Linux 5.5 or later; in a container: --security-opt seccomp=unconfined"
            return missing(found, "CRIU must race for PIDs by ns_last_pid: some restores fail", fix)
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        return (
            ok(f"restored processes get their old PIDs (tried with PID {child})")
            if child == wanted
            else missing(f"asked for PID {wanted}, got {child}", "restored processes cannot get their old PIDs")
        )
    return limited(f"other processes took {_TRIES} free PIDs first", "crckpt does not know whether this works")


def time_namespaces() -> Fact:
    """Set the clock forward for a child, which reads it."""
    before = time.clock_gettime(time.CLOCK_MONOTONIC)
    try:
        own_process.unshare(own_process.CLONE_NEWTIME | (0 if os.geteuid() == 0 else own_process.CLONE_NEWUSER))
        # It applies to children only, and can be set until the first one is in it (time_namespaces(7)).
        Path("/proc/self/timens_offsets").write_text(f"monotonic {_ADVANCE_S} 0\n")
    except OSError as error:
        lost = "monotonic clocks and timers jump if a program is restored after a boot or on another host"
        if error.errno == errno.EPERM:
            return limited(f"not tried: {error.strerror}", lost, "sudo crckpt doctor")
        return missing(f"no time namespaces: {error.strerror}", lost, "use Linux 5.6 or later with CONFIG_TIME_NS")
    if wait_for_status(fork(lambda: int(time.clock_gettime(time.CLOCK_MONOTONIC) < before + _ADVANCE_S))):
        return missing("a child's clock was set, but did not change", "monotonic clocks jump at a restore")
    return ok("restored programs get their clocks back")


def ptrace_scope() -> Fact:
    """Let one child seize another: what CRIU does to every process of a tree."""
    scope = _YAMA.read_text().strip() if _YAMA.exists() else None
    found = "no Yama" if scope is None else f"yama ptrace_scope {scope}"

    # The target is no child of the one that seizes it: Yama's scope 1 lets a parent trace its descendants.
    def wait() -> int:
        signal.pause()
        return 0

    target = fork(wait)

    def find_error() -> int:
        try:
            ptrace_requests.seize(target)
        except OSError as error:
            return error.errno or errno.EPERM
        return 0

    number = wait_for_status(fork(find_error))
    kill_child(target)
    if number == 0:
        return ok(f"crckpt can attach to other processes ({found})")
    fix = "sudo crckpt doctor" if os.geteuid() != 0 else run_with_capabilities("SYS_PTRACE")
    if scope == "3":
        fix = "reboot with kernel.yama.ptrace_scope below 3: it cannot be lowered"
    refused = f"crckpt cannot attach to other processes: {os.strerror(number)} ({found})"
    return missing(refused, "nothing can be checkpointed", fix)


def seccomp_suspension() -> Fact:
    """Seize a child with its filter suspended: it forbids itself to exit, and must be able to."""
    reading, writing = os.pipe()

    def forbid_itself_to_end() -> int:
        os.close(writing)
        os.read(reading, 1)  # returns when the parent has seized it, and closes its end
        own_process.prctl(own_process.SET_SECCOMP, own_process.SECCOMP_MODE_STRICT)
        return _SURVIVED  # by exit_group, for which strict mode kills

    child = fork(forbid_itself_to_end)
    try:
        ptrace_requests.seize(child, ptrace_requests.SUSPEND_SECCOMP)
    except OSError as error:
        kill_child(child)
        lost = "programs with a seccomp filter (browsers, sshd, many services) cannot be checkpointed"
        fix = "run crckpt without a seccomp filter (in a container: docker run --security-opt seccomp=unconfined ...)"
        fix = fix if os.geteuid() == 0 else "sudo crckpt doctor"
        return missing(f"seccomp filters cannot be suspended: {error.strerror}", lost, fix)
    os.close(writing)
    status = wait_for_status(child)
    if status == _SURVIVED:
        return ok("programs with a seccomp filter can be checkpointed")
    return missing(f"a suspended filter killed a child ({status})", "a dump kills programs with a seccomp filter")


def memory() -> Fact:
    """Check how much memory is available to a restore, which must hold the whole tree in it."""
    found, swap = psutil.virtual_memory(), psutil.swap_memory()
    # psutil knows no limits of control groups.
    left = min((found.available, *cgroups.memory_left()))
    limit = " (the limit of crckpt's control group)" if left < found.available else ""
    said = f"{free_of(left, found.total)}{limit}, swap: {free_of(swap.free, swap.total) if swap.total else 'none'}"
    if left < GIBIBYTE:
        return limited(said, "a large tree cannot be restored", "end other programs, or raise the limit")
    return ok(said)


def soft_dirty() -> Fact:
    """Write a page and look at its bit."""
    if memory_trials.tracks_by_soft_dirty():
        return ok("this kernel reports written pages by soft-dirty bits")
    return missing(
        "this kernel has no soft-dirty bits",
        "crckpt tracks written pages by write_protection instead; CRIU alone cannot make incremental dumps",
        "use a kernel with CONFIG_MEM_SOFT_DIRTY",
    )


def lazy_pages() -> Fact:
    """Touch a missing page, which another process of ours fills, as `criu lazy-pages` does."""
    # If this is 0 the kernel has the call, but only for root.
    for_root = _UNPRIVILEGED.exists() and _UNPRIVILEGED.read_text().strip() == "0"
    return try_memory(
        memory_trials.can_bring_pages_later,
        "memory can be loaded when it is used (userfaultfd)",
        "none on crckpt; criu lazy-pages does not work",
        "sudo crckpt doctor" if for_root else "use a kernel with CONFIG_USERFAULTFD",
    )


def try_memory(trial: Callable[[], bool], works: str, lost: str, fix: str) -> Fact:
    """Test on pages of ours what the kernel can do with memory."""
    try:
        return ok(works) if trial() else missing("the trial's page was not found", lost, fix)
    except (HostCannot, OSError) as error:
        return missing(error_text(error), lost, fix)
