"""One system call, made by a thread of another process while it is stopped (x86-64, and 32-bit programs on it).

No byte of the program is changed: the thread executes a `syscall` instruction that lies in its vdso anyway. Then it is
put back where it was, and the kernel makes the call again that it was waiting in (`crckpt.host.syscalls.restarts`).
Call this from a process of its own with nothing else to do (`crckpt.host.process.userfaultfd`): its death lets go what
it has seized.

Sources: ptrace(2); linux/ptrace.h; arch/x86/include/asm/user_64.h; kernel/seccomp.c.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from crckpt.errors import HostCannot
from crckpt.host import proc
from crckpt.host.proc.fd import read_target
from crckpt.host.proc.maps import read_maps
from crckpt.host.proc.stat import read_stat
from crckpt.host.syscalls.libc import LIBC, check
from crckpt.host.syscalls.restarts import result_to_go_on

_GETREGS: Final = 12
_SETREGS: Final = 13
_CONT: Final = 7
_DETACH: Final = 17
_SYSCALL: Final = 24
_SETOPTIONS: Final = 0x4200
_SEIZE: Final = 0x4206
_INTERRUPT: Final = 0x4207
_GETSIGMASK: Final = 0x420A
_SETSIGMASK: Final = 0x420B
_GET_SYSCALL_INFO: Final = 0x420E
_GET_RSEQ: Final = 0x420F
_GET_DISPATCH: Final = 0x4211

_TRACESYSGOOD: Final = 1
SUSPEND_SECCOMP: Final = 1 << 21
_EVENT_STOP: Final = 128
_AT_SYSTEM_CALL: Final = signal.SIGTRAP | 0x80

_SYSCALL_INFO: Final = struct.Struct("<B3xIQQ7Q")
"""What kind of stop, the architecture, instruction pointer, stack pointer, number, arguments (linux/ptrace.h)."""
_ENTRY: Final = 1
_ARCHITECTURES: Final = {False: 0xC000003E, True: 0x40000003}  # linux/audit.h, x86-64 and 32-bit
_INSTRUCTION_BYTES: Final = 2

_ALL_THREADS: Final = 0x40000000  # __WALL
_NOWHERE: Final = 2**64 - 1
_COMPAT_WIDEST: Final = 2**32 - 1
_EVERY_SIGNAL: Final = 2**64 - 1
_COMPAT_CODE: Final = 0x23  # the code segment of 32-bit programs
_ARGUMENTS: Final = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
_COMPAT_ARGUMENTS: Final = ("rbx", "rcx", "rdx", "rsi", "rdi", "rbp")
_RED_ZONE: Final = 512  # more than what a function may use below its stack pointer (System V ABI: 128)
STOPS_WITHIN_S: Final = 2.0
"""What gets to run does so within that."""
_ENTERS_WITHIN_S: Final = 30.0
_OFTEN_S: Final = 1.0


class Refused(HostCannot):
    """No system call is made in that process, and why."""


class _Registers(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi"),
            *("orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs"),
        )
    )


class Stopped:
    """A thread that is stopped for us, with every signal blocked."""

    def __init__(self, pid: int, tid: int, found: _Registers) -> None:
        self._pid = pid
        self.tid = tid
        self._found = found
        self.is_compat: bool = found.cs == _COMPAT_CODE
        """Whether it runs 32-bit code: system calls have other numbers there."""
        self._instruction = _instruction(pid, b"\xcd\x80" if self.is_compat else b"\x0f\x05")

    def system_call(self, number: int, *arguments: int, within_s: float | None = None) -> int:
        """Let it make this call with up to six arguments; what comes of it, or minus the errno.

        Raises Refused, with the call not made, if it does not get to run `within_s` seconds, or if another thread has
        changed the instruction meanwhile: filters of system calls are suspended for our call, and for no other.
        """
        registers = _Registers.from_buffer_copy(self._found)
        registers.rip = self._instruction
        registers.rax = number
        # Else the kernel would restart, from here, the call that it was stopped in.
        registers.orig_rax = _NOWHERE
        names = _COMPAT_ARGUMENTS if self.is_compat else _ARGUMENTS
        for name, value in zip(names, arguments, strict=False):
            setattr(registers, name, value & _NOWHERE)
        _ask(_SETREGS, self.tid, registers)
        try:
            # It may enter any call, if its code was changed; so it is given a limit, whoever asks.
            self._go_on_to_system_call(within_s or _ENTERS_WITHIN_S)
        except TimeoutError:
            self._leave_out_system_call(registers)
            raise _not_running(self._pid) from None
        if not self._is_entering(number, arguments):
            _ask(_SETREGS, self.tid, registers)
            raise Refused(f"PID {self._pid} has changed the code of its vdso meanwhile")
        with _filters_suspended(self._pid, self.tid):
            # In the kernel it waits for nobody.
            self._go_on_to_system_call(None)
        _ask(_GETREGS, self.tid, registers)
        width = ctypes.c_int32 if self.is_compat else ctypes.c_int64
        return int(width(registers.rax).value)

    def _is_entering(self, number: int, arguments: tuple[int, ...]) -> bool:
        """Whether what it is about to make is this call, by the instruction that we have chosen."""
        told = ctypes.create_string_buffer(_SYSCALL_INFO.size)
        with suppress(OSError):  # a kernel before 5.3 does not say
            _ask(_GET_SYSCALL_INFO, self.tid, told, len(told))
        kind, architecture, place, _, found, *given = _SYSCALL_INFO.unpack_from(told)
        widest = _COMPAT_WIDEST if self.is_compat else _NOWHERE
        is_ours = (kind, architecture, found) == (_ENTRY, _ARCHITECTURES[self.is_compat], number)
        is_here = place == self._instruction + _INSTRUCTION_BYTES
        return (
            is_ours
            and is_here
            and all(one & widest == other & widest for one, other in zip(arguments, given, strict=False))
        )

    @contextmanager
    def lent(self, content: bytes) -> Iterator[int]:
        """The address of `content` on the thread's stack, below all that it uses, while the block runs."""
        address = (self._found.rsp - _RED_ZONE - len(content)) & ~0xF
        with Path(f"/proc/{self._pid}/mem").open("r+b", buffering=0) as memory:
            memory.seek(address)
            before = memory.read(len(content))
            memory.seek(address)
            memory.write(content)
            try:
                yield address
            finally:
                memory.seek(address)
                memory.write(before)

    def _go_on_to_system_call(self, within_s: float | None) -> None:
        """To where it enters its next call, or returns from one. Raises TimeoutError: then it runs."""
        passed_on = 0
        while passed_on != _AT_SYSTEM_CALL:
            _ask(_SYSCALL, self.tid, passed_on)
            event, stop = _next_stop(self._pid, self.tid, within_s)
            # SIGSTOP cannot be blocked: it gets its own, and stays stopped by it when we have gone.
            passed_on = 0 if event else stop

    def _leave_out_system_call(self, registers: _Registers) -> None:
        """Stop it wherever it has come to: before the call, or where it enters it, which then does nothing."""
        _ask(_INTERRUPT, self.tid)
        while True:
            event, stop = _next_stop(self._pid, self.tid, None)
            if event == _EVENT_STOP:
                return
            if stop == _AT_SYSTEM_CALL:
                _ask(_SETREGS, self.tid, registers)
                return
            _ask(_INTERRUPT, self.tid)
            _ask(_CONT, self.tid, stop)


