"""Real images show what their program had: processes, descriptors, files, sockets, memory."""

from __future__ import annotations

import os
import signal
import stat

import pytest

from crckpt.images import core, memfd, mm, other_files, pipes, regfile, sockets, tty
from crckpt.images.fdinfo import read_descriptors
from crckpt.images.files import OpenFile, read_files
from crckpt.images.framing import read_image, write_image
from crckpt.images.pstree import read_pstree
from crckpt.images.stats import read_dump_stats
from crckpt.images.tree import ImageProcess, ImageTree

WHERE = "/tmp/crckpt-images/run"


def by_title(tree: ImageTree, title: str) -> OpenFile:
    """Return the open file of the root with this title."""
    found = {entry.file for entry in tree.root.descriptors if entry.file.title == title}
    assert len(found) == 1, [entry.file.title for entry in tree.root.descriptors]
    return found.pop()


def opened(tree: ImageTree, name: str, *, deleted: bool = False) -> regfile.RegularFile:
    """Return an open file in the program's directory."""
    file = by_title(tree, f"{WHERE}/{name}" + " (deleted)" * deleted)
    assert isinstance(file, regfile.RegularFile)
    return file


def child(tree: ImageTree, state: str, *, own_session: bool = False) -> ImageProcess:
    """Return the root's child in this state."""
    (found,) = (
        process
        for process in tree.processes[1:]
        if process.state == state and (process.sid == process.pid) == own_session
    )
    return found


def test_every_image_is_written_back_as_it_was(images: dict[str, bytes]) -> None:
    assert {name: write_image(read_image(data, name)) for name, data in images.items()} == images


def test_the_root_has_a_thread_and_leads_session_and_group(tree: ImageTree) -> None:
    root = tree.root
    assert (root.ppid, root.pgid, root.sid, root.comm, root.state) == (0, root.pid, root.pid, "python3", core.ALIVE)
    assert root.threads[0].tid == root.pid
    assert [(thread.core.is_leader, thread.core.comm) for thread in root.threads] == [
        (True, "python3"),
        (False, "python3"),
    ]
    assert root.core.arch == "x86_64"
    assert root.core.credentials == core.Credentials(0, 0, 0, 0, ())


def test_blocked_and_pending_signals(tree: ImageTree) -> None:
    assert tree.root.core.blocked == (signal.SIGUSR1,)
    assert tree.root.core.pending_shared == (signal.SIGUSR1,)
    assert tree.root.core.pending == ()


def test_states_of_children(tree: ImageTree) -> None:
    assert {process.ppid for process in tree.processes[1:]} == {tree.root.pid}
    assert child(tree, core.ALIVE, own_session=True).pgid != tree.root.pgid
    stopped = child(tree, core.STOPPED)
    assert (stopped.pgid, stopped.sid) == (stopped.pid, tree.root.sid)
    assert len(stopped.descriptors) == len(tree.root.descriptors)


def test_a_zombie_has_only_its_exit_status(tree: ImageTree, images: dict[str, bytes]) -> None:
    zombie = child(tree, core.ZOMBIE)
    assert os.waitstatus_to_exitcode(zombie.core.exit_code) == 3
    assert [thread.tid for thread in zombie.threads] == [zombie.pid]
    assert (zombie.descriptors, zombie.memory, zombie.exe, zombie.ids) == ((), None, None, None)
    (entry,) = (entry for entry in read_pstree(images["pstree.img"]) if entry.pid == zombie.pid)
    assert entry.threads != (zombie.pid,), "CRIU began to write a zombie's thread: the docstrings say otherwise"


def test_executable_and_directories(tree: ImageTree) -> None:
    assert tree.root.exe is not None
    assert tree.root.exe.title.startswith("/usr/bin/python3")
    assert tree.root.cwd is not None
    assert tree.root.root is not None
    assert (tree.root.cwd.title, tree.root.root.title) == (WHERE, "/")


def test_namespaces_are_those_of_criu(tree: ImageTree) -> None:
    assert tree.root.ids is not None
    assert tree.root.ids.namespaces == tree.inventory.root_ids.namespaces
    assert 0 not in (tree.root.ids.namespaces.net, tree.root.ids.namespaces.time)


def test_inventory(tree: ImageTree) -> None:
    assert tree.inventory.version == 2
    assert tree.inventory.run_id is not None
    assert len(tree.inventory.run_id) == 36
    assert (tree.inventory.tcp_close, tree.inventory.dump_uptime, tree.inventory.plugins) == (False, None, ())


