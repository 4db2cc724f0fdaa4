"""Options that commands share, and where their defaults come from."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from other_user import as_user
from trees import open_workdir

from crckpt.cli.options import default_store, make_context, parse_bandwidth, parse_milliseconds, places, require_root
from crckpt.errors import HostCannot, UsageError
from crckpt.ops.context import Context


@pytest.fixture(autouse=True)
def no_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what the command lines of other tests have named."""
    for name in ("store", "criu", "config"):
        monkeypatch.setattr(places, name, None)


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Context]:
    """Make a context with this configuration file."""

    def make(config: Path) -> Context:
        monkeypatch.setattr(places, "config", config)
        return make_context()

    return make


@pytest.mark.parametrize(("text", "ms"), [("100ms", 100), ("0.5s", 500), ("2s", 2000), ("1.5ms", 1.5)])
def test_durations_given_as_options_are_parsed(text: str, ms: float) -> None:
    assert parse_milliseconds(text, "--max-freeze") == ms


@pytest.mark.parametrize("text", ["", "5", "s", "-1s", "1 s", "1e3ms", ".5s", "1m", "1s\n"])
def test_invalid_durations_given_as_options_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--max-freeze") as caught:
        parse_milliseconds(text, "--max-freeze")
    assert "--max-freeze 100ms" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "speed"), [("50M", 50 << 20), ("16K", 16 << 10), ("1.5G", 3 << 29), ("999999999G", 999_999_999 << 30)]
)
def test_bandwidths_given_as_options_are_parsed(text: str, speed: int) -> None:
    assert parse_bandwidth(text, "--bandwidth") == speed


@pytest.mark.parametrize("text", ["", "50", "50MB", "50m", "0M", "15K", "-1M", "1e9M", "M", " 50M", "5.M", "\u0665M"])
def test_invalid_bandwidths_given_as_options_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a bandwidth of at least 16K"):
        parse_bandwidth(text, "--bandwidth")


def test_options_for_paths_override_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured: Callable[[Path], Context]
) -> None:
    config = tmp_path / "crckpt.yaml"
    config.write_text("store: /srv/configured\ncriu: /srv/criu\nstaging: /srv/staging\n")
    monkeypatch.chdir(tmp_path)
    context = configured(config)
    assert (context.store, context.criu_configured, context.staging) == (
        Path("/srv/configured"),
        Path("/srv/criu"),
        Path("/srv/staging"),
    )
    monkeypatch.setattr(places, "store", Path("named"))
    monkeypatch.setattr(places, "criu", Path("/other/criu"))
    context = make_context(staging=Path("here"))
    assert (context.store, context.staging) == (tmp_path / "named", tmp_path / "here")
    assert (context.criu_option, context.criu_configured) == (Path("/other/criu"), Path("/srv/criu"))
    assert context.config_digest


def test_unreadable_configuration_is_a_usage_error(configured: Callable[[Path], Context]) -> None:
    with pytest.raises(UsageError) as refused:
        configured(Path("/proc/self/mem"))
    assert refused.value.message == "cannot read the configuration /proc/self/mem: Input/output error"


def test_configuration_behind_a_link_is_read(tmp_path: Path, configured: Callable[[Path], Context]) -> None:
    (tmp_path / "real.yaml").write_text("store: /srv/linked\n")
    (tmp_path / "crckpt.yaml").symlink_to("real.yaml")
    assert configured(tmp_path / "crckpt.yaml").store == Path("/srv/linked")


def test_configuration_given_by_option_must_exist_and_be_readable(
    tmp_path: Path, configured: Callable[[Path], Context]
) -> None:
    with pytest.raises(UsageError, match="there is no configuration file"):
        configured(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot read the configuration"):
        configured(tmp_path / "bad.yaml")
    with pytest.raises(UsageError, match="cannot read the configuration"):
        configured(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_default_store_and_message_without_root_depend_on_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_store() == Path("/var/lib/crckpt")
    require_root("to do this")
    with open_workdir() as workdir:
        monkeypatch.setenv("HOME", str(workdir))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(workdir))
        monkeypatch.delenv("XDG_DATA_HOME", raising=False)

        def check() -> None:
            assert default_store() == workdir / ".local/share/crckpt"
            assert make_context().store == default_store()
            with pytest.raises(HostCannot, match="root is needed to do this"):
                require_root("to do this")

        as_user(check)
