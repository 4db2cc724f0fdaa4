"""vagrant/: the machines' description parses, and provision.sh makes a machine on which crckpt works.

The machine is this one seen through a throwaway overlay in a mount namespace: what it installs is in memory and ends
with the namespace.
"""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from checkout import PROJECT

pytestmark = pytest.mark.usefixtures("host_network")


ENTER_OVERLAY = """
set -e
mount -t tmpfs -o mode=755 overlay "$1/room"
mkdir "$1"/room/{upper,work,root}
mount -t overlay -o "lowerdir=/,upperdir=$1/room/upper,workdir=$1/room/work" overlay "$1/room/root"
cd "$1/room/root"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs tmpfs run
mkdir .before .results .project
mount --bind "$1/results" .results
mount --bind "$3" .project
mount -o remount,bind,ro .project
pivot_root . .before
cd /
umount --lazy /.before  # CRIU must see no mounts but this root's
rm -rf /usr/local/bin/crckpt /usr/local/lib/crckpt
dpkg --force-depends --purge nftables > /dev/null 2>&1
exec bash -c "$2"
"""

PROVISION_TWICE = """
for run in first second; do
  began=$(date +%s%N)
  /.project/vagrant/provision.sh > /.results/$run 2>&1
  echo "{\\"status\\": $?, \\"milliseconds\\": $((($(date +%s%N) - began) / 1000000))}" > /.results/$run.json
done
cd /tmp && /usr/local/bin/crckpt --version > /.results/version 2>&1
readlink -f /usr/local/bin/crckpt > /.results/command
"""


@dataclass(frozen=True)
class Provisioning:
    """What two runs of provision.sh on one machine said, and the machine after them."""

    outputs: tuple[str, str]
    statuses: tuple[int, int]
    milliseconds: tuple[int, int]
    version: str
    command: str
    folder: Path
    here_before: tuple[int | None, ...]


def footprint() -> tuple[int | None, ...]:
    """The time when the files of provision.sh were last changed on the host itself; None for missing ones."""
    paths = (Path("/usr/local/bin/crckpt"), Path("/usr/local/lib/crckpt/venv"), Path("/usr/local/lib/crckpt/criu"))
    return tuple(path.lstat().st_mtime_ns if path.is_symlink() or path.exists() else None for path in paths)


@pytest.fixture(scope="module")
def provisioning(tmp_path_factory: pytest.TempPathFactory) -> Provisioning:
    """Run provision.sh twice in the overlay."""
    folder = tmp_path_factory.mktemp("provision")
    results = folder / "results"
    for name in ("room", "results"):
        (folder / name).mkdir()
    here_before = footprint()
    inside = ["bash", "-c", ENTER_OVERLAY, "overlay", str(folder), PROVISION_TWICE, str(PROJECT)]
    subprocess.run(["unshare", "--mount", "--propagation=private", *inside], check=True, timeout=280)
    first, second = (json.loads((results / f"{run}.json").read_text()) for run in ("first", "second"))
    return Provisioning(
        outputs=((results / "first").read_text(), (results / "second").read_text()),
        statuses=(first["status"], second["status"]),
        milliseconds=(first["milliseconds"], second["milliseconds"]),
        version=(results / "version").read_text(),
        command=(results / "command").read_text().strip(),
        folder=folder,
        here_before=here_before,
    )


def test_vagrantfile_is_valid_ruby() -> None:
    """Ruby parses the file."""
    result = subprocess.run(
        ["ruby", "-c", str(PROJECT / "vagrant/Vagrantfile")], capture_output=True, text=True, check=False
    )
    assert (result.stdout, result.stderr) == ("Syntax OK\n", "")


def test_first_provisioning_installs_a_working_crckpt(provisioning: Provisioning) -> None:
    """The command is linked, it runs from anywhere, and it finds the CRIU that was installed."""
    assert provisioning.statuses[0] == 0, provisioning.outputs[0]
    assert provisioning.command == "/usr/local/lib/crckpt/versions/1/bin/crckpt"
    assert provisioning.version.startswith("crckpt "), provisioning.version
    assert "CRIU" in provisioning.version
    assert "packages: installing nftables" in provisioning.outputs[0]
    assert "dumps and restores a process" in provisioning.outputs[0]


def test_second_provisioning_installs_nothing(provisioning: Provisioning) -> None:
    """Everything is already installed, and the second run takes less time."""
    assert provisioning.statuses[1] == 0, provisioning.outputs[1]
    assert "packages: all installed" in provisioning.outputs[1]
    assert "): works: CRIU" in provisioning.outputs[1]
    assert "crckpt: already installed from this source" in provisioning.outputs[1]
    assert provisioning.milliseconds[1] < provisioning.milliseconds[0]


def test_host_is_unchanged_after_provisioning(provisioning: Provisioning) -> None:
    """The overlay is removed, and none of its files is on the host."""
    assert footprint() == provisioning.here_before
    assert str(provisioning.folder) not in Path("/proc/mounts").read_text()
    assert list((provisioning.folder / "room").iterdir()) == []
