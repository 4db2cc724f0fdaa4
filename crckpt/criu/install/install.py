"""Try the candidates in turn until a CRIU works: those that are there, then Debian's, unpacked or built."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from crckpt.criu import install
from crckpt.criu.install.machine import (
    NotDownloadedError,
    RejectedError,
    architecture,
    default_prefix,
    locked,
    replacing,
    run,
    wrap,
)
from crckpt.criu.install.trial import trial
from crckpt.errors import CrckptError, HostCannot, UsageError

SUITES: Final = ("sid", "testing", "stable")
_KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_CRIT: Final = ("python3-pycriu", "python3-protobuf")  # without the libraries of the latter, which crit does not need
_BUILD_NEEDS: Final = (
    "gcc libbsd-dev libc6-dev libcap-dev libgnutls28-dev libnet1-dev libnftables-dev libnl-3-dev libprotobuf- "
    "c-dev libprotobuf-dev make nftables pkg-config protobuf-c-compiler protobuf-compiler uuid-dev xz-utils"
)
# Not LD_PRELOAD: that would reach the wrapper's shell and every program that criu starts.
_PRELOAD: Final = '${CRCKPT_CRIU_PRELOAD:+--preload "$CRCKPT_CRIU_PRELOAD"}'


def debian_mirror() -> str:
    """Return the Debian mirror that this machine's apt uses."""
    targets = run("apt-get", "indextargets", "--format", "$(ORIGIN)/$(LABEL) $(REPO_URI)", "Created-By: Packages")
    # A new machine has no lists, so no origins: look at the address there.
    planned = run("apt-get", "update", "--print-uris")
    known = re.search(r"^Debian/Debian (\S+)", targets, re.MULTILINE)
    found = known or re.search(r"^'([^']*/debian(?:\.list)?/?)/dists/", planned, re.MULTILINE)
    if not found:
        raise NotDownloadedError("apt has no Debian mirror: apt-get install debian-archive-keyring, then give --mirror")
    return found[1]


def apt_options(staging: Path, mirror: str, suite: str) -> list[str]:
    """Return options that give apt its own state with `suite` alone, and leave the machine's unchanged."""
    if not _KEYRING.exists():
        raise NotDownloadedError("Debian's keys are missing: apt-get install debian-archive-keyring")
    state = staging / "apt"
    for folder in ("lists/partial", "archives/partial", "debs"):
        (state / folder).mkdir(parents=True)
    (state / "status").touch()
    lines = [f"{kind} [signed-by={_KEYRING}] {mirror} {suite} main\n" for kind in ("deb", "deb-src")]
    (state / "sources.list").write_text("".join(lines))
    settings = {
        "Dir::Etc::sourcelist": state / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::State::lists": state / "lists",
        "Dir::State::status": state / "status",
        "Dir::Cache": state,
        "APT::Architectures": architecture(),
        "Acquire::Languages": "none",
        "APT::Get::AllowUnauthenticated": "false",
        "Acquire::AllowInsecureRepositories": "false",
        "Acquire::AllowDowngradeToInsecureRepositories": "false",
        "APT::Sandbox::User": "root",  # the sandbox's user may not be able to reach the prefix
    }
    return [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]


def unpack(staging: Path, apt: list[str]) -> None:
    """Unpack criu and nft with all their libraries, the loader, and crit into `staging`."""
    _update(apt)
    debs = staging / "apt/debs"
    names = [*closure(apt, "criu", "nftables"), *_CRIT]
    run("apt-get", *apt, "-qq", "download", *names, cwd=debs)
    for deb in sorted(debs.glob("*.deb")):
        run("dpkg-deb", "--extract", deb, staging / "root")
    (staging / "packages").write_text("".join(f"{deb.stem}\n" for deb in sorted(debs.glob("*.deb"))))
    loaders = sorted((staging / "root").glob("usr/lib/*-linux-gnu/ld-linux*.so.*"))
    if not loaders:
        raise RejectedError(f"its libc6 has no loader for {architecture()}")
    loader = Path("$here") / loaders[0].relative_to(staging)
    libraries = f'--library-path "{loader.parent}"'
    wrap(staging, "criu", f'"{loader}"', f"{_PRELOAD} {libraries}", '"$here/root/usr/sbin/criu"')
    wrap(staging, "nft", f'"{loader}"', libraries, '"$here/root/usr/sbin/nft"')
    # With this machine's python3, but without its modules (-S).
    python = 'env PYTHONPATH="$here/root/usr/lib/python3/dist-packages" python3'
    wrap(staging, "crit", python, "-S", '"$here/root/usr/bin/crit"')


def build(staging: Path, apt: list[str], say: Callable[[str], None]) -> None:
    """Build criu from Debian's copy of its source, with this machine's compiler and libraries."""
    say("build: installing what the build needs, then building: about a minute")
    run("apt-get", "-qq", "update")
    run("apt-get", "-qq", "install", "--yes", "--no-install-recommends", *_BUILD_NEEDS.split())
    _update(apt)
    # The original source is enough: Debian changes only the packaging.
    run("apt-get", *apt, "-qq", "source", "--tar-only", "criu", cwd=staging / "apt")
    run("tar", "--extract", "--file", next((staging / "apt").glob("criu_*.orig.tar.*")), cwd=staging / "apt")
    source = next(path for path in (staging / "apt").glob("criu-*") if path.is_dir())
    run("make", "-C", source, f"-j{os.cpu_count()}", "criu", called="make")
    (staging / "root/usr/sbin").mkdir(parents=True)
    shutil.copy2(source / "criu/criu", staging / "root/usr/sbin/criu")
    (staging / "packages").write_text(f"{source.name} built here\n")
    loader = next(path for path in sorted(Path("/").glob("lib*/ld-linux*.so.*")))
    wrap(staging, "criu", str(loader), _PRELOAD, '"$here/root/usr/sbin/criu"')
    (staging / "nft").symlink_to("/usr/sbin/nft")


def _update(apt: list[str]) -> None:
    try:
        run("apt-get", *apt, "-qq", "update")
    except RejectedError as error:
        raise NotDownloadedError(str(error)) from error


def closure(apt: list[str], *names: str) -> list[str]:
    """Return the named packages and all libraries that they depend on, directly or through libraries."""
    graph: dict[str, list[str]] = {}
    for line in run("apt-cache", *apt, "depends", "--recurse", "--important", *names).splitlines():
        if not line.startswith(" "):
            needs = graph.setdefault(line, [])
        elif found := re.match(r" [ |](?:Pre)?Depends: (lib[^:<>]*)$", line):
            needs.append(found[1])
    reached, ahead = set[str](), list(names)
    while ahead:
        name = ahead.pop()
        if name not in reached:
            reached.add(name)
            ahead += graph.get(name, [])
    return sorted(reached)


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