def seize(pid: int, options: int = 0) -> None:
    """Trace a process without stopping it, until we end. Raises OSError."""
    _ask(_SEIZE, pid, options)


@contextmanager
def stopped(pid: int, tid: int | None = None, start: int = 0) -> Iterator[Stopped]:
    """One thread of a process (any, or `tid`), stopped; afterwards as it was. Raises Refused, with it untouched.

    With `start` only if the process was started then: else it is another, which was given its PID.
    """
    if platform.machine() != "x86_64":
        raise Refused(f"a system call cannot be made in another process on {platform.machine()} yet")
    tid = _thread(pid) if tid is None else tid
    # SIGCHLD is how we are told of a stop; sigtimedwait needs it blocked.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
    _seize(pid, tid)
    _stop(pid, tid)
    _refuse_another(pid, tid, start)
    with _put_back(pid, tid) as found:
        yield Stopped(pid, tid, found)


@contextmanager
def _put_back(pid: int, tid: int) -> Iterator[_Registers]:
    found, mask = _Registers(), ctypes.c_uint64()
    _ask(_GETREGS, tid, found)
    _ask(_GETSIGMASK, tid, mask, ctypes.sizeof(mask))
    _refuse_own_dispatch(pid, tid)
    _leave_restartable_sequence(pid, tid, found)
    _let_call_go_on(tid, found)
    try:
        _ask(_SETSIGMASK, tid, ctypes.c_uint64(_EVERY_SIGNAL), ctypes.sizeof(mask))
        yield found
    finally:
        # Not from where it is: only from a trap does the kernel look whether a call is to be restarted. However long it
        # takes until it gets to run: with our registers it must not go on.
        _ask(_INTERRUPT, tid)
        _ask(_CONT, tid)
        _trap(pid, tid, None)
        _ask(_SETREGS, tid, found)
        _ask(_SETSIGMASK, tid, mask, ctypes.sizeof(mask))
        _ask(_DETACH, tid)


