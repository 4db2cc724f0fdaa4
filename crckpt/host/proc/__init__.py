"""Read /proc: each of its files has one parser here.

`tree`, `command`, `ids` and `writers` answer questions that take several files. psutil has no start time in clock
ticks, namespaces, fdinfo or thread states, and takes 12 to 60 ms to import: so what names a process is read here.
"""

from crckpt.host.proc.command import command_line, read_commands, title, working_directory
from crckpt.host.proc.fd import Descriptor, descriptors, read_pidfd
from crckpt.host.proc.live_root import LiveRoot, identify_live_root
from crckpt.host.proc.maps import find_deleted_mapped_files, memory
from crckpt.host.proc.process import Identity, Process, identify, parse_identity, read_process
from crckpt.host.proc.procfs import boot_id, uptime_ticks
from crckpt.host.proc.status import (
    effective_capabilities,
    huge_pages,
    inner_tid,
    namespace,
    read_shared_memory,
    start_time,
    tracers,
)
from crckpt.host.proc.tree import (
    IdUser,
    Tree,
    ancestors,
    children,
    cores_in_use,
    cpu_seconds,
    find_ended_tasks,
    find_id_users,
    outer_pids,
    read_tree,
    wait_until_gone,
)
