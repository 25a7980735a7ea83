"""``dlpar platforms`` lists the clusters for paced and simulated ranks."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from dlpar.cli import AsJSON, BadRequest
from dlpar.cli.tables import NONE, console, print_pairs, table
from dlpar.config.schema import BadExperiment
from dlpar.lab.captions import nbytes
from dlpar.worlds.platforms import PLATFORMS, Link, Platform, platform
from dlpar.worlds.platforms.lookup import HERE, here_file
from dlpar.worlds.platforms.platform import SEPARATOR


def platforms(which: Annotated[str | None, typer.Argument()] = None, as_json: AsJSON = False) -> int:
    """List the clusters for paced and simulated ranks, or describe one.

    Parameters
    ----------
    which : PLATFORM
        A platform's name, or a file that describes one.
    """
    try:
        if which is not None:
            print_platform(platform(which), as_json)
            return 0
    except BadExperiment as error:
        raise BadRequest(str(error).replace("cluster.platform:", "PLATFORM:", 1)) from None
    known = [*([platform(HERE)] if here_file().is_file() else []), *PLATFORMS.values()]
    if as_json:
        print(json.dumps([each.model_dump(mode="json") for each in known], indent=1))
        return 0
    heads = ("name", "device", "nodes × devices", "inside a node", "between nodes")
    sizes = (f"{each.nodes:,} × {each.devices:,}" for each in known)
    rows = [(p.name, p.device.name, size, _link(p.inside), _link(p.between)) for p, size in zip(known, sizes)]
    console().print(table(dict(zip(heads, heads)), [dict(zip(heads, row)) for row in rows]))
    pieces = [piece for each in known for piece in each.source.split(SEPARATOR)]
    print("\n  ".join(["\nSources:", *dict.fromkeys(pieces)]))
    return 0


def print_platform(which: Platform, as_json: bool) -> None:
    """Print everything about a platform. The JSON output has the format of a platform file."""
    if as_json:
        print(json.dumps(which.model_dump(mode="json"), indent=1))
        return
    device, rates, timing = which.device, which.device.rates, which.timing
    memory = f", {device.memory_gib:g} GiB" if device.memory_gib else ""
    overhead = f", and {1e3 * device.overhead:g} ms a step" if device.overhead else ""
    flops = f"{device.flops / 1e12:g} TFLOP/s" if device.flops >= 1e12 else f"{device.flops / 1e9:g} GFLOP/s"
    port = f", a port a {'node' if which.nic == 'shared' else 'rank'}" if which.between else ""
    times = f", variation {timing.cv:g}" if timing.kind == "gamma" else ""
    said = [
        ("name", which.name),
        ("device", f"{device.name}: {flops} sustained{overhead}{memory}"),
        ("samples/s", ", ".join(f"{name} {rate:g}" for name, rate in rates.items())),
        ("holds", f"{which.ranks:,} ranks: {which.nodes:,} × {which.devices:,}"),
        ("inside", _link(which.inside)),
        ("between", _link(which.between) + port),
        ("eager", f"a send of up to {which.eager:,} bytes does not wait"),
        ("times", f"of equal computations: {timing.kind}{times}"),
        ("overlap", f"beside messages, computing has {which.overlap:.0%} of its speed" * (which.overlap < 1)),
        ("stragglers", ", ".join(f"rank {rank} × {factor:g}" for rank, factor in which.stragglers.items())),
    ]
    print_pairs([(label, words) for label, words in said if words])
    print("\n" + "\n".join(which.source.split(SEPARATOR)))


def _link(link: Link | None) -> str:
    if link is None:
        return NONE
    work = f" ({1e6 * link.overhead:g} µs of a processor at each end)" if link.overhead else ""
    return f"{1e6 * link.latency:g} µs{work}, {nbytes(link.bandwidth)}/s"
