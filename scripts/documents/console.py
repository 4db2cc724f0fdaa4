"""Read the console blocks of a page of Markdown, and run their commands in one shell, as a reader would.

In a block of the language `console` a line that begins with `# ` or `$ ` is a command, lines that begin with `> `
continue it, and the others are its output. A line `...` stands for any lines. Comments of HTML in lines of their own
say what a reader need not see::

    <!-- not run: REASON -->        do not run the next block
    <!-- file: /srv/app/app.py -->  the next block is this file: write it
    <!-- run: COMMAND -->           run this command: it waits for a server, for example
    <!-- under: systemd -->         anywhere: the page needs systemd as PID 1
    <!-- under: two hosts -->       anywhere: the page needs two hosts; tests/lab/test_migrate_page.py runs it
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

WITHIN_S: Final = 60
_PART: Final = re.compile(
    r"^<!-- (?P<kind>not run|file|run): (?P<words>[^\n]*) -->$|^```(?P<language>[\w-]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_COMMAND: Final = re.compile(r"^[#$] (.*(?:\n> .*)*)\n?", re.MULTILINE)

# What differs from run to run, and what it looks like then.
_NAMES: Final = (
    (r"\b[0-9a-f]{12,64}\b", r"[0-9a-f]+"),
    (r"(?<=PID )\d+|(?<=process )\d+|(?<=leader )\d+|(?<=core\.)\d+|\b1[5-9]\d\d\b|^\d{2,}$", r"\d+"),
)
"""They name a checkpoint or a process: later commands of the page use the name that it has in this run."""
_OTHERS: Final = (
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d", r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d"),
    (r"\d+(?:\.\d+)? (?:B|KiB|MiB|GiB)\b", r"\d+(?:\.\d+)? (?:B|KiB|MiB|GiB)"),
    (r"\d+(?:\.\d+)? (?:ms|s)\b", r"\d+(?:\.\d+)? (?:ms|s)"),
    (r"\d+(?= pages?\b)|\d+(?= bytes\b)|(?<=grew from )\d+", r"\d+"),
    (r"python3\.\d+", r"python3\.\d+"),
    (r"(?<=tracker: ).*|\b(?:uffd-wp|soft-dirty)\b.*", r".*"),  # it depends on the kernel
    (r"(?<=:)[3-6]\d{4}\b", r"\d+"),
)
_VARYING: Final = re.compile("|".join(f"({found})" for found, _ in (*_NAMES, *_OTHERS)), re.MULTILINE)


class Step(Struct, frozen=True):
    """A command of a page and the output that the page shows; `output` is None if readers see neither.

    A step with a `path` writes the command's text there instead.
    """

    command: str
    output: str | None = None
    path: Path | None = None


class StepResult(Struct, frozen=True):
    """What became of a step. `command` has the names of this run."""

    step: Step
    command: str
    status: int
    output: str


def needs_systemd(page: str) -> bool:
    """Return whether the commands of a page need systemd."""
    return "\n<!-- under: systemd -->\n" in page


def needs_two_hosts(page: str) -> bool:
    """Return whether the commands of a page need two hosts."""
    return "\n<!-- under: two hosts -->\n" in page


def read_steps(page: str) -> Iterator[Step]:
    """Read the steps of a page in their order."""
    kind, words = "", ""
    for part in _PART.finditer(page):
        if part["kind"] == "run":
            yield Step(part["words"])
        elif part["kind"]:
            kind, words = part["kind"], part["words"]
        else:
            if kind == "file":
                yield Step(part["text"], path=Path(words))
            elif part["language"] == "console" and kind != "not run":
                yield from _read_block(part["text"])
            kind = ""


def _read_block(text: str) -> Iterator[Step]:
    commands = list(_COMMAND.finditer(text))
    ends = [*(command.start() for command in commands[1:]), len(text)]
    for command, end in zip(commands, ends, strict=True):
        yield Step(command[1].replace("\n> ", "\n"), text[command.end() : end])


# A host of its own, which ends with the shell: PIDs, network, /srv and /run. PIDs of a host in use are not small. On a
# tmpfs a reboot would remove what is in /srv, and crckpt would say so.
_BEGIN: Final = (
    'mount --bind "$PLACE" /srv && mount -t tmpfs -o mode=755 tmpfs /run && ip link set lo up && '
    "echo 1500 >/proc/sys/kernel/ns_last_pid && cd /srv && setsid bash --noprofile --norc; exit"
)
_ISOLATED: Final = (
    "unshare",
    "--mount",
    "--net",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "sh",
    "-c",
    _BEGIN,
)


class StepRunner(ABC):
    """Runs steps one after the other; names of processes and checkpoints become those of this run."""

    def __init__(self) -> None:
        """No step has been run."""
        self._names: dict[str, str] = {}

    def run(self, step: Step) -> StepResult:
        """Run a step to its end."""
        if step.path is not None:
            self.execute(f"mkdir -p {step.path.parent} && cat >{step.path} <<'THE END'\n{step.command}THE END")
            return StepResult(step, step.command, 0, "")
        command = re.sub(r"\w+", lambda word: self._names.get(word[0], word[0]), step.command)
        status, output = self.execute(command)
        names = _match(step.output or "", output) or {}
        self._names |= {shown: name for shown, name in names.items() if len(shown) > 1}  # 1 is also a number
        return StepResult(step, command, status, output)

    @abstractmethod
    def execute(self, command: str) -> tuple[int, str]:
        """Run a command of a shell; return its exit status, and its output on stdout and stderr."""


class Shell(StepRunner):
    """A shell with root's rights. It has its files in `directory`."""

    def __init__(self, directory: Path, *, isolated: bool = True) -> None:
        """Start it: `isolated`, it has a host of its own, with an empty /srv and no store."""
        super().__init__()
        self._directory = directory
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        place, store = directory / "srv", directory / "store"
        place.mkdir(mode=0o755)
        self._shell = subprocess.Popen(
            _ISOLATED if isolated else ("bash", "--noprofile", "--norc"),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PATH": path, **({"CRCKPT_STORE": str(store), "PLACE": str(place)} if isolated else {})},
            text=True,
            start_new_session=True,
        )

    def execute(self, command: str) -> tuple[int, str]:
        """See StepRunner."""
        output, status = self._directory / "output", self._directory / "status"
        status.unlink(missing_ok=True)
        assert self._shell.stdin is not None
        ending = f"echo $? >{status}.new; mv {status}.new {status}"
        self._shell.stdin.write(f"{{ {command}\n}} >{output} 2>&1 </dev/null; {ending}\n")
        self._shell.stdin.flush()
        self._wait_for(status, command)
        shown = output.read_text(encoding="utf-8").replace(str(self._directory / "store"), "/var/lib/crckpt")
        return int(status.read_text()), shown

    def _wait_for(self, file: Path, command: str) -> None:
        end = time.monotonic() + WITHIN_S
        while not file.exists():
            if time.monotonic() > end or self._shell.poll() is not None:
                raise TimeoutError(f"this does not end within {WITHIN_S} s: {command}")
            time.sleep(0.01)

    def close(self) -> None:
        """End the shell, and all that it has started."""
        assert self._shell.stdin is not None
        self._shell.kill()
        self._shell.wait()
        self._shell.stdin.close()


