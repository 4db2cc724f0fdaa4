"""Run a command in namespaces with the rights of the program that runs there.

Run as `python -m crckpt.host.namespaces.run_as_tree INIT RIGHTS COMMAND...`. INIT is a process of the namespaces,
RIGHTS are `TreeRights` as JSON. The program may have changed loaders, libraries and configuration files there. So this
module loads all that it needs outside, gives up its rights, and only then executes the command inside.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from crckpt.host.process import run
from crckpt.host.process.job_control import end_by_signal
from crckpt.host.syscalls.own_process import SET_NO_NEW_PRIVS, drop_capability, prctl, set_capabilities, setns
from crckpt.images.core import Rights

# The mount namespace is last: nothing is opened after it. The PID namespace applies to children only.
_KINDS: Final = ("net", "ipc", "uts", "pid", "mnt")
_NOT_EXECUTED: Final = 127


class TreeRights(Struct, frozen=True):
    """One user and group, and the capabilities (a set of bits) that a program of root gets."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    capabilities: int


def rights_of(program: Rights) -> TreeRights:
    """The rights for a command next to a program: those of one user, and no more than the program has."""
    # A program with both root's id and another user's counts as that user's: too few rights are safer than too many.
    uid = next((uid for uid in (program.uids[1], *program.uids) if uid), 0)
    gid = program.gids[1]
    permitted = program.capabilities[1]
    return TreeRights(uid, gid, tuple(sorted(program.groups)), 0 if uid else permitted)


def start(init: int, rights: TreeRights, command: Sequence[str], *, joining: Sequence[str], output: Path) -> run.Child:
    """Start the command in the namespaces of `init`; `joining` are words before it. Raises HostCannot."""
    said = msgspec.json.encode(rights).decode()
    words = (sys.executable, "-P", "-m", "crckpt.host.namespaces.run_as_tree", str(init), said, *command)
    return run.start((*joining, *words), output=output, python_path=Path(__file__).parents[3])


def main(init: int, rights: TreeRights, command: list[str]) -> int:
    """Run the command and return its exit status. If a signal ended it, end by the same signal."""
    for namespace in [os.open(f"/proc/{init}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in _KINDS]:
        setns(namespace)
        os.close(namespace)
    # Drop the bounding set first, while we have CAP_SETPCAP. Change the user last: after that we could not change the
    # groups.
    for number in range(64):
        if not rights.capabilities >> number & 1:
            drop_capability(number)
    os.setgroups(rights.groups)
    os.setresgid(rights.gid, rights.gid, rights.gid)
    os.setresuid(rights.uid, rights.uid, rights.uid)
    # Root keeps its capabilities until it executes a program.
    set_capabilities(rights.capabilities)
    prctl(SET_NO_NEW_PRIVS, 1)
    # This child is the first process that others in the PID namespace see.
    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status < 0:
            end_by_signal(-status)
        return status
    try:
        os.execvpe(command[0], command, run.ENVIRONMENT)  # noqa: S606
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        os.write(2, f"cannot run {command[0]}: {why}\n".encode(errors="backslashreplace"))
    os._exit(_NOT_EXECUTED)


if __name__ == "__main__":
    try:
        sys.exit(main(int(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=TreeRights), sys.argv[3:]))
    except (OSError, OverflowError) as error:
        sys.exit(str(error))
