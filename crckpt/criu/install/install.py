"""Try the candidates in turn until a CRIU works."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from crckpt.criu import install
from crckpt.criu.install.debian import SUITES, apt_options, build, debian_mirror, unpack
from crckpt.criu.install.machine import NotDownloadedError, RejectedError, default_prefix, locked, replacing, run
from crckpt.criu.install.trial import trial
from crckpt.errors import CrckptError, HostCannot, UsageError

_DESCRIPTIONS: Final = {
    "path": "criu on PATH",
    "prefix": "installed by crckpt",
    **dict.fromkeys(SUITES, "Debian's package"),
    "build": "Debian's source",
}
CANDIDATES: Final = tuple(_DESCRIPTIONS)
_SCRIPT: Final = "scripts/install-criu"
_CAP_CHECKPOINT_RESTORE: Final = 40


class InstallRequest(NamedTuple):
    """The prefix, a Debian mirror if apt's is not to be used, and the candidates to try, in order.

    `command` is what the user types for it.
    """

    prefix: Path
    mirror: str | None
    candidates: tuple[str, ...]
    command: str = "crckpt install-criu"


class InstalledCriu(NamedTuple):
    """A CRIU that works, which candidate it is, and why those before it were rejected. `needs` is a remark, if any."""

    path: Path
    version: str
    candidate: str
    rejected: tuple[tuple[str, str], ...]
    needs: str


def parse_candidates(named: str | None, *, build: bool) -> tuple[str, ...]:
    """Return the candidates that a user named, else all, with the build only if it is allowed. Raises UsageError."""
    if not named:
        return CANDIDATES if build else CANDIDATES[:-1]
    names = tuple(named.split(","))
    if unknown := set(names) - set(CANDIDATES):
        unknown_names = ", ".join(sorted(unknown))
        raise UsageError(f"no such candidate: {unknown_names}; there are {', '.join(CANDIDATES)}")
    return names


def install_criu(request: InstallRequest, say: Callable[[str], None]) -> InstalledCriu:
    """Find the first candidate that works, and install it if it is not there. `say` gets a line for each candidate.

    Raises HostCannot if none works, UsageError if others can change the prefix.
    """
    effective = re.search(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    may_checkpoint = effective is not None and int(effective[1], 16) >> _CAP_CHECKPOINT_RESTORE & 1
    if os.geteuid() != 0 and not may_checkpoint:
        raise HostCannot("Checkpoints need root or CAP_CHECKPOINT_RESTORE.", hint=f"sudo {request.command}")
    os.umask(0o022)  # everybody may run it
    rejected: list[tuple[str, str]] = []
    downloaded = True
    with locked(request.prefix, say):
        for name in request.candidates:
            candidate = f"{name} ({_DESCRIPTIONS[name]})"
            try:
                path, version = _candidate(name, request, say)
            except (RejectedError, OSError) as error:
                downloaded = downloaded and not isinstance(error, NotDownloadedError)
                rejected.append((name, str(error)))
                say(f"{candidate}: {error}")
                continue
            say(f"{candidate}: works: CRIU {version} dumps and restores a process on Linux {os.uname().release}")
            needs = ""
            if not (request.prefix / "nft").exists() and not shutil.which("nft"):
                needs = "nft is missing, which `--tcp keep` needs: apt-get install nftables"
                say(needs)
            return InstalledCriu(path, version, name, tuple(rejected), needs)
    raise HostCannot(
        f"None of the tried CRIUs works on Linux {os.uname().release}.", hint=_next_try(request, downloaded=downloaded)
    )


def _candidate(name: str, request: InstallRequest, say: Callable[[str], None]) -> tuple[Path, str]:
    """Return path and version of the named candidate after it has passed the trial; raise RejectedError."""
    prefix = request.prefix
    if name in ("path", "prefix"):
        found = shutil.which("criu") if name == "path" else prefix / "criu"
        if not found or not Path(found).exists():
            raise RejectedError("not found" if name == "path" else f"not found in {prefix}")
        return Path(found), trial(Path(found))
    with replacing(prefix) as staging:
        if name == "build":
            build(staging, apt_options(staging, request.mirror or debian_mirror(), "sid"), say)
        else:
            unpack(staging, apt_options(staging, request.mirror or debian_mirror(), name))
        shutil.rmtree(staging / "apt")
        run(staging / "nft", "--version")
        version = trial(staging / "criu")
    return prefix / "criu", version


def _next_try(request: InstallRequest, *, downloaded: bool) -> str:
    """Return what to type if none of the candidates works."""
    tried, command = set(request.candidates), request.command
    if not tried.issuperset(["path", "prefix", *SUITES]):
        return command
    if not downloaded:
        return f"give this machine a Debian mirror that works, or name one: {command} --mirror URL"
    if "build" not in tried:
        return f"{command} --build"
    return f"put a newer CRIU on PATH, then: {command}"


def main() -> int:
    """Install CRIU as the command line of scripts/install-criu says, which has no other packages yet.

    Returns the exit status.
    """
    import argparse  # only for the script
    import signal

    about = "The path of the CRIU is the last line of stdout; all else goes to stderr."
    statuses = "Exit status: 0 found, 2 usage, 20 no CRIU works here."
    parser = argparse.ArgumentParser(
        prog=_SCRIPT,
        description=f"{install.__doc__}\n{about}\n{statuses}\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--prefix", type=Path, default=default_prefix(), help="the private prefix (%(default)s)")
    parser.add_argument("--mirror", help="a Debian mirror, if this machine's apt has none")
    parser.add_argument("--build", action="store_true", help="if nothing else works, build from source")
    parser.add_argument("--try", dest="candidates", metavar="NAME,...", help="try only these candidates, in this order")
    options = parser.parse_args()
    try:
        candidates = parse_candidates(options.candidates, build=options.build)
    except UsageError as error:
        parser.error(error.message)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # through every clean-up
    try:
        criu = install_criu(InstallRequest(options.prefix.absolute(), options.mirror, candidates, _SCRIPT), _say)
    except CrckptError as error:
        _say(error.message)
        _say(f"  next: {error.hint}")
        return error.exit_code
    sys.stdout.write(f"{criu.path}\n")
    return 0


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
