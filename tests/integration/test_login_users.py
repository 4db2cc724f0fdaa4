"""The login user of a restored program (loginuid): the audit log names that user for what the program does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from command import Crckpt
from stopped_trees import JOB, program, stopped
from trees import NOBODY, Case, Tree

pytestmark = [
    pytest.mark.usefixtures("orphans_are_reaped", "sets_login_users"),
    pytest.mark.skipif(not Path("/proc/self/loginuid").exists(), reason="the kernel audits no system calls"),
]

REFUSED: Final = 23
NO_LOGIN_USER: Final = 0xFFFFFFFF
THEIRS, OURS = 4242, 4243
CRIU_CACHE: Final = Path("/run/criu.kdat")
AS_NOBODY: Final = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")


@pytest.fixture(name="sets_login_users")
def _sets_login_users() -> Iterator[None]:
    """Skip where crckpt may not set the login user."""
    if child := os.fork():
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            pytest.skip("needs CAP_AUDIT_CONTROL")
        yield
        return
    try:
        for user in (OURS, NO_LOGIN_USER):
            Path("/proc/self/loginuid").write_text(str(user))
    except OSError:
        os._exit(1)
    os._exit(0)


def login_as(user: int) -> tuple[str, ...]:
    """The words before a command that give it this login user."""
    return ("sh", "-c", f'echo {user} >/proc/self/loginuid; exec "$@"', "sh")


def login_users(tree: Tree) -> set[int]:
    """The login users of all threads of the tree."""
    return {int((task / "loginuid").read_text()) for task in Path(f"/proc/{tree.pid}/task").iterdir()}


@pytest.mark.parametrize("user", [THEIRS, NO_LOGIN_USER])
@pytest.mark.parametrize("rights", [(), AS_NOBODY], ids=["root", "nobody"])
def test_restored_program_has_its_own_login_user(crckpt: Crckpt, user: int, rights: tuple[str, ...]) -> None:
    """No thread gets the login user of the person who restores the program, and the program cannot set another one."""
    case = program("threads")
    as_user = NOBODY if rights else 0
    with stopped(crckpt, Case("login", (*login_as(user), *rights, *case.argv), user=as_user)) as tree:
        before = tree.counters()
        Crckpt(crckpt.store, login_as(OURS)).run("restore", JOB, "--detach")
        tree.wait_growth(before)
        assert login_users(tree) == {user}


@pytest.fixture(name="criu_asks_the_kernel_again")
def _criu_asks_the_kernel_again() -> Iterator[None]:
    """Remove CRIU's cache of kernel features: it contains permissions, and CRIU fails if these have changed."""
    yield
    CRIU_CACHE.unlink(missing_ok=True)


@pytest.mark.usefixtures("criu_asks_the_kernel_again")
def test_login_user_that_cannot_be_set_is_refused(crckpt: Crckpt) -> None:
    case = program("counter")
    without = ("setpriv", "--bounding-set=-audit_control", "--inh-caps=-audit_control")
    words = (*login_as(THEIRS), *AS_NOBODY, *case.argv)
    with stopped(crckpt, Case("login", words, user=NOBODY)) as tree:
        CRIU_CACHE.unlink(missing_ok=True)
        restoring = Crckpt(crckpt.store, (*login_as(OURS), *without))
        before = tree.counters()
        output = restoring.run("restore", JOB, "--detach", status=REFUSED).err
        assert f"cannot restore the login user for the audit log of process {tree.pid}" in output
        restoring.run("restore", JOB, "--detach", "--allow-weaker")
        tree.wait_growth(before)
        assert login_users(tree) == {OURS}