def difference(result: StepResult) -> str:
    """Describe how a step's output differs from what the page shows; empty if it does not."""
    step = result.step
    if step.output is None or step.path is not None:
        return "" if result.status == 0 else f"{step.command}: exit status {result.status}\n{result.output}"
    fails = any(words in step.output for words in ("crckpt: ", '"status": "error"', " stayed here\n"))
    if fails != (result.status != 0):
        return f"{step.command}: exit status {result.status}\n{result.output}"
    if _match(step.output, result.output) is None:
        return f"{step.command}\nthe page shows:\n{step.output}\nbut it prints:\n{result.output}"
    return ""


def _match(shown: str, output: str) -> dict[str, str] | None:
    """The names of this run for those that the page shows; None if the output is another."""
    names: list[str] = []
    pattern = "\n".join(_pattern(line, names) for line in _lines(shown))
    found = re.fullmatch(
        pattern.replace("\\.\\.\\.\n", "(?:.*\n)*?").replace("\n\\.\\.\\.", "(?:\n.*)*"), _without_alignment(output)
    )
    return dict(zip(names, found.groups(), strict=True)) if found else None


def _pattern(line: str, names: list[str]) -> str:
    """A regular expression for a line of output, with a group for each of the `names` that it appends to."""
    end, pattern = 0, ""
    for varying in _VARYING.finditer(line):
        number = (varying.lastindex or 1) - 1
        pattern += re.escape(line[end : varying.start()])
        if number < len(_NAMES):
            names.append(varying[0])
            pattern += f"({_NAMES[number][1]})"
        else:
            pattern += _OTHERS[number - len(_NAMES)][1]
        end = varying.end()
    return pattern + re.escape(line[end:])


def _lines(text: str) -> list[str]:
    """Lines without what aligns columns."""
    return [" ".join(line.split()) for line in text.strip().splitlines()]


def _without_alignment(text: str) -> str:
    return "\n".join(_lines(text))


def refresh(page: str, results: list[StepResult]) -> str:
    """Put the output of this run into a page, where it shows output in full."""
    shown = iter(result for result in results if result.step.output is not None and result.step.path is None)
    kind = ""

    def replace(part: re.Match[str]) -> str:
        nonlocal kind
        if part["kind"]:
            kind = part["kind"] if part["kind"] != "run" else kind
            return part[0]
        is_run, kind = part["language"] == "console" and kind not in {"file", "not run"}, ""
        return f"```console\n{''.join(_refresh_block(part['text'], shown))}```" if is_run else part[0]

    return _PART.sub(replace, page)


def _refresh_block(text: str, results: Iterator[StepResult]) -> Iterator[str]:
    for command, step in zip(_COMMAND.finditer(text), _read_block(text), strict=True):
        result = next(results)
        typed = result.command.replace("\n", "\n> ")
        yield f"{command[0][:2]}{typed}\n"
        output = re.sub(r" +$", "", result.output, flags=re.MULTILINE)
        shown = step.output or ""
        yield _refresh_excerpt(shown, output) if "\n...\n" in f"\n{shown}" else output


def _refresh_excerpt(shown: str, output: str) -> str:
    """Replace each line that a page shows of an output by the line of this run; keep all if one has none."""
    lines = iter(output.splitlines())
    excerpt: list[str] = []
    for line in shown.splitlines():
        if line == "...":
            excerpt.append(line)
            continue
        pattern = _pattern(" ".join(line.split()), [])
        new = next((new for new in lines if re.fullmatch(pattern, " ".join(new.split()))), None)
        if new is None:
            return shown
        excerpt.append(new)
    return "".join(f"{line}\n" for line in excerpt)
