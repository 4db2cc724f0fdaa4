"""Errors of Java with checkpoints (CRaC, OpenJ9, Open Liberty). Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

VIRTUAL_MACHINES = (
    Cause(
        "java-open",
        "the Java program has something open that CRaC does not save: {what}",
        "close it in beforeCheckpoint(), or configure what to do with it: -Djdk.crac.resource-policies=FILE",
        r"Checkpoint(?:OpenFile|OpenSocket|OpenResource)Exception: (?P<what>.{1,300})",
        "CRaC",
    ),
    Cause(
        "java-start",
        "the program (Java, libcriu) could not start CRIU, or CRIU ended at once",
        "check that criu starts as this user (criu check): its file may have capabilities that this container lacks;"
        " try --privileged, or --cap-add CHECKPOINT_RESTORE --cap-add SYS_PTRACE --cap-add SETPCAP",
        # libcriu's ECOMM (70): no message could be exchanged with CRIU (lib/c/criu.h:159).
        r"Could not (?:dump|restore) the JVM process\w{0,3}, err=-70\b|starting criuengine|[Ff]ailed to exec\w{0,4}"
        r" criuengine|criu_(?:dump|restore)\(?\)? return\w{0,3} (?:-70|-?ECOMM)",
        "OpenJ9, CRaC, libcriu",
        sure=False,
    ),
    Cause(
        "java-cpu",
        "the checkpoint was made on a CPU with features that this one lacks",
        "make it again with -XX:CPUFeatures=generic, or with the value that Java names here",
        r"-XX:CPUFeatures=",
        "CRaC",
    ),
    Cause(
        "java-directory",
        "Java was started without a directory for checkpoints, or its build does not support them",
        "start it with -XX:CRaCCheckpointTo=DIRECTORY, with a JDK that has CRaC",
        r"C/R is not configured|CRaC is not supported",
        "CRaC",
    ),
    Cause(
        "java-blocked",
        "another thread of the Java program blocks the checkpoint",
        "make the checkpoint while no other thread works, or move that code out of the checkpoint hooks",
        r"Blocking operation is not allowed in CRIU",
        "OpenJ9",
    ),
)
