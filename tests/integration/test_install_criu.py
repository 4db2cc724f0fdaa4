"""scripts/install-criu and crckpt install-criu for real: Debian's packages, real trials, interruptions, two at once."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from checkout import PROJECT, TESTS
from command import AS_NOBODY, PROGRAM, Crckpt
from other_user import NOBODY
from trees import wait_for

pytestmark = pytest.mark.usefixtures("host_network")

IMAGES = TESTS / "data/images/tree"
SCRIPT = PROJECT / "scripts/install-criu"


@dataclass(frozen=True)
class Outcome:
    """The exit status and output of a run of the script."""

    status: int
    stdout: str
    stderr: str


def start(prefix: Path, candidates: str, *more: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Start install-criu on `prefix`, trying only `candidates`, in a session of its own."""
    return subprocess.Popen(
        [str(SCRIPT), "--prefix", str(prefix), "--try", candidates, *more],
        env=os.environ | (env or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], within: int = 200) -> Outcome:
    """Wait until a run of the script has ended."""
    try:
        stdout, stderr = process.communicate(timeout=within)
    finally:
        process.kill()
    return Outcome(process.returncode, stdout, stderr)


def run(prefix: Path, candidates: str, *more: str, env: dict[str, str] | None = None) -> Outcome:
    """Run install-criu on `prefix`, trying only `candidates`."""
    return finish(start(prefix, candidates, *more, env=env))


@dataclass(frozen=True)
class Installation:
    """A prefix that two concurrent runs of the script have filled."""

    prefix: Path
    outcomes: tuple[Outcome, Outcome]


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Let two runs at once fill an empty prefix with sid's CRIU."""
    folder = tmp_path_factory.mktemp("installed")
    runs = [start(folder / "criu", "prefix,sid") for _ in range(2)]
    first, second = (finish(process) for process in runs)
    yield Installation(folder / "criu", (first, second))
    shutil.rmtree(folder)


def criu_that(folder: Path, body: str) -> dict[str, str]:
    """Write a shell script named criu, and return the environment with its directory as PATH."""
    folder.mkdir()
    script = folder / "criu"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_second_of_two_concurrent_installations_waits_and_uses_the_first(installation: Installation) -> None:
    """The first run downloads the packages. The second waits and uses the result."""
    path = f"{installation.prefix}/criu"
    assert [(outcome.status, outcome.stdout) for outcome in installation.outcomes] == [(0, f"{path}\n")] * 2
    outcomes = sorted(installation.outcomes, key=lambda outcome: "waiting for another" in outcome.stderr)
    assert "prefix (installed by crckpt): not found in" in outcomes[0].stderr
    assert "sid (Debian's package): works: CRIU" in outcomes[0].stderr
    assert "prefix (installed by crckpt): works: CRIU" in outcomes[1].stderr
    assert "sid" not in outcomes[1].stderr


def test_installed_criu_and_nft_use_only_the_libraries_in_their_prefix(installation: Installation) -> None:
    """The programs use no library of this machine, and nft can talk to the kernel."""
    loader = next((installation.prefix / "root").glob("usr/lib/*-linux-gnu/ld-linux*.so.*"))
    for name in ("criu", "nft"):
        program = installation.prefix / "root/usr/sbin" / name
        argv = [str(loader), "--library-path", str(loader.parent), "--list", str(program)]
        listed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        lines = [line for line in listed.splitlines() if "linux-vdso" not in line]
        assert len(lines) > 5
        assert [line for line in lines if str(installation.prefix) not in line] == []
    nft = subprocess.run([installation.prefix / "nft", "list", "tables"], capture_output=True, text=True, check=False)
    assert (nft.returncode, nft.stderr) == (0, "")


def test_criu_works_after_its_prefix_was_moved(installation: Installation, tmp_path: Path) -> None:
    """A moved prefix passes the trial in its new place, and its crit reads images."""
    moved = tmp_path / "elsewhere/criu"
    shutil.copytree(installation.prefix, moved, symlinks=True)
    outcome = run(moved, "prefix")
    assert (outcome.status, outcome.stdout) == (0, f"{moved}/criu\n"), outcome.stderr
    argv = [str(moved / "crit"), "decode", "--in", str(IMAGES / "inventory.img")]
    output = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert json.loads(output)["magic"] == "INVENTORY"


