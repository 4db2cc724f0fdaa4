"""epoll over an eventfd, timerfds, a signalfd and an inotify watch; all must go on firing where they were."""

import os
import select
import signal
import struct
import sys
from pathlib import Path

import native
from selfcheck import Program

PERIOD_S = 0.05
HOUR_S = 3600.0
UNREAD = 7


class Events:
    """The descriptors, and how often each has fired."""

    def __init__(self, workdir: Path) -> None:
        """Open all event sources, and register them with one epoll."""
        self.watched = workdir / "watched"
        self.watched.mkdir()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGUSR2])
        self.unread = os.eventfd(UNREAD, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.periodic = native.timerfd(PERIOD_S, PERIOD_S)
        self.late = native.timerfd(PERIOD_S, PERIOD_S)
        self.hour = native.timerfd(HOUR_S, 0)
        self.signals = native.signalfd(signal.SIGUSR1)
        self.unread_signal = native.signalfd(signal.SIGUSR2)
        self.notify, self.watch = native.inotify(str(self.watched), native.IN_CREATE)
        self.names = {self.periodic: "timerfd", self.signals: "signalfd", self.notify: "inotify"}
        self.fired = dict.fromkeys(self.names, 0)
        self.epoll = select.epoll()
        for fd in self.fired:
            self.epoll.register(fd, select.EPOLLIN)
        self.epoll.register(self.unread, select.EPOLLIN | select.EPOLLET)
        os.kill(os.getpid(), signal.SIGUSR2)

    def watch_late(self) -> None:
        """Read the timer that expired long ago: the kernel rearms it then, unless it was restored disarmed."""
        os.read(self.late, 8)
        self.names[self.late] = "timerfd with an unread expiry"
        self.fired[self.late] = 0
        self.epoll.register(self.late, select.EPOLLIN)

    def step(self, program: Program) -> None:
        """Send one signal, and take what has fired."""
        os.kill(os.getpid(), signal.SIGUSR1)
        for fd, _ in self.epoll.poll(0):
            if fd in self.fired:
                self.fired[fd] += 1
                self._check(program, fd, os.read(fd, 4096))
        left = native.timerfd_left(self.hour)
        program.expect(HOUR_S / 2 < left <= HOUR_S, f"the long timer has {left} s left")
        program.ready = self.fired[self.periodic] > 1

    def _check(self, program: Program, fd: int, event: bytes) -> None:
        if fd == self.signals:
            number, _, _, sender = struct.unpack_from("<IiiI", event)
            program.expect((number, sender) == (signal.SIGUSR1, os.getpid()), f"signal {number} from {sender}")
        if fd == self.notify:
            watch, mask = struct.unpack_from("<iI", event)
            program.expect((watch, mask) == (self.watch, native.IN_CREATE), f"watch {watch} saw {mask:#x}")


def main() -> None:
    """Poll; on request check that all sources fire again and that unread data is still there."""
    events = Events(Path(sys.argv[1]))
    program = Program(Path(sys.argv[1]))
    before: dict[int, int] = {}

    def verify() -> bool:
        if not before:
            events.watch_late()
            before.update(events.fired)
            program.expect(os.eventfd_read(events.unread) == UNREAD, "the eventfd's count differs")
            (number,) = struct.unpack_from("<I", os.read(events.unread_signal, 4096))
            program.expect(number == signal.SIGUSR2, f"signal {number} was unread")
            (events.watched / "new").touch()
        silent = [fd for fd, now in events.fired.items() if now == before[fd]]
        program.waiting_for = ", ".join(events.names[fd] for fd in silent)
        return not silent

    program.run(lambda: events.step(program), verify)


if __name__ == "__main__":
    main()
