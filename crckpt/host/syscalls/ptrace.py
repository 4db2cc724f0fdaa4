"""Make a system call in a stopped thread of another process (x86-64, and 32-bit programs on it).

No byte of the program is changed: the thread executes a `syscall` instruction of its vdso. Then its registers are
restored, and the kernel makes the call again that it was waiting in (`restarting_result`).
Only a process that does nothing else may do this (`crckpt.helper.calls.remote_caller`): if it dies, the kernel
releases the threads that it has seized. python-ptrace lacks SEIZE, INTERRUPT, the signal mask and the state of a stop:
they are ours (`ptrace_requests`).

Sources: ptrace(2); linux/ptrace.h; kernel/seccomp.c.
"""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from crckpt.errors import HostCannot
from crckpt.host import proc
from crckpt.host.proc import procfs
from crckpt.host.proc.maps import read_maps
from crckpt.host.proc.status import read_stat
from crckpt.host.syscalls import ptrace_requests
from crckpt.host.syscalls.ptrace_requests import call_name
from crckpt.host.syscalls.registers import ThreadRegisters, is_supported, restarting_result

# With this option a stop at a system call has bit 0x80 in its signal, unlike the program's own SIGTRAP.
_TRACESYSGOOD: Final = 1
_EVENT_STOP: Final = 128
_AT_SYSTEM_CALL: Final = signal.SIGTRAP | 0x80

# What kind of stop, the architecture, instruction pointer, stack pointer, number, arguments (linux/ptrace.h).
_SYSCALL_INFO: Final = struct.Struct("<B3xIQQ7Q")
_SYSCALL_WORDS: Final = 8  # after the number in /proc/PID/task/TID/syscall
_ENTRY: Final = 1  # PTRACE_SYSCALL_INFO_ENTRY

_ALL_THREADS: Final = 0x40000000  # __WALL
_EVERY_SIGNAL: Final = 2**64 - 1
_RED_ZONE: Final = 512  # more than what a function may use below its stack pointer (System V ABI: 128)
STOPS_WITHIN_S: Final = 2.0
"""A thread that gets any CPU time stops within this time."""
_ENTERS_WITHIN_S: Final = 30.0
_POLL_S: Final = 1.0
_STATE_POLL_S: Final = 0.002


class Refused(HostCannot):
    """No system call can be made in a process. The message names the reason."""


class StoppedThread:
    """A thread that is stopped for us, with every signal blocked."""

    def __init__(self, pid: int, tid: int, found: ThreadRegisters) -> None:
        self._pid = pid
        self.tid = tid
        self._found = found
        self.is_compat = found.is_compat
        """Whether it runs 32-bit code: system calls have other numbers there."""
        vdso = next((each for each in read_maps(pid) if each.path == "[vdso]"), None)
        place = -1
        if vdso is not None:
            with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
                memory.seek(vdso.start)
                place = memory.read(vdso.end - vdso.start).find(found.convention.instruction)
        if vdso is None or place < 0:
            raise Refused(f"PID {pid} has no vdso with a system call instruction")
        self._instruction = vdso.start + place

    def system_call(self, number: int, *arguments: int, within_s: float | None = None) -> int:
        """Make this call with up to six arguments; return its result, or minus the errno.

        Raises Refused, and makes no call, if the thread gets no CPU time for `within_s` seconds, or if another thread
        has changed the instruction.
        """
        registers = self._found.copy()
        registers.set_call(self._instruction, number, arguments)
        registers.write(self.tid)
        try:
            # If its code was changed it may enter any call: so there is always a limit.
            self._go_on_to_system_call(within_s or _ENTERS_WITHIN_S)
        except TimeoutError:
            # Stop it before the call, or where it enters the call, which then does nothing.
            ptrace_requests.interrupt(self.tid)
            if _trap(self._pid, self.tid, None, or_at_call=True):
                registers.write(self.tid)
            raise _not_running_error(self._pid) from None
        if not self._is_entering(number, arguments):
            registers.write(self.tid)
            raise Refused(f"PID {self._pid} has changed the code of its vdso")
        # Only now: no other call than ours may pass the program's filters.
        # Suspend its filters (seccomp), which would kill the program for our call. They have not run yet.
        try:
            ptrace_requests.call("setoptions", self.tid, _TRACESYSGOOD | ptrace_requests.SUSPEND_SECCOMP)
        except OSError as error:
            entered = ThreadRegisters.read(self.tid)
            entered.forget_call()
            entered.write(self.tid)
            raise Refused(
                f"PID {self._pid} cannot be traced with its system call filters (seccomp) suspended: {error.strerror}",
                hint="run crckpt as root, on a kernel with CONFIG_CHECKPOINT_RESTORE",
            ) from None
        # In the kernel it waits for nobody.
        self._go_on_to_system_call(None)
        ptrace_requests.call("setoptions", self.tid, _TRACESYSGOOD)
        return ThreadRegisters.read(self.tid).result

    def _is_entering(self, number: int, arguments: tuple[int, ...]) -> bool:
        """Return whether it is about to make this call, by the instruction that we have chosen."""
        info = bytes(_SYSCALL_INFO.size)
        with suppress(OSError):  # a kernel before 5.3 has no such request
            info = ptrace_requests.read_state(self.tid, ptrace_requests.SYSCALL_INFO)
        kind, architecture, address, _, entered, *given = _SYSCALL_INFO.unpack_from(info)
        convention = self._found.convention
        widest = (1 << convention.bits) - 1
        return (
            (kind, architecture, entered) == (_ENTRY, convention.architecture, number)
            and address == self._instruction + len(convention.instruction)
            and all(one & widest == other & widest for one, other in zip(arguments, given, strict=False))
        )

    @contextmanager
    def lent(self, content: bytes) -> Iterator[int]:
        """The address of `content` on the thread's stack, below all that it uses, while the block runs."""
        address = (self._found.stack_pointer - _RED_ZONE - len(content)) & ~0xF
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
        """Let it run until it enters its next call, or returns from one. Raises TimeoutError: then it still runs."""
        delivered = 0
        while delivered != _AT_SYSTEM_CALL:
            ptrace_requests.call("syscall", self.tid, delivered)
            event, stop = _next_stop(self._pid, self.tid, within_s)
            # SIGSTOP cannot be blocked: the thread gets it, and is still stopped by it after we have detached.
            delivered = 0 if event else stop


