"""The number of descriptors that a round needs, and how CRIU gets them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from crckpt.host.proc import effective_capabilities
from crckpt.host.process.own_limits import DescriptorLimits, prlimit_words, read_descriptor_limits

LIMITS = DescriptorLimits(soft=128, hard=4096, pages_in_pipe=16)
LIMIT_READER = """
from crckpt.host.process.own_limits import read_descriptor_limits
limits = read_descriptor_limits()
print(limits.soft, limits.hard, limits.pages_in_pipe)
"""


@pytest.mark.parametrize(
    ("size", "processes", "pipes"),
    [(0, 1, 1), (1, 1, 2), (16 * 4096, 1, 2), (16 * 4096 + 1, 1, 3), (160 * 4096, 5, 15)],
)
def test_two_descriptors_per_pipe_and_a_reserve_are_needed(size: int, processes: int, pipes: int) -> None:
    assert LIMITS.count_needed(size, processes) == 2 * pipes + 64


@pytest.mark.parametrize(
    ("most", "words"),
    [
        (128, ()),
        (129, ("prlimit", "--nofile=129:4096")),
        (4096, ("prlimit", "--nofile=4096:4096")),
        (5000, ("prlimit", "--nofile=4096:4096")),
    ],
)
def test_descriptor_limit_is_raised_only_when_needed(most: int, words: tuple[str, ...]) -> None:
    assert prlimit_words(most, LIMITS) == words


def test_descriptor_limit_of_crckpt_is_its_hard_limit_without_the_capability() -> None:
    if 24 not in effective_capabilities():
        pytest.skip("needs CAP_SYS_RESOURCE, to lose it")
    without = ("setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource")
    argv = ["prlimit", "--nofile=200:300", *without, sys.executable, "-c", LIMIT_READER]
    soft, hard, pages = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    assert (soft, hard) == ("200", "300")
    assert int(pages) in (16, 32, 64, 128, 256, 512, 1024)


def test_descriptor_limit_with_the_capability_is_that_of_the_kernel() -> None:
    if 24 not in effective_capabilities():
        pytest.skip("needs CAP_SYS_RESOURCE")
    limits = read_descriptor_limits()
    assert limits.soft == limits.hard >= 1024
    assert limits.pages_in_pipe == 1024
