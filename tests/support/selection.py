"""A pytest plugin: which tests run. `pure` marks those that need neither root nor other programs.

CRCKPT_EXTENT=short leaves out what tests/left-out.toml lists, `all` only what takes hours. `--list-needs` lists the
programs that the tests need, as scripts/test-tools names them, and runs none. In $CRCKPT_STAGES it notes for
scripts/report-stages how long each test took, and how many were left out.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
import pytest
from checkout import PROJECT, TESTS
from effort import EXTENT

LIST_NEEDS: Final = "--list-needs"
EXTENTS: Final = ("short", "all", "hours")
_SECONDS: Final[dict[str, float]] = {}
LIST: Final = TESTS / "left-out.toml"
PURE: Final = tuple(
    TESTS / "unit" / name
    for name in (
        *("causes", "documents", "images", "preflight"),
        *("test_changelog.py", "test_config.py", "test_errors.py", "test_left_out.py", "test_model.py"),
        "test_security_page.py",
    )
)
"""Folders and modules of pure tests."""
BASE: Final = ("tini", "nft", "ip", "gcc", "criu")
"""What each test that is not pure may need."""
_CASES: Final = ("redis-server", "tmux", "node")
NEEDS: Final[dict[str, tuple[str, ...]]] = {
    "lab": ("ssh", "sshd"),
    "lab/test_migrate_page.py": ("redis-server", "pg_createcluster"),
    "lab/test_migrated_programs.py": ("redis-server", "pg_createcluster", "tmux"),
    "lab/test_migration_remote.py": ("sudo",),
    "lab/test_systemd_unit.py": ("systemctl", "tmux"),
    "integration/test_after_crash.py": ("redis-server",),
    "integration/test_completion.py": ("zsh", "fish"),
    "integration/test_core.py": ("gdb", "python3-dbg"),
    "integration/test_incremental_faults.py": ("gdb",),
    "integration/test_install_criu.py": ("gpg",),
    "integration/test_live_trees.py": _CASES,
    "integration/test_new_terminal.py": ("tmux",),
    "integration/test_prompt.py": ("zsh", "fish", "tmux"),
    "integration/test_provision.py": ("ruby",),
    "integration/test_rehearse.py": ("redis-server", "tmux"),
    "integration/test_trees.py": _CASES,
    "unit/host/process/test_take_userfaultfd.py": ("gdb",),
    "unit/host/probes/test_rights.py": ("setcap",),
    "unit/migrate/wire": ("ssh", "sshd"),
    "unit/tracking/preload/test_library.py": ("musl-gcc",),
}
"""What tests in these folders and modules need, too."""


class LeftOut(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Tests that a run leaves out.

    `tests` is a function's id; of its cases, those whose ids are in `keep` run all the same, and the first of each
    `keep_one_of`. `run_by` is the smallest extent that runs the others.
    """

    tests: str
    reason: str
    keep: tuple[str, ...] = ()
    keep_one_of: int = 0
    run_by: Literal["all", "hours"] = "all"

    def find(self, items: Sequence[pytest.Item]) -> list[pytest.Item]:
        """Find the tests to leave out."""
        cases = {item: item.nodeid[len(self.tests) :] for item in items if self._has(item.nodeid)}
        if unknown := set(self.keep) - {case[1:-1] for case in cases.values()}:
            raise pytest.UsageError(f"{LIST}: {self.tests} has no case {', '.join(sorted(unknown))}")
        often = list(cases)[:: self.keep_one_of] if self.keep_one_of else []
        return [item for item, case in cases.items() if case[1:-1] not in self.keep and item not in often]

    def _has(self, name: str) -> bool:
        return name == self.tests or name.startswith((f"{self.tests}[", f"{self.tests}::"))


def read_list() -> tuple[LeftOut, ...]:
    """Read tests/left-out.toml."""
    return msgspec.convert(tomllib.loads(LIST.read_text())["left-out"], tuple[LeftOut, ...])


def is_pure(path: Path) -> bool:
    """Return whether this is a module of pure tests."""
    return any(path.is_relative_to(place) for place in PURE)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our option."""
    parser.addoption(LIST_NEEDS, action="store_true", help="list the programs that the tests need, and run none")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import other tests where only pure ones are wanted: those may lack what they import."""
    if config.option.markexpr == "pure" and collection_path.suffix == ".py" and not is_pure(collection_path):
        return True
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark pure tests, and leave out others."""
    for item in items:
        if is_pure(item.path):
            item.add_marker("pure")
    extent = EXTENTS.index(EXTENT)
    left_out: set[pytest.Item] = set()
    modules = {item.path for item in items}
    # Of a module of which only some tests were named, some cases may be missing.
    if not any("::" in word for word in config.args):
        for entry in read_list():
            if PROJECT / entry.tests.partition("::")[0] in modules and EXTENTS.index(entry.run_by) > extent:
                found = entry.find(items)
                if not found:
                    raise pytest.UsageError(f"{LIST}: there is no test {entry.tests}")
                left_out.update(found)
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
        if os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":
            _note("left-out", f"{len(left_out)}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up the times of a test's setup, call and teardown."""
    _SECONDS[report.nodeid] = _SECONDS.get(report.nodeid, 0) + report.duration


def pytest_sessionfinish() -> None:
    """Note these times: once, by the process that gets all reports."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        _note("tests", *(f"{seconds:.1f} {name}" for name, seconds in _SECONDS.items()))


def _note(name: str, *lines: str) -> None:
    if directory := os.environ.get("CRCKPT_STAGES"):
        with Path(directory, name).open("a") as file:
            file.writelines(f"{line}\n" for line in lines)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """List what they need, if that was asked."""
    if session.config.getoption(LIST_NEEDS):
        needed: dict[str, None] = {}
        modules = {item.path for item in session.items if "pure" not in item.keywords}
        if modules:
            needed.update(dict.fromkeys(BASE))
        for place, programs in NEEDS.items():
            if any(path.is_relative_to(TESTS / place) for path in modules):
                needed.update(dict.fromkeys(programs))
        sys.stdout.write(f"\nneeds: {' '.join(needed)}\n")
        pytest.exit("listed", returncode=0)
