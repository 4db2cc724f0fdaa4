"""`crckpt tag`."""

from __future__ import annotations

from crckpt.cli import options
from crckpt.cli.format import short_id
from crckpt.cli.output import emit
from crckpt.ops.tag import tag as perform


def tag(
    ref: str = options.REF,
    name: str = options.argument("TAG", "The tag: letters, digits, dots, underscores and hyphens."),
    remove: bool = options.flag("--remove", "Remove the tag from REF instead."),
) -> None:
    """Give a checkpoint a tag: JOB:TAG then names it. If another checkpoint of the job has the tag, the tag moves."""
    result = perform(options.make_context(), ref, name, remove=remove)
    name = f"{result.job}:{result.tag}"
    text = f"removed {name}\n" if remove else f"{name} now names {short_id(result.id)}\n"
    emit(result, text)
