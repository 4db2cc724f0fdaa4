"""store.json: the format of a store."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from image_sets import open_store

from crckpt.errors import StoreUnusable


def test_store_of_a_newer_format_number_is_refused(tmp_path: Path) -> None:
    root = open_store(tmp_path).root
    document = json.loads((root / "store.json").read_bytes())
    (root / "store.json").write_text(json.dumps({**document, "format": 2}))
    with pytest.raises(StoreUnusable, match="has format 2; this crckpt knows format 1") as refusal:
        open_store(tmp_path)
    assert "knows store format 2" in refusal.value.hint


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"format": 1}'])
def test_damaged_store_json_is_refused(content: bytes, tmp_path: Path) -> None:
    root = open_store(tmp_path).root
    (root / "store.json").write_bytes(content)
    with pytest.raises(StoreUnusable, match=re.escape("store.json is damaged")) as refusal:
        open_store(tmp_path)
    written = re.search(r"echo .* > \S+store\.json", refusal.value.hint)
    assert written is not None
    subprocess.run(["sh", "-c", written[0]], check=True)
    assert open_store(tmp_path).root == root