def test_preloaded_library_reaches_criu_and_not_the_shell(installation: Installation) -> None:
    """The loader gets CRCKPT_CRIU_PRELOAD. It complains about a missing library, and criu still runs."""
    env = os.environ | {"CRCKPT_CRIU_PRELOAD": "/nonexistent/tracker.so"}
    argv = [str(installation.prefix / "criu"), "--version"]
    result = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    assert result.stdout.startswith("Version: ")
    assert result.stderr.count("/nonexistent/tracker.so") == 1


def test_install_criu_chooses_a_working_criu_on_path_and_installs_nothing(
    installation: Installation, tmp_path: Path
) -> None:
    """CRIU on PATH comes first, and nothing is installed in the prefix."""
    env = criu_that(tmp_path / "bin", f'exec {installation.prefix}/criu "$@"')
    outcome = run(tmp_path / "prefix", "path,prefix,sid", env=env)
    assert (outcome.status, outcome.stdout) == (0, f"{tmp_path}/bin/criu\n"), outcome.stderr
    assert "path (criu on PATH): works: CRIU" in outcome.stderr
    assert not (tmp_path / "prefix").exists()


def test_criu_that_passes_check_and_cannot_restore_is_rejected(installation: Installation, tmp_path: Path) -> None:
    """The reason is given, the next candidate is tried, and neither process nor file of the trial stays."""
    trace, temporary = tmp_path / "trace", tmp_path / "tmp"
    temporary.mkdir()
    body = f"""echo "$@" >> {trace}
[ "$1" = restore ] && {{ echo 'Error (cr-restore.c:1): no restore today' >&2; exit 1; }}
exec {installation.prefix}/criu "$@" """
    env = criu_that(tmp_path / "bin", body) | {"TMPDIR": str(temporary)}
    outcome = run(installation.prefix, "path,prefix", env=env)
    assert (outcome.status, outcome.stdout) == (0, f"{installation.prefix}/criu\n"), outcome.stderr
    first, second = outcome.stderr.splitlines()
    assert first.startswith("path (criu on PATH): CRIU 4")
    assert first.endswith("restore: no restore today")
    assert second.startswith("prefix (installed by crckpt): works")
    assert_no_trace(trace, temporary)


def test_criu_that_fails_to_dump_leaves_no_process(installation: Installation, tmp_path: Path) -> None:
    """The process of the trial is ended. Without another candidate the status is 20, with a hint."""
    trace, temporary = tmp_path / "trace", tmp_path / "tmp"
    temporary.mkdir()
    body = f"""echo "$@" >> {trace}
[ "$1" = dump ] && exit 3
exec {installation.prefix}/criu "$@" """
    env = criu_that(tmp_path / "bin", body) | {"TMPDIR": str(temporary)}
    outcome = run(tmp_path / "prefix", "path", env=env)
    assert (outcome.status, outcome.stdout) == (20, "")
    assert "dump: exit status 3" in outcome.stderr
    assert outcome.stderr.endswith("next: scripts/install-criu\n")
    assert_no_trace(trace, temporary)


def assert_no_trace(trace: Path, temporary: Path) -> None:
    """Assert that the dumped process has ended and that the trial's files are removed."""
    words = next(line for line in trace.read_text().splitlines() if line.startswith("dump ")).split()
    assert not Path("/proc", words[words.index("--tree") + 1]).exists()
    assert list(temporary.iterdir()) == []


