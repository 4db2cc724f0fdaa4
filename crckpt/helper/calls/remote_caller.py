"""The helper process that makes system calls in threads of other processes: a tracer must do nothing else.

It ends within seconds, unless a process gets no CPU time in the middle of a call. If the helper dies, the kernel
releases the process. In a restore's hold CRIU traces the root of a tree that becomes our child. While CRIU waits for
its script, the helper makes it detach from that thread, and seize it again afterwards.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NoReturn

from crckpt.errors import HostCannot, error_text
from crckpt.helper.calls.remote_calls import (
    LOCKED_AT_ONCE,
    LOCKED_NOT,
    LOCKED_WHEN_USED,
    Order,
    OrderResult,
    Orders,
    TakeOrder,
)
from crckpt.helper.channel import Channel, HelperEnded, open_control
from crckpt.helper.kinds import REMOTE_CALLER
from crckpt.host.attributes import tasks
from crckpt.host.attributes.inside import has_landlock_domain, read_segments, set_segments
from crckpt.host.proc import status
from crckpt.host.syscalls import own_process, ptrace

# x86-64 and 32-bit programs on it: asm/unistd_64.h, asm/unistd_32.h
_PRCTL, _MMAP, _MUNMAP, _PERSONALITY, _MLOCKALL, _SET_MEMPOLICY, _PTRACE, _WAIT4 = 157, 9, 11, 135, 151, 238, 101, 61
_UNSHARE, _CHDIR, _UMASK, _CHROOT, _CLONE_FS = 272, 80, 95, 161, 0x200
_OPENAT, _WRITE, _CLOSE, _FCNTL = 257, 1, 3, 72
_LISTEN, _GETEUID, _GETEGID, _SETRESUID, _SETRESGID = 50, 107, 108, 117, 119
_PRCTL_32, _MMAP_32, _MUNMAP_32, _KEYCTL_32 = 172, 192, 91, 288

# asm-generic/ioctls.h
_IOCTL, _TIOCSCTTY, _TIOCSPGRP = 16, 0x540E, 0x5410

_MCL_FUTURE, _MCL_ONFAULT = 2, 4
_SEIZE, _INTERRUPT, _DETACH, _ALL_THREADS = 0x4206, 0x4207, 17, 0x40000000
_JOIN_KEYRING, _SET_PERMISSIONS, _OF_POSSESSOR, _OF_OWNER = 1, 5, 0x3F000000, 0x003F0000
_KEYCTL, _GET_KEYRING, _READ_KEYS, _SESSION_KEYRING = 250, 0, 11, -3
_MADVISE, _MADVISE_32, _DONTNEED = 28, 219, 4
_NODES: Final = 1024
_MOST_ERRNO: Final = 4095


def main(number: str) -> None:
    """Carry out the orders that come over this descriptor, and send the result of each."""
    control = open_control(REMOTE_CALLER, number)
    for order in control.receive(Orders).orders:
        if isinstance(order, Order):
            control.send(_carry_out_one(order))
            continue
        # A child for each process: a thread that cannot be stopped stays seized until its tracer ends.
        child = os.fork()
        if child == 0:
            _take(order, control)
        os.waitpid(child, 0)


def _take(order: TakeOrder, control: Channel) -> NoReturn:
    # A thread may be in the middle of our call, for about a millisecond. If its tracer dies then, the thread continues
    # with our registers, and the program ends. So be spared by signals, and when memory runs out; nothing helps against
    # SIGKILL. Only here: processes that other orders start as the program's user would inherit both.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("-1000")
    # Most helpers do without it.
    from crckpt.helper.calls.taken_userfaultfd import close_in, take_one

    try:
        result, descriptors = OrderResult(order.process.pid), list[int]()
        try:
            if order.surplus < 0:
                descriptors = [take_one(order.process)]
            else:
                close_in(order.process, order.surplus)
        except HostCannot as error:
            result = OrderResult(order.process.pid, why=error.message, hint=error.hint)
        except OSError as error:
            why = f"it cannot be entered: {error.strerror or error}"
            result = OrderResult(order.process.pid, why=why)
        control.send(result, descriptors)
    finally:
        os._exit(0)


def _carry_out_one(order: Order) -> OrderResult:
    try:
        if order.does == "ask":
            with ptrace.stopped(order.pid, identity=order.process) as thread:
                return OrderResult(order.pid, dict(_read_attributes(thread, order.pid)))
        with _without_tracer(order), ptrace.stopped(order.pid, order.tid, is_restored=True) as thread:
            answers = ((name, _set(thread, name, value)) for name, value in order.values)
            failed = tuple((name, os.strerror(-answer)) for name, answer in answers if answer < 0)
            return OrderResult(order.pid, failed=failed)
    except HostCannot as error:
        return OrderResult(order.pid, why=error.message)
    except (OSError, ValueError) as error:
        return OrderResult(order.pid, why=f"crckpt cannot attach to PID {order.pid}: {error_text(error)}")


def _read_attributes(thread: ptrace.StoppedThread, pid: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    number = _PRCTL_32 if thread.is_compat else _PRCTL
    # Only the first call has a time limit: after it, the thread is known to run.
    refuses = thread.system_call(number, own_process.GET_MDWE, 0, 0, 0, 0, within_s=ptrace.STOPS_WITHIN_S)
    if refuses > 0:
        yield "no_written_code", (refuses,)
    if (bits := thread.system_call(number, own_process.GET_SECUREBITS, 0, 0, 0, 0)) > 0:
        yield "securebits", (bits,)
    if locked := _locks_new_maps(thread, pid):
        yield "lock_future", (locked,)
    if entries := read_segments(thread, pid):
        yield "segments", entries
    # The serial number of the keyring (the user's if the process has none), and the number of its keys.
    keyctl = _KEYCTL_32 if thread.is_compat else _KEYCTL
    keyring = thread.system_call(keyctl, _GET_KEYRING, _SESSION_KEYRING, 0, 0, 0)
    if keyring > 0:
        yield "session_keyring", (keyring, max(0, thread.system_call(keyctl, _READ_KEYS, keyring, 0, 0, 0)) // 4)
    if thread.tid != pid:
        # Each thread has a domain of its own.
        raise HostCannot(f"the main thread of PID {pid} is in uninterruptible sleep")
    # kcmp(2), of the memory of two processes
    compare = 349 if thread.is_compat else 312
    if has_landlock_domain(pid, lambda other: thread.system_call(compare, pid, other, 1, 0, 0)):
        yield "landlock", (1,)


def _locks_new_maps(thread: ptrace.StoppedThread, pid: int) -> int:
    """Find out by mapping a page whether new maps are locked: no call reports it."""
    # The kernel refuses a page that may not be locked with EAGAIN, and does not discard a locked one (MADV_DONTNEED).
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    made = thread.system_call(
        _MMAP_32 if thread.is_compat else _MMAP, 0, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0
    )
    # Read as a signed number, an address of a 32-bit program may be negative: only the last 4095 numbers are errors.
    if -_MOST_ERRNO <= made < 0:
        return LOCKED_AT_ONCE if made == -errno.EAGAIN else LOCKED_NOT
    try:
        if thread.system_call(_MADVISE_32 if thread.is_compat else _MADVISE, made, mmap.PAGESIZE, _DONTNEED) == 0:
            return LOCKED_NOT
        address = made & 0xFFFFFFFF if thread.is_compat else made
        with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as file:
            file.seek(address // mmap.PAGESIZE * 8)
            is_present = int.from_bytes(file.read(8), "little") >> 63
        return LOCKED_AT_ONCE if is_present else LOCKED_WHEN_USED
    finally:
        thread.system_call(_MUNMAP_32 if thread.is_compat else _MUNMAP, made, mmap.PAGESIZE)


def _set(thread: ptrace.StoppedThread, name: str, value: tuple[int, ...]) -> int:
    """Set one attribute. A negative number is an error."""
    if name in _BY_SEVERAL_CALLS:
        return _BY_SEVERAL_CALLS[name](thread, *value)
    number = value[0] if value else 0
    match name:
        case "personality":
            return thread.system_call(_PERSONALITY, number)
        case "memory_errors" if number == own_process.MCE_KILL_DEFAULT:
            return thread.system_call(_PRCTL, own_process.MCE_KILL, own_process.MCE_KILL_CLEAR, 0, 0, 0)
        case "memory_errors":
            return thread.system_call(_PRCTL, own_process.MCE_KILL, own_process.MCE_KILL_SET, number, 0, 0)
        case "io_flusher":
            return thread.system_call(_PRCTL, own_process.SET_IO_FLUSHER, number, 0, 0, 0)
        case "memory_policy":
            nodes = sum(1 << node for node in value[1:]).to_bytes(_NODES // 8, "little")
            # MPOL_DEFAULT takes no mask (set_mempolicy(2)).
            with thread.lent(nodes) as address:
                return thread.system_call(_SET_MEMPOLICY, number, address if value[1:] else 0, _NODES)
        case "memory_merge":
            return thread.system_call(_PRCTL, own_process.SET_MEMORY_MERGE, number, 0, 0, 0)
        case "lock_future":
            return thread.system_call(_MLOCKALL, _MCL_FUTURE | (_MCL_ONFAULT if number == LOCKED_WHEN_USED else 0))
        case "no_written_code":
            return thread.system_call(_PRCTL, own_process.SET_MDWE, number, 0, 0, 0)
    return -errno.ENOSYS


def _take_terminal(thread: ptrace.StoppedThread, descriptor: int, group: int) -> int:
    """Make a terminal that of the session that the thread leads. A negative number is an error."""
    # 1: from another session, too (ioctl_tty(2)).
    found = thread.system_call(_IOCTL, descriptor, _TIOCSCTTY, 1)
    if found == 0:
        with thread.lent(group.to_bytes(4, "little")) as address:
            found = thread.system_call(_IOCTL, descriptor, _TIOCSPGRP, address)
    return found


def _set_directories(thread: ptrace.StoppedThread, *value: int) -> int:
    """Give a thread a working directory, root and umask of its own. A negative number is an error."""
    umask, root, work = tasks.parse_directories(value)
    # It has the root of its process now, and both paths are as we see them.
    begin = os.fsencode(Path(f"/proc/{thread.tid}/root").readlink())
    found = thread.system_call(_UNSHARE, _CLONE_FS)
    for call, path in ((_CHDIR, work), (_CHROOT, root)):
        if found == 0 and not (call == _CHROOT and root == begin):
            if begin != b"/" and (path + b"/").startswith(begin + b"/"):
                path = b"/" + path.removeprefix(begin).lstrip(b"/")
            with thread.lent(path + b"\0") as address:
                found = thread.system_call(call, address)
    if found == 0:
        thread.system_call(_UMASK, umask)
    # A symlink may lead elsewhere now.
    return found if found or tasks.directories(thread.tid) == value else -errno.ESTALE


def _join_session_keyring(thread: ptrace.StoppedThread, *name: int) -> int:
    """Join the session keyring of this name, which is made if there is none. A negative number is an error."""
    with thread.lent(bytes((*name, 0))) as address:
        found = thread.system_call(_KEYCTL, _JOIN_KEYRING, address)
    if found == -errno.ENOSYS:
        return 0  # nobody has one
    # Only who may search it finds it by its name: root, whose it is. A keyring that is made does not allow that.
    allowed = _OF_POSSESSOR | _OF_OWNER
    return found if found < 0 else thread.system_call(_KEYCTL, _SET_PERMISSIONS, _SESSION_KEYRING, allowed)


def _set_login_uid(thread: ptrace.StoppedThread, user: int) -> int:
    """Set the login user for the audit log: a thread can set only its own. A negative number is an error."""
    if not Path("/proc/self/loginuid").exists():
        return 0  # the kernel audits no system calls
    with thread.lent(b"/proc/thread-self/loginuid\0") as address:
        file = thread.system_call(_OPENAT, -1, address, os.O_WRONLY | os.O_CLOEXEC, 0)
    if file < 0:
        return file
    text = str(user).encode()
    with thread.lent(text) as address:
        found = thread.system_call(_WRITE, file, address, len(text))
    thread.system_call(_CLOSE, file)
    return found


def _listen(thread: ptrace.StoppedThread, descriptor: int, backlog: int, user: int, group: int) -> int:
    """Listen on a socket as this user and group, effective for that call only. A negative number is an error."""
    # In a restore's hold all tasks still have root's rights. The kernel remembers who listened last.
    keep = -1
    own_user, own_group = thread.system_call(_GETEUID), thread.system_call(_GETEGID)
    # Change the group first: without root's user id it cannot be changed. Change it back last.
    found = thread.system_call(_SETRESGID, keep, group, keep)
    if found == 0:
        found = thread.system_call(_SETRESUID, keep, user, keep)
        if found == 0:
            found = thread.system_call(_LISTEN, descriptor, backlog)
        back = thread.system_call(_SETRESUID, keep, own_user, keep)
        found = min(found, back, thread.system_call(_SETRESGID, keep, own_group, keep))
    return found


def _take_locks(thread: ptrace.StoppedThread, *values: int) -> int:
    """Take POSIX locks without waiting: descriptor, kind, start and length of each. A negative number is an error."""
    # A struct flock for each (fcntl(2)).
    locks = tuple(zip(*[iter(values)] * 4, strict=True))
    content = [struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0) for _, kind, start, length in locks]
    with thread.lent(b"".join(content)) as address:
        calls = (
            thread.system_call(_FCNTL, descriptor, fcntl.F_SETLK, address + number * len(content[0]))
            for number, (descriptor, *_) in enumerate(locks)
        )
        return next((found for found in calls if found < 0), 0)


def _add_status_flags(thread: ptrace.StoppedThread, descriptor: int, flags: int) -> int:
    """Add flags to those of a descriptor. A negative number is an error."""
    found = thread.system_call(_FCNTL, descriptor, fcntl.F_GETFL)
    # The kernel acts only when O_ASYNC changes.
    for wanted in (found & ~os.O_ASYNC, found | flags):
        if found >= 0:
            found = thread.system_call(_FCNTL, descriptor, fcntl.F_SETFL, wanted)
    return found


_BY_SEVERAL_CALLS: Final[dict[str, Callable[..., int]]] = {
    "listener": _listen,
    "controlling_terminal": _take_terminal,
    "directories": _set_directories,
    "login_uid": _set_login_uid,
    "session_keyring": _join_session_keyring,
    "segments": set_segments,
    "locks": _take_locks,
    "status_flags": _add_status_flags,
}


@contextmanager
def _without_tracer(order: Order) -> Iterator[None]:
    """If the order says so, detach the thread's tracer from it, and stop the tracer, during the block."""
    tracer = status.tracer(order.pid, order.tid)
    if not tracer or not order.is_lent:
        yield
        return
    tid = status.inner_tid(order.pid, order.tid, tracer)
    with ptrace.stopped(tracer) as holder:
        _raise_if_failed(holder.system_call(_PTRACE, _INTERRUPT, tid, 0, 0))
        # It stops at once: no signal can stop it otherwise.
        _raise_if_failed(holder.system_call(_WAIT4, tid, 0, _ALL_THREADS, 0))
        _raise_if_failed(holder.system_call(_PTRACE, _DETACH, tid, 0, 0))
        try:
            yield
        finally:
            # When its script ends, CRIU expects to be the tracer again.
            _raise_if_failed(holder.system_call(_PTRACE, _SEIZE, tid, 0, 0))


def _raise_if_failed(answer: int) -> None:
    if answer < 0:
        raise OSError(-answer, f"its tracer does not pass it on: {os.strerror(-answer)}")


if __name__ == "__main__":
    # Who asked may have ended.
    with suppress(HelperEnded):
        main(sys.argv[1])
