"""What a user may name outside of the store: live trees (PIDs, units, pidfiles, control groups), and hosts of ssh."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from crckpt.errors import HostCannot
from crckpt.host import proc
from crckpt.host.process import run

# Seconds: systemctl waits for a systemd that hangs.
_UNITS_S: Final = 1.0
_LONGEST: Final = 40
_CGROUPS: Final = "/sys/fs/cgroup/"
# Bytes: a configuration of ssh is read while the user types.
_MOST_BYTES: Final = 1 << 20
_PATTERN: Final = frozenset("*?!")
_KINDS: Final = (("unit:", "a service of systemd"), ("pidfile:", "a file with a PID"), ("cgroup:", "a control group"))


def find_targets(typed: str) -> Iterator[tuple[str, str]]:
    """Find targets that begin with what is typed, and what each is."""
    kind, colon, rest = typed.partition(":")
    if not colon:
        yield from _processes()
        yield from _KINDS
    elif kind == "unit":
        yield from _units(rest)
    elif kind == "pidfile":
        yield from _paths(kind, rest or "/run/", files=True)
    elif kind == "cgroup":
        yield from _paths(kind, rest or _CGROUPS, files=False)


def find_hosts(typed: str) -> Iterator[tuple[str, str]]:
    """Find the hosts of ~/.ssh/config that begin with what is typed, after USER@ too."""
    user, at, _ = typed.rpartition("@")
    lines: list[str] = []
    with suppress(OSError, RuntimeError), (Path.home() / ".ssh/config").open(errors="replace") as file:
        lines = file.read(_MOST_BYTES).splitlines()
    for line in lines:
        # ssh_config(5): keywords in any case, and `=` or blanks before the value.
        keyword, *names = line.replace("=", " ", 1).split()[:64] or [""]
        if keyword.lower() == "host":
            yield from ((f"{user}{at}{name.strip(chr(34))}", "") for name in names if not _PATTERN & set(name))


def _processes() -> Iterator[tuple[str, str]]:
    """Find the processes of programs: not the kernel's own, and neither crckpt nor the shells in which it runs."""
    own = {os.getpid(), *proc.ancestors(os.getpid())}
    for pid in sorted(int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()):
        with suppress(OSError):
            place = Path("/proc", str(pid))
            words = (place / "cmdline").read_bytes()[:4096].rstrip(b"\0").split(b"\0")
            # A kernel thread has no command line.
            if any(words) and pid not in own:
                comm = (place / "comm").read_text(errors="replace").strip()
                # `python3 train.py`
                yield str(pid), " ".join((comm, *(word.decode(errors="replace") for word in words[1:3])))[:_LONGEST]


def _units(typed: str) -> Iterator[tuple[str, str]]:
    # Source: sd_booted(3).
    if not Path("/run/systemd/system").is_dir():
        return
    words = ["systemctl", "list-units", "--type=service", "--state=running", "--plain", "--no-legend", "--no-pager"]
    with suppress(HostCannot):
        for line in run.run(words, timeout=_UNITS_S).output.splitlines():
            fields = line.split(maxsplit=4)
            if len(fields) >= 4 and fields[0].startswith(typed):
                yield f"unit:{fields[0]}", fields[4] if len(fields) > 4 else ""


def _paths(kind: str, typed: str, *, files: bool) -> Iterator[tuple[str, str]]:
    folder, slash, start = typed.rpartition("/")
    before = folder + slash
    with suppress(OSError):
        for entry in sorted(os.scandir(before or "."), key=lambda it: it.name):
            if entry.name.startswith(start) and (start or not entry.name.startswith(".")):
                if entry.is_dir():
                    yield f"{kind}:{before}{entry.name}/", ""
                elif files:
                    yield f"{kind}:{before}{entry.name}", ""
