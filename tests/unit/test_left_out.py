"""tests/left-out.toml names tests that exist, also those that only a lab collects (tests/lab/under_systemd.py)."""

import ast

import pytest
from checkout import PROJECT
from selection import LeftOut, read_list


@pytest.mark.parametrize("entry", read_list(), ids=lambda entry: entry.tests)
def test_each_test_in_left_out_toml_exists(entry: LeftOut) -> None:
    module, *names = entry.tests.split("::")
    body = ast.parse((PROJECT / module).read_text()).body
    for name in names:
        (found,) = (node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name)
        body = found.body
