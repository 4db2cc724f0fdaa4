"""Connections that begin while their address moves: the host that gets it shall answer them, and no other.

A frozen program accepts none. The kernel would do so for it, and reset them when the program has ended here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from crckpt.host.network.address import HostAddress, find_rows
from crckpt.host.network.packet_filter import find_nft
from crckpt.host.observe.sockets import find_waiting_listeners
from crckpt.host.process import run
from crckpt.model import MoveId

_BEGINS_WITHIN_S: Final = 5.0
_QUIET_WITHIN_S: Final = 3.0
_LOOK_S: Final = 0.02


@contextmanager
def newcomers_held(addresses: Sequence[HostAddress], move_id: MoveId) -> Iterator[None]:
    """Drop packets that begin a TCP connection to these addresses during the block, if this host can.

    nft keeps the rules, and the kernel removes them when it ends (`flags owner`, since Linux 5.12): it ends with its
    input, also if crckpt is killed.
    """
    tool = find_nft()
    if not addresses or tool is None:
        yield
        return
    name = f"crckpt-newcomers-{move_id}"
    # Before the rules of this host, and before connection tracking.
    chain = f"inet {name} incoming"
    commands = [f"add table inet {name} {{ flags owner; }}"]
    commands.append(f"add chain {chain} {{ type filter hook prerouting priority -450; }}")
    for address in addresses:
        to = f"{'ip' if address.family == 4 else 'ip6'} daddr {address.ip}"
        commands.append(f"add rule {chain} {to} tcp flags & (syn | ack) == syn drop")
    child, pipes = run.start_with_pipes((str(tool), "--interactive"), {})
    try:
        with suppress(OSError):
            os.write(pipes.stdin, f"{'; '.join(commands)}\n".encode())
            _wait_for_table(tool, name, child)
        yield
    finally:
        for descriptor in (pipes.stdin, pipes.stdout, pipes.stderr):
            os.close(descriptor)
        child.wait()


def wait_until_accepted(pids: Sequence[int], addresses: Sequence[HostAddress] = ()) -> bool:
    """Wait up to 3 s until the processes have accepted all connections; return whether they have.

    Also until none begins at these addresses.
    """
    until = time.monotonic() + _QUIET_WITHIN_S
    while (waiting := find_waiting_listeners(pids)) or _is_one_beginning(addresses):
        if time.monotonic() > until:
            return not waiting
        time.sleep(_LOOK_S)
    return True


def _is_one_beginning(addresses: Sequence[HostAddress]) -> bool:
    return any(find_rows(addresses, lambda row: row.state in ("SYN_RECV", "NEW_SYN_RECV")))


def _wait_for_table(tool: Path, name: str, child: run.Child) -> None:
    until = time.monotonic() + _BEGINS_WITHIN_S
    # An nft that cannot make it waits for more commands.
    while time.monotonic() < until and not child.ends_within(0):
        if f"table inet {name}\n" in run.run([tool, "list", "tables", "inet"]).output:
            return