@contextmanager
def stopped(
    pid: int, tid: int | None = None, identity: proc.Identity | None = None, *, is_restored: bool = False
) -> Iterator[StoppedThread]:
    """Stop one thread of a process (`tid`, or the main thread, or another if that one sleeps uninterruptibly for
    STOPS_WITHIN_S), and restore it afterwards.

    With `identity` it must be this process: its PID may have been given to another. `is_restored`: it runs CRIU's code,
    in a restore's hold. Raises Refused, and leaves the thread alone.
    """
    if not is_supported():
        raise Refused(f"a system call cannot be made in another process on {os.uname().machine} yet")
    tid = _find_thread(pid) if tid is None else tid
    # SIGCHLD reports a stop; sigtimedwait needs it blocked.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
    try:
        try:
            # Not with its filters suspended: it runs for some microseconds more, and could make any call.
            ptrace_requests.seize(tid, _TRACESYSGOOD)
        except ProcessLookupError:
            raise Refused(f"PID {pid} has ended") from None
        except OSError as error:
            process = proc.read_process(pid)
            if process and process.tracer:
                raise _tracer_refusal(pid, process.tracer) from None
            raise Refused(f"PID {pid} cannot be traced: {error.strerror}", hint="run crckpt as root") from None
        ptrace_requests.interrupt(tid)
        try:
            _trap(pid, tid, STOPS_WITHIN_S)
        except TimeoutError:
            with suppress(OSError):
                if _state(pid, tid) != "D":
                    raise _not_running_error(pid) from None
            raise _uninterruptible_error(pid, tid) from None
        # A process that we trace keeps its PID.
        if identity is not None and not identity.keeps_pid:
            ptrace_requests.call("detach", tid)
            raise Refused(f"PID {pid} has ended, and another process has its PID now")
        with _restored(pid, tid, runs_program=not is_restored) as found:
            yield StoppedThread(pid, tid, found)
    finally:
        # What is started now would inherit it.
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _restored(pid: int, tid: int, *, runs_program: bool) -> Iterator[ThreadRegisters]:
    found, mask = ThreadRegisters.read(tid), ptrace_requests.get_signal_mask(tid)
    # Refuse a program that catches its own system calls, as Wine does: it would catch ours.
    dispatches = 0
    with suppress(OSError):  # a kernel before 6.4 has no such request
        (dispatches,) = struct.unpack_from("<Q", ptrace_requests.read_state(tid, ptrace_requests.DISPATCH))
    if dispatches:
        ptrace_requests.call("detach", tid)
        raise Refused(f"PID {pid} dispatches its own system calls (PR_SET_SYSCALL_USER_DISPATCH)")
    _leave_restartable_sequence(pid, tid, found if runs_program else None)

    def is_socket(descriptor: int) -> bool:
        with suppress(OSError):
            return str(Path(f"/proc/{tid}/fd/{descriptor & 2**31 - 1}").readlink()).startswith("socket:")
        return False

    # Have the kernel make the call again that the thread waits in, unless a handler runs.
    changed = restarting_result(
        found.call, found.result, found.first_argument, is_compat=found.is_compat, is_socket=is_socket
    )
    if changed != found.result:
        found.result = changed
    try:
        ptrace_requests.set_signal_mask(tid, _EVERY_SIGNAL)
        yield found
    finally:
        # The kernel restarts an interrupted call only from a trap, not from a stop at a system call: so it is stopped
        # once more, and runs no instruction until then. Without a limit: it must not continue with our
        # registers, however long it takes until it gets CPU time.
        ptrace_requests.interrupt(tid)
        ptrace_requests.call("cont", tid)
        _trap(pid, tid, None)
        found.write(tid)
        ptrace_requests.set_signal_mask(tid, mask)
        ptrace_requests.call("detach", tid)


