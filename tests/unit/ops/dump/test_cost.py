"""The usage of a live tree, by which its user recognizes it."""

from __future__ import annotations

import os

from msgspec.structs import replace
from small_programs import WAIT_STATEMENTS, program, read

from crckpt.host import proc
from crckpt.ops.doctor import read_tree_usage

MIB = 1 << 20
FAMILY = """
import time
if os.fork():
    kept = bytearray(b'x' * (64 << 20))
    begin = time.process_time()
    while time.process_time() < begin + 0.1:
        pass
    print('ready', flush=True)
sys.stdin.read()
"""


def test_usage_of_each_process_of_a_tree_is_read() -> None:
    with program(FAMILY) as process:
        found = tuple(read_tree_usage(proc.read_tree(read(process.pid))))
        (child,) = proc.children(process.pid)
        assert [each.pid for each in found] == [process.pid, child]
        assert found[0].usage.memory_bytes > 64 * MIB > found[1].usage.memory_bytes
        assert found[0].usage.cpu_s >= 0.1
        os.kill(child, 9)


def test_usage_of_an_ended_process_is_skipped() -> None:
    with program(WAIT_STATEMENTS) as process:
        tree = proc.read_tree(read(process.pid))
        # Another process has got its PID.
        other = replace(tree.root, start=tree.root.start + 1)
        assert tuple(read_tree_usage(proc.Tree(other, (other,)))) == ()
    assert tuple(read_tree_usage(tree)) == ()
