"""Namespaces of processes, by kind and inode."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from small_programs import free_pid

from crckpt.host.proc.status import namespace, read_namespaces


def test_each_namespace_matches_its_link() -> None:
    found = dict(read_namespaces(os.getpid()))
    assert {"pid", "mnt", "net", "ipc", "uts", "user", "cgroup"} <= found.keys()
    for kind, inode in found.items():
        assert Path(f"/proc/self/ns/{kind}").readlink().name.endswith(f":[{inode}]")
        assert namespace("self", kind) == inode


def test_other_process_has_its_own_namespaces() -> None:
    argv = ["unshare", "--uts", "sh", "-c", "echo ready; read line"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as unshare:
        assert unshare.stdout is not None
        if not unshare.stdout.readline():
            pytest.skip("no namespace can be made here")
        ours, its = dict(read_namespaces(os.getpid())), dict(read_namespaces(unshare.pid))
        assert {kind for kind in ours if ours[kind] != its[kind]} == {"uts"}
        unshare.communicate()


def test_ended_process_has_no_namespaces() -> None:
    assert read_namespaces(free_pid()) == ()
    with pytest.raises(FileNotFoundError):
        namespace(free_pid(), "mnt")
