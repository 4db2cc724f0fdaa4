"""Drive two hosts and a client: a lab in namespaces, or with $CRCKPT_TWO_HOSTS_HERE real machines.

    with two_hosts() as lab:
        pid = lab.start("source", "sleep", "1000")
        assert lab.run("source", "ssh", "destination", "hostname").out == "destination\\n"

As many labs as wanted exist at once; one takes a second to make.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hosts import TwoHosts
from machines import Machines
from namespaces import Namespaces


def is_here() -> bool:
    """Whether the hosts are real machines, and this one is the source."""
    return bool(os.environ.get("CRCKPT_TWO_HOSTS_HERE"))


@contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """Make a lab for the block. Raises CannotMakeLab."""
    if not is_here():
        with in_namespaces() as lab:
            yield lab
        return
    machines = Machines()
    machines.up()
    try:
        yield machines
    finally:
        machines.down()


@contextmanager
def in_namespaces() -> Iterator[Namespaces]:
    """Make a lab in namespaces for the block. Raises CannotMakeLab."""
    lab = Namespaces(Path(tempfile.gettempdir(), f"crckpt-two-hosts-{secrets.token_hex(6)}"))
    try:
        lab.up()
        yield lab
    finally:
        lab.down()
