"""Run programs, ask this machine what it is, and replace the private prefix."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from crckpt.criu.install import PREFIX
from crckpt.errors import UsageError
from crckpt.host.disk.path_trust import find_intruder_above

_WRAPPER: Final = """#!/bin/sh
# {name}, with the libraries that it was made for
here=${{0%/*}}
if [ -L "$0" ] || [ "${{0#/}}" = "$0" ]; then here=$(dirname "$(readlink -f "$0")"); fi
exec {loader} {options} {program} "$@"
"""


class RejectedError(Exception):
    """Why a candidate does not work. If one of its commands failed: the command (`dump`), and its log."""

    def __init__(self, why: str, command: str = "", log: str = "") -> None:
        """`why`: for users."""
        super().__init__(why)
        self.command = command
        self.log = log


class NotDownloadedError(RejectedError):
    """Why Debian's packages cannot be had."""


def run(*words: object, called: str | None = None, cwd: Path | None = None, timeout: float = 900) -> str:
    """Run a program; return its stdout. Raise RejectedError with the program's own reason."""
    argv = [str(word) for word in words]
    env = os.environ | {"LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    env.pop("CRIU_CONFIG_FILE", None)  # it may name scripts
    nothing = subprocess.DEVNULL
    try:
        done = subprocess.run(
            argv, cwd=cwd, env=env, stdin=nothing, capture_output=True, text=True, errors="replace", timeout=timeout
        )
    except FileNotFoundError:
        if Path(argv[0]).is_absolute():
            raise
        raise NotDownloadedError(f"there is no {argv[0]} here, which Debian's packages need") from None
    except subprocess.TimeoutExpired:
        raise RejectedError(f"{called or argv[0]}: did not end within {timeout} s") from None
    if done.returncode != 0:
        log = done.stdout + done.stderr
        if "--log-file" in argv:
            file = Path(argv[argv.index("--images-dir") + 1], argv[argv.index("--log-file") + 1])
            log = file.read_text(errors="replace") if file.exists() else log
        # CRIU's first error (its last is a summary), or a program's last line. Two of its errors occur in successful
        # runs, too.
        errors = re.findall(r"^.*?Error \([^)]*\): (?!rlimit:|tun:)(.*)$", log, re.MULTILINE)
        reason = (errors or log.strip().splitlines()[-1:] or [f"exit status {done.returncode}"])[0]
        raise RejectedError(f"{called or argv[0]}: {reason}", argv[1] if len(argv) > 1 else "", log)
    return done.stdout


def architecture() -> str:
    """Return Debian's name of this machine's architecture."""
    return run("dpkg", "--print-architecture").strip()


def default_prefix() -> Path:
    """Return the prefix of this user."""
    if os.geteuid() == 0:
        return PREFIX
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "crckpt-criu"


@contextmanager
def locked(prefix: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Lock the prefix, so that a second run waits for the first; remove what a killed run left.

    Raises UsageError if root locks one that others can change.
    """
    _require_own(prefix)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    _require_own(prefix)  # in /tmp, another user may have made it first
    path = prefix.with_name(f".{prefix.name}.lock")
    # Nobody else can open it: they could hold the lock for ever.
    with suppress(FileNotFoundError):
        if path.lstat().st_mode & 0o077:
            path.unlink()
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another install-criu to end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        for left in prefix.parent.glob(f".{prefix.name}.tmp-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


@contextmanager
def replacing(prefix: Path) -> Iterator[Path]:
    """Make a directory next to the prefix that replaces it on success, and is removed on failure."""
    with tempfile.TemporaryDirectory(prefix=f".{prefix.name}.tmp-", dir=prefix.parent) as work:
        staging = Path(work, "new")
        staging.mkdir()
        yield staging
        if prefix.exists():
            prefix.rename(Path(work, "old"))
        staging.rename(prefix)


def wrap(staging: Path, name: str, loader: str, options: str, program: str) -> None:
    """Write the script that starts `program` through `loader`; it works wherever the prefix is moved."""
    script = staging / name
    script.write_text(_WRAPPER.format(name=name, loader=loader, options=options, program=program))
    script.chmod(0o755)


def _require_own(prefix: Path) -> None:
    """Check that root installs nothing where another user can replace it. Raises UsageError, OSError."""
    # Who can write to /usr/local can replace commands of root without crckpt.
    if os.geteuid() != 0 or prefix == PREFIX:
        return
    above = prefix.parent
    intruder = find_intruder_above(above, frozenset({0})) or find_intruder_above(prefix / "criu", frozenset({0}))
    # The sticky bit protects only what is there.
    if not intruder and above.exists() and above.stat().st_mode & stat.S_ISVTX:
        intruder = f"every user can make files in {above}"
    if intruder:
        raise UsageError(
            f"root does not install CRIU where others can replace it: {intruder}",
            hint="name a directory that, like all above it, only root can change: --prefix DIR",
        )