def test_open_files(tree: ImageTree) -> None:
    plain = opened(tree, "plain")
    assert (plain.size, plain.pos, plain.flags & os.O_ACCMODE) == (100, 42, os.O_RDONLY)
    data = opened(tree, "data")
    assert (data.size, data.mode, data.flags & os.O_ACCMODE) == (0, 0o100640, os.O_RDWR)
    directory = by_title(tree, WHERE)
    assert isinstance(directory, regfile.RegularFile)
    assert stat.S_ISDIR(directory.mode or 0)
    assert not directory.is_regular
    assert os.fsencode(opened(tree, "na\u00efve-\udcff").path).endswith(b"-\xff")


def test_criu_records_no_size_of_append_only_files(tree: ImageTree) -> None:
    log = opened(tree, "log")
    assert (log.is_append_only, log.size, log.pos) == (True, None, 11)
    assert [file for file in tree.regular_files if file.is_regular and (file.size is None) != file.is_append_only] == []


def test_deleted_files(tree: ImageTree) -> None:
    sizes = {name: opened(tree, name, deleted=True).remap for name in ("small", "gone.log", "large")}
    assert {name: remap and (remap.kind, remap.size) for name, remap in sizes.items()} == {
        "small": (regfile.GHOST, 1000),
        "gone.log": (regfile.GHOST, 77),
        "large": (regfile.GHOST, 8 << 20),
    }
    assert opened(tree, "large", deleted=True).is_ghost


def test_holes_of_a_ghost_are_not_stored(tree: ImageTree, images: dict[str, bytes]) -> None:
    remap = opened(tree, "large", deleted=True).remap
    assert remap is not None
    ghost = regfile.read_ghost(images[regfile.ghost_image(remap.target)])
    assert (ghost.uid, ghost.gid, ghost.mode, ghost.size, ghost.stored) == (0, 0, 0o100600, 8 << 20, 4096)


def test_a_deleted_file_with_another_name_is_linked(tree: ImageTree) -> None:
    linked = opened(tree, "linked", deleted=True)
    assert linked.remap is not None
    assert linked.remap == regfile.Remap(
        regfile.LINKED, linked.remap.target, f"{WHERE}/link_remap.{linked.remap.target}"
    )
    assert not linked.is_ghost
    assert not any("link_remap" in file.path for file in tree.regular_files)


def test_elf_files_have_build_ids_opened_or_mapped(tree: ImageTree) -> None:
    assert isinstance(tree.root.exe, regfile.RegularFile)
    assert len(bytes.fromhex(tree.root.exe.build_id)) == 20
    (libc,) = (file for file in tree.root.mapped if file.title.endswith("/libc.so.6"))
    assert isinstance(libc, regfile.RegularFile)
    assert libc.build_id
    assert opened(tree, "plain").build_id == ""


def test_pipes_and_fifos(tree: ImageTree, images: dict[str, bytes]) -> None:
    ends = [entry.file for entry in tree.root.descriptors if isinstance(entry.file, pipes.Pipe)]
    assert [end.flags & os.O_ACCMODE for end in ends] == [os.O_RDONLY, os.O_WRONLY]
    assert len({end.pipe_id for end in ends}) == 1
    assert [record.extra for record in read_image(images["pipes-data.img"]).records] == [b"in flight"]
    assert isinstance(by_title(tree, f"{WHERE}/fifo"), pipes.Fifo)


def test_unix_sockets(tree: ImageTree, images: dict[str, bytes]) -> None:
    found = [file for file in tree.files if isinstance(file, sockets.UnixSocket)]
    pair = [socket for socket in found if socket.peer]
    assert {socket.inode for socket in pair} == {socket.peer for socket in pair}
    assert {(socket.type, socket.state) for socket in pair} == {(sockets.STREAM, sockets.ESTABLISHED)}
    (listener,) = (socket for socket in found if socket.is_listening)
    assert (listener.name, listener.directory, listener.backlog) == ("listener.sock", WHERE, 5)
    assert "unix datagram @crckpt-images (close)" in [socket.title for socket in found]
    assert not any(socket.external or socket.deleted for socket in found)
    assert [record.extra for record in read_image(images["sk-queues.img"]).records] == [b"to the right"]