def _thread(pid: int) -> int:
    """A thread that can be stopped. Raises Refused."""
    process = proc.read_process(pid)
    if process is None:
        raise Refused(f"there is no process {pid}")
    if process.is_kernel_thread:
        raise Refused(f"PID {pid} is a thread of the kernel")
    if process.state in ("zombie", "dead"):
        why = "the main thread has exited" if len(process.threads) > 1 else "it has ended"
        raise Refused(f"PID {pid}: {why}")
    if process.tracer:
        raise _traced(pid, process.tracer)
    for tid in sorted(process.threads, key=lambda tid: tid != pid):
        with suppress(OSError):
            if _state(pid, tid) not in "DZX":
                return tid
    raise _uninterruptible(pid)


def _state(pid: int, tid: int) -> str:
    return read_stat(pid, tid).state


def _seize(pid: int, tid: int) -> None:
    """Not with its filters suspended: it runs for some microseconds more, and could make any call."""
    try:
        seize(tid, _TRACESYSGOOD)
    except ProcessLookupError:
        raise Refused(f"PID {pid} has ended") from None
    except OSError as error:
        process = proc.read_process(pid)
        if process and process.tracer:
            raise _traced(pid, process.tracer) from None
        raise Refused(f"PID {pid} cannot be traced: {error.strerror}", hint="run crckpt as root") from None


@contextmanager
def _filters_suspended(pid: int, tid: int) -> Iterator[None]:
    """While it is stopped where it enters a call, before they are asked: else they would kill the program for it.

    Raises Refused, with the call left out, where they cannot be suspended.
    """
    try:
        _ask(_SETOPTIONS, tid, _TRACESYSGOOD | SUSPEND_SECCOMP)
    except OSError as error:
        registers = _Registers()
        _ask(_GETREGS, tid, registers)
        registers.orig_rax = _NOWHERE
        _ask(_SETREGS, tid, registers)
        raise Refused(
            f"PID {pid} cannot be traced with its system call filters (seccomp) suspended: {error.strerror}",
            hint="run crckpt as root, on a kernel with CONFIG_CHECKPOINT_RESTORE",
        ) from None
    yield
    _ask(_SETOPTIONS, tid, _TRACESYSGOOD)


def _stop(pid: int, tid: int) -> None:
    _ask(_INTERRUPT, tid)
    try:
        _trap(pid, tid, STOPS_WITHIN_S)
    except TimeoutError:
        with suppress(OSError):
            if _state(pid, tid) != "D":
                raise _not_running(pid) from None
        raise _uninterruptible(pid) from None


def _trap(pid: int, tid: int, within_s: float | None) -> None:
    """Wait until it is in the stop that was asked for; signals that come first go on to it."""
    while True:
        event, stop = _next_stop(pid, tid, within_s)
        if event == _EVENT_STOP:
            return
        # Any other stop is taken for the one that was asked for.
        _ask(_INTERRUPT, tid)
        _ask(_CONT, tid, 0 if stop == _AT_SYSTEM_CALL else stop)


def _next_stop(pid: int, tid: int, within_s: float | None) -> tuple[int, int]:
    """Its next stop, as event and signal. Raises TimeoutError, and Refused if it ends."""
    deadline = None if within_s is None else time.monotonic() + within_s
    while True:
        try:
            found, status = os.waitpid(tid, os.WNOHANG | _ALL_THREADS)
        except ChildProcessError:  # another thread replaced the program, and this one went
            raise Refused(f"PID {pid} ended or was replaced (exec) meanwhile", hint="try again") from None
        if found and not os.WIFSTOPPED(status):
            raise Refused(f"PID {pid} ended meanwhile")
        if found:
            return status >> 16, os.WSTOPSIG(status)
        left = _OFTEN_S if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"PID {pid} did not stop within {within_s:g} s")
        signal.sigtimedwait((signal.SIGCHLD,), left)


