"""Static figure of the bytes that the ranks of a replica send for each layer, beside the closed form."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from dlpar.config.experiment import Experiment
from dlpar.jobs.launch import spmd
from dlpar.jobs.run import Run
from dlpar.lab import captions
from dlpar.lab.figure import Figure, captioned, stacked
from dlpar.lab.figures.pieces import plain
from dlpar.theory.layers import BOUNDARY, SHARED, boundary_elements, elements_by_layer

if TYPE_CHECKING:
    from dlpar.lab.figures.probes import SentByLayer

KINDS = ("tensor", "spatial", "pipeline", "hybrid")
"""Splits whose ranks send in the forward and the backward pass."""

PASSES = {"forward": "#3A97CC", "backward": "#2CA079"}
"""Colour of each pass, as in figures of pipelines."""


def layer_bytes(of: Experiment | Run) -> Figure:
    """Draw the bytes that the ranks of one replica send for each layer in a step, and the closed form.

    One step runs in the simulated world, and every message is counted where it is sent. The
    synchronisation of replicas is not included (:func:`dlpar.lab.bytes_per_rank`).

    Parameters
    ----------
    of : Experiment or Run
        Experiment with up to 64 workers, split by tensor, spatial, pipeline or hybrid, or a run of it.

    Raises
    ------
    ValueError
        If it is split in another way, has more workers, or a workload stands in for its model.
    """
    experiment = of.experiment if isinstance(of, Run) else of
    if experiment.split.kind not in KINDS:
        kinds = ", ".join(KINDS)
        raise ValueError(f"split: got {experiment.split}, allowed is one of {kinds}: its layers send nothing")
    ranks = spmd(_count, plain(experiment), workers=experiment.workers, world="simulated")
    return drawing(experiment, [rank for rank in ranks if rank.replica == 0])


def _count(comm: Any, experiment: Experiment) -> SentByLayer:
    """Report the bytes that this rank sends."""
    from dlpar.lab.figures.probes import sent  # here: imports torch

    return sent(comm, experiment)


def drawing(experiment: Experiment, ranks: list[SentByLayer]) -> Figure:
    """Draw the bytes that the ranks of a replica sent."""
    measured: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(PASSES, 0))
    for rank in ranks:
        for (name, during), sent in rank.bytes.items():
            measured[name][during] += sent
    formula = _formulas(experiment, list(measured))
    order = [name for layer in [*ranks[0].layers, "whole"] for name in (layer, BOUNDARY + layer)]
    names = sorted({*measured, *formula}, key=lambda name: order.index(name) if name in order else len(order))
    if not names:
        split, workers = experiment.split, experiment.workers
        raise ValueError(f"workers: got {workers}, allowed with split {split} is more: nothing is sent")
    rows = [(name, *measured[name].values(), formula.get(name)) for name in names]
    scale, unit = (1e6, "MB") if max(max(a + b, form or 0) for _, a, b, form in rows) >= 1e6 else (1e3, "kB")
    parts = {}
    for during, colour in PASSES.items():
        parts[during] = {"marker_color": colour}, [measured[name][during] / scale for name in names]
    marks = "closed form, both passes", [form and form / scale for *_, form in rows]
    figure = stacked(f"sent by the ranks of one replica in a step ({unit})", names, parts, marks)
    heads = ("layer", "forward (bytes)", "backward (bytes)", "both (bytes)", "closed form (bytes)")
    table = [(name, forward, backward, forward + backward, form) for name, forward, backward, form in rows]
    return captioned(figure, _sentence(table, len(ranks)), (heads, table))


def _formulas(experiment: Experiment, measured: list[str]) -> dict[str, float]:
    """Bytes by the closed forms, for layers and for the boundaries that were measured."""
    full = {"float32": 4, "float64": 8}[experiment.dtype]
    of_activations = full if experiment.precision == "full" else 2
    found = {}
    for name, elements in elements_by_layer(experiment).items():
        found[name] = (full if name == SHARED else of_activations) * elements
    for name in measured:
        if name.startswith(BOUNDARY):
            found[name] = of_activations * boundary_elements(experiment, name.removeprefix(BOUNDARY))
    return found


def _sentence(table: list[tuple], ranks: int) -> str:
    totals = {name: both for name, _, _, both, _ in table}
    most, everything = max(totals, key=totals.__getitem__), sum(totals.values())
    text = f"In a step the {ranks} ranks of a replica send each other {captions.nbytes(everything)}"
    text += f", {totals[most] / everything:.0%} of it for {most}" if everything else ""
    known = {name: form for name, *_, form in table if form is not None}
    off = [name for name, form in known.items() if form != totals[name]]
    if off:
        text += f"; {captions.listed(off)} {'differs' if len(off) == 1 else 'differ'} from the closed form"
    elif known:
        which = "every row is" if len(known) == len(table) else f"{len(known)} of {len(table)} rows are"
        text += f"; {which} equal to the closed form, to the byte"
    return f"{text}."
