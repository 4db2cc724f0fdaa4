"""Run a restored program as a job of the shell that started crckpt: keys and signals do what they do to the program.

The shell knows only the process group of crckpt, and waits until crckpt stops or ends. The program often has its own
group, or even its own session, which no key reaches. So crckpt stops when the program stops, gives it the terminal
where that is possible, and forwards the signals that crckpt gets.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from contextlib import ExitStack, suppress
from typing import Any, Final

from msgspec import Struct

from crckpt.host import proc
from crckpt.host.opened import opened
from crckpt.host.proc.status import read_status
from crckpt.host.process.signals import FORWARDED, TYPED, Wakeups, send_signal, take_stop, woken_by_signals
from crckpt.host.process.terminals import ShellTerminal
from crckpt.host.syscalls import own_process

_LOOK_S: Final = 0.1
_UNTIL_FOREGROUND: Final = (signal.SIGTTIN, signal.SIGTTOU)
_STOPS: Final = (signal.SIGTSTP, *_UNTIL_FOREGROUND)


class Job(Struct, frozen=True):
    """A restored program in the foreground.

    - `child`: our child to wait for
    - `program`: our PID of the program; another one than `child` if it runs in a PID namespace
    - `identity`: what tells `program` from a later process with its PID; None if it has ended
    - `foreground`: our number of the group that gets what is typed, if the program has its own session
    - `terminal`: the shell's terminal as it was before the restore, if the program got it
    - `modes`: the settings that the program wants for it, if the program runs in the background
    """

    child: int
    program: int
    identity: proc.Identity | None
    foreground: int = 0
    terminal: ShellTerminal | None = None
    modes: list[Any] | None = None

    @property
    def group(self) -> int:
        """The program's process group; 0 if the program has gone."""
        with suppress(OSError):
            return os.getpgid(self.program)
        return 0

    @property
    def is_in_our_session(self) -> bool:
        """Whether our terminal can be the program's controlling terminal."""
        with suppress(OSError):
            return os.getsid(self.program) == os.getsid(0)
        return False

    @property
    def typing_group(self) -> int:
        """The group that gets what is typed."""
        return self.group if self.is_in_our_session or not self._has_foreground else self.foreground

    @property
    def _has_foreground(self) -> bool:
        """Whether `foreground` is still a group of the program's session: its number may be that of another by now."""
        with suppress(OSError):
            session = os.getsid(self.program)
            with suppress(ProcessLookupError):
                return self.foreground != 0 and os.getsid(self.foreground) == session
            # Its first process has ended. As long as others are in the group, no other process gets its number.
            return True
        return False

    def send(self, number: int, *groups: int) -> None:
        """Send a signal to these process groups, or to the program alone."""
        with suppress(ProcessLookupError):
            if not groups and self.identity is not None:
                send_signal(self.identity, number)
            for group in set(groups) - {0}:
                os.killpg(group, number)


def wait_for_job(job: Job) -> int:
    """Wait until a restored program has ended; return the wait status of `job.child`. Stop whenever the program stops.

    Reaps other children of ours, too.
    """
    come: deque[int] = deque()
    terminal = None
    with ExitStack() as stack:
        with suppress(OSError):  # we have no controlling terminal
            terminal = stack.enter_context(opened(os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)))
        wakeups = stack.enter_context(woken_by_signals())
        for number in (signal.SIGCHLD, signal.SIGTSTP, signal.SIGCONT, *FORWARDED):
            # Those that our parent had ignored (nohup) stay ignored.
            if signal.getsignal(number) != signal.SIG_IGN:
                before = signal.signal(number, lambda arrived, _frame: come.append(arrived))
                stack.callback(signal.signal, number, before)
        if take_stop():
            come.append(signal.SIGTSTP)
        return _Wait(job, terminal, wakeups, come).run()


