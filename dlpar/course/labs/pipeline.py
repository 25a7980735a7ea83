"""Lab 09: effects of a pipeline's schedule on time and memory."""

from __future__ import annotations

from typing import Any

from dlpar import Experiment, Run
from dlpar.course.rehearse import Row, Shown, measured, most_held, pace_ms
from dlpar.lab import figures

DEEP = {"name": "mlp", "width": 64, "depth": 32}
"""Model of 32 equal layers and an output layer that costs a sixth of one, for four nearly equal stages."""

WIDE = {"name": "mlp", "width": 1024, "depth": 9}
"""Model with two layers of 1024 × 1024 for each of four stages. The other layers cost almost nothing."""

RACK = "cpu-10gbe"
"""Platform of servers with a 10 GbE card each: 30 µs and 1.1 GB/s."""

BERT = {"platform": "p100-100gb-ib", "stand_in_for": "bert-large"}
"""Cluster with the clock of BERT-large on P100s and 100 Gb InfiniBand."""

MICRO_BATCHES = (1, 4, 16, 64, 256)
"""Numbers of micro-batches for a step's 256 samples."""


def _stages(model: dict[str, Any], schedule: str, microbatches: int = 8, **fields: Any) -> Experiment:
    """Return a pipeline of four stages in the simulated world."""
    split = {"kind": "pipeline", "schedule": schedule, "microbatches": microbatches}
    cluster = {"world": "simulated", "platform": RACK, "threads": 1, **fields.pop("cluster", {})}
    fields = {"workers": 4, "batch": 256, "steps": 3, "evaluate_every": 1000, **fields}
    return Experiment(model=model, split=split, cluster=cluster, **fields)


def _bubble(run: Run) -> dict[str, float]:
    """Return the measured bubble and the ideal bubble of the lab's figure."""
    return figures.pipeline(run).layout.meta["bubble"]


def live_pipeline() -> Experiment:
    """Run four processes on the clock of BERT-large on P100s, with 1F1B and 8 micro-batches."""
    return _stages(DEEP, "1f1b", batch=16, cluster={"world": "paced", **BERT})


def schedules() -> dict[str, Experiment]:
    """Train on the same 256 samples in 8 micro-batches with every schedule.

    The model actually trains, on the clock of BERT-large on P100s and 100 Gb InfiniBand.
    """
    gpipe = _stages(DEEP, "gpipe", cluster=BERT)
    return {
        "GPipe": gpipe,
        "1F1B": gpipe.replace(split={"schedule": "1f1b"}),
        "1F1B, recomputing": gpipe.replace(split={"schedule": "1f1b", "recompute": True}),
        "interleaved, 2 chunks": gpipe.replace(split={"schedule": "interleaved", "chunks": 2}),
        "ZB-H1": gpipe.replace(split={"schedule": "zb-h1"}),
    }


def _same_bubble_less_memory(runs: dict[str, Run]) -> Shown:
    gpipe, ours = runs["GPipe"], runs["1F1B"]
    quicker = max(pace_ms(runs[name]) for name in ("interleaved, 2 chunks", "ZB-H1")) < 0.9 * pace_ms(ours)
    share = most_held(ours, "activations") / most_held(gpipe, "activations")
    same = abs(pace_ms(gpipe) / pace_ms(ours) - 1) < 1e-6
    said = f"a step takes {pace_ms(gpipe):.0f} ms by both; 1F1B holds {share:.0%} of GPipe's activations"
    return same and share < 0.6 and quicker, said


def more_micro_batches() -> list[Experiment]:
    """Simulate 256 samples in 1 to 256 micro-batches, with 1F1B and GPipe. Messages carry only sizes."""
    flush = {"1f1b": MICRO_BATCHES, "gpipe": (4, 16, 256)}  # with one micro-batch both schedules are the same
    cluster = {"messages": "sizes"}
    return [_stages(WIDE, name, m, cluster=cluster) for name, counts in flush.items() for m in counts]


def _latency_ends_it(runs: list[Run]) -> Shown:
    splits = [(run.experiment.split, run) for run in runs]
    took = {split.microbatches: pace_ms(run) for split, run in splits if split.schedule == "1f1b"}
    best = min(took, key=took.get)
    held = 1 < best < 256 and took[256] > 2 * took[16]
    return held, f"{best} are quickest; 256 take {took[256] / took[best]:.1f} times as long"


def small_micro_batches() -> list[Experiment]:
    """Run two real processes on 1,024 samples in 1, 4 and 64 micro-batches."""
    model, cluster = {"name": "mlp", "width": 512, "depth": 7}, {"world": "real", "platform": None}
    return [_stages(model, "1f1b", m, workers=2, batch=1024, cluster=cluster) for m in (1, 4, 64)]


def without_a_flush() -> list[Experiment]:
    """Train with 1F1B and PipeDream at a small and a large learning rate. PipeDream never drains."""
    four = {"name": "mlp", "width": 64, "depth": 4}  # equal layers, and the output layer with the last
    # The middle of the run is drawn, so it holds no evaluation, for which a pipeline stops.
    flush = _stages(four, "1f1b", steps=120, evaluate_every=40, optimizer="momentum", cluster=BERT)
    stream = flush.replace(split={"schedule": "pipedream", "microbatches": 1})
    return [each.replace(lr=lr) for lr in (0.004, 0.03) for each in (flush, stream)]


def _quicker_but_fragile(runs: list[Run]) -> Shown:
    flush, stream, flush_fast, stream_fast = runs
    share = stream.curve["seconds"].iloc[-1] / flush.curve["seconds"].iloc[-1]
    late, usual = (run.curve["loss"].tail(20).mean() for run in (stream_fast, flush_fast))
    learn = min(run.summary["accuracy"] for run in (flush, stream)) > 0.88
    said = f"at the large rate its loss is {late / usual:.0f} times 1F1B's"
    return 0.70 < share < 0.85 and learn and late > 5 * usual, f"it takes {share:.0%} of the time; {said}"


def bad_cut() -> Experiment:
    """Cut 33 layers badly, so that most of them are on the last stage."""
    return schedules()["1F1B"].replace(split={"partition": "4,4,4,21"})


def _slowest_stage_decides(runs: list[Run]) -> Shown:
    slower = pace_ms(runs[0]) / pace_ms(runs[1])
    return slower > 1.8 and _bubble(runs[0])["run"] > 1.5, f"a step takes {slower:.2f} times as long"


TABLE = (
    Row(live_pipeline, "Four processes follow a pipeline's schedule",
        measured(lambda run: _bubble(run)["run"] - _bubble(run)["ideal"], lambda off: abs(off) < 0.03,
                 "the bubble is {:+.1%} off the ideal")),
    Row(schedules, '"1F1B has a smaller bubble than GPipe"', _same_bubble_less_memory),
    Row(more_micro_batches, '"More micro-batches always help"', _latency_ends_it),
    Row(small_micro_batches, "More micro-batches do not always help on this machine",
        measured(pace_ms, lambda _, four, many: many > 1.2 * four,
                 "a step takes {:.0f} ms whole, {:.0f} ms in 4 micro-batches, {:.0f} ms in 64")),
    Row(without_a_flush, "PipeDream is faster, but tolerates only smaller learning rates", _quicker_but_fragile),
    Row(bad_cut, "A pipeline runs at the speed of its slowest stage", _slowest_stage_decides,
        lambda: [bad_cut(), schedules()["1F1B"]]),
)  # fmt: skip
