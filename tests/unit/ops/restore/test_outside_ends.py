"""The descriptors that a restored tree gets for pipes whose other end was outside the tree."""

from __future__ import annotations

import fcntl
import os
import pty
import tty

from crckpt.ops.restore.outside_ends import OutsideEnds, inherited_ends
from crckpt.preflight.restore.descriptors import OutsidePipe


def test_our_terminal_is_passed_write_only() -> None:
    """A shell opens its terminal for reading, too: a restored program would read what root types."""
    ours, terminal = pty.openpty()
    try:
        tty.setraw(terminal)
        assert fcntl.fcntl(terminal, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
        with inherited_ends(OutsideEnds((OutsidePipe(1, errors=False),)), terminal) as (ends, _):
            (descriptor,) = ends.values()
            assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
            os.write(descriptor, b"said")
        assert os.read(ours, 10) == b"said"
    finally:
        os.close(ours)
        os.close(terminal)
