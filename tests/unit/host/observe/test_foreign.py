"""Namespaces of processes that belong to another user namespace than ours."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from small_programs import read

from crckpt.host import proc
from crckpt.host.observe.tasks import ForeignNamespace, find_foreign_namespaces


@contextmanager
def unshared(*kinds: str) -> Iterator[proc.Process]:
    """A shell in namespaces of its own."""
    argv = ["unshare", *(f"--{kind}" for kind in kinds), "sh", "-c", "echo ready; read line"]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as shell:
        assert shell.stdout is not None
        if not shell.stdout.readline():
            pytest.skip(f"no namespaces of these kinds can be made here: {kinds}")
        yield read(shell.pid)
        shell.communicate()


def test_namespaces_of_crckpt_and_unshared_ones_of_the_same_owner_are_not_foreign(
    waiting_program: subprocess.Popen[bytes],
) -> None:
    own = read(os.getpid())
    assert list(find_foreign_namespaces([own, read(waiting_program.pid)], own)) == []
    with unshared("uts", "ipc") as shell:
        assert list(find_foreign_namespaces([own, shell], own)) == []


def test_process_in_a_user_namespace_is_reported_once() -> None:
    own = read(os.getpid())
    with unshared("user", "uts") as shell:
        assert list(find_foreign_namespaces([own, shell], own)) == [ForeignNamespace(shell.pid, shell.comm, "user")]


def test_namespace_owned_by_a_user_namespace_is_foreign() -> None:
    """Our process may have joined such a namespace: its creator controls it."""
    own = read(os.getpid())
    with unshared("user", "uts") as shell:
        argv = ["nsenter", "--target", str(shell.pid), "--uts", "sh", "-c", "echo ready; read line"]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as joined:
            assert joined.stdout is not None
            if not joined.stdout.readline():
                pytest.skip("needs root, to join a namespace")
            (found,) = find_foreign_namespaces([read(joined.pid)], own)
            assert found == ForeignNamespace(joined.pid, read(joined.pid).comm, "uts")
            joined.communicate()


def test_namespaces_of_an_ended_process_are_skipped() -> None:
    own = read(os.getpid())
    with unshared("uts") as shell:
        pass
    assert list(find_foreign_namespaces([shell], own)) == []