def _instruction(pid: int, wanted: bytes) -> int:
    """Where these bytes lie in its vdso. Raises Refused."""
    for each in read_maps(pid):
        if each.path == "[vdso]":
            with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
                memory.seek(each.start)
                found = memory.read(each.end - each.start).find(wanted)
            if found >= 0:
                return each.start + found
    raise Refused(f"PID {pid} has no vdso with a system call instruction")


def _leave_restartable_sequence(pid: int, tid: int, registers: _Registers) -> None:
    """Where the kernel would abort a restartable sequence, having looked at our registers it would not: we do.

    Source: rseq(2), kernel/rseq.c: rseq_ip_fixup.
    """
    told = ctypes.create_string_buffer(24)
    with suppress(OSError):  # a kernel before 5.13 cannot say, and is too old for all that follows
        _ask(_GET_RSEQ, tid, told, len(told))
    (area,) = struct.unpack_from("<Q", told)
    if not area:
        return
    # If the program is being replaced nothing is left there to be read.
    with suppress(OSError, struct.error), Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(area + 8)
        (sequence,) = struct.unpack("<Q", memory.read(8))
        if sequence:
            memory.seek(sequence + 8)
            start, length, abort = struct.unpack("<3Q", memory.read(24))
            if start <= registers.rip < start + length:
                registers.rip = abort


def _let_call_go_on(tid: int, registers: _Registers) -> None:
    """The call that it waits in is made again, unless a handler runs."""
    number, result = (ctypes.c_int32(value & 0xFFFFFFFF).value for value in (registers.orig_rax, registers.rax))
    is_compat = registers.cs == _COMPAT_CODE
    first = registers.rbx if is_compat else registers.rdi
    changed = result_to_go_on(
        number, result, first, is_compat=is_compat, is_socket=lambda descriptor: _is_socket(tid, descriptor)
    )
    if changed != result:
        registers.rax = changed & 2**64 - 1


def _is_socket(tid: int, descriptor: int) -> bool:
    with suppress(OSError):
        return read_target(tid, descriptor & 2**31 - 1).startswith("socket:")
    return False


def _refuse_another(pid: int, tid: int, start: int) -> None:
    """A process that we trace keeps its PID."""
    process = proc.read_process(pid) if start else None
    if process is not None and process.start != start:
        _ask(_DETACH, tid)
        raise Refused(f"PID {pid} has ended, and is another process by now")


def _refuse_own_dispatch(pid: int, tid: int) -> None:
    """A program that catches its own system calls (Wine does) would catch ours."""
    told = ctypes.create_string_buffer(32)
    try:
        _ask(_GET_DISPATCH, tid, told, len(told))
    except OSError:
        return
    if struct.unpack_from("<Q", told)[0]:
        _ask(_DETACH, tid)
        raise Refused(f"PID {pid} dispatches its own system calls (PR_SET_SYSCALL_USER_DISPATCH)")


def _traced(pid: int, tracer: int) -> Refused:
    return Refused(f"PID {pid} is already traced by PID {tracer} ({proc.title(tracer)})", hint="detach the debugger")


def _uninterruptible(pid: int) -> Refused:
    return Refused(f"PID {pid} is in uninterruptible sleep", hint="wait for its disk or network share, and try again")


def _not_running(pid: int) -> Refused:
    return Refused(
        f"PID {pid} does not get to run: its control group is frozen, or leaves it next to no CPU time",
        hint=f"see cgroup.freeze and cpu.max of its group, which is named in /proc/{pid}/cgroup",
    )


def _ask(request: int, tid: int, data: object = 0, address: int = 0) -> None:
    pointer = ctypes.c_void_p(data) if isinstance(data, int) else ctypes.byref(data)  # type: ignore[arg-type]
    try:
        check(LIBC.ptrace(request, tid, ctypes.c_void_p(address), pointer))
    except OSError as error:
        if error.errno == errno.EIO:
            raise OSError(errno.EIO, "the kernel does not know this request") from None
        raise