def _find_thread(pid: int) -> int:
    """Find a thread that can be stopped. Raises Refused."""
    process = proc.read_process(pid)
    if process is None:
        raise Refused(f"there is no process {pid}")
    if process.is_kernel_thread:
        raise Refused(f"PID {pid} is a kernel thread")
    if process.has_ended:
        why = "the main thread has exited" if len(process.threads) > 1 else "it has ended"
        raise Refused(f"PID {pid}: {why}")
    if process.tracer:
        raise _tracer_refusal(pid, process.tracer)
    # The main thread, because threads may differ. It may wait for a disk now.
    deadline = time.monotonic() + STOPS_WITHIN_S
    while time.monotonic() < deadline and not _can_stop(pid, pid):
        time.sleep(_STATE_POLL_S)
    found = next((tid for tid in (pid, *process.threads) if _can_stop(pid, tid)), None)
    if found is None:
        raise _uninterruptible_error(pid, pid)
    return found


def _can_stop(pid: int, tid: int) -> bool:
    """Return whether a thread is alive and not in uninterruptible sleep, in which it may never stop."""
    try:
        return _state(pid, tid) not in "DZX"
    except OSError:
        return False


def _state(pid: int, tid: int) -> str:
    return read_stat(pid, tid).state


def _trap(pid: int, tid: int, within_s: float | None, *, or_at_call: bool = False) -> bool:
    """Wait until it is in the stop that was requested; deliver signals that come first.

    Or until it enters a system call: return whether it does.
    """
    while True:
        event, stop = _next_stop(pid, tid, within_s)
        is_at_call = not event and stop == _AT_SYSTEM_CALL
        if event == _EVENT_STOP or (or_at_call and is_at_call):
            return is_at_call
        # The kernel may have merged the request with this stop: repeat it.
        ptrace_requests.interrupt(tid)
        ptrace_requests.call("cont", tid, 0 if is_at_call else stop)


def _next_stop(pid: int, tid: int, within_s: float | None) -> tuple[int, int]:
    """Wait for its next stop; return event and signal. Raises TimeoutError, and Refused if it ends."""
    deadline = None if within_s is None else time.monotonic() + within_s
    while True:
        try:
            found, status = os.waitpid(tid, os.WNOHANG | _ALL_THREADS)
        except ChildProcessError:  # another thread replaced the program, which ended this one
            raise Refused(f"PID {pid} ended or was replaced (exec)", hint="try again") from None
        if found and not os.WIFSTOPPED(status):
            raise Refused(f"PID {pid} ended")
        if found:
            return status >> 16, os.WSTOPSIG(status)
        left = _POLL_S if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"PID {pid} did not stop within {within_s:g} s")
        signal.sigtimedwait((signal.SIGCHLD,), left)


def _leave_restartable_sequence(pid: int, tid: int, registers: ThreadRegisters | None) -> None:
    """Leave a restartable sequence, as the kernel does: it would abort our call instead. Source: kernel/rseq.c.

    `registers` are None if the thread runs CRIU's code: with the rights of root it must not go where the program says.
    """
    try:
        info = ptrace_requests.read_state(tid, ptrace_requests.RSEQ)
    except OSError:  # a kernel before 5.13 has no such request, and cannot track either
        return
    (area,) = struct.unpack_from("<Q", info)
    if not area:
        return
    # Nothing can be read there if the program is being replaced.
    with suppress(OSError, OverflowError, struct.error), Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
        # struct rseq: cpu_id_start, cpu_id, rseq_cs. struct rseq_cs: version, flags, start_ip, post_commit_offset,
        # abort_ip.
        memory.seek(area + 8)
        (sequence,) = struct.unpack("<Q", memory.read(8))
        if not sequence:
            return
        if registers is not None:
            memory.seek(sequence + 8)
            start, length, abort = struct.unpack("<3Q", memory.read(24))
            if start <= registers.instruction_pointer < start + length:
                registers.instruction_pointer = abort
        memory.seek(area + 8)
        memory.write(bytes(8))


def _tracer_refusal(pid: int, tracer: int) -> Refused:
    return Refused(f"PID {pid} is already traced by PID {tracer} ({proc.title(tracer)})", hint="detach the debugger")


def _uninterruptible_error(pid: int, tid: int) -> Refused:
    call = ""
    with suppress(OSError):  # the thread has ended, or the kernel has no such file
        number, *words = procfs.text(f"/proc/{pid}/task/{tid}/syscall").split()
        # Six arguments, stack and place: else it is in no call.
        if len(words) == _SYSCALL_WORDS:
            # The file does not say which table the number is of; a 32-bit program has its stack below 4 GiB.
            is_native = int(words[6], 16) >= 1 << 32
            call = f" (in {call_name(int(number), os.uname().machine, is_native=is_native)})"
    return Refused(
        f"PID {pid} is in uninterruptible sleep{call}", hint="wait for its disk or network share, and try again"
    )


def _not_running_error(pid: int) -> Refused:
    return Refused(
        f"PID {pid} does not run: its control group is frozen, or gives it almost no CPU time",
        hint=f"check cgroup.freeze and cpu.max of its group: cat /proc/{pid}/cgroup",
    )
