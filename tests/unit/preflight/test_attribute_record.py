"""The record of a tree's attributes, as a checkpoint has it."""

from __future__ import annotations

import pytest
from attribute_coverage import COVERAGE

from crckpt.errors import IntegrityError
from crckpt.host.attributes.tasks import OF_PROCESS, OF_THREAD, SETTERS
from crckpt.preflight.attribute_record import (
    ATTRIBUTES,
    read_attribute_record,
)


def test_attribute_list_matches_readers_and_setters() -> None:
    read = {attribute.name for attribute in COVERAGE if attribute.read == "outside"}
    assert read == {*OF_THREAD, *OF_PROCESS}
    assert {attribute.name for attribute in ATTRIBUTES if attribute.back == "outside"} == {*SETTERS}
    assert all(attribute.test or attribute.note for attribute in COVERAGE)
    assert all(attribute.note for attribute in COVERAGE if attribute.back == "not")


def test_recorded_attributes_are_those_that_criu_does_not_save() -> None:
    recorded = [found for found in COVERAGE if found.read in ("outside", "asked")]
    assert [(found.name, found.title, found.back, found.of.endswith("!")) for found in recorded] == [
        (attribute.name, attribute.title, attribute.back, attribute.protects) for attribute in ATTRIBUTES
    ]


def test_checkpoint_without_a_record_of_attributes_is_accepted() -> None:
    assert read_attribute_record({}) is None
    assert read_attribute_record({"schema": 1, "append_sizes": {}}) is None


@pytest.mark.parametrize(
    "damaged",
    [
        7,
        {"cpus": [0]},
        {"cpus": [0], "processes": [{"pid": "x", "threads": {}}]},
        {"cpus": [0], "processes": [{"pid": 1, "threads": {"1": {"affinity": [1 << 70]}}}]},
        {"cpus": [0], "processes": [{"pid": 1, "threads": {"1": {"affinity": [0] * 70_000}}}]},
        {"cpus": [0], "processes": [], "groups": [[{"controllers": 1, "path": "/"}]]},
    ],
)
def test_damaged_record_is_refused(damaged: object) -> None:
    with pytest.raises(IntegrityError, match="the record of the program's attributes is damaged"):
        read_attribute_record({"attributes": damaged})


def test_more_hierarchies_than_a_kernel_has_are_refused() -> None:
    groups = [[{"controllers": "", "path": "/a"}] * 65]
    with pytest.raises(IntegrityError, match="record of the program's attributes is damaged"):
        read_attribute_record({"attributes": {"cpus": [0], "processes": [], "groups": groups}})
