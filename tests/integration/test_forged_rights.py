"""Forged images that give a program more rights: a process may write to the data that it sends to CRIU."""

from __future__ import annotations

import mmap
import select
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil
import pytest
from command import Crckpt
from stopped_trees import BY_NAME, JOB, program
from trees import NOBODY, PYTHON, Case, started, wait_for

from crckpt.criu.hold import PROGRAM
from crckpt.host.proc.task_states import read_task_states
from crckpt.images import magics
from crckpt.images.core import excess_rights, read_rights
from crckpt.images.framing import Image, Record, read_image, write_image
from crckpt.images.mm import FILE_SHARED
from crckpt.images.wire import BYTES, encode, fields

THREAD, CREDENTIALS, EFFECTIVE_USER, VARINT = 5, 10, 3, 0


@pytest.mark.skipif(not PROGRAM.exists(), reason="there was no C compiler")
def test_forged_checkpoint_gives_a_program_no_more_rights(crckpt: Crckpt) -> None:
    """The tree keeps running, and earlier checkpoints stay."""
    with started(program("counter")) as tree:
        crckpt.run("dump", str(tree.pid), JOB)
        output = _dump_forged(crckpt, tree.pid, f"core-{tree.pid}.img", _of_nobody)
        assert f"task {tree.pid} told CRIU that it has the rights of user 65534, which it does not have" in output
        tree.wait_growth(tree.counters())
        assert len(crckpt.run("list", "--json").document["result"]["checkpoints"]) == 1


PROGRAM_WITH_A_SIGNAL_OWNER: Final = """
import fcntl, os, signal
end, _ = os.pipe()
os.dup2(end, 50)
fcntl.fcntl(50, fcntl.F_SETOWN, os.getpid())
import sys
sys.argv[2:] = []
from counter import main
main()
"""


@pytest.mark.skipif(not PROGRAM.exists(), reason="there was no C compiler")
def test_forged_descriptor_does_not_send_signals_as_another_user(crckpt: Crckpt) -> None:
    """CRIU sets the owner and the rights that each process reports. The program's own owner is restored."""
    words = ("env", "PYTHONPATH={programs}", PYTHON, "-c", PROGRAM_WITH_A_SIGNAL_OWNER, "{workdir}")
    with started(Case("owner", words)) as tree:
        first = tree.counters()
        crckpt.run("dump", str(tree.pid), JOB)
        output = _dump_forged(crckpt, tree.pid, "files.img", _give_to_nobody)
        assert f"send signals to process {tree.pid} with the rights of user 65534" in output
        tree.wait_growth(tree.counters())
        tree.end()
        tree.wait_gone()
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(first)


@pytest.mark.skipif(not PROGRAM.exists(), reason="there was no C compiler")
def test_forged_descriptor_does_not_lead_to_another_file(crckpt: Crckpt) -> None:
    """CRIU opens files again as root with their flags: here a file of the user's own, for writing."""
    _check_refused(crckpt, _lead_to_hosts, " is /etc/hosts, but it is /")


@pytest.mark.skipif(not PROGRAM.exists(), reason="there was no C compiler")
def test_forged_descriptor_does_not_give_other_access_to_a_file(crckpt: Crckpt) -> None:
    """CRIU asks for the flags by the number: processes that share the descriptors can exchange the file meanwhile."""
    _check_refused(
        crckpt, _open_to_write, " opened for other access: another process changed its memory or descriptors"
    )


MAPS_FILE: Final = """
import mmap, sys
with open("/etc/hosts") as file:
    shown = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
from counter import main
main()
"""


