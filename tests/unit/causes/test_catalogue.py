"""The catalogue: every key once, every sentence whole."""

from __future__ import annotations

import ast
import re
import string
from pathlib import Path

import pytest

import crckpt
from crckpt.causes import Cause, cause
from crckpt.causes.catalogue import CATALOGUE
from crckpt.criu.explain import explain

NAMES = {
    name
    for entry in CATALOGUE
    for text in (entry.says, entry.remedy)
    for _, name, _, _ in string.Formatter().parse(text)
    if name
}
CAUSES_WITH_A_PATTERN = [entry for entry in CATALOGUE if entry.pattern]


def named(entry: Cause) -> tuple[set[str], set[str]]:
    """The values that a cause requires, and those that have alternative words."""
    texts = (entry.says, entry.remedy)
    names = {name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name}
    needed = {name for name in names if "|" not in name}
    return needed, {name.partition("|")[0] for name in names - needed}


def test_keys_are_unique_and_find_their_cause() -> None:
    keys = [entry.key for entry in CATALOGUE]
    assert len(keys) == len(set(keys))
    assert all(cause(entry.key) is entry for entry in CATALOGUE)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", key) for key in keys)
    with pytest.raises(KeyError):
        cause("no such cause")


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.key)
def test_every_cause_makes_a_finding_without_unfilled_fields(entry: Cause) -> None:
    finding = entry.finding(**dict.fromkeys(NAMES, "X"))
    assert finding.key == entry.key
    assert finding.what
    assert not re.search(r"[{}?]", str(finding)), "a template is not filled in"
    assert finding.what == finding.what.strip()
    assert not finding.what.endswith(".")


@pytest.mark.parametrize("entry", CAUSES_WITH_A_PATTERN, ids=lambda entry: entry.key)
def test_patterns_capture_the_names_that_sentences_need(entry: Cause) -> None:
    assert entry.source
    assert entry.remedy, "whoever meets a failure wants to know what to do"
    needed, welcome = named(entry)
    assert needed <= set(re.compile(entry.pattern).groupindex) <= needed | welcome


def test_unknown_values_of_a_cause_are_shown_as_question_marks() -> None:
    finding = cause("lock-outside").finding()
    assert finding.what.startswith("PID ? shares")
    assert cause("file-missing").finding(path="/a{b}", use="x").what == "/a{b} is missing (x)"


def test_optional_values_of_a_cause_have_alternative_words() -> None:
    assert cause("unix-outside").finding().what == "a unix socket is connected to a process outside the tree"
    assert cause("unix-outside").finding(socket="it").what == "it is connected to a process outside the tree"


def test_sentence_of_a_finding_ends_with_its_remedy_or_reason() -> None:
    assert str(cause("no-tun").finding()).endswith("has a tun or tap device: modprobe tun")
    assert str(cause("files-unasked").finding(count=3)).endswith("3 more files, because of that file system")


def calls() -> list[tuple[str, str]]:
    """(file, key) of every cause that the code asks for by name."""
    found: list[tuple[str, str]] = []
    for path in Path(crckpt.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "cause":
                asked = node.args[0]
                parts = (asked.body, asked.orelse) if isinstance(asked, ast.IfExp) else (asked,)
                keys = (part.value for part in parts if isinstance(part, ast.Constant))
                found.extend((path.name, key) for key in keys if isinstance(key, str))
    return found


def test_every_cause_named_in_the_code_exists() -> None:
    known = {entry.key for entry in CATALOGUE}
    asked = calls()
    assert len(asked) > 15
    assert [(file, key) for file, key in asked if key not in known] == []


WORDS_OF_CRCKPT = re.compile(
    r"--(?:tcp|no-preflight|allow-weaker|grown|new-pid-namespace|detach|staging|stop|force|or-older|pre-copy|store"
    r"|incremental)(?![\w-])|crckpt (?!explain |install-criu)"
)
"""Options and commands of crckpt that a user of criu alone has not."""
CAUSES_ONLY_OF_CRCKPT = {"unanswered", "unanswered-before", "unanswered-built"}
"""CRIU writes these only where crckpt started it."""


@pytest.mark.parametrize("entry", [entry for entry in CATALOGUE if entry.pattern], ids=lambda entry: entry.key)
def test_remedies_that_need_crckpt_have_a_variant_for_criu(entry: Cause) -> None:
    if entry.key not in CAUSES_ONLY_OF_CRCKPT:
        assert not WORDS_OF_CRCKPT.search(entry.finding().word_for("criu").remedy), (
            entry.finding().word_for("criu").remedy
        )
    assert not set("{}") & set(entry.by_criu), "the names in the log are not known any more"
    assert entry.by_criu != entry.remedy, "say it once"


def test_explain_suggests_criu_options_for_criu_logs() -> None:
    log = "Error (criu/sk-inet.c:191): inet: Connected TCP socket, consider using --tcp-established option."
    finding = explain(log).finding
    assert finding
    assert "--tcp-established" in finding.word_for("criu").remedy
    assert "--tcp keep" in finding.remedy


def test_paths_are_quoted_in_suggested_commands() -> None:
    """Programs choose paths. A key of CRIU's external mounts cannot contain every path (`]:`)."""
    path = "/tmp/a'; reboot; $(id)"
    for entry in CATALOGUE:
        remedy = entry.finding(path=path, log=path).remedy
        assert path not in remedy, entry.key
        assert not re.search(r"mnt\[\S*/", remedy), entry.key


def test_remedy_of_another_cause_takes_the_values_of_the_finding() -> None:
    differs = cause("file-differs").finding(path="/a b", why="x", use="fd 3", remedy_of="mode-differs", mode="0755")
    remote_finding = differs.word_for("there", peer="node2")
    assert remote_finding.what == "node2: /a b is not the same file there: x (fd 3)"
    assert remote_finding.remedy == "change it there: chmod 0755 '/a b'"
