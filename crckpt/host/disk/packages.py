"""Find which package owns a file, and its first change. Starts dpkg or rpm: call it only for changed files."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from crckpt.errors import HostCannot
from crckpt.host.process import run
from crckpt.model import utc_datetime

_LOG = Path("/var/log/dpkg.log")
_LISTS = Path("/var/lib/dpkg/info")
_WITHIN_S = 10.0
# Directories that packages may list without /usr.
_MERGED = ("/usr/bin/", "/usr/sbin/", "/usr/lib")

_OF_RPM = "%{NAME}\\t%{VERSION}-%{RELEASE}\\t%{INSTALLTIME}\\n"


class Package(Struct, frozen=True):
    """An installed package. `before` was its version until `since`; empty if the log has no such line."""

    name: str
    version: str
    since: datetime
    before: str = ""


def find_packages(paths: Iterable[str], after: datetime) -> dict[str, Package]:
    """Find the packages that own these files, and the first change of each after that moment."""
    wanted = tuple(paths)
    found: dict[str, Package] = {}
    with suppress(HostCannot, OSError, ValueError):
        if run.find_program("dpkg"):
            return _ask_dpkg(wanted, after)
        for path in wanted if run.find_program("rpm") else ():
            done = run.run(("rpm", "--query", "--queryformat", _OF_RPM, "--file", path), timeout=_WITHIN_S)
            if done.ok:
                name, version, since = done.output.splitlines()[0].split("\t")
                found[path] = Package(name, version, utc_datetime(int(since)))
        return found
    return {}


def first_change(log: str, name: str, after: datetime) -> tuple[datetime, str] | None:
    """Find when dpkg first installed or upgraded a package (with `:arch`, if it has one) after that moment, and the
    version until then. Of lines `2026-01-02 03:04:05 upgrade libc6:amd64 2.41-4 2.41-5`, in local time.
    """
    for line in log.splitlines():
        words = line.split()
        if (
            len(words) == 6
            and words[2] in ("install", "upgrade")
            and words[3].partition(":")[0] == name.partition(":")[0]
        ):
            when = datetime.strptime(f"{words[0]} {words[1]}", "%Y-%m-%d %H:%M:%S").astimezone(UTC)
            # The log has whole seconds.
            if when >= after.replace(microsecond=0):
                return when, words[4].replace("<none>", "")
    return None


def _ask_dpkg(paths: tuple[str, ...], after: datetime) -> dict[str, Package]:
    spelled = {path: path for path in paths}
    # On a system with merged /usr a package may list a file without that.
    spelled |= {path.removeprefix("/usr"): path for path in paths if path.startswith(_MERGED)}
    names: dict[str, str] = {}
    # Its exit status only says whether all files were found.
    for line in run.run(("dpkg", "--search", *spelled), timeout=_WITHIN_S).output.splitlines():
        owner, _, path = line.partition(": ")
        # `PACKAGE[:ARCH][, PACKAGE]...: PATH`; a diversion names the place of another package's file (dpkg-divert(1)).
        if path in spelled and not owner.startswith("diversion "):
            names[spelled[path]] = owner.split(", ")[0]
    # logrotate keeps one old log uncompressed.
    logs = "".join(log.read_text(errors="replace") for log in (Path(f"{_LOG}.1"), _LOG) if log.exists())
    packages = {name: found for name in set(names.values()) if (found := _package(name, logs, after))}
    return {path: packages[name] for path, name in names.items() if name in packages}


def _package(name: str, log: str, after: datetime) -> Package | None:
    shown = run.run(("dpkg-query", "--show", "--showformat=${Version}", name), timeout=_WITHIN_S)
    plain = name.partition(":")[0]
    lists = next((path for path in (_LISTS / f"{name}.list", _LISTS / f"{plain}.list") if path.exists()), None)
    if not shown.ok or lists is None:
        return None
    found = first_change(log, name, after)
    if found is not None:
        return Package(plain, shown.output, found[0], found[1])
    # dpkg rewrites the package's list of files when it installs or upgrades it.
    return Package(plain, shown.output, utc_datetime(lists.stat().st_mtime))
