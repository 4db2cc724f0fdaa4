"""Each line of tests/data/logs/lines.tsv, as people and programs quote it, still has its cause."""

from __future__ import annotations

import html
import json
import re
import textwrap
from collections.abc import Callable

import pytest
from checkout import TESTS
from effort import some

from crckpt.causes.catalogue import EARLIER, ENGINES, OUTER, OUTSIDE, SILENT
from crckpt.criu.explain import explain, is_log
from crckpt.criu.log_lines import unquote

LOGS = TESTS / "data" / "logs"
LINES = [tuple(line.split("\t", 1)) for line in (LOGS / "lines.tsv").read_text().splitlines()]
MARK = re.compile(r"^(?:pie: \d+: )?(?:Error|Warn ) \([^)]*\): ")
TIME = "(00.012345) "
VERSION_LINES = {"crashed-later": "Version: 4.1 (gitid 0)\n"}
CAUSES_WITHOUT_TIMES = {entry.key for entry in (*ENGINES, *OUTER, *OUTSIDE)}
NO_COMPLAINTS = {"tcp-unsaid", *(entry.key for entry in EARLIER)}
SILENT_KEYS = {entry.key for entry in SILENT}
CAUSES_OF_A_FILE = {
    "no-loopback",
    "file-access",
    "plugin-file",
    "network-access",
    "sysctl",
    "check-lacks",
    "out-of-memory",
    "lazy-page",
    "mount-access",
    "unix-access",
    "not-permitted",
    "kernel-lacks",
    "sysfs-mount",
}
"""Some of their lines tell the cause only by the file of CRIU that the mark names."""
CAUSES_OF_MANY_LINES = {"not-permitted", "kernel-lacks"}
"""Of what runs inside of a process the number at the end of the line counts."""
FAILED = "(00.02) Error (criu/cr-dump.c:2128): Dumping FAILED.\n"


def without_mark(line: str) -> str:
    return MARK.sub("", line)


def in_form(line: str, key: str) -> str:
    return line if key in CAUSES_WITHOUT_TIMES or not MARK.match(line) else TIME + line


def between_words(line: str) -> str:
    return "\n".join(textwrap.wrap(line, 76, break_long_words=False, break_on_hyphens=False))


def at_the_width(line: str) -> str:
    return "\n".join(line[begin : begin + 80] for begin in range(0, len(line), 80))


def in_json(line: str) -> str:
    return json.dumps({"level": "error", "message": f"{line}\n", "code": 1})


def without_quotes(line: str) -> str:
    return line.replace("'", "").replace('"', "")


def in_html(line: str) -> str:
    return f"<code>{html.escape(line)}</code><br>"


def of_publishers(line: str) -> str:
    return line.replace("'", "\u2019").replace(" ", "  ")


FORMS: dict[str, Callable[[str, str], str]] = {
    "without its time": lambda line, _: line,
    "without its mark": lambda line, _: without_mark(line),
    "without quotes": lambda line, key: without_quotes(in_form(line, key)),
    "with other quotes": lambda line, key: of_publishers(in_form(line, key)),
    "in lower case": lambda line, key: in_form(line, key).lower(),
    "wrapped between words": lambda line, key: between_words(in_form(line, key)),
    "wrapped at the width": lambda line, key: at_the_width(in_form(line, key)),
    "in JSON": lambda line, key: in_json(in_form(line, key)),
    "in a log of the system": lambda line, _: f"Nov 25 17:05:04 host criu[812]: {line}",
    "in a log of runc": lambda line, _: f'time="2020-01-01T00:00:00Z" level=error msg={json.dumps(line)}',
    "in JSON in JSON": lambda line, key: in_json(in_json(in_form(line, key))),
    "in a terminal's colours": lambda line, key: f"\x1b[31m{in_form(line, key)}\x1b[0m",
    "in HTML": lambda line, key: in_html(in_form(line, key)),
    "in bold": lambda line, key: f"**{in_form(line, key)}**",
    "in a table": lambda line, _: f"| {line} | why? |",
    "in a sentence": lambda line, _: f'CRIU fails with "{line}" here.',
    "with Error alone": lambda line, _: MARK.sub("Error: ", line),
}
EXCEPTIONS_BY_FORM = {
    "without its mark": CAUSES_OF_A_FILE,
    "with Error alone": CAUSES_OF_A_FILE,
    # This line had no mark before.
    "without quotes": {"page-server"},
    "with other quotes": {"page-server", "engine-log", "no-socket-diag", "bug-udp-lite"},
    "in a sentence": CAUSES_OF_MANY_LINES,
    "in a table": CAUSES_OF_MANY_LINES,
    "in bold": CAUSES_OF_MANY_LINES,
    "in HTML": {"remap", "bug-open-path"},
    # In these forms a line quotes another one, which is harmless by itself.
    "in lower case": {"page-server", "engine-log", "no-socket-diag", "bug-udp-lite"},
    "wrapped at the width": {"engine-log"},
}


