"""All kinds of helpers are Python modules with a description."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from checkout import PROJECT

from crckpt.helper.kinds import KINDS, HelperKind


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_each_kind_of_helper_has_a_module_and_a_description(kind: HelperKind) -> None:
    assert find_spec(kind.module) is not None
    assert f"\n| {kind.name}" in (PROJECT / "docs/internals/helpers.md").read_text()
