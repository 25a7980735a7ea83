"""What writing a line a step costs: within one training, steps with and without recording take turns."""

from __future__ import annotations

import statistics
import tempfile

from compare import limit
from rich.console import Console

import dlpar

BLOCK, PAIRS = 10, 500
"""Steps recorded, then as many not, and how often."""


def paired(comm, folder: str) -> tuple[list[float], float]:
    """Median seconds of recorded over those of unrecorded steps, of ten stretches; and microseconds a line."""
    from dlpar import Experiment
    from dlpar import comm as silent
    from dlpar.jobs.record import Recorder
    from dlpar.train import train

    class InTurns(Recorder):
        """Records a block of steps, then lets one pass unrecorded, and so on."""

        def __init__(self) -> None:
            super().__init__(folder, comm)
            self.silent, self.on, self.ends = silent.Recorder(), True, []

        def span(self, name):
            return super().span(name) if self.on else self.silent.span(name)

        def step(self, step, **facts):
            super().step(step, **facts) if self.on else self.silent.step(step, **facts)
            self.ends.append(self.now())
            self.on = (step + 1) // BLOCK % 2 == 0

    steps = 2 * BLOCK * PAIRS
    experiment = Experiment(
        workers=comm.size, model={"width": 512}, batch=64, scaling="weak", steps=steps, evaluate_every=10**7
    )
    record = InTurns()
    train(comm, experiment, record)
    taken = [
        (b - a, step // BLOCK % 2 == 0)
        for step, (a, b) in enumerate(zip(record.ends, record.ends[1:]), start=1)
    ]
    stretches = [taken[i : i + steps // 10] for i in range(0, len(taken), steps // 10)]
    ratios = [_median(s, True) / _median(s, False) for s in stretches if len(s) > BLOCK * 2]

    lines, plain = 2000, Recorder(folder, comm)
    began = comm.now()
    for step in range(lines):
        for phase in ("forward", "backward", "communicate", "update"):
            with plain.span(phase):
                pass
        plain.step(step, loss=0.123456789, samples=64, bytes=1_000_000, messages=6, staleness=0, lead=0)
    return ratios, (comm.now() - began) / lines * 1e6


def _median(stretch: list[tuple[float, bool]], recorded: bool) -> float:
    return statistics.median(seconds for seconds, was in stretch if was is recorded)


def report() -> None:
    with tempfile.TemporaryDirectory() as folder:
        ratios, microseconds = dlpar.spmd(paired, folder, workers=2, timeout=300)[0]
    limit("time of a recorded step over that of an unrecorded one, 2 ranks", ratios, "×", 1.01)
    Console().print(f"a recorded step (4 spans, 1 line) costs {microseconds:.1f} µs")
