"""Check what this host can do, and what is missing; and read what a tree on it uses."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from crckpt.criu.candidates import candidates
from crckpt.criu.find import Search, search
from crckpt.criu.install import PREFIX
from crckpt.criu.install.install import InstallRequest, install_criu, parse_candidates
from crckpt.errors import HostCannot, error_text
from crckpt.host import proc
from crckpt.host.probes import probe_host
from crckpt.host.probes.setup import has_gpu
from crckpt.host.probes.trial import Fact, limited, missing, ok
from crckpt.host.process import run
from crckpt.host.usage import ProcessUsage, read_process_usage
from crckpt.ops.context import Context
from crckpt.tracking.choose_tracker import find_method
from crckpt.tracking.preload.library import LIBRARY, lets_programs_take_over

# Facts without which nothing can be checkpointed. Without others, some trees or options cannot be used.
_VITAL = frozenset({"criu", "checkpoint_restore", "ptrace_scope", "capabilities", "util_linux"})

# crckpt does not use these: CRIU alone does, or its user.
_UNUSED = frozenset({"lock_iptables", "lazy_pages", "rootless", "ssh"})
# One of both is enough: `tracker` says what follows from them.
_OF_TRACKER = frozenset({"soft_dirty", "write_protection"})
_ANY_TRACKER = "use Linux 6.7 or later, or a kernel with CONFIG_MEM_SOFT_DIRTY"

_INSTALL = "crckpt install-criu"
_AS_ROOT = "sudo crckpt doctor"


class Fix(Struct, frozen=True):
    """A safe command that fixes the fact `key`. `done`: it was run and worked. `said`: its output."""

    key: str
    command: str
    done: bool = False
    said: str = ""

    @property
    def effect(self) -> str:
        """The result of running the command, if reading it does not show that; else empty."""
        return f"downloads Debian's CRIU into {PREFIX}; changes no package" if self.command == _INSTALL else ""


class Diagnosis(Struct, frozen=True):
    """All facts about this host, and the safe fixes, before or after they were tried."""

    facts: tuple[Fact, ...]
    fixes: tuple[Fix, ...]

    @property
    def obstacles(self) -> tuple[Fact, ...]:
        """Return what prevents every checkpoint on this host."""
        return tuple(fact for fact in self.facts if fact.state == "missing" and fact.key in _VITAL)

    @property
    def problems(self) -> tuple[Fact, ...]:
        """Return what is limited or missing, and has an effect on crckpt here; what `obstacles` has comes first."""
        found = (fact for fact in self.shown if fact.state != "ok" and not self.is_unused(fact))
        return tuple(sorted(found, key=lambda fact: fact not in self.obstacles))

    @property
    def shown(self) -> tuple[Fact, ...]:
        """Return the facts for people: without those that another one sums up."""
        return tuple(fact for fact in self.facts if fact.key not in _OF_TRACKER)

    @staticmethod
    def is_unused(fact: Fact) -> bool:
        """Return whether it does not matter to crckpt on this host that a fact is limited or missing."""
        return fact.state != "ok" and (fact.key in _UNUSED or (fact.key == "criu_plugins" and not has_gpu()))

    @property
    def able(self) -> bool:
        """Whether this host can checkpoint at all."""
        return not self.obstacles


class UsingProcess(Struct, frozen=True):
    """A process of the tree, and what it uses."""

    pid: int
    comm: str
    usage: ProcessUsage


def doctor(context: Context) -> Diagnosis:
    """Probe this host."""
    facts = _facts(context)
    return Diagnosis(facts, tuple(Fix(known.key, known.fix) for known in facts if known.safe))


def fix_host(context: Context, diagnosis: Diagnosis, say: Callable[[str], None]) -> Diagnosis:
    """Run all fixes, even if some fail, and probe this host again. `say` gets a line for each step of a long one."""
    tried = []
    for fix in diagnosis.fixes:
        try:
            if fix.command != _INSTALL:
                ran = run.run(shlex.split(fix.command))
                tried.append(Fix(fix.key, fix.command, ran.ok, ran.output.strip()))
                continue
            # By this crckpt, which need not be on the PATH.
            install_criu(InstallRequest(PREFIX, None, parse_candidates(None, build=False)), say)
            tried.append(Fix(fix.key, fix.command, done=True))
        except HostCannot as error:
            said = f"{error.message} {error.hint}" if fix.command == _INSTALL else error.message
            tried.append(Fix(fix.key, fix.command, said=said))
    return Diagnosis(_facts(context), tuple(tried))


def read_tree_usage(tree: proc.Tree) -> Iterator[UsingProcess]:
    """Read what each process of a tree uses, the root first. Processes that have ended are left out."""
    for process in tree.processes:
        usage = read_process_usage(process.pid)
        # Else it is of another process, which has got the PID.
        if usage is not None and process.identity.keeps_pid:
            yield UsingProcess(process.pid, process.comm, usage)


def _facts(context: Context) -> tuple[Fact, ...]:
    criu, found = _criu(context)
    named = found.criu.path if found and found.criu else _first_candidate(context)
    locks = found.criu.locks_by_nftables if found and found.criu else None
    probed = tuple(probe_host(context.store, context.staging, named, locks))
    fix = "" if any(each.key in _OF_TRACKER and each.state == "ok" for each in probed) else _ANY_TRACKER
    return (replace(criu, key="criu"), replace(_tracker(criu, found, fix), key="tracker"), *probed)


def _tracker(criu: Fact, found: Search | None, fix: str) -> Fact:
    if not found or not found.criu:
        untried, lost = "not tried: there is no CRIU that works", "dumps may not be incremental"
        return replace(criu, found=untried, consequence=lost, safe=False)
    name, why = find_method(found.criu.path)
    if not LIBRARY.exists():
        lost = "" if name else "; --incremental and --pre-copy do not work: every dump is full"
        return (limited if name else missing)(
            "crckpt was installed without a C compiler",
            f"dumps interrupt system calls of programs{lost}",
            "apt-get install gcc libc6-dev; then install crckpt again",
        )
    if name:
        return ok(f"incremental dumps work ({name}: {why})")
    return missing(why, "--incremental and --pre-copy do not work: every dump is full", fix)


def _criu(context: Context) -> tuple[Fact, Search | None]:
    """Look for a CRIU that works."""
    # Not in a child: the result of the trial is remembered, and the trial cleans up after itself.
    if os.geteuid() != 0:
        named = _first_candidate(context)
        found = f"{named} was not tried" if named else "CRIU is not installed"
        return limited(found, "only a trial shows whether it works, and that needs root", _AS_ROOT), None
    try:
        found_by = search(context.criu_option, context.criu_configured)
    except (HostCannot, OSError) as error:
        return missing(f"the trial failed: {error_text(error)}", "nothing can be checkpointed", _INSTALL), None
    return judge_criu(found_by), found_by


def judge_criu(found: Search) -> Fact:
    """Say whether a CRIU works, and whether it is safe with programs of users."""
    tried = (
        f"{candidate.path} ({candidate.origin}): {why}"
        for candidate, why in found.rejected
        # Most hosts have a CRIU in one of the two places, so a missing prefix is not worth a line.
        if candidate.path.exists() or candidate.origin != "private prefix"
    )
    skipped = "; ".join(("", *tried))
    if found.criu is None:
        return missing(f"no CRIU works on this kernel{skipped}", "nothing can be checkpointed", _INSTALL, safe=True)
    criu = found.criu
    works = f"CRIU {criu.version} works: a trial dump and restore by {criu.path} ({criu.origin}) succeeded"
    if lets_programs_take_over(criu.version):
        lost = "a program can take control of what this CRIU runs in it (CVE-2026-18107): dump only programs of root"
        return limited(f"{works}{skipped}", lost, _INSTALL)
    return ok(f"{works}{skipped}")


def _first_candidate(context: Context) -> Path | None:
    there = (found.path for found in candidates(context.criu_option, context.criu_configured))
    return next((path for path in there if os.access(path, os.X_OK)), None)