def test_killed_installation_leaves_the_old_criu_working(installation: Installation) -> None:
    """After SIGKILL while packages are unpacked, the next run removes what the killed one left."""
    folder = installation.prefix.parent
    process = start(installation.prefix, "sid")
    try:
        wait_for(lambda: any(folder.glob(".criu.tmp-*/new/root/usr")), 60, "packages to be unpacked")
        assert process.poll() is None
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
    assert list(folder.glob(".criu.tmp-*")) != []
    assert run(installation.prefix, "prefix").status == 0
    assert sorted(path.name for path in folder.iterdir()) == [".criu.lock", "criu"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_interrupted_installation_of_criu_leaves_no_file(tmp_path: Path, number: signal.Signals) -> None:
    """The script cleans up, prints nothing, and ends with the signal's status."""
    process = start(tmp_path / "criu", "sid,testing")
    wait_for(lambda: any(tmp_path.glob(".criu.tmp-*/new/apt/lists")), 60, "the download to begin")
    process.send_signal(number)
    outcome = finish(process)
    assert (outcome.status, outcome.stdout, outcome.stderr) == (128 + number, "", "")
    assert [path.name for path in tmp_path.iterdir()] == [".criu.lock"]


def test_installation_of_criu_refuses_a_repository_without_signature(tmp_path: Path) -> None:
    """The script refuses the repository even if the machine's apt accepts unsigned ones."""
    mirror = repository(tmp_path)
    lax = tmp_path / "lax.conf"
    lax.write_text('Acquire::AllowInsecureRepositories "true";\nAPT::Get::AllowUnauthenticated "true";\n')
    outcome = run(tmp_path / "p/criu", "sid", "--mirror", mirror, env={"APT_CONFIG": str(lax)})
    assert (outcome.status, outcome.stdout) == (20, "")
    assert "sid (Debian's package): apt-get: E: The repository" in outcome.stderr
    assert "is not signed." in outcome.stderr
    assert [path.name for path in (tmp_path / "p").iterdir()] == [".criu.lock"]


def test_installation_of_criu_refuses_a_repository_signed_by_another_key(tmp_path: Path) -> None:
    """A good signature is not enough: it must be Debian's."""
    mirror = repository(tmp_path)
    release = tmp_path / "mirror/dists/sid/Release"
    home = tmp_path / "gnupg"
    home.mkdir(mode=0o700)
    gpg = ["gpg", "--batch", "--quiet", "--homedir", str(home), "--passphrase", ""]
    try:
        subprocess.run([*gpg, "--quick-generate-key", "stranger", "ed25519", "sign"], check=True, capture_output=True)
        signed = [*gpg, "--output", str(release.with_name("InRelease")), "--clear-sign", str(release)]
        subprocess.run(signed, check=True, capture_output=True)
    finally:
        subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=True)
    release.unlink()
    outcome = run(tmp_path / "p/criu", "sid", "--mirror", mirror)
    assert (outcome.status, outcome.stdout) == (20, "")
    assert "sid (Debian's package): apt-get: E: The repository" in outcome.stderr
    assert "is not signed." in outcome.stderr


def repository(folder: Path) -> str:
    """Make an empty repository with sid's name; return its address."""
    release = folder / "mirror/dists/sid/Release"
    release.parent.mkdir(parents=True)
    date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S UTC")
    release.write_text(f"Origin: Debian\nSuite: unstable\nCodename: sid\nComponents: main\nDate: {date}\n")
    return f"file:{folder}/mirror"


def test_root_refuses_a_prefix_where_others_can_replace_criu(tmp_path: Path) -> None:
    """A user who can write to the prefix could install the CRIU that root would try."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    criu_that(theirs / "criu", f"touch {tmp_path}/ran")
    os.chown(theirs / "criu", NOBODY, NOBODY)
    outcome = run(theirs / "criu", "prefix")
    assert outcome.status == 2
    assert f"root does not install CRIU where others can replace it: {theirs}/criu belongs to" in outcome.stderr
    theirs.chmod(0o1777)
    assert run(theirs / "new/criu", "prefix").status == 20
    assert f"every user can make files in {theirs}\n" in run(theirs / "other", "prefix").stderr
    theirs.chmod(0o777)
    assert f"every user can write to {theirs}\n" in run(theirs / "other/criu", "prefix").stderr
    assert not (tmp_path / "ran").exists()


def test_other_users_cannot_block_the_installation_of_criu(tmp_path: Path) -> None:
    """A user who can open a file can lock it. The lock of an older version was open to all."""
    lock = tmp_path / ".criu.lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        lock.chmod(0o644)
        assert finish(start(tmp_path / "criu", "prefix"), 20).status == 20
        assert lock.stat().st_mode & 0o777 == 0o600


def test_criu_does_not_read_configuration_files(tmp_path: Path) -> None:
    """A configuration may name scripts, and sudo may keep the home directory of its user."""
    body = f"""echo "$@ ${{CRIU_CONFIG_FILE-none}}" >> {tmp_path}/trace
