"""The configuration file: valid entries, and messages that name file and key."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from crckpt.config import COMPRESS_LEVELS, Config, parse
from crckpt.errors import UsageError

NAME = "/etc/crckpt.yaml"


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n", "{}"])
def test_empty_configuration_sets_nothing(text: str) -> None:
    assert parse(text, NAME) == Config(None, None, None, hashlib.sha256(text.encode()).hexdigest())


def test_every_key_of_the_configuration_is_read() -> None:
    text = "store: /srv/a b\ncriu: '/opt/criu'\ncompress: 19 # small\nstaging: /mnt\n"
    found = parse(text, NAME)
    assert (found.store, found.criu, found.compress) == (Path("/srv/a b"), Path("/opt/criu"), 19)
    assert found.staging == Path("/mnt")


def test_empty_path_in_the_configuration_counts_as_missing() -> None:
    assert parse("store:\ncriu: null\n", NAME).store is None


@pytest.mark.parametrize("level", [COMPRESS_LEVELS[0], 0, COMPRESS_LEVELS[-1]])
def test_compression_levels_in_the_configuration_are_read(level: int) -> None:
    assert parse(f"compress: {level}", NAME).compress == level


@pytest.mark.parametrize(
    ("text", "expected_message"),
    [
        ("store: [", r"is not YAML, line 1, column 9: expected the node content, but found '<stream end>'"),
        ("store: \x00", "is not YAML"),
        ("a: 1\n---\nb: 2\n", "is not YAML"),
        ("store: 2024-13-45", "is not YAML"),
        ("!!python/object/apply:os.system ['true']", "is not YAML"),
        ("- store\n", "expected `key: value` lines"),
        ("store", "expected `key: value` lines"),
        ("5", "expected `key: value` lines"),
        ("sotre: /x", "unknown key 'sotre'"),
        ("5: /x", "unknown key '5'"),
        ("store: relative/path", "store must be an absolute path, not 'relative/path'"),
        ("store: ~/store", "store must be an absolute path, not '~/store'"),
        ("criu: 5", "criu must be an absolute path, not 5"),
        ("criu: [/a]", "criu must be an absolute path"),
        ("compress: 20", "compress must be a whole number from -7 to 19, not 20"),
        ("compress: -8", "not -8"),
        ("compress: 1.5", "not 1.5"),
        ("compress: yes", "not True"),
        ("compress: '3'", "not '3'"),
        ("compress:", "not None"),
    ],
)
def test_invalid_configuration_is_refused(text: str, expected_message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text, NAME)
    assert NAME in caught.value.message
    assert expected_message in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_every_mistake_in_the_configuration_is_reported_with_its_line() -> None:
    text = "# a comment\nsotre: /x\n\ncompress:\n  99\ncriu: bin/criu\nstaging: /mnt\n5: 6\n"
    with pytest.raises(UsageError) as caught:
        parse(text, NAME)
    assert caught.value.message == f"{NAME} has 4 mistakes"
    assert caught.value.causes == (
        "line 2: unknown key 'sotre', did you mean store?",
        "line 4: compress must be a whole number from -7 to 19, not 99",
        "line 6: criu must be an absolute path, not 'bin/criu'",
        "line 8: unknown key '5'",
    )
    assert caught.value.hint == (
        f"correct it, then check it: crckpt config --config {NAME}; known keys: compress, criu, staging, store"
    )


def test_single_mistake_in_the_configuration_is_the_message() -> None:
    with pytest.raises(UsageError) as caught:
        parse("store: /x\nkompress: 3\n", NAME)
    assert caught.value.message == f"{NAME}, line 2: unknown key 'kompress', did you mean compress?"


def test_merged_yaml_keys_are_read_and_unhashable_ones_refused() -> None:
    with pytest.raises(UsageError, match="unknown key"):
        parse("<<: {store: /x, other: 1}\n", NAME)
    with pytest.raises(UsageError, match="is not YAML"):
        parse("? [a, b]\n: 1\n", NAME)
    assert parse("<<: {store: /x}\n", NAME).store == Path("/x")


def test_long_list_of_mistakes_in_the_configuration_is_shortened() -> None:
    text = "\n".join(f"{'k' * 1000}{number}: 1" for number in range(1000))
    with pytest.raises(UsageError, match="has 1000 mistakes") as refused:
        parse(text, "crckpt.yaml")
    assert len(refused.value.causes) == 21
    assert refused.value.causes[-1] == "and 980 more"
    assert all(len(mistake) < 200 for mistake in refused.value.causes)