@pytest.mark.skipif(not PROGRAM.exists(), reason="there was no C compiler")
def test_forged_map_does_not_make_a_file_of_root_writable(crckpt: Crckpt) -> None:
    """CRIU asks what a map is open for before it opens the file: others who share the memory can exchange the map."""
    as_nobody = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    words = (*as_nobody, "env", "PYTHONPATH={workdir}/programs", PYTHON, "-c", MAPS_FILE, "{workdir}")
    with started(Case("maps", words, user=NOBODY)) as tree:
        _dump_forged(crckpt, tree.pid, f"mm-{tree.pid}.img", _write_by_shared_maps, hold=1, status=0)
        tree.end()
        tree.wait_gone()
        refused = crckpt.run("restore", JOB, "--detach", status=23)
        assert "/etc/hosts" in refused.err


WITHOUT_DAC_OVERRIDE: Final = ("setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override")


@pytest.mark.skipif(not PROGRAM.exists(), reason="there was no C compiler")
def test_forged_descriptor_of_a_root_process_without_dac_override_is_refused(crckpt: Crckpt) -> None:
    with started(Case("few", (*WITHOUT_DAC_OVERRIDE, *program("counter").argv))) as tree:
        assert " is /etc/hosts, but it is /" in _dump_forged(crckpt, tree.pid, "files.img", _lead_to_hosts, hold=1)


PROGRAM_THAT_REMOVES_ITS_FILE: Final = """
import os, sys
mine = os.open(sys.argv[1] + "/mine", os.O_RDWR | os.O_CREAT)
os.write(mine, b"mine")
os.unlink(sys.argv[1] + "/mine")
os.dup2(mine, 50)
os.close(mine)
from counter import main
main()
"""
CASE_WITH_A_REMOVED_FILE: Final = Case(
    "removes",
    (*WITHOUT_DAC_OVERRIDE, "env", "PYTHONPATH={programs}", PYTHON, "-c", PROGRAM_THAT_REMOVES_ITS_FILE, "{workdir}"),
)


def test_removed_file_whose_name_ends_with_deleted_is_restored(crckpt: Crckpt) -> None:
    """The kernel appends " (deleted)" to the name of a removed file, and this name already ends with that."""
    code = PROGRAM_THAT_REMOVES_ITS_FILE.replace("/mine", "/mine (deleted)")
    with started(Case("removes", (*CASE_WITH_A_REMOVED_FILE.argv[:-3], "-c", code, "{workdir}"))) as tree:
        before = tree.counters()
        crckpt.run("dump", str(tree.pid), JOB, "--stop")
        tree.wait_gone()
        crckpt.run("restore", JOB, "--detach")
        tree.wait_growth(before)


@pytest.mark.skipif(not PROGRAM.exists(), reason="there was no C compiler")
def test_removed_file_is_not_replaced_by_its_namesake(crckpt: Crckpt) -> None:
    """A user's process can open the other file by O_PATH without read permission, and send it instead of its own."""
    with started(CASE_WITH_A_REMOVED_FILE) as tree:
        output = _dump_forged(crckpt, tree.pid, "remap-fpath.img", _without_records, hold=1)
        assert f"descriptor 50 is {tree.workdir}/mine, but it is {tree.workdir}/mine (deleted): another" in output


@pytest.mark.skipif(not PROGRAM.exists(), reason="there was no C compiler")
def test_removed_file_is_not_replaced_by_an_earlier_namesake(crckpt: Crckpt) -> None:
    with started(CASE_WITH_A_REMOVED_FILE) as tree:
        output = _dump_forged(crckpt, tree.pid, "ghost-file-1.img", _with_other_inode, hold=1)
        assert f"but it is {tree.workdir}/mine (deleted) with another inode: another" in output


@pytest.mark.skipif(not PROGRAM.exists(), reason="there was no C compiler")
def test_dump_of_a_process_that_sends_criu_a_forged_list_of_threads_is_refused(crckpt: Crckpt) -> None:
    """The image of a thread, with its registers and rights, is named by the thread's number."""
    with started(BY_NAME["threads"]) as tree:
        output = _dump_forged(crckpt, tree.pid, "pstree.img", _without_last_thread, hold=1)
        assert f"process {tree.pid} told CRIU that it has another list of threads than it has" in output


