"""The sections of `show` for a tree that has one of everything, and which files of the store each section reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import recorded_images
from image_sets import flip, open_store, packs, store

from crckpt.cli.app import run
from crckpt.errors import IntegrityError
from crckpt.ops.context import Context
from crckpt.ops.inspect.sections import Sections, sections

SECTIONS = ("--ps", "--files", "--sockets", "--maps", "--env")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the recorded images as `job`; a test that damages the store repairs it."""
    base = tmp_path_factory.mktemp("sections")
    repository = open_store(base)
    store(repository, base, recorded_images.image_set(recorded_images.PAGES))
    return repository.root


@pytest.fixture
def four_sections(base: Path) -> Sections:
    """All sections but the environment."""
    return sections(Context(base), "job", ("ps", "files", "sockets", "maps"))


def test_processes_of_every_state_are_listed(four_sections: Sections) -> None:
    assert four_sections.ps is not None
    states = {process.state: process for process in four_sections.ps}
    assert set(states) == {"alive", "stopped", "zombie"}
    assert [len(process.threads) for process in four_sections.ps].count(2) == 1
    assert states["zombie"].exit_code == 3 << 8
    assert states["zombie"].exe == ""


def test_files_of_every_kind_are_listed(four_sections: Sections) -> None:
    assert four_sections.files is not None
    root = [file for file in four_sections.files if file.pid == recorded_images.PIDS[0]]
    assert [file.fd for file in root] == sorted(file.fd for file in root)
    files = {Path(file.path).name: file for file in root}
    assert (files["plain"].access, files["plain"].offset, files["plain"].size) == ("r", 42, 100)
    assert (files["log"].access, files["log"].flags, files["log"].offset) == ("w", ("append",), 11)
    assert (files["gone.log"].deleted, files["gone.log"].size) == (True, 77)
    (fifo,) = (file for file in root if file.kind == "fifo")
    assert fifo.access == "rw"
    assert {"directory", "character device", "pipe", "fifo", "terminal", "memfd", "epoll"} <= {
        file.kind for file in root
    }


def test_sockets_section_shows_both_ends_of_a_connection(four_sections: Sections) -> None:
    assert four_sections.sockets is not None
    assert {socket.family for socket in four_sections.sockets} >= {"inet", "inet6", "unix", "netlink"}
    one, other = (
        socket for socket in four_sections.sockets if socket.protocol == "tcp" and socket.state == "established"
    )
    assert (one.local, one.remote) == (other.remote, other.local)
    listening = [socket for socket in four_sections.sockets if socket.state == "listen"]
    assert all(socket.local and not socket.remote for socket in listening)
    assert len(listening) > 1


def test_sections_that_were_not_requested_are_none(base: Path) -> None:
    found = sections(Context(base), "job", ["maps"])
    assert (found.ps, found.files, found.sockets, found.env) == (None, None, None, None)
    assert found.maps


def test_text_and_json_work_with_any_bytes(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The program has overwritten its environment with arbitrary bytes."""
    assert run(["show", "job", *SECTIONS, "--strings", "[a-z]{6}", "--store", str(base)]) == 0
    text = capsys.readouterr().out
    assert all(f"\n{title}\n" in text for title in ("processes", "files", "sockets", "maps", "environment", "strings"))
    assert run(["show", "job", *SECTIONS, "--json", "--store", str(base)]) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    assert [entry["pid"] for entry in result["env"]] == recorded_images.PIDS
    assert all(entry["variables"] for entry in result["env"])


def test_only_sections_that_need_pages_read_them(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If only pages are damaged, the other sections work."""
    repository = open_store(base.parent)
    try:
        for pack in packs(repository):
            flip(pack, pack.stat().st_size // 2)
        assert run(["show", "job", "--ps", "--files", "--sockets", "--maps", "--store", str(base)]) == 0
        assert run(["diff", "job", "job", "--store", str(base)]) == 0
        assert capsys.readouterr().out.endswith("nothing differs\n")
        assert run(["show", "job", "--strings", "x", "--store", str(base)]) == IntegrityError.exit_code
    finally:
        for pack in packs(repository):
            flip(pack, pack.stat().st_size // 2)
