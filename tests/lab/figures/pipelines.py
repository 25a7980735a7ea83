"""Runs of pipelines, written as ranks write them."""

from __future__ import annotations

import json

from dlpar import Experiment
from dlpar.jobs.run import Run
from lab.folders import new_folder

MLP3 = {"name": "mlp", "depth": 3, "width": 24}
SMALL = {"name": "transformer", "depth": 2, "width": 16, "heads": 4}
NAMES = {"F": "forward", "B": "backward", "W": "weight"}


def run_of(bars, schedule="1f1b", chunks=2, facts=None, world="real", **split):
    """A run whose ranks did these bars in step 1, and half as quickly in steps 0 and 2."""
    stages = 1 + max(bar.stage for bar in bars)
    micros = 1 + max(bar.micro for bar in bars)
    split = {"kind": "pipeline", "schedule": schedule, "microbatches": micros, "chunks": chunks, **split}
    model, cluster = {"name": "mlp", "depth": 15}, {"world": world}
    experiment = Experiment(workers=stages, steps=3, model=model, split=split, cluster=cluster)
    folder = new_folder(experiment)
    for stage in range(stages):
        records = []
        for step, pace in enumerate((2.0, 1.0, 0.5)):
            spans = [
                [
                    NAMES[bar.kind],
                    step * 1000 + pace * bar.start,
                    step * 1000 + pace * bar.end,
                    bar.micro,
                    bar.chunk,
                ]
                for bar in bars
                if bar.stage == stage
            ]
            end = step * 1000 + pace * max(bar.end for bar in bars)
            spans += [["receive", step * 1000, spans[0][1], 0, 0]] * (stage > 0) + [
                ["update", end, end + 0.1]
            ]
            records.append(
                {
                    "k": "step",
                    "step": step,
                    "t": end,
                    "spans": spans,
                    "loss": 1.0,
                    "samples": 8,
                    **(facts(stage) if facts else {}),
                }
            )
        (folder / f"rank-{stage}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return Run(folder)


def run_ending_at(steps, microbatches=4) -> Run:
    """A run of two stages whose steps end at these seconds."""
    return run_with(steps, [{}, {}], split={"kind": "pipeline", "microbatches": microbatches})


def run_with(steps, facts, **fields) -> Run:
    """A run of as many ranks as there are facts, which each rank's last step has, ending at these seconds."""
    folder = new_folder(Experiment(workers=len(facts), steps=len(steps), model=MLP3, **fields))
    for rank, own in enumerate(facts):
        common = {"samples": 8 * rank, "loss": 1.0, "bytes": 0, "spans": []}
        lines = [{"k": "step", "step": n, "t": t, **common} for n, t in enumerate(steps)]
        lines[-1].update(own)
        (folder / f"rank-{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Run(folder)