@pytest.mark.parametrize("name", ["nobody", "threads", "family"])
def test_credentials_in_images_match_the_kernel(crckpt: Crckpt, tmp_path: Path, name: str) -> None:
    """The credentials of each thread are compared."""
    with started(BY_NAME[name]) as tree:
        crckpt.run("dump", str(tree.pid), JOB)
        now = read_task_states(tree.pid).rights
        crckpt.run("export", JOB, str(tmp_path / "images"))
        images = sorted((tmp_path / "images").glob("core-*.img"))
        saved = {int(image.stem[5:]): read_rights(image.read_bytes()) for image in images}
        assert saved
        for tid, rights in saved.items():
            if rights is not None:
                assert list(excess_rights(rights, now[tid])) == []
                assert (rights.uids, rights.capabilities) == (now[tid].uids, now[tid].capabilities)
        if name == "nobody":
            assert now[tree.pid].uids == (NOBODY,) * 4


DESCRIPTOR_THIEF: Final = """
import ctypes, os, sys
libc, descriptor = ctypes.CDLL(None), os.pidfd_open(int(sys.argv[1]))
first = set(os.listdir(f"/proc/{sys.argv[1]}/fd"))
# CRIU's code opens these itself, by the rights of the process (criu/pie/parasite.c, parasite_dump_cgroup).
own = ("/proc", f"/proc/{sys.argv[1]}/cgroup")
while True:
    for number in range(32):
        if str(number) not in first and (taken := libc.syscall(438, descriptor, number, 0)) >= 0:
            found = os.readlink(f"/proc/self/fd/{taken}")
            if found.startswith(("/", "pipe:")) and found not in own:
                print(found, flush=True)
            os.close(taken)
"""
"""It takes the descriptors that come to be in a process of its user (pidfd_getfd)."""


@pytest.mark.skipif(not PROGRAM.exists(), reason="there was no C compiler")
def test_processes_of_the_tree_get_a_pipe_and_not_the_log_of_criu(crckpt: Crckpt) -> None:
    """CRIU's code in a process writes to a pipe, because a process with the log open could fill root's disk."""
    as_nobody = {"user": NOBODY, "group": NOBODY, "extra_groups": ()}
    with started(BY_NAME["nobody"]) as tree:
        words = (PYTHON, "-c", DESCRIPTOR_THIEF, str(tree.pid))
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd="/", **as_nobody) as thief:  # type: ignore[call-overload]
            try:
                wait_for(lambda: _takes_pipe(crckpt, tree.pid, thief), 60, "what CRIU gives the process to be taken")
            finally:
                thief.kill()
            assert thief.stdout is not None
            # The memory in which that code is belongs to the process.
            found = {line.partition(":")[0] for line in thief.stdout}
            assert found <= {"pipe", "/memfd"}, found


def _takes_pipe(crckpt: Crckpt, pid: int, thief: subprocess.Popen[str]) -> bool:
    crckpt.run("dump", str(pid), JOB)
    assert thief.stdout is not None
    return bool(select.select([thief.stdout], [], [], 0)[0])


def _check_refused(crckpt: Crckpt, forge: Callable[[bytes], bytes], text: str) -> None:
    """Check that a dump with a forged descriptor fails with this text, and that the tree keeps running."""
    with started(BY_NAME["nobody"]) as tree:
        output = _dump_forged(crckpt, tree.pid, "files.img", forge, hold=1)
        assert f"process {tree.pid} told CRIU that its descriptor " in output
        assert text in output
        tree.wait_growth(tree.counters())


def _dump_forged(
    crckpt: Crckpt, pid: int, name: str, forge: Callable[[bytes], bytes], hold: int = 2, status: int = 21
) -> str:
    """Change an image of a dump before it is stored; return the error of the dump, which must fail (`status`)."""
    # Where CRIU is started early, the first hold is before it freezes the tree.
    command = crckpt.start("dump", str(pid), JOB, CRCKPT_STOP_AT=f"hold.commit:{hold}")
    wait_for(lambda: _is_stopped(command.pid), 60, "the tree to be dumped")
    (image,) = crckpt.store.glob(f"tmp/*/images/{name}")
    image.write_bytes(forge(image.read_bytes()))
    command.send_signal(signal.SIGCONT)
    _, error = command.communicate(timeout=60)
    assert command.returncode == status, error
    return error


