"""Run programs, and ask this machine what it is."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path


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


def may_checkpoint() -> bool:
    """Return whether we have CAP_CHECKPOINT_RESTORE (bit 40)."""
    effective = re.search(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return bool(effective and int(effective[1], 16) >> 40 & 1)
