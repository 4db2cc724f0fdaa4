"""The modes of a screen that programs set."""

from __future__ import annotations

from crckpt.helper.terminal.screen_modes import ScreenModes

COLOURS = b"\x1b[m"


def test_screen_modes_of_a_program_are_replayed_and_reset() -> None:
    modes = ScreenModes()
    modes.read(b"text\x1b[?1049h\x1b[?25l\x1b[31m")
    assert modes.set_sequence() == b"\x1b[?1049h\x1b[?25l"
    assert modes.reset_sequence() == b"\x1b[?25h\x1b[?1049l" + COLOURS


def test_screen_modes_that_the_program_reset_are_forgotten() -> None:
    modes = ScreenModes()
    modes.read(b"\x1b[?1000;1006h\x1b[?25l")
    modes.read(b"\x1b[?1006;1000l\x1b[?25h")
    assert modes.set_sequence() == b""
    assert modes.reset_sequence() == COLOURS


def test_sequence_for_a_screen_mode_may_arrive_in_two_parts() -> None:
    modes = ScreenModes()
    modes.read(b"\x1b[?20")
    modes.read(b"04h")
    assert modes.set_sequence() == b"\x1b[?2004h"


def test_unknown_screen_modes_and_queries_are_ignored() -> None:
    modes = ScreenModes()
    modes.read(b"\x1b[?3h\x1b[c\x1b[6n\x1b[?99999999999999999999h")
    assert modes.set_sequence() == b""