class _Wait:
    """The wait for a job. `terminal` is our controlling terminal, if we have one; `come` are signals to deal with."""

    def __init__(self, job: Job, terminal: int | None, wakeups: Wakeups, come: deque[int]) -> None:
        self._job, self._terminal, self._wakeups, self._come = job, terminal, wakeups, come
        self._group = job.group
        self._modes = job.modes
        self._stopped_by = 0
        self._was_stopped = self._in_background = False

    def run(self) -> int:
        """Wait until it has ended."""
        while (status := self._reap()) is None:
            self._look_after_program()
            # There is no event when a shell brings a running job to the foreground, nor when a program in a namespace
            # stops.
            is_watched = self._in_background or self._job.program != self._job.child
            if not self._come:  # some may have come while we stopped
                self._wakeups.wait(seconds=_LOOK_S if is_watched else None)
            while self._come:
                self._forward(self._come.popleft())
        # Take the terminal from the group of the program that has ended, for the script that runs us. We are in the
        # background: unless this is blocked, the kernel would stop us.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        if self._terminal is not None and self._is_in_foreground(self._group):
            with suppress(OSError):
                os.tcsetpgrp(self._terminal, os.getpgrp())
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return status

    def _reap(self) -> int | None:
        """Reap ended children; return the wait status of the job if it has ended."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
                if pid == 0:
                    return None
                if pid == self._job.child and not os.WIFSTOPPED(status):
                    return status
                if pid == self._job.program:
                    self._stopped_by = os.WSTOPSIG(status)
                    self._was_stopped = False
        return None

    def _look_after_program(self) -> None:
        """Stop if it has stopped, and continue it once we are continued. Give it the terminal if the shell has given
        that to us.
        """
        process = proc.read_process(self._job.program)
        # A signal to its group may have continued it by now, and stopped us until now.
        is_stopped = process is not None and process.state == "stopped"
        was_continued = False
        if has_just_stopped := is_stopped and not self._was_stopped and self._terminal is not None:
            # A program that read or wrote in the background may have the terminal by now: `fg` came, or we gave it
            # away, before the program was stopped.
            has_terminal = self._stopped_by in _UNTIL_FOREGROUND and self._is_in_foreground(self._job.group)
            was_continued = self._must_hand_on() or has_terminal or self._stop()
            self._stopped_by = 0  # the next stop, which may be seen before its status is read, is another one
        self._in_background = not self._hand_on()
        # Without a shell that could continue us (in an orphaned process group) the kernel does not stop us: then the
        # program goes on at once, unless it waits for the terminal.
        if has_just_stopped and (was_continued or not self._in_background):
            self._job.send(signal.SIGCONT, self._job.group, self._job.typing_group)
            is_stopped = False
        self._was_stopped = is_stopped

    def _stop(self) -> bool:
        """Stop with our process group, as the terminal does; return whether we were stopped and continued."""
        number = self._stopped_by if self._stopped_by in _STOPS else signal.SIGTSTP
        before = signal.getsignal(number)
        if number == signal.SIGTSTP and before == signal.SIG_IGN:
            return False  # our parent wants that
        # The shell waits for all of our group: the rest of a pipeline, or the script that runs us.
        signal.signal(number, signal.SIG_IGN)
        os.killpg(0, number)
        signal.signal(number, signal.SIG_DFL)
        self._forget_continuing()
        # To this thread: it must stop before it goes on.
        signal.pthread_kill(threading.get_ident(), number)
        signal.signal(number, before)
        # Another thread may have got SIGCONT: then its handler runs in a moment.
        if signal.SIGCONT not in self._come:
            self._wakeups.wait(seconds=_LOOK_S)
        was_continued = signal.SIGCONT in self._come
        self._forget_continuing()
        return was_continued

    def _forget_continuing(self) -> None:
        while signal.SIGCONT in self._come:
            self._come.remove(signal.SIGCONT)

    def _forward(self, number: int) -> None:
        """Do with the program what the signal would have done with it, had it been sent to the program."""
        job = self._job
        is_typed = self._is_in_foreground(os.getpgrp())
        if number == signal.SIGCHLD:
            return
        if number == signal.SIGCONT:
            # Not to our own group: that would come back to us.
            others = {job.group, job.typing_group} - {os.getpgrp()}
            job.send(number, *others)
        elif is_typed and job.group == os.getpgrp() and number in (*TYPED, signal.SIGTSTP):
            return  # the terminal has sent it to the program, too
        elif number == signal.SIGTSTP:
            # The kernel does not stop an orphaned group by SIGTSTP: that of a program whose session is its own.
            must_stop = not job.is_in_our_session and job.typing_group == job.group and _has_default_stop(job.program)
            job.send(signal.SIGSTOP if must_stop else number, job.typing_group)
        elif is_typed and number in TYPED:
            job.send(number, job.typing_group)
        else:
            job.send(number)

    def _is_in_foreground(self, group: int) -> bool:
        """Return whether a process group has our controlling terminal."""
        with suppress(OSError):
            return self._terminal is not None and os.tcgetpgrp(self._terminal) == group
        return False

    def _must_hand_on(self) -> bool:
        """Return whether our process group has the terminal, and the program, in another group, could have it."""
        job = self._job
        return self._is_in_foreground(os.getpgrp()) and job.is_in_our_session and job.group not in (0, os.getpgrp())

    def _hand_on(self) -> bool:
        """Give the program's group the terminal if ours has it; return whether the program need not wait for it."""
        if self._terminal is None or not self._job.is_in_our_session:
            return True
        with suppress(OSError):
            if self._must_hand_on():
                os.tcsetpgrp(self._terminal, self._job.group)
                if self._job.terminal is not None and self._modes is not None:
                    self._job.terminal.set_modes(self._modes)
                self._modes = None
            return os.tcgetpgrp(self._terminal) == self._job.group
        return True  # it has gone


def _has_default_stop(pid: int) -> bool:
    """Return whether a process neither catches nor ignores SIGTSTP."""
    with suppress(OSError):
        fields = read_status(pid)
        bit = 1 << (signal.SIGTSTP - 1)
        return not (int(fields["SigCgt"], 16) | int(fields["SigIgn"], 16)) & bit
    return True


def end_by_signal(number: int) -> None:
    """End as a program that this signal ended: the shell says so, and ^C ends a loop that runs us."""
    own_process.prctl(own_process.SET_DUMPABLE, 0)  # no core file of ours
    # SIGKILL has no handler.
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
