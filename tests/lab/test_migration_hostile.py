"""A destination that is hostile, or stuck: it speaks the protocol, gives signs of life, and does something else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
from hosts import PROJECT, CannotMakeLab, Result
from migrations import JOB, find_moves, judge, served
from namespaces import Namespaces
from two_hosts import in_namespaces

_HOSTILE: Final = "/usr/local/sbin/hostile"
_CRCKPT: Final = f"""#!{PROJECT}/.venv/bin/python
import sys
import threading
sys.path.insert(0, {str(PROJECT)!r})
from crckpt.__main__ import main
from crckpt.migrate.destination.receive import Destination
from crckpt.migrate.transfer.receive_packs import Receiver
for_ever = threading.Event()
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Namespaces]:
    """The hosts. Skipped with the lab's own words where it says that this machine cannot."""
    try:
        with in_namespaces() as found:
            yield found
    except CannotMakeLab as error:
        pytest.skip(str(error))


def make_hostile(lab: Namespaces, change: str) -> None:
    """Make the crckpt of the destination, which runs this before it begins."""
    script = f"{_CRCKPT}{change}\nsys.exit(main())\n"
    lab.run("destination", "sh", "-c", f"cat > {_HOSTILE} && chmod 755 {_HOSTILE}", stdin=script)


def migrate_to_hostile(lab: Namespaces, pid: int, change: str, *environment: str, status: int) -> Result:
    """Migrate to a crckpt that runs this before it begins."""
    make_hostile(lab, change)
    words = ("crckpt", "migrate", str(pid), "destination", JOB, "--remote-crckpt", _HOSTILE)
    try:
        return lab.run("source", "env", *environment, *words, status=status)
    finally:
        # It does not notice that its connection has ended.
        lab.end("hostile")


@pytest.mark.parametrize(
    "change",
    [
        "Destination._build = lambda self, message: for_ever.wait()",
        "check = Destination._check_restore\n"
        "def rehearse(self, message):\n"
        "    Receiver.answer_offer = lambda *_: for_ever.wait()\n"
        "    return check(self, message)\n"
        "Destination._check_restore = rehearse",
    ],
    ids=["builds nothing", "takes no packs"],
)
def test_one_that_lives_and_does_nothing_keeps_no_tree_frozen(lab: Namespaces, change: str) -> None:
    with served(lab) as pid:
        said = migrate_to_hostile(lab, pid, change, "CRCKPT_ANSWER_S=2", status=30)
        assert "destination did not finish its part within" in said.err
        assert judge(lab, str(said)) == "source"


def test_one_that_does_not_let_the_tree_run(lab: Namespaces) -> None:
    """The tree has ended here: the message says what finishes the move."""
    change = (
        "advance = Destination._advance\n"
        "def refuse(self, state, **more):\n"
        "    for_ever.wait() if state == 'committed' else advance(self, state, **more)\n"
        "Destination._advance = refuse"
    )
    with served(lab) as pid:
        said = migrate_to_hostile(lab, pid, change, "CRCKPT_ANSWER_S=2", status=31)
        (move,) = find_moves(lab, "source")
        assert f"crckpt migrate --resume {move['id']}" in said.err
        make_hostile(lab, "")
        assert judge(lab, str(said)) == "destination"
