"""What a restored program has no longer. Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

_ALLOW = "restore it with less protection: --allow-weaker; or start the program anew"

ATTRIBUTES = (
    Cause(
        "landlock-lost",
        "process {pid} ({comm}) was confined by Landlock, and a restore cannot confine it again",
        _ALLOW,
    ),
    Cause(
        "cgroup-namespace-lost",
        "process {pid} ({comm}) had a cgroup namespace of its own, and a restore cannot give it one",
        _ALLOW,
    ),
    Cause(
        "label-lost",
        "process {pid} ({comm}) had set {name} to {label} for its security module, and a restore cannot set it again",
        _ALLOW,
    ),
    Cause(
        "peer-lost",
        "fd {fd} of process {pid} ({comm}) has a peer of user {user}, which a restored socket would take for root",
        _ALLOW,
    ),
    Cause(
        "group-rules-lost",
        "process {pid} ({comm}) was in the control group {path}, whose rules on {what} do not hold where crckpt runs",
        "restore it in such a group, as by its unit; or with less protection: --allow-weaker",
    ),
    Cause(
        "group-limits-lost",
        "process {pid} ({comm}) was in the control group {path}, whose limits of {what} do not hold where crckpt runs",
        "restore it in such a group, as by its unit, if it is to have them",
    ),
    Cause(
        "not-asked",
        "process {pid} ({comm}) could not be asked for a Landlock domain, PR_SET_MDWE and mlockall: {why}",
        "a restore will not put these back",
    ),
    Cause(
        "keys-lost",
        "process {pid} ({comm}) had {keys} keys in its session keyring, which is another now, and empty",
        "let the program ask for its keys again",
    ),
    Cause(
        "cpus-missing",
        "this host has no CPU {missing}: thread {tid} may run on CPU {left} only",
        "set another affinity with taskset -p",
    ),
    Cause(
        "no-cpu-left",
        "this host has no CPU {missing}: thread {tid} may run on any CPU",
        "set another affinity with taskset -p",
    ),
    Cause(
        "attribute-lost",
        "{title} of thread {tid} could not be set again: {why}",
        "",
    ),
    Cause(
        "socket-option-lost",
        "{title} of descriptor {fd} of process {pid} could not be set again: {why}",
        "",
    ),
    Cause(
        "protection-lost",
        "{title} of process {pid} could not be set again: {why}",
        _ALLOW,
    ),
    Cause(
        "needs-allow-weaker",
        "process {pid} ({comm}) is confined by {what}, which a restore cannot set again",
        "to restore it, --allow-weaker will be needed",
    ),
)
