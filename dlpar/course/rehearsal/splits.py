"""Labs 08 and 09: one model cut by tensors, by images and by layers."""

from __future__ import annotations

import math

from dlpar.course import presets
from dlpar.course.rehearsal.stage import Stage, apart, most_held, trial
from dlpar.jobs.run import Run
from dlpar.lab import figures

# ---- 08 -----------------------------------------------------------------------------


@trial("08")
def split_in_two(stage: Stage) -> tuple[bool, str]:
    """Two ranks that share a network learn what one process learns."""
    cut = presets.split_in_two()
    worst = apart(*stage.run([cut.replace(workers=1, split="data"), cut]))
    return worst < 1e-14, f"losses differ by {worst:.0e} at most"


@trial("08")
def heads_and_characters(stage: Stage) -> tuple[bool, str]:
    """A cut transformer sends the closed form's bytes."""
    run = stage.run(presets.heads_and_characters())
    table = figures.table(figures.layer_bytes(run.experiment))
    counted, told = (table[name].sum() for name in ("both (bytes)", "closed form (bytes)"))
    held = (table["both (bytes)"] == table["closed form (bytes)"]).all()
    return held, f"{counted:,.0f} bytes a step, told {told:,.0f}"


@trial("08")
def faster(stage: Stage) -> tuple[bool, str]:
    """ "We split a model to go faster"."""
    names = ("100gb-ib", "10gbe")
    files = [
        presets.platform_file(stage.folder, f"each-{n}", extends=f"v100-{n}", devices=1, nodes=8)
        for n in names
    ]
    gained = []
    for each, n in zip(presets.faster(presets.NVLINK, *files), (4, 4, 8)):
        one, many = stage.run([each.replace(workers=workers) for workers in (1, n)])
        gained.append(many.summary["samples_per_s"] / one.summary["samples_per_s"])
    nvlink, infiniband, ethernet = gained
    held = nvlink > 2 and infiniband < 1 and ethernet < 0.2
    return (
        held,
        f"times one GPU: NVLink, 4 {nvlink:.1f}; InfiniBand, 4 {infiniband:.2f}; 10 GbE, 8 {ethernet:.2f}",
    )


@trial("08")
def pieces_of_images(stage: Stage) -> tuple[bool, str]:
    """ "Halos approximate"."""
    worst = apart(*stage.run(presets.pieces_of_images()))
    return worst < 20 * 2.3e-16, f"losses of cut and of whole images differ by {worst:.0e} at most"


@trial("08")
def redundant(stage: Stage) -> tuple[bool, str]:
    """Computing more sends less; pairs of cuts need neither."""
    slow = presets.platform_file(stage.folder, "each-10gbe", extends="v100-10gbe", devices=1, nodes=8)
    pairs, none, _, overlap = (1 / run.summary["samples_per_s"] for run in stage.run(presets.redundant(slow)))
    said = f"times the step without redundancy: with all {overlap / none:.2f}, by pairs {pairs / none:.2f}"
    return overlap < 0.7 * none and pairs < 1.1 * overlap, said


# ---- 09 -----------------------------------------------------------------------------


def _bubble(run: Run) -> dict[str, float]:
    """Measured and ideal, as the lab's figure has them."""
    return figures.pipeline(run).layout.meta["bubble"]


def _seconds(run: Run) -> float:
    """Of a step, in the middle."""
    return float(run.curve["seconds"].diff().median())


@trial("09")
def live_pipeline(stage: Stage) -> tuple[bool, str]:
    """Four processes keep a pipeline's schedule."""
    bubble = _bubble(stage.run(presets.live_pipeline()))
    held = abs(bubble["run"] - bubble["ideal"]) < 0.03
    return held, f"a bubble of {bubble['run']:.1%}, ideal {bubble['ideal']:.1%}"


@trial("09")
def schedules(stage: Stage) -> tuple[bool, str]:
    """ "1F1B has a smaller bubble than GPipe"."""
    runs = stage.run(presets.schedules())
    gpipe, ours = runs["GPipe"], runs["1F1B"]
    quicker = max(_seconds(runs[name]) for name in ("interleaved, 2 chunks", "ZB-H1")) < 0.9 * _seconds(ours)
    share = most_held(ours, "activations") / most_held(gpipe, "activations")
    held = math.isclose(_seconds(gpipe), _seconds(ours), rel_tol=1e-6) and share < 0.6 and quicker
    return (
        held,
        f"a step takes {_seconds(gpipe):.2f} s by both; 1F1B holds {share:.0%} of GPipe's activations",
    )


@trial("09")
def more_micro_batches(stage: Stage) -> tuple[bool, str]:
    """ "More micro-batches always help"."""
    took = {
        run.experiment.split.microbatches: _seconds(run)
        for run in stage.run(presets.more_micro_batches())
        if run.experiment.split.schedule == "1f1b"
    }
    best = min(took, key=took.get)
    held = 1 < best < 256 and took[256] > 2 * took[16]
    return held, f"{best} are quickest; 256 take {took[256] / took[best]:.1f} times as long"


@trial("09")
def small_micro_batches(stage: Stage) -> tuple[bool, str]:
    """Nor do they on this machine."""
    took = {
        run.experiment.split.microbatches: _seconds(run) for run in stage.run(presets.small_micro_batches())
    }
    return took[64] > 1.2 * took[4], f"64 micro-batches take {took[64] / took[4]:.1f} times as long as 4"


@trial("09")
def without_a_flush(stage: Stage) -> tuple[bool, str]:
    """PipeDream is quicker, and bears a smaller learning rate."""
    flush, stream, flush_fast, stream_fast = stage.run(presets.without_a_flush())
    share = stream.curve["seconds"].iloc[-1] / flush.curve["seconds"].iloc[-1]
    late, usual = (run.curve["loss"].tail(20).mean() for run in (stream_fast, flush_fast))
    learn = min(run.summary["accuracy"] for run in (flush, stream)) > 0.92
    held = 0.70 < share < 0.85 and learn and late > 5 * usual
    return (
        held,
        f"it takes {share:.0%} of the time; at four times the rate its loss is {late / usual:.0f} times 1F1B's",
    )


@trial("09")
def bad_cut(stage: Stage) -> tuple[bool, str]:
    """A pipeline goes at the pace of its slowest stage."""
    uneven, even = stage.run([presets.bad_cut(), presets.schedules()["1F1B"]])
    slower = _seconds(uneven) / _seconds(even)
    return slower > 1.8 and _bubble(uneven)["run"] > 1.5, f"a step takes {slower:.2f} times as long"
