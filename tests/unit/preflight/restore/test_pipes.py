"""Pipes to processes outside the tree."""

from __future__ import annotations

import os

from msgspec.structs import replace

from crckpt.images.other_files import Pipe
from crckpt.preflight.restore.checks import judge_restore
from crckpt.preflight.restore.descriptors import OutsidePipe
from crckpt.preflight.restore.host import HostState, PlannedRestore


def test_only_pipes_whose_reader_is_outside_get_our_output(planned_restore: PlannedRestore, host: HostState) -> None:
    ends = (
        Pipe(901, 61, os.O_RDONLY),
        Pipe(902, 62, os.O_WRONLY | os.O_NONBLOCK),
        Pipe(903, 62, os.O_WRONLY),
        Pipe(904, 63, os.O_RDWR),
        Pipe(905, 64, os.O_RDONLY),
        Pipe(906, 64, os.O_WRONLY),
    )
    piped = replace(planned_restore, tree=replace(planned_restore.tree, files=(*planned_restore.tree.files, *ends)))
    assert judge_restore(piped, host).outside_pipes == (OutsidePipe(62, errors=False),)
    assert judge_restore(replace(piped, closed_pipes=frozenset({62})), host).outside_pipes == ()
