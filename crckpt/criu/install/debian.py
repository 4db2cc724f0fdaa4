"""Debian's CRIU: unpacked from its packages with all its libraries, or built from its source."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from crckpt.criu.install.machine import NotDownloadedError, RejectedError, architecture, run, wrap

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
