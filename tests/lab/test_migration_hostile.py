"""A destination that is hostile, or stuck: it speaks the protocol, gives signs of life, and does something else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
from hosts import PROJECT, CannotMakeLab, Result
from migrations import JOB, find_moves, judge, served
from namespaces import Namespaces
from two_hosts import in_namespaces

_CHANGED_CRCKPT: Final = "/usr/local/sbin/changed-crckpt"
_CRCKPT: Final = f"""#!{PROJECT}/.venv/bin/python
import sys
import threading
sys.path.insert(0, {str(PROJECT)!r})
from crckpt.__main__ import main
"""
_HOSTILE_PRELUDE: Final = """
from crckpt.migrate.destination.receive import Destination
from crckpt.migrate.transfer.receive_packs import Receiver
for_ever = threading.Event()
"""
# Shortens the limits that these tests wait for. The destination has its usual time for everything else.
_SHORT_LIMITS: Final = """
from crckpt.migrate import session
from crckpt.migrate.source import hand_over, move
from crckpt.migrate.wire import ssh
LIMIT_S = 1
ssh._END_S = move._ABORTED_WITHIN_S = session._FINISH_WITHIN_S = LIMIT_S
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Namespaces]:
    """The hosts. Skipped with the lab's own words where it says that this machine cannot."""
    try:
        with in_namespaces() as found:
            yield found
    except CannotMakeLab as error:
        pytest.skip(str(error))


def change_crckpt(lab: Namespaces, host: str, *changes: str) -> None:
    """Make a crckpt on a host that runs this code before it begins."""
    script = "\n".join((_CRCKPT, *changes, "sys.exit(main())\n"))
    lab.run(host, "sh", "-c", f"cat > {_CHANGED_CRCKPT} && chmod 755 {_CHANGED_CRCKPT}", stdin=script)


def migrate_to_hostile(lab: Namespaces, pid: int, hostile: str, limited: str, status: int) -> Result:
    """Migrate to a crckpt that runs `hostile` before it begins, by one that runs `limited`."""
    change_crckpt(lab, "source", _SHORT_LIMITS, limited)
    change_crckpt(lab, "destination", _HOSTILE_PRELUDE, hostile)
    words = (_CHANGED_CRCKPT, "migrate", str(pid), "destination", JOB, "--remote-crckpt", _CHANGED_CRCKPT)
    try:
        return lab.run("source", *words, status=status)
    finally:
        # It does not notice that its connection has ended.
        lab.end("changed-crckpt")


@pytest.mark.parametrize(
    ("hostile", "limited"),
    [
        (
            "Destination._build = lambda self, message: for_ever.wait()",
            "hand_over.limit_restore = lambda _: LIMIT_S",
        ),
        (
            "check = Destination._check_restore\n"
            "def rehearse(self, message):\n"
            "    Receiver.answer_offer = lambda *_: for_ever.wait()\n"
            "    return check(self, message)\n"
            "Destination._check_restore = rehearse",
            # The first packs are sent before the rehearsal.
            "limits = iter([600])\nhand_over.limit_sending = lambda *_: next(limits, LIMIT_S)",
        ),
    ],
    ids=["builds nothing", "takes no packs"],
)
def test_tree_continues_at_the_source_if_the_destination_hangs(lab: Namespaces, hostile: str, limited: str) -> None:
    with served(lab) as pid:
        output = migrate_to_hostile(lab, pid, hostile, limited, status=30)
        assert "destination did not finish its part within 1 s" in output.err
        assert judge(lab, str(output)) == "source"


def test_destination_that_does_not_run_the_tree_is_reported(lab: Namespaces) -> None:
    """The tree has ended at the source. The message has the command that finishes the move."""
    hostile = (
        "advance = Destination._advance\n"
        "def refuse(self, state, **more):\n"
        "    for_ever.wait() if state == 'committed' else advance(self, state, **more)\n"
        "Destination._advance = refuse"
    )
    limited = (
        "complete = hand_over.complete_hand_over\n"
        "def complete_limited(*operands):\n"
        "    hand_over.limit_restore = lambda _: LIMIT_S\n"
        "    return complete(*operands)\n"
        "hand_over.complete_hand_over = complete_limited"
    )
    with served(lab) as pid:
        output = migrate_to_hostile(lab, pid, hostile, limited, status=31)
        (move,) = find_moves(lab, "source")
        assert f"crckpt migrate --resume {move['id']}" in output.err
        change_crckpt(lab, "destination")
        assert judge(lab, str(output)) == "destination"