case $1 in --version) echo "Version: 4.2" ;; dump) exit 3 ;; esac"""
    env = criu_that(tmp_path / "bin", body) | {"CRIU_CONFIG_FILE": "/nonexistent"}
    assert run(tmp_path / "prefix", "path", env=env).status == 20
    lines = (tmp_path / "trace").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["--version", "dump"]
    assert [line for line in lines[1:] if " --no-default-config " not in line] == []
    assert [line for line in lines if not line.endswith(" none")] == []


def test_installation_of_criu_by_a_user_suggests_sudo() -> None:
    """The message suggests a command to an ordinary user, and nothing is tried."""
    argv = [*AS_NOBODY, "/usr/bin/python3", str(SCRIPT), "--try", "path"]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (20, "")
    assert result.stderr == "Checkpoints need root or CAP_CHECKPOINT_RESTORE.\n  next: sudo scripts/install-criu\n"


def test_unknown_candidate_for_criu_is_a_usage_error(tmp_path: Path) -> None:
    """The message lists the existing candidates."""
    outcome = run(tmp_path / "criu", "path,woody")
    assert outcome.status == 2
    assert "no such candidate: woody; there are path, prefix, sid, testing, stable, build" in outcome.stderr


def test_command_install_criu_does_the_same_as_the_script(installation: Installation, tmp_path: Path) -> None:
    """`crckpt install-criu` names the CRIU, those that it rejected and why; with --json as a document."""
    argv = [str(PROGRAM), "install-criu", "--prefix", str(installation.prefix), "--try", "path,prefix"]
    env = criu_that(tmp_path / "bin", "exit 1")
    completed = subprocess.run(argv, env=os.environ | env, capture_output=True, text=True, check=True)
    assert completed.stdout.endswith(f" works: {installation.prefix}/criu\n")
    first, second = completed.stderr.splitlines()
    assert first.startswith(f"path (criu on PATH): {tmp_path}/bin/criu")
    assert second.startswith("prefix (installed by crckpt): works: CRIU")
    completed = subprocess.run([*argv, "--json"], env=os.environ | env, capture_output=True, text=True, check=True)
    result = json.loads(completed.stdout)["result"]
    assert (result["path"], result["candidate"]) == (f"{installation.prefix}/criu", "prefix")
    assert [rejected["candidate"] for rejected in result["rejected"]] == ["path"]


def test_installation_from_a_mirror_that_does_not_exist_fails_with_a_hint(tmp_path: Path) -> None:
    """No suite can be downloaded from there. The hint must not suggest the same command."""
    argv = [str(PROGRAM), "install-criu", "--prefix", str(tmp_path / "p/criu"), "--mirror", f"file:{tmp_path}/none"]
    env = os.environ | {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    result = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 20
    assert (
        "hint: give this machine a Debian mirror that works, or name one: crckpt install-criu --mirror URL"
        in result.stderr
    )
    assert [path.name for path in (tmp_path / "p").iterdir()] == [".criu.lock"]


def test_doctor_fix_installs_criu(crckpt: Crckpt) -> None:
    """Without a CRIU, doctor prints what it would do. With `--yes` it installs CRIU, and this host can checkpoint."""
    hide = 'mount -t tmpfs none /usr/local/lib/crckpt; mount -t tmpfs none /var/cache; "$@"; "$@" --yes'
    words = ["unshare", "--mount", "--propagation=private", "sh", "-c", hide, "sh", str(PROGRAM), "doctor", "--fix"]
    result = subprocess.run(words, env=crckpt.environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    would = (
        "would run: crckpt install-criu (downloads Debian's CRIU into /usr/local/lib/crckpt/criu; changes no package)"
    )
    assert result.stderr.count(f"{would}\n") == 1
    assert "nothing was changed, because there is no terminal to ask on: add --yes\n" in result.stderr
    assert "sid (Debian's package): works: CRIU" in result.stderr
    assert "\ndone: crckpt install-criu\n" in result.stderr
