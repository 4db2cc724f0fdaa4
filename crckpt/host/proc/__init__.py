"""Read /proc: each of its files has one parser here.

`tree`, `live_root` and `file_users` answer questions that take several files. psutil has no start time in clock ticks,
namespaces, fdinfo or thread states, and takes 12 to 60 ms to import: so what names a process is read here.
"""

from crckpt.host.proc.fd import Descriptor, descriptors, read_pidfd
from crckpt.host.proc.live_root import LiveRoot, identify_live_root
from crckpt.host.proc.maps import find_deleted_mapped_files, memory
from crckpt.host.proc.process import Identity, Process, identify, parse_identity, read_process
from crckpt.host.proc.procfs import boot_id, uptime_ticks
from crckpt.host.proc.status import effective_capabilities, inner_tid, namespace, start_time
from crckpt.host.proc.tree import (
    IdUser,
    Tree,
    ancestors,
    children,
    command_line,
    cores_in_use,
    cpu_seconds,
    descendants,
    find_below,
    find_ended_tasks,
    find_id_users,
    outer_pids,
    read_commands,
    read_parents,
    read_tree,
    title,
    wait_until_gone,
    working_directory,
)
