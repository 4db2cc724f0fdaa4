"""The holder of a restored tree's terminal: a small process that ends with the tree.

It leads the session of a tree without a session leader, and starts CRIU for the restore, which asks for that: so it is
the parent of the tree's root, and learns its exit status. What the tree writes goes to a log, and to the
`crckpt attach` that is connected. If the holder is killed, the terminal hangs up, as if a terminal window was closed.

A tree in a new PID namespace has a holder that is the first process there: CRIU cannot dump a tree whose session has
its leader outside.
"""

from __future__ import annotations

import errno
import fcntl
import os
import selectors
import signal
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from crckpt.errors import CrckptError, error_text
from crckpt.helper.channel import (
    Channel,
    HelperEnded,
    HelperOutdated,
    HelperSilent,
    close_all,
    open_control,
)
from crckpt.helper.kinds import TERMINAL, record_path
from crckpt.helper.serve import Waiting, wake_on_signals
from crckpt.helper.terminal.clients import Clients
from crckpt.helper.terminal.output_log import OutputLog
from crckpt.helper.terminal.protocol import LONGEST, HeldTree, HolderAnswer, HolderRequest
from crckpt.host import proc
from crckpt.host.proc.procfs import has_visitors
from crckpt.host.process import run
from crckpt.host.syscalls.own_process import set_child_subreaper

# The tree, in whose process group we are perhaps, must not end or stop its terminal; of these, Python's handlers are
# not inherited by what we start.
_NOT_OURS: Final = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGTSTP,
    signal.SIGTTIN,
)
# The root may end before all is read that it has written.
_QUIET_S: Final = 0.1
# Processes that fork faster than they end, or hang in the kernel, must not keep the restore from ending.
_MOST_S_TO_END: Final = 10.0
_PAUSE_S: Final = 0.01


