"""A control group with a limit of memory."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from held_calls import held_before_call
from target_processes import running, wait_for

from crckpt.host.namespaces import memory_limit

LIMIT = 64 << 20
GREEDY_PROGRAM = "a = []\nwhile True: a.append(bytes(b'x' * (1 << 20)))"
GROUP_MAKING_PROGRAM = f"""
import sys
from pathlib import Path
from crckpt.host.namespaces import memory_limit
print("ready", flush=True)
sys.stdin.readline()
with memory_limit.limited({LIMIT}, (Path(sys.argv[1]),)) as found:
    print(found is not None and found.path.is_dir())
"""


@pytest.fixture
def outer_group() -> Iterator[Path]:
    """A control group of this test alone, in which groups can be limited."""
    with memory_limit.limited(LIMIT) as found:
        if found is None:
            pytest.skip("this host lets us make no control group")
        top = found.path.with_name(f"tests-{found.path.name}")
        top.mkdir()
    try:
        if (top / "cgroup.subtree_control").exists():
            (top / "cgroup.subtree_control").write_text("+memory")
        yield top
    finally:
        top.rmdir()


@pytest.fixture
def limited_group(outer_group: Path) -> Iterator[memory_limit.MemoryGroup]:
    with memory_limit.limited(LIMIT, (outer_group,)) as found:
        assert found is not None
        yield found


def wait_until_removed(path: Path) -> None:
    """Wait: another crckpt, of a test that runs now, may remove the group, and ours then skips it."""
    wait_for(lambda: not path.exists(), f"{path} to be removed")


def test_process_that_uses_more_memory_than_the_limit_is_killed(limited_group: memory_limit.MemoryGroup) -> None:
    assert not limited_group.ran_out
    result = subprocess.run(
        [*limited_group.joining, "python3", "-c", GREEDY_PROGRAM], stderr=subprocess.DEVNULL, check=False
    )
    assert result.returncode < 0
    assert limited_group.ran_out


def test_command_under_a_memory_limit_keeps_its_arguments_and_status(limited_group: memory_limit.MemoryGroup) -> None:
    words = ("sh", "-c", 'echo "$@"; cat /proc/self/cgroup; exit 3', "-", "a b", "$HOME")
    result = subprocess.run([*limited_group.joining, *words], capture_output=True, text=True, check=False)
    assert result.returncode == 3
    assert result.stdout.startswith("a b $HOME\n")
    assert limited_group.path.name in result.stdout


def test_memory_limit_group_is_removed_after_the_block(limited_group: memory_limit.MemoryGroup) -> None:
    with memory_limit.limited(LIMIT, (limited_group.path.parent,)) as other:
        assert other is not None
        assert other.path.is_dir()
    assert not other.path.exists()
    assert limited_group.path.is_dir(), "the group of another living process was removed"


def test_memory_limit_group_of_a_dead_process_is_removed(limited_group: memory_limit.MemoryGroup) -> None:
    left = limited_group.path.with_name("crckpt-rehearsal-left")
    left.mkdir()
    with memory_limit.limited(LIMIT, (limited_group.path.parent,)):
        wait_until_removed(left)


def test_nested_memory_limit_group_left_by_a_dead_process_is_removed(limited_group: memory_limit.MemoryGroup) -> None:
    left = limited_group.path / "crckpt-rehearsal-left"
    left.mkdir()
    with memory_limit.limited(LIMIT, (limited_group.path.parent,)):
        wait_until_removed(left)


def test_limit_is_none_where_cgroups_are_missing(tmp_path: Path) -> None:
    with memory_limit.limited(LIMIT, (tmp_path,)) as found:
        assert found is None
    assert list(tmp_path.iterdir()) == []


def test_memory_limit_groups_that_another_process_removes_are_ignored(limited_group: memory_limit.MemoryGroup) -> None:
    going, left, is_over = (
        limited_group.path / "going/below",
        limited_group.path / "crckpt-rehearsal-left",
        threading.Event(),
    )

    def come_and_go() -> None:
        while not is_over.is_set():
            going.mkdir(parents=True)
            going.rmdir()
            going.parent.rmdir()

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        for _ in range(20):
            left.mkdir()
            with memory_limit.limited(LIMIT, (limited_group.path.parent,)) as found:
                assert found is not None
                wait_until_removed(left)
    finally:
        is_over.set()
        other.join()


def test_memory_limit_group_removed_before_it_is_locked_is_made_again(outer_group: Path) -> None:
    with running(sys.executable, "-c", GROUP_MAKING_PROGRAM, str(outer_group)) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        go = partial(other.stdin.write, "\n")
        with held_before_call(other.pid, "flock", go), memory_limit.limited(LIMIT, (outer_group,)):
            pass
        assert other.stdout.readline() == "True\n"
        # The other process removes its group when it ends: killed, it would leave the group in ours.
        assert other.wait(60) == 0
