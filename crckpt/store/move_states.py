"""The states of a move: one table, which crckpt asks before each step and which the model test searches. Pure.

A move is the migration of one tree from the source to the destination. Each side keeps its own state in its store.
What makes a second copy impossible is the order of a few durable steps:

1. The source holds the tree frozen: `handing-over`. Whatever fails from here on lets it run again at the source.
2. The destination stores the checkpoint, builds the tree, holds it, and only then writes `prepared` and says so.
3. The source writes `committing`, and commits its hold: that rename decides. The hold's other side (hold.c) aborts by
   itself if crckpt has died or is silent: then the tree keeps running at the source, and nothing else is possible.
4. The source waits until the tree has ended, writes `ended`, and tells the destination.
5. The destination writes `committed`, commits its hold, and the tree runs there: `done`.

In `prepared` the destination cannot know what the source has decided: it ends the tree that it holds if the connection
is lost, and keeps the checkpoint. The source's record says which side goes on.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

Side = Literal["source", "destination"]
State = Literal[
    "copying",
    "handing-over",
    "committing",
    "ended",
    "receiving",
    "prepared",
    "committed",
    "done",
    "aborted",
]
AfterDeath = Literal["aborted", "tree-decides", "unchanged"]
ReportStep = Literal["abort", "settled", "runs-there", "unknown"]
"""The next step of a report to the destination. `runs-there`: its user said that the source was gone."""


class Rule(Struct, frozen=True):
    """What holds in a state.

    - `next`: the states that may follow
    - `runs`: the tree may run on this side
    - `forbids_restore`: no checkpoint of the job may be restored on this side
    - `after_death`: what the state means once the crckpt that wrote it has died. `aborted`: the move is over, as if
      that were written. `tree-decides`: at the source, the move is aborted if the tree still runs, else the tree has
      ended; at the destination, the move is done if the tree runs. `unchanged`: the same as before.
    """

    next: tuple[State, ...]
    runs: bool
    forbids_restore: bool
    after_death: AfterDeath

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do on this side."""
        return not self.next


RULES: Final[dict[Side, dict[State, Rule]]] = {
    "source": {
        "copying": Rule(("handing-over", "aborted"), runs=True, forbids_restore=False, after_death="aborted"),
        "handing-over": Rule(("committing", "aborted"), runs=False, forbids_restore=True, after_death="aborted"),
        "committing": Rule(("ended", "aborted"), runs=False, forbids_restore=True, after_death="tree-decides"),
        "ended": Rule(("done",), runs=False, forbids_restore=True, after_death="unchanged"),
        "done": Rule((), runs=False, forbids_restore=False, after_death="unchanged"),
        "aborted": Rule((), runs=True, forbids_restore=False, after_death="unchanged"),
    },
    "destination": {
        "receiving": Rule(("prepared", "aborted"), runs=False, forbids_restore=False, after_death="aborted"),
        "prepared": Rule(("committed", "aborted"), runs=False, forbids_restore=True, after_death="unchanged"),
        "committed": Rule(("done",), runs=False, forbids_restore=True, after_death="tree-decides"),
        "done": Rule((), runs=True, forbids_restore=False, after_death="unchanged"),
        "aborted": Rule((), runs=False, forbids_restore=False, after_death="unchanged"),
    },
}
"""The rules of each side's states."""

FIRST: Final[dict[Side, State]] = {"source": "copying", "destination": "receiving"}
"""The state in which a move begins on each side."""


def is_unreported(side: Side, state: State, *, is_settled: bool) -> bool:
    """Return whether the destination may keep a tree of the move in doubt, until this side says that it was aborted.

    Such a record is kept, whatever happens with the job.
    """
    return side == "source" and state == "aborted" and not is_settled


def find_report_step(there: State | None, *, is_same_store: bool) -> ReportStep:
    """Find what comes next, after the destination was asked about an aborted move. `there` is its state of it.

    `is_same_store`: the store that was asked is surely that to which the move went.
    """
    if there in ("committed", "done"):
        return "runs-there"
    if there in ("receiving", "prepared"):
        return "abort"
    # A store that knows nothing of the move may be another one.
    return "settled" if there == "aborted" and is_same_store else "unknown"
