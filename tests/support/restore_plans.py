"""Restores of the tree in tests/data/images on hosts written by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from crckpt.preflight.restore.checks import RestoreVerdict
from crckpt.preflight.restore.host import DiskSpace, HostResources, HostState

CREATED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RUN = "/tmp/crckpt-images/run"
LOG, PLAIN = f"{RUN}/log", f"{RUN}/plain"
CHANGED_AFTER = timedelta(seconds=50)
CHANGED = f"{(CREATED + CHANGED_AFTER).astimezone():%Y-%m-%d %H:%M:%S}"
RESOURCES = HostResources(
    arch="x86_64",
    cpu_features=frozenset({"avx2", "sse2", "hypervisor"}),
    missing=(),
    pid_limit=1 << 22,
    tasks=None,
    memory=1 << 20,
    free_memory=1 << 30,
    disks=(DiskSpace("/srv", 1 << 20, 1 << 30),),
    huge_pages=(),
)


def with_changed(host: HostState, path: str, **changes: object) -> HostState:
    """Return the host with one file changed."""
    file = host.files[path]
    assert file is not None
    return replace(host, files=host.files | {path: replace(file, **changes)})


def only_blocker(verdict: RestoreVerdict) -> str:
    (finding,) = verdict.blockers
    assert (verdict.warnings, verdict.rewinds) == ((), ())
    assert "?" not in str(finding)
    return f"{finding.key}: {finding}"
