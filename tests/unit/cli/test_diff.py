"""`crckpt diff` lists the differences, or reports that there are none."""

from __future__ import annotations

from command_line import CommandLine
from recorded_images import RECORDED

from crckpt.store import Checkpoint


def test_diff_command_lists_a_changed_page(
    command_line: CommandLine, recordings: tuple[Checkpoint, Checkpoint]
) -> None:
    first, second = recordings
    text = command_line.run("diff", first.short_id, second.short_id)
    assert text.splitlines()[0].startswith(f"from {first.short_id}")
    assert f"process {RECORDED.root.pid} python3\n" in text
    assert "memory: changed 1 page (4.0 KiB)\n" in text or "memory: changed 1 page (4 KiB)\n" in text
    result = command_line.result("diff", first.id, second.id)
    assert result["pages"] == {"changed": 1, "new": 0, "gone": 0}
    assert (result["come"], result["gone"]) == ([], [])
    assert [change["pid"] for change in result["changed"]] == [RECORDED.root.pid]


def test_diff_of_a_checkpoint_with_itself_says_that_nothing_differs(
    command_line: CommandLine, recordings: tuple[Checkpoint, Checkpoint]
) -> None:
    assert command_line.run("diff", "job", "job").endswith("nothing differs\n")
