"""`crckpt pre-dump`."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import asdict

from crckpt.cli import options
from crckpt.cli.render import Shown, copied, emit, noted


def pre_dump(
    target: options.Target,
    job: options.Job = None,
    staging: options.Staging = None,
    no_preflight: options.NoPreflight = False,
    store: options.Store = None,
    criu: options.CriuPath = None,
    config: options.ConfigPath = None,
    as_json: options.AsJson = False,
) -> None:
    """Copy a tree's memory while it runs: the next dump freezes it only for what is written from now on.

    Each time, what was written since the time before is copied. The copies are no checkpoint: they wait for
    **crckpt dump** beside the tracker of the tree, all where the first one was put, and are gone when that ends:
    **crckpt trackers**.

    `crckpt pre-dump 812 trainer` · `crckpt dump 812 trainer` · in one step: `crckpt dump 812 trainer --pre-copy`
    """
    from crckpt.ops.dump.pre_dump import pre_dump as perform
    from crckpt.ops.dump.request import Request

    # Connections are none of a round's business.
    request = Request(target, job, tcp="close", preflight=not no_preflight, skip_in_flight=True)
    result = perform(request, options.context(store, criu=criu, config=config, staging=staging))

    def text() -> Iterator[str]:
        yield from noted(result.criu.passed_over)
        yield f"{result.tracked.why}\n"
        yield from (f"copied whole: {why}\n" for why in result.tracked.whole)
        yield copied(result.copied)
        yield f"the tree runs on; its next dump counts from here: crckpt dump {result.pid} {result.job}\n"

    document = asdict(result)
    document |= {"criu": result.criu.path, "criu_passed_over": result.criu.passed_over}
    # What a round leaves to the one before is no dump's.
    document["tracked"] = {name: value for name, value in asdict(result.tracked).items() if not name.endswith("_pages")}
    document["copied"] = asdict(result.copied)
    emit("pre-dump", Shown(document, text()), as_json=as_json)
