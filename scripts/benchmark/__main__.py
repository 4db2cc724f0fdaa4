"""`scripts/bench`: measure, show, and end with 0 if all bounds hold, 1 if not, 2 if something could not be measured."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmark import (
    chain,
    choices,
    durable,
    machine,
    many,
    memory,
    migration,
    pause,
    pre_copy,
    predictions,
    restore,
    series,
    startup,
)
from benchmark.commands import Failed
from benchmark.report import Choice, Report, Row, document, line, show
from benchmark.setting import Setting, say
from benchmark.targets import KINDS, adopt_orphans, available
from crckpt.criu.find import find
from crckpt.errors import CrckptError

GROUPS: Final = {
    "startup": startup.rows,
    "pause": pause.rows,
    "durable": durable.rows,
    "restore": restore.rows,
    "series": series.rows,
    "chain": chain.rows,
    "many": many.rows,
    "memory": memory.rows,
    "predictions": predictions.rows,
    "pre-copy": pre_copy.rows,
    "migration": migration.rows,
}
CHOICES: Final = "choices"
INSTALLED: Final = Path(sys.executable).with_name("crckpt")
_WIDTH_ELSEWHERE: Final = 160


def main() -> int:
    """Run the command line; return the exit code."""
    options = _arguments()
    if os.geteuid() != 0:
        say("scripts/bench needs root: CRIU stops and rebuilds processes. Type: sudo scripts/bench")
        return 2
    adopt_orphans()
    # Clean up as after ^C, also without a terminal: the disk must not stay limited.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        with tempfile.TemporaryDirectory(prefix="crckpt-bench-", dir=options.work) as work:
            setting = _setting(options, Path(work))
            with machine.memory_kept(setting):
                report = _measure(setting, options.rows)
    except (Failed, CrckptError, TimeoutError) as error:
        say(str(error))
        return 2
    except KeyboardInterrupt:
        return 130
    if options.json:
        sys.stdout.write(document(report) + "\n")
    else:
        console = Console(highlight=False)
        if not console.is_terminal:
            console.width = _WIDTH_ELSEWHERE
        show(report, console)
    return 0 if report.all_met else 1


def _setting(options: argparse.Namespace, work: Path) -> Setting:
    return Setting(
        command=options.command.absolute(),
        criu=find(None, None).path,
        work=work,
        sizes=options.sizes,
        runs=options.runs,
        kinds=options.targets,
        interval=options.interval,
    )


def _measure(setting: Setting, wanted: tuple[str, ...]) -> Report:
    rows: list[Row] = []
    variants: list[Choice] = []
    for name, group in GROUPS.items():
        if name in wanted:
            for row in group(setting):
                say(line(row))
                rows.append(row)
    if CHOICES in wanted:
        for choice in choices.choices(setting):
            say(f"{CHOICES}: {choice.target}: {choice.way}")
            variants.append(choice)
    return Report(machine.describe(setting), tuple(rows), tuple(variants))


def _arguments() -> argparse.Namespace:
    names = (*GROUPS, CHOICES)
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Compare crckpt with bare CRIU, tar, restic and borg in the same run, and check its bounds.",
        epilog="Ends with 0 if all bounds hold, 1 if not, 2 if something could not be measured.",
    )
    parser.add_argument("rows", nargs="*", metavar="ROWS", help=f"which (default: all): {', '.join(names)}")
    parser.add_argument("--sizes", type=_sizes, default=(256, 1024), help="of targets, in MiB (default: 256,1024)")
    parser.add_argument("--targets", type=_words, default=None, help=f"which of {', '.join(KINDS)} (default: all here)")
    parser.add_argument(
        "--runs", type=int, default=3, help="samples of each time (short times: 3 times as many); default: 3"
    )
    parser.add_argument("--interval", type=float, default=10.0, help="seconds between checkpoints of a series (10)")
    parser.add_argument("--work", type=Path, default=Path("/var/tmp"), help="on the disk to measure (%(default)s)")
    parser.add_argument("--command", type=Path, default=INSTALLED, help="the crckpt to measure (%(default)s)")
    parser.add_argument("--jvm", action="store_true", help="install a JDK if there is none")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    options = parser.parse_args()
    here = available()
    options.rows = tuple(options.rows) or names
    options.targets = options.targets or here
    for given, known, what in ((options.rows, names, "rows"), (options.targets, here, "target here")):
        if unknown := set(given) - set(known):
            parser.error(f"no such {what}: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return options


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


if __name__ == "__main__":
    sys.exit(main())
