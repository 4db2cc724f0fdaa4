"""Check the terminals of a tree before a dump."""

from __future__ import annotations

from collections.abc import Container, Iterator

from crckpt.causes import Finding, cause
from crckpt.host.observe.tree import Observed
from crckpt.host.proc import Descriptor

_LAST_NUMBER = 1000  # MAX_PTY_INDEX, criu/tty.c


def find_blockers(observed: Observed) -> Iterator[Finding]:
    """Find terminals that CRIU cannot save, and more than one outside the tree: a restore can give it only one."""
    # "Only one slave external peer is allowed" (criu/tty.c:419).
    if len({found.target for found in outside_terminals(observed) if found.target.startswith("/dev/pts/")}) > 1:
        yield cause("terminal-outside").finding()
    comms = {process.pid: process.comm for process in observed.tree.processes}
    for found in observed.unsaved_current:
        yield cause("terminal-current").finding(process=f"process {found.pid} ({comms[found.pid]})")
    for number in sorted({found.target for found in observed.descriptors if _has_large_number(found.target)}):
        yield cause("terminal-large").finding(path=number)


def outside_terminals(observed: Observed) -> tuple[Descriptor, ...]:
    """Return descriptors of terminals whose other side the tree does not hold."""
    sessions = {process.pid: process.sid for process in observed.tree.processes}
    # The link of a master has no number, but its fdinfo has that of the slave.
    inside = {
        f"/dev/pts/{descriptor.tty_index}" for descriptor in observed.descriptors if descriptor.tty_index is not None
    }
    return tuple(
        descriptor
        for descriptor in observed.descriptors
        if not descriptor.is_master
        and (
            _is_pty_outside(descriptor.target, inside)
            if descriptor.target.startswith("/dev/pts/")
            # CRIU opens a console by its name, and /dev/tty in its session: outside if its session is.
            else descriptor.target.startswith(("/dev/tty", "/dev/console")) and sessions[descriptor.pid] not in sessions
        )
    )


def _has_large_number(path: str) -> bool:
    number = path.removeprefix("/dev/pts/")
    return path.startswith("/dev/pts/") and number.isdecimal() and int(number) > _LAST_NUMBER


def _is_pty_outside(path: str, inside: Container[str]) -> bool:
    # A deleted pty has no other side any more.
    return not path.endswith(" (deleted)") and path not in inside