def _is_stopped(pid: int) -> bool:
    with suppress(psutil.Error):
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    time.sleep(0.1)
    return False


def _of_nobody(data: bytes) -> bytes:
    def credentials(message: bytes) -> bytes:
        kept = [field for field in fields(message) if field[0] != EFFECTIVE_USER]
        return encode([*kept, (EFFECTIVE_USER, VARINT, NOBODY)])

    def thread(message: bytes) -> bytes:
        return _changed(message, CREDENTIALS, credentials)

    image = read_image(data, "core.img", magics.CORE)
    records = tuple(Record(_changed(record.payload, THREAD, thread), record.extra) for record in image.records)
    return write_image(Image(image.magic, records))


def _give_to_nobody(data: bytes) -> bytes:
    def owner(message: bytes) -> bytes:
        return encode((number, kind, NOBODY if number < 3 else value) for number, kind, value in fields(message))

    def pipe(message: bytes) -> bytes:
        return _changed(message, 4, owner)

    image = read_image(data, "files.img", magics.FILES)
    records = tuple(Record(_changed(record.payload, 18, pipe), record.extra) for record in image.records)
    return write_image(Image(image.magic, records))


def _lead_to_hosts(data: bytes) -> bytes:
    def lead(message: bytes) -> bytes:
        return encode(
            (number, kind, b"/etc/hosts" if number == 6 else value) for number, kind, value in fields(message)
        )

    image = read_image(data, "files.img", magics.FILES)
    records = tuple(Record(_changed(record.payload, 3, lead), record.extra) for record in image.records)
    return write_image(Image(image.magic, records))


def _open_to_write(data: bytes) -> bytes:
    def change(message: bytes) -> bytes:
        return encode((number, kind, 2 if number == 2 else value) for number, kind, value in fields(message))

    image = read_image(data, "files.img", magics.FILES)
    records = tuple(Record(_changed(record.payload, 3, change), record.extra) for record in image.records)
    return write_image(Image(image.magic, records))


def _write_by_shared_maps(data: bytes) -> bytes:
    def change(message: bytes) -> bytes:
        found = {number: value for number, _, value in fields(message)}
        is_shared = int(found[6]) & mmap.MAP_SHARED and int(found[7]) & FILE_SHARED
        return encode(
            (number, kind, 2 if number == 10 and is_shared else value) for number, kind, value in fields(message)
        )

    image = read_image(data, "mm", magics.MM)
    records = tuple(Record(_changed(record.payload, 14, change), record.extra) for record in image.records)
    return write_image(Image(image.magic, records))


def _without_records(data: bytes) -> bytes:
    return write_image(Image(magics.REMAP_FPATH, ()))


def _with_other_inode(data: bytes) -> bytes:
    image = read_image(data, "ghost-file-1.img", magics.GHOST_FILE)
    changed = encode(
        (number, kind, 1 if number == 5 else value) for number, kind, value in fields(image.records[0].payload)
    )
    return write_image(Image(image.magic, (Record(changed, image.records[0].extra), *image.records[1:])))


def _without_last_thread(data: bytes) -> bytes:
    image = read_image(data, "pstree.img", magics.PSTREE)
    kept = [[*fields(record.payload)][:-1] for record in image.records]
    return write_image(Image(image.magic, tuple(Record(encode(each)) for each in kept)))


def _changed(message: bytes, wanted: int, change: object) -> bytes:
    assert callable(change)
    return encode(
        (number, kind, change(value) if (number, kind) == (wanted, BYTES) else value)
        for number, kind, value in fields(message)
    )
