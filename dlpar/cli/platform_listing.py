"""Platforms in words: what ``dlpar platforms`` and ``dlpar doctor --calibrate`` print."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.table import Table

from dlpar.cli.listing import NONE, console, print_pairs
from dlpar.worlds.platforms import PLATFORMS, Link, Platform, platform
from dlpar.worlds.platforms.lookup import HERE, here_file
from dlpar.worlds.platforms.platform import SEPARATOR


def show(which: str | None, as_json: bool) -> None:
    """Print all that have a name, or one; raises `BadExperiment` if there is no such platform."""
    one = None if which is None else platform(which)
    if as_json:
        print(json.dumps(as_dict(one) if one else [as_dict(each) for each in known()], indent=1))
    elif one:
        print_platform(one)
    else:
        print_platforms(known())


def calibrate(as_json: bool) -> int:
    """Measure this machine, keep the figures, and print them; returns the exit status."""
    from dlpar.jobs.launch import JobFailed
    from dlpar.jobs.mpiexec import NoMPI
    from dlpar.theory import calibrate as measuring

    try:
        measuring.calibrate(measuring.THOROUGH)
    except (JobFailed, NoMPI, TimeoutError) as error:
        print(f"dlpar doctor: this machine could not be measured: {error}", file=sys.stderr)
        return 1
    show(HERE, as_json)
    return 0


def known() -> list[Platform]:
    """All that have a name; this machine first, once it was measured."""
    return ([platform(HERE)] if here_file().is_file() else []) + list(PLATFORMS.values())


def as_dict(which: Platform) -> dict[str, Any]:
    """Its fields, ready for JSON; a file with them describes the same platform."""
    return which.model_dump(mode="json")


def print_platforms(platforms: list[Platform]) -> None:
    """A table, and once each where the figures come from."""
    table = Table(box=None, padding=(0, 1), header_style="bold", pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("device", overflow="fold")
    table.add_column("nodes × devices", justify="right", no_wrap=True)
    for name in ("inside a node", "between nodes"):
        table.add_column(name, no_wrap=True)
    for each in platforms:
        size = f"{each.nodes:,} × {each.devices:,}"
        table.add_row(each.name, each.device.name, size, _link(each.inside), _link(each.between))
    console().print(table)
    print("\nSources:")
    pieces = [piece for each in platforms for piece in each.source.split(SEPARATOR)]
    for piece in dict.fromkeys(pieces):
        print(f"  {piece}")


def print_platform(which: Platform) -> None:
    """Everything about one of them."""
    device, rates = which.device, which.device.rates
    memory = f", {device.memory_gib:g} GiB" if device.memory_gib else ""
    port = "node" if which.nic == "shared" else "rank"
    overhead = f", and {1e3 * device.overhead:g} ms a step" if device.overhead else ""
    said = [
        ("name", which.name),
        ("device", f"{device.name}: {_flops(device.flops)} sustained{overhead}{memory}"),
        ("holds", f"{which.ranks:,} ranks: {which.nodes:,} × {which.devices:,}"),
        ("inside", _link(which.inside)),
        ("between", _link(which.between) + (f", a port a {port}" if which.between else "")),
        ("eager", f"a send of up to {which.eager:,} bytes does not wait"),
        ("times", _times(which)),
    ]
    if which.overlap < 1:
        said.append(("overlap", f"beside communication, computing goes at {which.overlap:.0%} of its speed"))
    if rates:
        said.insert(2, ("samples/s", ", ".join(f"{name} {rate:g}" for name, rate in rates.items())))
    if which.stragglers:
        slow = (f"rank {rank} × {factor:g}" for rank, factor in which.stragglers.items())
        said.append(("stragglers", ", ".join(slow)))
    print_pairs(said)
    print("\n" + "\n".join(which.source.split(SEPARATOR)))


def _times(which: Platform) -> str:
    timing = which.timing
    return {
        "constant": "equal computations take equal times",
        "gamma": f"gamma, coefficient of variation {timing.cv:g}",
        "exponential": "exponential",
        "trace": f"a trace of {len(timing.trace)} factors",
    }[timing.kind]


def _flops(flops: float) -> str:
    return f"{flops / 1e12:g} TFLOP/s" if flops >= 1e12 else f"{flops / 1e9:g} GFLOP/s"


def _link(link: Link | None) -> str:
    if link is None:
        return NONE
    speed = f"{link.bandwidth / 1e9:g} GB/s" if link.bandwidth >= 1e9 else f"{link.bandwidth / 1e6:g} MB/s"
    return f"{1e6 * link.latency:g} µs, {speed}{', half duplex' if link.duplex == 'half' else ''}"
