"""The facts that a checkpoint records in addition to CRIU's images, for `show` and for the preflight of a restore."""

from __future__ import annotations

import json
from datetime import datetime

from msgspec import Struct, to_builtins
from msgspec.structs import asdict

from crckpt.causes.refusal import preflight_refusal
from crckpt.criu.engine import run_id
from crckpt.host import machine, proc
from crckpt.host.observe.pipes import find_closed_pipes
from crckpt.host.program.program import read_program
from crckpt.model import Task
from crckpt.ops.dump import attributes, open_files
from crckpt.ops.dump.examine import DumpTarget
from crckpt.ops.dump.plan import PlannedDump
from crckpt.ops.dump.reported import Reported
from crckpt.preflight.attribute_record import AttributeRecord
from crckpt.preflight.dump.sockets import loses
from crckpt.store import NewCheckpoint


class Freeze(Struct, frozen=True):
    """The freeze of a tree: a moment of it, its length, and the time that the whole dump took."""

    moment: datetime
    frozen_ms: float
    dump_ms: float


class FrozenTree(Struct, frozen=True):
    """A tree as it was frozen: the checkpoint to make of it, and what its images must agree with."""

    checkpoint: NewCheckpoint
    reported: Reported


def read_details(dump: PlannedDump, answers: attributes.Answers, *, is_frozen: bool = False) -> dict[str, object]:
    """Read what CRIU's images lack, some of it secret: command lines, directories, sizes of append-only files.

    And the attributes of processes and threads that CRIU does not save, and which files are open. Of a tree that
    `is_frozen`, raises PreflightRefused if a socket of it holds now what the user has not agreed to lose.
    """
    target, observed = dump.target, dump.target.observed
    processes = [
        # The PID is that in its own namespace, as in CRIU's images.
        {"pid": process.ns_pids[-1], "command_line": words, "directory": directory, "uids": process.uids}
        for process, words, directory in proc.read_commands(observed.tree)
    ]
    logs = [found for found in observed.descriptors if found.is_append_only]
    # A position beyond the end shows that the log was truncated: then no position at the freeze means anything.
    truncated = {found.target for found in logs if found.pos > found.size}
    appended = {found.target: found.size for found in logs if found.target not in truncated}
    record = attributes.record(observed.tree.root, answers, is_frozen=is_frozen)
    if is_frozen and not target.request.force:
        _refuse_losses(record, target)
    files = open_files.record(observed.tree, observed.descriptors)
    # The tree may have executed another program since it was examined, but its unit is still the same.
    root = observed.tree.root
    program = read_program(root.pid, root.comm, target.program.unit)
    return {
        "schema": 1,
        "processes": processes,
        "program": asdict(program),
        "root": to_builtins(root.identity),
        # What starts later may be this program, restored.
        "uptime_ticks": proc.uptime_ticks(),
        "append_sizes": appended,
        "cpu_seconds": proc.cpu_seconds(observed.tree),
        "attributes": to_builtins(record, str_keys=True),
        "files": files.known,
        "file_owners": files.owners,
        "file_heads": files.heads,
        "tracked_root": _identify_tracked_root(dump),
        **read_frozen_details(target),
    }


def _refuse_losses(record: AttributeRecord, target: DumpTarget) -> None:
    comms = {process.ns_pids[-1]: process.comm for process in target.observed.tree.processes}
    # A client that resets its connection at this moment loses no more than one whose connection is closed.
    kept = [found for found in record.sockets if not (found.is_tcp and target.request.tcp == "close")]
    lost = [loses(found.pid, found.fd, comms.get(found.pid, "?"), loss) for found in kept for loss in found.losses]
    if lost:
        raise preflight_refusal(lost)


def read_frozen_details(target: DumpTarget) -> dict[str, object]:
    """Read the details that the tree changes all the time: again while it is frozen, if that is possible."""
    observed = target.observed
    return {
        "descriptors": attributes.record_descriptors(observed),
        "file_times": open_files.read_times(observed.tree, observed.descriptors),
    }


def describe_checkpoint(dump: PlannedDump, log: str, details: dict[str, object], freeze: Freeze) -> NewCheckpoint:
    """Describe the checkpoint. Call it while the tree is frozen, or just after."""
    target, parent = dump.target, dump.parent
    return NewCheckpoint(
        job=target.job,
        created=freeze.moment,
        host=machine.describe_host(target.criu.version, target.criu.digest),
        options=target.plan.options,
        tree=tuple(Task(p.ns_pids[-1], p.ppid, p.comm, p.threads) for p in target.observed.tree.processes),
        note=target.request.note,
        run_id=run_id(log),
        stopped=target.request.stop,
        frozen_ms=freeze.frozen_ms,
        dump_ms=freeze.dump_ms,
        details=json.dumps(details | {"closed_pipes": _find_closed_pipes(target)}, sort_keys=True).encode(),
        config_digest=target.context.config_digest,
        parent=parent.checkpoint if parent else None,
        base=parent.checkpoint_directory if parent else None,
    )


def _identify_tracked_root(dump: PlannedDump) -> object:
    """The root of the tree of this job that was tracked last: so a later dump can say why it is full."""
    is_tracked = dump.lineage is not None and dump.lineage.tracks
    found = dump.target.observed.tree.root.identity if is_tracked else dump.tracked_before
    return None if found is None else to_builtins(found)


def _find_closed_pipes(target: DumpTarget) -> list[int]:
    """Inodes of the pipes that had only one end when the tree was dumped."""
    # A pipe that lost an end before the freeze has one in it. A pipe that has both ends now had them then.
    observed = target.observed
    return sorted(observed.closed_pipes | find_closed_pipes(observed.descriptors))
