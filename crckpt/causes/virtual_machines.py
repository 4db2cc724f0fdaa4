"""What Java says of checkpoints (CRaC, OpenJ9, Open Liberty). Pure."""

from __future__ import annotations

from crckpt.causes.cause import Cause

VIRTUAL_MACHINES = (
    Cause(
        "java-open",
        "the Java program has something open that CRaC does not save: {what}",
        "close it in beforeCheckpoint(); or say what becomes of it: -Djdk.crac.resource-policies=FILE",
        r"Checkpoint(?:OpenFile|OpenSocket|OpenResource)Exception: (?P<what>.{1,300})",
        "CRaC",
    ),
    Cause(
        "java-start",
        "Java could not start CRIU, or lost it at once",
        "see that criu starts as this user (criu check): its file may have capabilities that this container does not"
        " give; try --privileged, or --cap-add CHECKPOINT_RESTORE --cap-add SYS_PTRACE --cap-add SETPCAP",
        r"Could not (?:dump|restore) the JVM process\w{0,3}, err=-70\b|starting criuengine|[Ff]ailed to exec\w{0,4}"
        r" criuengine",
        "OpenJ9, CRaC",
        sure=False,
    ),
)