@pytest.mark.parametrize("form", FORMS)
def test_each_line_finds_its_cause_when_it_is_quoted(form: str) -> None:
    other = []
    for key, line in some([row for row in LINES if row[0] not in NO_COMPLAINTS], list(FORMS).index(form)):
        text = FORMS[form](line, key)
        failed = FAILED if key in SILENT_KEYS else ""
        finding = explain(f"{VERSION_LINES.get(key, '')}{text}\n{failed}").finding
        if (finding.key if finding else None) != key and key not in EXCEPTIONS_BY_FORM.get(form, ()):
            other.append((key, finding and finding.key, text))
    assert other == []


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("File out/log has bad size 17042 (expect 15267)", "bad-size"),
        ("we saw: Can't open file dev/shm/x on restore: No such file or directory\n", "open-failed"),
        (
            "Error (criu/files-reg.c:2353): Can't open file tmp/x.log on\nrestore: No such file or directory",
            "open-failed",
        ),
        (
            "Error (criu/mount.c:1088): mnt: Mount 16 ./sys/fs/cgroup/memory\n    (master_id: 27 shared_id: 710)"
            " has unreachable sharing.\n    Try --enable-external-masters.",
            "mount-sharing",
        ),
        ("x 2.269)Error (criu/sk-inet.c:191): inet: Connected Tcp socket, consider using it", "tcp-established"),
        ("./criu: /lib/libc.so.6: version `GLIBC_2.34' not found (required by ./criu)", "criu-start"),
        ("iptables-restore: line 3 failed\n(00.1) Error (criu/util.c:764): exited, status=1\n", "packets-not-held"),
        (
            "Error (criu/files-reg.c:2294): File srv/x.so\nFile r/w/x checks can be skipped with the"
            " --skip-file-rwx-check option\n",
            "bad-mode",
        ),
        ("(00.01)  3367: Error: tty: Don't have tty to inherit session from,\naborting\n", "no-terminal"),
    ],
)
def test_lines_quoted_in_other_forms_find_their_cause(text: str, key: str) -> None:
    explanation = explain(text)
    assert explanation.finding is not None
    assert explanation.finding.key == key
    assert is_log(text)


def test_earlier_line_without_its_mark_is_the_cause() -> None:
    explanation = explain(
        "Can't unshare net-namespace: Operation not permitted\n"
        "(00.005) Error (criu/cr-restore.c:2080): Can't attach to init: Operation not permitted\n"
    )
    assert explanation.finding is not None
    assert explanation.finding.key == "new-namespace"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "All is well\nNothing to be said\n",
        # CRIU's own lines that are no errors begin with a time.
        "(00.01) File srv/log has bad size 12 (expect 10)\n",
        "Warn  (criu/files-reg.c:1): File srv/log has bad size 12 (expect 10)\n",
    ],
)
def test_text_without_a_complaint_has_no_cause(text: str) -> None:
    assert explain(text).finding is None


def test_only_json_text_is_unquoted_and_no_line_of_a_log() -> None:
    # A path may have such in it.
    log = '(00.01) Dumping path for 3 fd via self 17 [/srv/a\\nb\\"]\n'
    assert unquote(log) == log
    assert unquote('{"a": "x\\ny \\"z\\" \\u003e"}') == '{"a": "x\n\ny "z" >"}'