def test_inet_sockets(tree: ImageTree, images: dict[str, bytes]) -> None:
    assert {socket.title for socket in tree.listening} == {
        "tcp 127.0.0.1:47001 (listen)",
        "tcp [::1]:47002 (listen)",
    }
    client, server = sorted(tree.established, key=lambda socket: socket.source.port == 47001)
    assert (client.destination, server.source) == (server.source, sockets.Address("127.0.0.1", 47001))
    assert client.source == server.destination
    assert read_image(images[f"tcp-stream-{server.inode:x}.img"]).records[0].extra == b"unread"
    assert "udp 127.0.0.1:47003 (close)" in [socket.title for socket in tree.inet_sockets]
    assert "netlink protocol 0" in [file.title for file in tree.files]


@pytest.mark.parametrize("kind", ["eventfd", "timerfd", "signalfd"])
def test_event_sources_are_named(tree: ImageTree, kind: str) -> None:
    assert [entry.file.kind for entry in tree.root.descriptors].count(kind) == 1


def test_epoll_inotify_memfd_and_pidfd(tree: ImageTree) -> None:
    (event,) = (entry.fd for entry in tree.root.descriptors if entry.file.kind == "eventfd")
    (epoll,) = (file for file in tree.files if isinstance(file, other_files.EventPoll))
    assert epoll.watched == (event,)
    assert "inotify on 1" in [file.title for file in tree.files]
    memory = by_title(tree, "memfd:scratch")
    assert isinstance(memory, memfd.MemFd)
    assert memory.size == 12345
    pidfd = by_title(tree, f"pidfd of {tree.root.pid}")
    assert isinstance(pidfd, other_files.PidFd)
    assert pidfd.pid == tree.root.pid


def test_terminals(tree: ImageTree) -> None:
    assert {file.path for file in tree.files if isinstance(file, tty.Terminal)} == {"/dev/ptmx", "/dev/pts/0"}
    assert {(end.kind, end.index, end.is_master) for end in tree.terminals} == {("pty", 0, True), ("pty", 0, False)}


def test_no_file_is_of_an_unknown_kind(tree: ImageTree, images: dict[str, bytes]) -> None:
    assert [file for file in tree.files if file.kind == "unknown"] == []
    links = [file for file in tree.regular_files if file.remap and file.remap.kind == regfile.LINKED]
    assert len(tree.files) + len(links) == len(read_files(images["files.img"]))


def test_descriptors_are_in_order_and_know_close_on_exec(tree: ImageTree, images: dict[str, bytes]) -> None:
    assert tree.root.ids is not None
    table = read_descriptors(images[f"fdinfo-{tree.root.ids.files}.img"])
    assert [entry.fd for entry in table] == sorted(entry.fd for entry in table)
    assert [entry.close_on_exec for entry in tree.root.descriptors[:4]] == [False, False, False, True]


def test_mappings(tree: ImageTree) -> None:
    memory = tree.root.memory
    assert memory is not None
    kinds = {vma.kind for vma in memory.vmas}
    assert kinds >= {"private file", "shared file", "anonymous", "heap", "stack", "vdso", "memfd"}
    assert "unknown" not in kinds
    (stack,) = (vma for vma in memory.vmas if vma.kind == "stack")
    assert stack.start <= memory.start_stack < memory.arg_start < memory.arg_end <= memory.env_start < stack.end
    assert stack.file_id is None
    assert memory.size == sum(vma.end - vma.start for vma in memory.vmas)


def test_mapped_files(tree: ImageTree) -> None:
    titles = [file.title for file in tree.root.mapped]
    assert len(titles) == len(set(titles))
    assert {f"{WHERE}/shared-map", f"{WHERE}/private-map", "memfd:/dev/zero"} <= set(titles)
    (shared,) = (file for file in tree.root.mapped if file.title == f"{WHERE}/shared-map")
    assert tree.root.memory is not None
    (vma,) = (vma for vma in tree.root.memory.vmas if vma.file_id == shared.id)
    assert (vma.kind, vma.size, vma.prot, vma.pgoff) == ("shared file", 12288, mm.PROT_READ | mm.PROT_WRITE, 0)
    assert isinstance(shared, regfile.RegularFile)
    assert shared.size == 10000


def test_statistics(images: dict[str, bytes]) -> None:
    stats = read_dump_stats(images["stats-dump"])
    assert 0 < stats.memdump_time < stats.frozen_time < 60_000_000
    assert 0 < stats.pages_written <= stats.pages_scanned
    assert stats.shared_pages_written == 1
