"""What writing a line a step costs: the same training with and without, in the same ranks, in turns."""

from __future__ import annotations

import statistics

import dlpar
from compare import limit
from rich.console import Console

PAIRS = 12


def paired(comm, folder: str) -> tuple[list[float], float]:
    """Seconds of a training recorded over seconds of it unrecorded, PAIRS times; and microseconds a line."""
    from dlpar import Experiment
    from dlpar.record import Recorder, Unrecorded
    from dlpar.train import train

    experiment = Experiment(
        workers=comm.size, model={"width": 512}, batch=64, scaling="weak", steps=150, evaluate_every=10_000
    )

    def seconds(record) -> float:
        comm.barrier()
        began = comm.now()
        train(comm, experiment, record)
        comm.barrier()
        return comm.now() - began

    seconds(Unrecorded(comm))
    ratios = []
    for turn in range(PAIRS):
        both = {}
        for recorded in (True, False) if turn % 2 else (False, True):
            both[recorded] = seconds(Recorder(folder, comm) if recorded else Unrecorded(comm))
        ratios.append(both[True] / both[False])
    record, lines = Recorder(folder, comm), 2000
    began = comm.now()
    for step in range(lines):
        for phase in ("forward", "backward", "communicate", "update"):
            with record.span(phase):
                pass
        record.step(step, loss=0.123456789, samples=64, bytes=1_000_000, messages=6, staleness=0, lead=0)
    return ratios, (comm.now() - began) / lines * 1e6


def report() -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        ratios, microseconds = dlpar.spmd(paired, folder, workers=2, timeout=300)[0]
    limit("time of a recorded training over that of an unrecorded one, 2 ranks", ratios, "×", 1.01)
    middle = statistics.median(ratios)
    Console().print(f"a recorded step (4 spans, 1 line) takes {microseconds:.1f} µs; median overhead {100 * (middle - 1):+.2f} %")
