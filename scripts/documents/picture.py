"""Draw the terminal of README's tour from a real run, as root: `python -m documents.picture README.md FILE.svg`."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from rich.console import Console
from rich.text import Text

from documents.console import Shell, StepResult, read_steps

_BEGIN: Final = "<!-- picture: begin -->"
_END: Final = "<!-- picture: end -->"
_WIDTH: Final = 106
# The picture must look the same without the network.
_FONTS: Final = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


def draw(results: Iterable[StepResult]) -> str:
    """Draw commands with their output as SVG."""
    console = Console(record=True, width=_WIDTH, file=io.StringIO(), color_system="truecolor", legacy_windows=False)
    for result in results:
        if result.step.output is not None:
            console.print(Text.assemble(("# ", "bold green"), (result.command, "bold")))
            console.print(Text(result.output.rstrip("\n")))
    return _FONTS.sub("", console.export_svg(title="crckpt", unique_id="tour"))


def main(page: Path, picture: Path) -> None:
    """Run the page up to the end of its picture, and write the picture."""
    before, _, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    shown = rest.partition(_END)[0]
    with TemporaryDirectory(prefix="crckpt-documents.") as directory:
        shell = Shell(Path(directory))
        try:
            for step in read_steps(before):
                shell.run(step)
            results = [shell.run(step) for step in read_steps(shown)]
        finally:
            shell.close()
    picture.write_text(draw(results), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
