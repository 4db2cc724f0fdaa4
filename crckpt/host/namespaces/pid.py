"""A new pid namespace for a restored tree."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from crckpt.errors import HostCannot
from crckpt.host import proc
from crckpt.host.process import run


class PidNamespace(Struct, frozen=True):
    """A pid namespace with its own /proc. `init` is its PID 1 as we see it, `parent` our child that waits for it."""

    init: int
    parent: int


@contextmanager
def pid_namespace(
    root: int, work: Path, owner: Path, *, own_session: bool = True, start: Callable[..., run.Child] = run.start
) -> Iterator[PidNamespace]:
    """Start a pid namespace whose init waits for the process that will be `root` in it; end it if the block fails.

    `work` is a private directory, `owner` a file that we keep locked until the tree is restored; `start` starts
    programs. Raises HostCannot.
    """
    # A tree on our terminal needs its parent, the init, in our session: otherwise the kernel does not stop it (^Z).
    with started_init(("unshare",), root, work, owner, own_session=own_session, start=start) as (
        child,
        init,
    ):
        yield PidNamespace(init, child.pid)
        child.abandon()


@contextmanager
def started_init(
    unshare: tuple[str, ...],
    root: int,
    work: Path,
    owner: Path,
    *more: str,
    own_session: bool = True,
    start: Callable[..., run.Child] = run.start,
) -> Iterator[tuple[run.Child, int]]:
    """Start a child that makes a pid namespace; yield it and the namespace's init; end both if the block fails.

    `unshare` are the words that begin the command; `more` are further arguments of the init. Raises HostCannot.
    """
    ready = work / "ready"
    os.mkfifo(ready, 0o600)
    listening = os.open(ready, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    init = (sys.executable, "-P", "-m", "crckpt.host.namespaces.init", str(root), str(ready), str(owner), *more)
    # --kill-child: the namespace ends with the parent. --propagation private: its new /proc must not appear on the
    # host.
    new = ("--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private")
    child = start(
        (*unshare, *new, *init),
        output=work / "namespace.out",
        own_session=own_session,
        python_path=Path(__file__).parents[3],
    )
    try:
        yield child, _init_of(child, listening, work / "namespace.out")
    except BaseException:
        with suppress(ProcessLookupError):
            child.kill()
        child.wait()
        raise
    finally:
        os.close(listening)


def _init_of(child: run.Child, ready: int, output: Path) -> int:
    # Wait until the init is ready, or unshare has failed and ended.
    select.select([ready, child.pidfd], [], [])
    children = proc.children(child.pid)
    if not children:
        said = " ".join(output.read_text(errors="replace").split())
        raise HostCannot(f"cannot make new namespaces: {said}", hint="find what is missing: crckpt doctor")
    return children[0]
