"""What the kernel tells a restored program about itself is unchanged, or docs/limits.md lists the difference."""

from __future__ import annotations

import json
import re
from typing import Final

import pytest
from checkout import TESTS
from command import Crckpt
from stopped_trees import JOB, program, restored_by
from trees import Tree, started, wait_for

pytestmark = pytest.mark.usefixtures("orphans_are_reaped")

LIMITS: Final = TESTS.parent / "docs/limits.md"
COUNTERS: Final = "counters of CPU time, I/O, page faults, context switches and memory"
NEW_NUMBERS: Final = "new inodes, numbers of sockets (SO_COOKIE) and eventfds"
TCP: Final = "congestion control, segment sizes"
DOCUMENTED_CHANGES: Final = {
    r"rusage|CLOCK_|io |schedstat|stat (9|10|11|12|13|14|15|16|17|22|23|24|39|42|43|44)$": COUNTERS,
    r"status (Vm(?!Lck|Pin)|Rss|FDSize|SigQ|\w*voluntary)|arch_status|ksm_stat|SOCKET 55$": COUNTERS,
    r"stat 22$": "a new start time",
    r"(st_ino|fdinfo \d ino|link|tfd|eventfd-id|SOCKET 57|attr/current)$": NEW_NUMBERS,
    r"autogroup": "another autogroup",
    r"ns/time|timens_offsets": "a time namespace",
    r"eventfd-semaphore": "the semaphore mode of an eventfd",
    r"(directory|slave): (F_GETFL|fdinfo 1 flags)": "O_LARGEFILE",
    r"tcp\d(, accepted)?: (TCP (2|10|11|21|26)|SOCKET 49)$": TCP,
    r"tcp\d(, accepted)?: (SOCKET 15|IP 33|IPV6 (17|18|26))$": "SO_REUSEPORT",
    r"inotify: ioctl FIONREAD": "queued inotify events",
}
"""Which lines may change, and what docs/limits.md says of them."""


def read(tree: Tree) -> dict[str, str]:
    """All lines that the program reads now."""
    path = tree.workdir / "found.json"
    path.unlink(missing_ok=True)
    (tree.workdir / "look").touch()
    wait_for(path.exists, 60, "the program to read")
    found: dict[str, str] = json.loads(path.read_text())
    return found


def test_what_a_program_can_read_of_itself_changes_in_a_restore_only_as_documented(crckpt: Crckpt) -> None:
    with started(program("reads_itself")) as tree:
        before, again = read(tree), read(tree)
        crckpt.run("dump", str(tree.pid), JOB, "--stop", "--tcp", "keep")
        tree.wait_gone()
        with restored_by(crckpt, "detached") as warnings:
            after = read(tree)
    assert len(before) > 2000
    vary = {name for name in before if again.get(name) != before[name]}
    differ = {name for name in before.keys() | after.keys() if after.get(name) != before.get(name)} - vary
    limits_page = " ".join(LIMITS.read_text().split())
    unknown = sorted(name for name in differ if not any(re.search(pattern, name) for pattern in DOCUMENTED_CHANGES))
    assert {name: (before.get(name), after.get(name)) for name in unknown} == {}
    assert [text for text in DOCUMENTED_CHANGES.values() if text not in limits_page] == []
    assert any("CPU clocks of the program begin at 0 again" in warning for warning in warnings)
