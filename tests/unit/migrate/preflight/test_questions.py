"""Questions from elsewhere: bounded, consistent, and harmless."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from effort import examples
from gates import ask_about, target_at
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from target_processes import StatementRunner

from crckpt.errors import HostCannot, IntegrityError
from crckpt.migrate.preflight import questions as module
from crckpt.migrate.preflight.answers import decode_answers, look_for_files
from crckpt.migrate.preflight.questions import MoveQuestions, decode_questions, encode_questions

pytestmark = pytest.mark.usefixtures("is_root")


@pytest.fixture
def questions_document(target: StatementRunner, destination_store: Path) -> dict[str, Any]:
    """The questions about a live process with a socket, as msgspec writes them."""
    target.do("import socket; s = socket.create_server(('127.0.0.1', 0))")
    found: dict[str, Any] = msgspec.msgpack.decode(
        encode_questions(ask_about(target_at(target.pid, destination_store)))
    )
    return found


def _decode(content: dict[str, Any]) -> MoveQuestions:
    return decode_questions(msgspec.msgpack.encode(content))


def test_questions_to_the_destination_round_trip(target: StatementRunner, destination_store: Path) -> None:
    questions = ask_about(target_at(target.pid, destination_store))
    assert decode_questions(encode_questions(questions)) == questions


def test_unusual_names_and_times_round_trip(target: StatementRunner, destination_store: Path, tmp_path: Path) -> None:
    """The names contain any bytes, and the times are in no calendar."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        os.utime(file.name, ns=(1 << 62, 1 << 90))
        target.do(f"file = open({file.name!r})")
        questions = ask_about(target_at(target.pid, destination_store))
        found = look_for_files(questions.files)
    (questions_document,) = (each for each in questions.files if each.name == file.name)
    assert questions_document.modified == found[questions_document.id].modified == (1 << 63) - 1
    named = replace(questions, processes=tuple(replace(each, comm="a\udcff") for each in questions.processes))
    assert decode_questions(encode_questions(named)).processes[0].comm == "a?"


@pytest.mark.parametrize(
    "path", [b"etc/passwd", b"/../etc/passwd", b"/a/../b", b"", b"/a\0b", b"/" + b"x" * 5000], ids=repr
)
def test_path_in_questions_must_be_absolute_and_short(questions_document: dict[str, Any], path: bytes) -> None:
    questions_document["files"][0]["path"] = path
    with pytest.raises(IntegrityError):
        _decode(questions_document)


@pytest.mark.parametrize("host", ["", "localhost", "example.com", "127.0.0.1 ", "::1%eth0\n"])
def test_host_name_in_place_of_an_address_is_refused(questions_document: dict[str, Any], host: str) -> None:
    (socket,) = (each for each in questions_document["sockets"] if each.get("family") == 2)
    socket["source"]["host"] = host
    with pytest.raises(IntegrityError, match="bad address"):
        _decode(questions_document)


def test_moved_addresses_must_be_addresses(questions_document: dict[str, Any]) -> None:
    questions_document["moved_addresses"] = ["999.0.0.1/24@eth0"]
    with pytest.raises(IntegrityError, match="bad address"):
        _decode(questions_document)


def test_ids_in_questions_must_refer_to_entries(questions_document: dict[str, Any]) -> None:
    questions_document["processes"][0]["descriptors"] = [[0, 1 << 40]]
    with pytest.raises(IntegrityError, match="not in the questions"):
        _decode(questions_document)


def test_socket_as_a_directory_is_refused(questions_document: dict[str, Any]) -> None:
    questions_document["processes"][0]["cwd"] = questions_document["sockets"][0]["id"]
    with pytest.raises(IntegrityError, match="not in the questions"):
        _decode(questions_document)


def test_ids_in_questions_must_be_unique(questions_document: dict[str, Any]) -> None:
    questions_document["files"].append(questions_document["files"][0])
    with pytest.raises(IntegrityError, match="the same id"):
        _decode(questions_document)


def test_process_in_questions_must_appear_once(questions_document: dict[str, Any]) -> None:
    questions_document["processes"].append(questions_document["processes"][0])
    with pytest.raises(IntegrityError, match="twice"):
        _decode(questions_document)


def test_lock_in_questions_must_have_a_holder(questions_document: dict[str, Any]) -> None:
    lock = {"kind": "flock", "exclusive": True, "pid": 1, "fd": 1, "start": 0, "end": None}
    questions_document["locks"] = [lock]
    with pytest.raises(IntegrityError, match="has a lock"):
        _decode(questions_document)


def test_questions_of_a_move_that_are_too_large_are_refused(
    questions_document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = msgspec.msgpack.encode(questions_document)
    monkeypatch.setattr(module, "MOST_BYTES", len(content) - 1)
    with pytest.raises(IntegrityError, match="at most"):
        decode_questions(content)
    with pytest.raises(HostCannot, match="more than a move can check"):
        encode_questions(msgspec.msgpack.decode(content, type=MoveQuestions))


@settings(max_examples=examples(200))
@given(st.binary(max_size=200))
def test_random_bytes_in_place_of_questions_are_refused(content: bytes) -> None:
    for decode in (decode_questions, decode_answers):
        with pytest.raises(IntegrityError):
            decode(content)


@pytest.mark.parametrize("flip", range(16))
def test_damaged_questions_are_refused_or_read(questions_document: dict[str, Any], flip: int) -> None:
    """If any bit is flipped, the questions are read or refused with an error, and no other exception is raised."""
    content = bytearray(msgspec.msgpack.encode(questions_document))
    for at in range(flip, len(content), 97):
        damaged = bytearray(content)
        damaged[at] ^= 1 << flip % 8
        try:
            decode_questions(bytes(damaged))
        except IntegrityError:
            continue
