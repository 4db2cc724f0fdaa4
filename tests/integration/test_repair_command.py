"""`crckpt verify --repair`: its words, its document, its exit codes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from checkout import TESTS
from command import Crckpt
from image_sets import pack_path

from crckpt.store import Repository

IMAGES = TESTS / "data/images/tree"
KEYS = {
    "checkpoints",
    "packs",
    "bytes",
    "damages",
    "intact",
    "mended",
    "unmended",
    "restorable",
    "lost",
}


@pytest.fixture
def store_copy(crckpt: Crckpt, tmp_path: Path) -> Path:
    """A copy of the store, in which two jobs have one checkpoint each; a pack of the second one is damaged."""
    for job, left_out in (("one", "pagemap-"), ("two", "pagemap-|fdinfo-")):
        images = tmp_path / job
        shutil.copytree(IMAGES, images, ignore=shutil.ignore_patterns(*(f"{word}*" for word in left_out.split("|"))))
        (images / "extra.img").write_bytes(job.encode() * 3000)
        crckpt.run("import", str(images), job)
    shutil.copytree(crckpt.store, tmp_path / "copy")
    repository = Repository.open(crckpt.store)
    one, two = ({use.digest for use in checkpoint.packs} for checkpoint in repository.checkpoints())
    pack = pack_path(repository, min(two - one))
    pack.write_bytes(pack.read_bytes()[:-1])
    return tmp_path / "copy"


def test_verify_repair_lists_restorable_and_lost_checkpoints(crckpt: Crckpt, store_copy: Path) -> None:
    result = crckpt.run("verify", "--repair", "--json", status=13).document["result"]
    assert set(result) == KEYS
    assert (result["intact"], result["mended"], result["unmended"]) == (False, [], [])
    assert len(result["lost"]) == len(result["restorable"]) == 1
    words = crckpt.run("verify", "--repair", status=13).out
    assert f"can be restored: {result['restorable'][0][:12]}" in words
    assert f"crckpt rm {result['lost'][0][:12]}" in words
    assert "--from STORE" in words


def test_list_marks_damaged_checkpoints_until_they_are_repaired(crckpt: Crckpt, store_copy: Path) -> None:
    """Commands and lists mark damaged checkpoints."""
    assert "(damaged)" not in crckpt.run("list").out
    document = crckpt.run("verify", "--json", status=13).document
    assert (document["status"], document["error"]["code"], document["result"]["intact"]) == ("error", 13, False)
    assert document["error"]["message"] == "the store is damaged in 1 place; it affects 1 checkpoint"
    assert ["(damaged)" in line for line in crckpt.run("list").out.splitlines()[1:]] == [False, True]
    listed = crckpt.run("list", "--json").document["result"]["checkpoints"]
    assert [each["damaged"] for each in listed] == [False, True]
    crckpt.run("verify", "one")
    assert "(damaged)" in crckpt.run("list").out
    crckpt.run("verify", "--repair", "--from", str(store_copy))
    assert "(damaged)" not in crckpt.run("list").out


def test_verify_of_an_empty_store_says_that_nothing_was_verified(crckpt: Crckpt, store_copy: Path) -> None:
    crckpt.run("rm", "one", "two", "--yes")
    for words in ((), ("--all", "--quiet")):
        assert crckpt.run("verify", *words).out == "the store has no checkpoints: nothing was verified\n"


def test_repair_from_another_store_leaves_every_checkpoint_intact(crckpt: Crckpt, store_copy: Path) -> None:
    words = crckpt.run("verify", "--repair", "--from", str(store_copy)).out
    assert words.splitlines()[0].startswith("repaired pack ")
    assert words.splitlines()[-1].startswith("2 checkpoints OK")
    result = crckpt.run("verify", "--repair", "--from", str(store_copy), "--json").document["result"]
    assert set(result) == KEYS
    assert (result["intact"], result["damages"], result["mended"], result["lost"]) == (True, [], [], [])
    assert len(result["restorable"]) == 2


def test_repair_says_why_it_cannot_repair_a_pack(crckpt: Crckpt, store_copy: Path) -> None:
    shutil.rmtree(store_copy / "packs")
    (store_copy / "packs").mkdir(mode=0o700)
    words = crckpt.run("verify", "--repair", "--from", str(store_copy), status=13).out
    assert f"not repaired: {store_copy} has no pack " in words
    result = crckpt.run("verify", "--repair", "--from", str(store_copy), "--json", status=13).document["result"]
    assert set(result["unmended"][0]) == {"name", "why"}
    assert [damage["name"] for damage in result["damages"]] == [still["name"] for still in result["unmended"]]


def test_verify_refuses_invalid_repair_options(crckpt: Crckpt, store_copy: Path) -> None:
    assert "crckpt verify --repair --from" in crckpt.run("verify", "--from", str(store_copy), status=2).err
    assert (
        "names the damaged store itself" in crckpt.run("verify", "--repair", "--from", str(crckpt.store), status=2).err
    )
    missing = crckpt.run("verify", "--repair", "--from", str(store_copy / "nothing"), status=10).err
    assert "there is no store" in missing
    assert "hint: name another store: --from STORE" in missing
    assert crckpt.run("verify", status=13).out.endswith("crckpt verify --repair\n")
