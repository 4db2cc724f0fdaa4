"""What this host says of everything that a checkpoint needs: the facts for the preflight of a restore."""

from __future__ import annotations

from crckpt.host import elf, network, proc
from crckpt.host.files import status_of
from crckpt.images.tree import ImageTree
from crckpt.preflight.restore import FileNow, Now, epoch, numbers, paths, required_path

_REAPED_WITHIN_S = 5.0


def survey(tree: ImageTree, *, new_pid_namespace: bool) -> Now:
    """Look at PIDs, files and addresses. Waits some seconds for PIDs of ended processes to be given back."""
    return Now(
        owners=() if new_pid_namespace else _owners(tree),
        files={path: _file(path, file.build_id) for file in paths(tree) if (path := required_path(file))},
        taken_addresses=frozenset(
            socket.source
            for socket in tree.listening
            if _in_our_network(tree) and not network.can_listen(socket.source.host, socket.source.port)
        ),
    )


def _owners(tree: ImageTree) -> tuple[proc.Owner, ...]:
    wanted = numbers(tree)
    owners = proc.owners(wanted)
    ended = tuple(owner.pid for owner in owners if owner.state == "zombie")
    if not ended:
        return owners
    proc.wait_until_gone(ended, _REAPED_WITHIN_S)
    return proc.owners(wanted)


def _in_our_network(tree: ImageTree) -> bool:
    ids = tree.root.ids
    return ids is None or ids.namespaces.net == tree.inventory.root_ids.namespaces.net


def _file(path: str, build_id: str) -> FileNow | None:
    found = status_of(path)
    if found is None:
        return None
    now = (elf.build_id(path) if build_id else None) or b""
    return FileNow(found.st_size, found.st_mode, epoch(found.st_mtime), now.hex())
