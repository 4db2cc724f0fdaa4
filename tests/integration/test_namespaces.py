"""What a tree's namespaces let it do: run code with our rights, or be ended for good. It may do neither."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from command import Crckpt
from stopped import JOB
from trees import NOBODY, PYTHON, Case, Tree, started, wait_for

pytestmark = pytest.mark.usefixtures("adopted")

REFUSED: Final = 24
AS_NOBODY: Final = ("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups")
COUNTER: Final = (PYTHON, "{workdir}/programs/counter.py", "{workdir}")
TRAP: Final = """#!/bin/sh
echo "$0 $*: $(cat /proc/self/status | grep CapEff) $(cat /proc/self/uid_map)" >> {workdir}/won
"""
HIDES_CRIU: Final = """
set -e
printf '%s' "$0" > trap
chmod 755 trap
for place in /usr/local/lib/crckpt /var/cache; do mount -t tmpfs none $place; done
mkdir -p /usr/local/lib/crckpt/criu
cp trap /usr/local/lib/crckpt/criu/criu
exec "$@"
"""


def test_a_user_namespace_is_refused(crckpt: Crckpt) -> None:
    """It would be ended, and no restore could bring it back."""
    case = Case("user", (*AS_NOBODY, "unshare", "--user", "--map-root-user", *COUNTER), user=NOBODY)
    with started(case) as tree:
        _is_refused(crckpt, tree, "runs in another user namespace than crckpt")


def test_an_ordinary_user_runs_nothing_with_our_rights(crckpt: Crckpt) -> None:
    """Mounts of its own, with a program where our CRIU is."""
    apart = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", HIDES_CRIU, TRAP)
    case = Case("mounts", (*AS_NOBODY, *apart, *COUNTER), user=NOBODY)
    with started(case) as tree:
        _is_refused(crckpt, tree, "runs in another user namespace than crckpt")


@pytest.mark.parametrize("kind", ["mount", "net"])
def test_a_namespace_of_another_user_namespace_is_refused(crckpt: Crckpt, kind: str) -> None:
    """Also where the tree itself is in ours."""
    with (
        _sleeping((*AS_NOBODY, "unshare", "--user", "--map-root-user", "--mount", "--net")) as owner,
        started(Case("entered", ("nsenter", "--target", str(owner), f"--{kind}", *COUNTER), user=NOBODY)) as tree,
    ):
        name = {"mount": "mnt"}.get(kind, kind)
        _is_refused(crckpt, tree, f"the {name} namespace of process {tree.pid} (python3) belongs to another user")


def test_a_nested_network_namespace_comes_back(crckpt: Crckpt) -> None:
    """In a tree that has a network of its own doctor names nothing, and that is right."""
    nested = f"unshare --net {PYTHON} {{programs}}/counter.py {{workdir}}/nested & exec {' '.join(COUNTER)}"
    case = Case("nested", ("unshare", "--net", "sh", "-c", f"mkdir {{workdir}}/nested; {nested}"), user=NOBODY)
    with started(case) as tree:
        result = crckpt.run("doctor", str(tree.pid), "--json").document["result"]
        assert result["blockers"] == []
        crckpt.run("dump", str(tree.pid), JOB, "--stop")
        tree.wait_gone()
        before = tree.counters()
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)
        networks = {Path(f"/proc/{pid}/ns/net").readlink() for pid in (*tree.pids(), "self")}
        assert len(tree.pids()) == 2
        assert len(networks) == 3


def _is_refused(crckpt: Crckpt, tree: Tree, what: str) -> None:
    """By every command, whatever it is told, before anything is executed or entered; the tree runs on."""
    before, target = tree.counters(), str(tree.pid)
    result = crckpt.run("doctor", target, "--json", status=REFUSED).document["result"]
    assert any(what in found["what"] for found in result["blockers"])
    for words in (("dump", target, JOB), ("dump", target, JOB, "--stop"), ("pre-dump", target, JOB)):
        for more in ((), ("--no-preflight",)):
            error = crckpt.run(*words, *more, "--json", status=REFUSED).document["error"]
            assert what in "".join((error["message"], *error.get("causes", ())))
    assert not (tree.workdir / "won").exists()
    tree.wait_growth(before)


@contextmanager
def _sleeping(within: tuple[str, ...]) -> Iterator[int]:
    """The PID of a process that is `within` something."""
    with subprocess.Popen((*within, "sh", "-c", "echo; exec sleep 300"), stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            wait_for(lambda: process.stdout is not None and process.stdout.readline() == b"\n", 10, "it to sleep")
            yield process.pid
        finally:
            process.kill()
