"""The gate of a move reads from a live tree the same as from CRIU's images of it, so that one judge serves both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import CASES
from command import Crckpt
from gates import ask_about, target_at
from trees import Case, started

from crckpt.images.sockets import UnixSocket
from crckpt.images.tree import ImageTree
from crckpt.migrate.preflight.judge import list_image_sizes, make_tree, plan_restore
from crckpt.model import JobName
from crckpt.ops.inspect.images import read_image_tree
from crckpt.preflight.restore.descriptors import find_needed_numbers, needs_terminal
from crckpt.preflight.restore.files import find_needed_files, find_needed_path, read_file_facts
from crckpt.preflight.restore.host import find_needed_features, kernel_needs
from crckpt.preflight.restore.tasks import find_needed_ids
from crckpt.store import Repository, file_names


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_processes_and_files_read_from_a_running_tree_equal_those_in_its_images(crckpt: Crckpt, case: Case) -> None:
    if missing := case.missing():
        pytest.skip(f"not installed: {', '.join(missing)}")
    with started(case) as tree:
        target = target_at(tree.pid, crckpt.store, case.tcp)  # type: ignore[arg-type]
        before = ask_about(target)
        crckpt.run("dump", str(tree.pid), "job", *(("--tcp", case.tcp) if case.tcp else ()))
        after = ask_about(target)
        repository = Repository.open(crckpt.store, create=False)
        (checkpoint,) = repository.checkpoints(JobName("job"))
        images = read_image_tree(repository, checkpoint)
        expected = facts(images)
        # A connection may just have ended.
        questions = before if facts(make_tree(before)) == expected else after
        live = make_tree(questions)
        found = facts(live)
        assert {name: found[name] for name in found if found[name] != expected[name]} == {
            name: expected[name] for name in found if found[name] != expected[name]
        }
        names = file_names(repository, checkpoint)
        asked = kernel_needs(live, list_image_sizes(questions), keeps_connections=case.tcp == "keep")
        assert set(asked) == set(kernel_needs(images, names, keeps_connections=case.tcp == "keep"))
        recorded = questions.host.cpu_features
        assert find_needed_features(live, recorded) == find_needed_features(images, recorded)
        assert plan_restore(questions, "4.2").tree == live


def facts(tree: ImageTree) -> dict[str, Any]:
    """What a preflight reads of a tree."""
    return {
        "ids": find_needed_ids(tree),
        "processes": sorted(_process(process) for process in tree.processes),
        "files": dict(_files(tree)),
        "programs": read_file_facts(tree).programs,
        "apart": {kind: tree.is_apart(kind) for kind in ("pid", "net", "ipc", "uts", "mnt", "user", "cgroup")},
        "sockets": sorted(_sockets(tree)),
        "unix": sorted(_unix(tree)),
        "terminals": (needs_terminal(tree), find_needed_numbers(tree)),
        "locks": {(lock.kind, lock.exclusive, lock.start, lock.end) for lock in tree.locks},
        "deleted": {file.path for file in tree.regular_files if file.is_deleted},
    }


def _process(process: Any) -> tuple[object, ...]:
    core = process.core
    return (
        *(process.pid, process.ppid, process.pgid, process.sid, core.arch, core.comm, core.state),
        sorted(thread.tid for thread in process.threads),
        str(core.credentials) if core.state != "zombie" else "",
        core.has_seccomp_filter,
        core.no_new_privs,
    )


def _files(tree: ImageTree) -> Iterator[tuple[str, tuple[object, ...]]]:
    for file in find_needed_files(tree):
        path = find_needed_path(file)
        # Only sizes of files below /usr are compared, because the tree's own files grow. CRIU makes other names for
        # removed files.
        if not Path(path).name.startswith("link_remap."):
            yield path, (file.mode, file.size if path.startswith("/usr/") else 0, file.build_id, file.is_append_only)


def _sockets(tree: ImageTree) -> Iterator[tuple[object, ...]]:
    for each in tree.inet_sockets:
        # Raw sockets and ping sockets use no port that another program could have.
        is_bound = each.is_listening or each.is_connected or each.source.port
        if is_bound and each.protocol in ("tcp", "udp"):
            yield (each.inode, each.family, each.type, each.protocol, each.state, str(each.source), each.interface)


def _unix(tree: ImageTree) -> Iterator[tuple[object, ...]]:
    yield from ((each.inode, each.type, each.peer) for each in tree.files if isinstance(each, UnixSocket))