class _Holder:
    """Holds the master of the terminal, starts programs, and reaps them."""

    def __init__(self, control: Channel, master: int, slave: int, log: OutputLog) -> None:
        self._control: Channel | None = control
        self._master = master
        self._slave = slave
        self._log = log
        self._waiting = Waiting()
        self._clients = Clients(master, self._waiting, self._attend_master)
        self._socket: Path | None = None
        self._tree: HeldTree | None = None
        self._started: set[int] = set()
        self._ended: dict[int, int] = {}
        self._is_init = os.getpid() == 1
        self._is_terminated = False
        self._is_given_up = False
        self._is_drained = False

    def serve(self) -> None:
        """Serve until the tree has ended."""
        assert self._control is not None
        signals = wake_on_signals((*_NOT_OURS, signal.SIGCHLD, signal.SIGTERM), self._note_signal)
        # With a handler, `tcsetpgrp` would be interrupted by it again and again.
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        self._waiting.watch(signals, lambda _events: self._reap(signals))
        self._waiting.watch(self._control, lambda _events: self._take_request())
        self._answer(HolderAnswer(log=str(self._log.path)))
        while not self._is_over():
            has_ended = self._status() is not None
            is_any = self._waiting.wait(_QUIET_S if has_ended else self._clients.seconds_until_dropped())
            self._clients.drop_slow()
            if has_ended and not is_any:
                # Other processes may have the terminal open, perhaps for long. In a namespace they end with us.
                self._clients.end(self.exit_status())
                self._is_terminated |= self._is_init
        self._clients.end(self.exit_status())

    def close(self) -> None:
        """Close all connections, and remove the socket."""
        self._clients.close()
        if self._socket is not None:
            self._socket.unlink(missing_ok=True)

    def _note_signal(self, number: int) -> None:
        # SIGTERM ends us only once the root has ended.
        self._is_terminated |= number == signal.SIGTERM

    def _attend_master(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._clients.write_input()
        if events & selectors.EVENT_READ:
            self._pass_output_on()

    # Requests of the restore

    def _take_request(self) -> None:
        assert self._control is not None
        try:
            request, descriptors = self._control.receive_descriptors(HolderRequest, 0)
        except (HelperEnded, HelperOutdated):
            # The restore has ended. If it was killed, its CRIU gives up by itself.
            self._waiting.forget(self._control)
            self._control.close()
            self._control = None
            return
        except HelperSilent:
            return
        try:
            if (answer := self._perform(request, descriptors)) is not None:
                self._answer(answer)
        finally:
            close_all(descriptors)

    def _perform(self, request: HolderRequest, descriptors: list[int]) -> HolderAnswer | None:
        match request.do:
            case "start":
                return self._start(request, descriptors)
            case "commit":
                return self._commit(request)
            case "abort":
                self._end_children()
        return HolderAnswer()

    def _start(self, request: HolderRequest, descriptors: list[int]) -> HolderAnswer | None:
        output, *kept = descriptors
        given = {0: self._slave, 1: output, 2: output, **dict(zip(request.keep, kept, strict=True))}
        try:
            pid = run.spawn(request.argv, given, environment=request.environment, own_session=False)
        except OSError as error:
            return HolderAnswer(failed=f"cannot run {request.argv[0]}: {error.strerror}")
        self._started.add(pid)
        # The restore may be in another PID namespace.
        pidfd = os.pidfd_open(pid)
        self._answer(HolderAnswer(started=pid), pidfd)
        os.close(pidfd)
        return None

    def _commit(self, request: HolderRequest) -> HolderAnswer:
        tree = request.tree
        assert tree is not None
        # Orphans of the tree become children of an init, as everywhere.
        set_child_subreaper(enabled=False)
        self._tree = tree
        self._clients.tree = tree
        self._ended = {pid: status for pid, status in self._ended.items() if self._is_awaited(pid)}
        if self._status() is not None:
            self._close_slave()
            return HolderAnswer()
        with suppress(OSError):
            # The group of the root gets what is typed (^C). Without effect on a tree with a session of its own.
            os.tcsetpgrp(self._slave, os.getpgid(tree.program))
        path = record_path(TERMINAL, proc.Identity(proc.boot_id(), tree.root, tree.start))
        try:
            self._waiting.listen(path, self._clients.add)
        except OSError as error:
            return HolderAnswer(failed=f"crckpt attach cannot reach it: {error_text(error)}")
        self._socket = path
        return HolderAnswer()

    def _answer(self, answer: HolderAnswer, *descriptors: int) -> None:
        if self._control is not None:
            with suppress(HelperEnded):
                self._control.send(answer, descriptors)

    # Children

    def _reap(self, signals: int) -> None:
        with suppress(BlockingIOError):
            os.read(signals, LONGEST)
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
                if pid == 0:
                    break
                if not os.WIFSTOPPED(status):
                    if not self._is_awaited(pid):
                        continue
                    self._ended[pid] = status
                    self._answer(HolderAnswer(ended=(pid, status)))
                elif os.WSTOPSIG(status) == signal.SIGTSTP:
                    # ^Z stopped it, and there is no shell that could continue it.
                    with suppress(OSError):
                        os.killpg(os.getpgid(pid), signal.SIGCONT)
        if self._status() is not None:
            self._close_slave()

    def _is_awaited(self, pid: int) -> bool:
        """Return whether somebody may ask how this child ended. An init gets all orphans of its namespace."""
        if self._tree is None:
            # The restore does not know yet which is the tree's root.
            return self._control is not None
        return pid == self._tree.program or pid in self._started

    def _close_slave(self) -> None:
        # The output ends once no process has the slave open.
        if self._slave >= 0:
            os.close(self._slave)
            self._slave = -1

    def _end_children(self) -> None:
        """SIGKILL all children, and those that become ours then; give up those that do not end."""
        until = time.monotonic() + _MOST_S_TO_END
        while (children := proc.children(os.getpid())) and not self._is_given_up:
            for pid in children:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            self._is_given_up = time.monotonic() > until
            time.sleep(_PAUSE_S)
        self._is_terminated = True

    def _status(self) -> int | None:
        """The wait status of the tree, if it has ended."""
        return None if self._tree is None else self._ended.get(self._tree.program)

    def exit_status(self) -> int:
        """Return the exit status of the tree's program, or 128 plus its signal; 1 if it is not known."""
        status = self._status()
        code = 1 if status is None else os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code

    def _is_over(self) -> bool:
        if self._is_given_up:
            return True
        if self._tree is None:
            return (self._control is None or self._is_terminated) and not proc.children(os.getpid())
        if self._status() is None or not (self._is_drained or self._is_terminated):
            return False
        # CRIU may be ending the tree in here: if we ended now, the kernel would end CRIU, too.
        return not (self._is_init and has_visitors())

    # The terminal and its clients

    def _pass_output_on(self) -> None:
        try:
            output = os.read(self._master, LONGEST - 1)
        except BlockingIOError:
            return
        except OSError as error:
            # EIO: no process has the terminal open any more.
            if error.errno != errno.EIO:
                raise
            output = b""
        if not output:
            self._is_drained = True
            self._clients.close_terminal()
            return
        self._log.write(output)
        self._clients.send_output(output)


def main(words: list[str]) -> int:
    """Hold the terminal until the tree ends, or answer why that is not possible."""
    control = open_control(TERMINAL, words[0])
    master, slave, is_session = (int(word) for word in words[1:4])
    set_child_subreaper(enabled=True)
    if is_session:
        if os.getpid() == 1:
            # On the host we lead a session already; here our parent does.
            os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    try:
        log = OutputLog(words[4])
    except CrckptError as error:
        control.send(HolderAnswer(failed=error.message))
        return error.exit_code
    os.set_blocking(master, False)
    holder = _Holder(control, master, slave, log)
    try:
        holder.serve()
    finally:
        holder.close()
    # The program's own, for a service manager that takes us for the main process.
    return holder.exit_status()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
