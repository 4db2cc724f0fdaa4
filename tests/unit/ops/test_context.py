"""The words that let a command enter namespaces or be another user, and a safe place for images."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace
from trees import open_workdir

from crckpt.errors import UsageError
from crckpt.ops.context import Context, nsenter_words, pid_namespace_words, require_staging, setpriv_words


def test_staging_replaceable_by_others_is_refused(context: Context) -> None:
    with open_workdir() as workdir:
        require_staging(context)
        require_staging(replace(context, staging=workdir))
        with pytest.raises(UsageError, match="is not a directory"):
            require_staging(replace(context, staging=workdir / "none"))
        (workdir / "open").mkdir()
        (workdir / "open").chmod(0o777)
        (workdir / "open/below").mkdir()
        with pytest.raises(UsageError, match=f"other users can replace .*: every user can write to {workdir}/open"):
            require_staging(replace(context, staging=workdir / "open/below"))


def output_of(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to enter namespaces and to be another user")
def test_command_prefix_enters_namespaces_and_drops_rights() -> None:
    argv = ["unshare", "--pid", "--uts", "--mount-proc", "--fork", "--kill-child", "sh", "-c", "echo; read line"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as unshare:
        assert unshare.stdout is not None
        unshare.stdout.readline()
        (init,) = map(int, Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text().split())
        uts = output_of("readlink", f"/proc/{init}/ns/uts")
        assert output_of(*nsenter_words(init, ("uts",)), "readlink", "/proc/self/ns/uts") == uts
        assert output_of("readlink", "/proc/self/ns/uts") != uts
        assert output_of(*pid_namespace_words(init), "sh", "-c", "echo /proc/[0-9]*").startswith("/proc/1 ")
        unshare.communicate()
    words = setpriv_words((65534, 65533), frozenset({21}))
    status = dict(
        line.split(":\t") for line in output_of(*words, "cat", "/proc/self/status").splitlines() if ":\t" in line
    )
    assert (status["Uid"].split()[0], status["Gid"].split()[0]) == ("65534", "65533")
    assert int(status["CapEff"], 16) == 1 << 21
    assert status["Groups"].strip() == ""


def test_command_prefix_is_empty_if_no_namespace_or_right_changes() -> None:
    assert nsenter_words(1, ()) == ()
    assert setpriv_words(None, frozenset({21})) == ()
