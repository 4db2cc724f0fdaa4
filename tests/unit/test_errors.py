"""Every failure has its own exit code, and the tree in the docstring matches the classes."""

from __future__ import annotations

import inspect
import re

import pytest

from crckpt import errors
from crckpt.errors import CommandFailure, CrckptError, DumpFailed, Interrupted, StoreLocked, TreeStopped, error_text

CLASSES = {
    name: kind
    for name, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, CommandFailure) and kind not in (CommandFailure, CrckptError)
}


def test_exit_codes_are_unique_and_not_that_of_a_bug() -> None:
    codes = [kind.exit_code for kind in CLASSES.values()]
    assert len(codes) == len(set(codes))
    assert not {0, 1} & set(codes)
    assert CrckptError("a bug").exit_code == 1


def test_tree_of_errors_in_the_docstring_matches_the_classes() -> None:
    drawn = re.findall(r"^    (?:([│ ]*)[├└]── )?(\w+) +(\d+) ", errors.__doc__ or "", re.MULTILINE)
    assert {name: int(code) for _, name, code in drawn} == {name: kind.exit_code for name, kind in CLASSES.items()}
    below = {name for indent, name, _ in drawn if "│" in indent}
    assert below == {name for name, kind in CLASSES.items() if kind.__base__ not in (CommandFailure, CrckptError)}


def test_interruption_is_not_caught_as_an_error() -> None:
    assert not issubclass(Interrupted, Exception | KeyboardInterrupt)


def test_error_has_message_hint_and_causes() -> None:
    error = StoreLocked("it is held", hint="wait", causes=("by 5",))
    assert (str(error), error.message, error.hint, error.causes) == ("it is held", "it is held", "wait", ("by 5",))
    assert (CrckptError("x").hint, CrckptError("x").causes) == ("", ())


def test_tree_stopped_is_caught_as_dump_failed() -> None:
    with pytest.raises(DumpFailed):
        raise TreeStopped("stopped")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(5, "Input/output error", "/store/pack"), "Input/output error (/store/pack)"),
        (PermissionError(1, "its tracer does not pass it on"), "its tracer does not pass it on"),
        (OSError("without a number"), "without a number"),
        (DumpFailed("the dump failed"), "the dump failed"),
        (ValueError("embedded null byte"), "embedded null byte"),
    ],
)
def test_system_error_message_has_no_errno(error: Exception, text: str) -> None:
    assert error_text(error) == text
