"""Lab 08: one model on several ranks, with each rank's part, the messages, and the gain."""

from __future__ import annotations

from typing import Any

from dlpar import Experiment, Run
from dlpar.course.rehearse import Row, Shown, measured, on, same_losses, speedup, step_ms
from dlpar.lab import figures
from dlpar.systems.record import platform_file

NVLINK = "v100-nvlink"
"""Platform with eight V100s in one machine."""

LINKS = {"NVLink": NVLINK, **{name: platform_file(f"v100-each-{name}") for name in ("100gb-ib", "10gbe")}}
"""Three kinds of links between eight V100s: in one machine, and between machines with one V100 each."""

CNN = Experiment(model={"name": "cnn", "width": 64}, batch=64, dtype="float64")


def split_in_two() -> Experiment:
    """Split a small CNN over two real ranks by channels. Its images may be cut instead."""
    return CNN.replace(workers=2, split="tensor", steps=40, evaluate_every=20)


def heads_and_characters() -> Experiment:
    """Split a transformer over four ranks by heads, neurons and characters."""
    model, cluster = {"name": "transformer", "width": 64}, {"world": "simulated", "platform": NVLINK}
    training = dict(workers=4, data="docstrings", batch=16, steps=10)
    return Experiment(model=model, **training, split="tensor", cluster=cluster)


def _closed_form_holds(run: Run) -> Shown:
    table = figures.table(figures.layer_bytes(run.experiment))
    counted, told = table["both (bytes)"], table["closed form (bytes)"]
    return (counted == told).all(), f"{counted.sum():,.0f} bytes a step, predicted {told.sum():,.0f}"


def _one_step(width: int, platform: str, **fields: Any) -> Experiment:
    """Simulate a step of a perceptron with three layers of this width."""
    model, cluster = {"name": "mlp", "width": width, "depth": 3}, {"world": "simulated", "platform": platform}
    return Experiment(model=model, steps=1, evaluate_every=1000, cluster=cluster, **fields)


def faster() -> list[Experiment]:
    """Simulate a step of a perceptron with 1,024 neurons per layer on each of `LINKS`."""
    return [_one_step(1024, platform, batch=512, split="tensor") for platform in LINKS.values()]


def _slow_links_make_it_slower(runs: list[Run]) -> Shown:
    nvlink, infiniband, ethernet = (speedup(runs[one], runs[many]) for one, many in ((0, 1), (3, 4), (6, 8)))
    said = f"NVLink, 4 {nvlink:.1f}; InfiniBand, 4 {infiniband:.2f}; 10 GbE, 8 {ethernet:.2f}"
    return nvlink > 2 and infiniband < 1 and ethernet < 0.2, f"times one GPU: {said}"


def in_the_background() -> list[Experiment]:
    """Simulate a step of a deeper perceptron on four GPUs with NVLink and Ethernet, with and without overlap."""
    split = [{"kind": "tensor", "async_allreduce": is_async} for is_async in (False, True)]
    steps = [_one_step(1024, LINKS[link], workers=4, batch=512) for link in ("NVLink", "10gbe")]
    return [step.replace(model={"depth": 5}, split=each) for step in steps for each in split]


def _it_hides_where_computing_is_long(runs: list[Run]) -> Shown:
    near, far = (1 - speedup(runs[i + 1], runs[i]) for i in (0, 2))
    same = runs[0].curve["loss"].iloc[-1] == runs[1].curve["loss"].iloc[-1]
    said = f"a step is {near:.0%} shorter over NVLink, {far:.1%} over 10 GbE"
    return same and 0.05 < near < 0.3 and 0 < far < 0.03, said


def pieces_of_images() -> list[Experiment]:
    """Run 20 steps with one process, and with images of 8 × 8 in 3, 2 × 2 and 3 × 2 pieces."""
    whole = CNN.replace(workers=1, steps=20, evaluate_every=1000, cluster={"world": "simulated"})
    cuts = ((3, 1), (2, 2), (3, 2))
    split = [{"kind": "spatial", "rows": rows, "columns": columns} for rows, columns in cuts]
    return [whole, *(whole.replace(workers=s["rows"] * s["columns"], split=s) for s in split)]


def redundant() -> list[Experiment]:
    """Train a perceptron on four ranks.

    First cut layers in pairs, then cut all by outputs with rising redundancy.

    With the least redundancy no neuron is computed twice: 0.001 of 64 neurons is none.
    """
    common = _one_step(256, LINKS["10gbe"], workers=4, batch=1024)
    return [common.replace(split={"kind": "tensor", "redundancy": share}) for share in (0, 0.001, 0.5, 1)]


TABLE = (
    Row(split_in_two, "Two ranks that share a network learn the same as one process", same_losses(1e-14),
        lambda: [split_in_two().replace(workers=1, split="data"), split_in_two()]),
    Row(heads_and_characters, "A cut transformer sends the closed form's bytes", _closed_form_holds),
    Row(faster, '"We split a model to go faster"', _slow_links_make_it_slower, lambda: on(faster(), 1, 4, 8)),
    Row(in_the_background, '"A tensor split can hide no message"', _it_hides_where_computing_is_long),
    Row(pieces_of_images, '"Halos approximate"', same_losses(20 * 2.3e-16)),
    Row(redundant, "Redundant computing reduces messages, and pairs of cuts need neither",
        measured(step_ms, lambda pairs, none, _, overlap: overlap < 0.7 * none and pairs < 1.1 * overlap,
                 "a step: by pairs {:.2f} ms; without redundancy {:.2f} ms, with half {:.2f} ms, with all {:.2f} ms")),
)  # fmt: skip
