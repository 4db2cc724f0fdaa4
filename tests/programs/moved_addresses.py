"""Takes addresses over, as a move does: claim, release, keep. Steps (CRCKPT_KILL_AT) kill it in between.

Arguments: the id of the move, the last thing to do, addresses. It says what it has done, a line each, and waits for a
line on stdin after the last.
"""

import sys

from crckpt.helper.address_guard.client import guarded_addresses
from crckpt.host.network.address import parse_address
from crckpt.model import MoveId

move_id, last, *addresses = sys.argv[1:]
with guarded_addresses(tuple(map(parse_address, addresses)), MoveId(move_id)) as guarded:
    print("guard", guarded.guard, flush=True)
    for name, action in (("claim", guarded.claim), ("release", guarded.release), ("keep", guarded.keep)):
        action()
        print(name, flush=True)
        if name == last:
            break
    sys.stdin.readline()
