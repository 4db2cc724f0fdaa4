"""Errors say what happened, why, and what to type next."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from crckpt.causes import Finding, cause, preflight_refusal
from crckpt.criu.engine import CriuResult
from crckpt.errors import DumpFailed, Interrupted, NoSuchCheckpoint, StoreUnusable, UsageError
from crckpt.ops.context import Context
from crckpt.ops.failures import criu_failure, full_disk_reported, nothing_begun_reported, to_crckpt_error


def finding(key: str) -> Finding:
    return cause(key).finding()


def test_refusal_contains_all_blockers() -> None:
    missing, tun = finding("ip-missing"), finding("no-tun")
    refusal = preflight_refusal([missing])
    expected = ("ip is not installed", "apt-get install iproute2", False)
    assert (refusal.message, refusal.hint, refusal.is_in_use) == expected
    refusal_of_two = preflight_refusal([missing, tun], is_in_use=True)
    assert (refusal_of_two.message, refusal_of_two.is_in_use) == ("ip is not installed (and 1 more)", True)
    assert refusal_of_two.causes == (str(missing), str(tun))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_full_disk_is_a_store_failure(number: int) -> None:
    error = to_crckpt_error(OSError(number, os.strerror(number), "/srv/x"), DumpFailed, "the dump")
    assert isinstance(error, StoreUnusable)
    assert error.message.endswith("for the dump (/srv/x)")
    assert "crckpt gc" in error.hint


def test_errors_other_than_a_full_disk_keep_their_type() -> None:
    failed = to_crckpt_error(PermissionError(errno.EACCES, "Permission denied", "/srv/x"), DumpFailed, "the dump")
    assert (type(failed), failed.message) == (DumpFailed, "the dump failed: Permission denied (/srv/x)")
    own_error = NoSuchCheckpoint("there is none")
    assert to_crckpt_error(own_error, DumpFailed, "the dump") is own_error


@pytest.mark.parametrize("error", [Interrupted("interrupted by SIGINT"), OSError(errno.EIO, "Input/output error")])
def test_early_error_reports_that_the_tree_runs_on(error: Exception) -> None:
    raised = pytest.raises((Interrupted, DumpFailed), match="nothing was changed, the tree keeps running")
    with raised, nothing_begun_reported(Context(Path("/srv/store"))):
        raise error


def test_full_disk_outside_the_store_names_the_path_and_the_hint() -> None:
    raised = pytest.raises(UsageError, match="no space is left for /srv/x")
    with raised as caught, full_disk_reported(Path("/srv/x"), "name another"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.hint == "name another"
    with pytest.raises(PermissionError), full_disk_reported(Path("/srv/x"), "name another"):
        raise PermissionError


def failed(log: str = "", status: int = 1, **more: Any) -> DumpFailed:
    result = CriuResult((), status, log, 0.0, 1.0, **more)
    return criu_failure(result, DumpFailed, "the dump", lambda _: None, "the tree keeps running", [finding("bpf-map")])


def test_silent_criu_is_described_by_its_exit() -> None:
    assert failed(status=7).message == (
        "the dump failed: CRIU ended with status 7 and printed no error; the tree keeps running"
    )
    assert "CRIU ended with signal 9" in failed(status=-9).message
    assert "CRIU made no progress for 30 s, and crckpt ended it" in failed(status=-9, hung=True).message
    assert "worked for much longer than" in failed(status=-9, hung=True, is_late=True).message
    silent = failed(status=1, waited_for=("/mnt/a b",))
    assert "the file system on /mnt/a b did not answer" in silent.message
    assert "fusermount3 -u '/mnt/a b'" in silent.hint


def test_error_of_a_failed_dump_has_the_cause_from_the_log() -> None:
    line = "(00.1) Error (criu/sk-inet.c:137): inet: Unsupported proto 6 for socket 1"
    error = failed(f"{line}\n")
    assert error.message.startswith("the dump failed: a socket uses IP protocol 6")
    assert error.message.endswith("; the tree keeps running")
    assert error.causes == (line,)
    unknown = failed("(00.1) Error (criu/x.c:1): something that nobody knows\n")
    assert "something that nobody knows" in unknown.message
