"""Lab 03: bytes that a ring sends, cases in which it is fastest, and growth of its time."""

from __future__ import annotations

from dlpar import Experiment, Run
from dlpar.course.labs.mapreduce import CLUSTER
from dlpar.course.rehearse import SIMULATED, Collectives, Row, Shown, learns, pace_ms
from dlpar.lab.figures.cost import CollectiveTime
from dlpar.theory import closed_form, sizes

OWN_CARDS, SHARED_CARDS = "h100-400gb-ib", "v100-100gb-ib"
"""Platforms with eight GPUs per machine: with a network card for each GPU, and with one card for all eight.
"""


def ring_run() -> Experiment:
    """Train four workers with a ring all-reduce on handwritten digits for a second."""
    return Experiment(model={"name": "mlp", "width": 64}, workers=4, batch=256, steps=100, evaluate_every=20)


def copies() -> list[Experiment]:
    """Count the bytes that 2, 4 and 8 workers send."""
    return [ring_run().replace(workers=workers, steps=10, evaluate_every=1000) for workers in (2, 4, 8)]


def _less_than_two(runs: list[Run]) -> Shown:
    held, said = True, []
    for run in runs:
        n, steps, weights = run.experiment.workers, run.experiment.steps, sizes(run.experiment).parameters
        sent = run.summary["bytes_sent"]
        held = held and sent == steps * closed_form("ring", ranks=n, elements=weights, itemsize=4).bytes
        said.append(f"{sent / n / steps / (4 * weights):.2f} copies with {n}")
    return held, f"a rank sends {', '.join(said)}"


def more_ranks() -> list[Collectives]:
    """Time a ring with more and more ranks, with messages of 4 kB and 16 MB.

    There are 2 to 8 paced ranks, 2 to 128 simulated ranks, and 512 simulated ranks with 4 kB.
    """
    ring = {"names": ("ring",), "platform": CLUSTER, "sizes": (4_000, 16_000_000)}
    paced = Collectives(ring, ranks=(2, 4, 8), world="paced")
    simulated = Collectives(ring, ranks=(2, 4, 8, 32, 128), world="simulated")
    return [paced, simulated, Collectives(simulated, ranks=512, sizes=(4_000,))]


def _latency_grows(times: list[list[CollectiveTime]]) -> Shown:
    took = {(t.ranks, t.nbytes): t.seconds for each in times for t in each}
    short, long = took[512, 4_000] / took[2, 4_000], took[128, 16_000_000] / took[2, 16_000_000]
    return short > 300 and 2 < long < 3, f"4 kB take {short:.0f} times as long on 512 ranks as on 2"


def ring_always_wins(platform: str, ranks: int = 64) -> Collectives:
    """Simulate ring, trees and halving-doubling for 1.2 MB to 178 MB (ResNet-101)."""
    names, sizes = ("ring", "tree", "double_tree", "halving_doubling"), (1.2e6, 12e6, 178e6)
    return Collectives(names=names, ranks=ranks, sizes=sizes, world="simulated", platform=platform)


def _not_for_short_messages(times: list[list[CollectiveTime]]) -> Shown:
    by_seconds = [sorted(each, key=lambda t: t.seconds) for each in times]
    own = [t.name.replace("_", "-") for t in by_seconds[0] if t.nbytes == 1_200_000]
    shared = [t.name.replace("_", "-") for t in by_seconds[1] if t.nbytes == 178_000_000]
    held = own[-1] == "ring" and shared[0] == "ring"
    return held, f"1.2 MB, a card each: {', '.join(own)}; 178 MB, shared cards: {', '.join(shared)}"


def fewer_bytes() -> list[Experiment]:
    """Simulate training with full, bfloat16, 1-bit and top-1 % gradients."""
    common = Experiment(model={"width": 64}, workers=4, batch=256, steps=100, cluster=SIMULATED)
    codecs = ({"codec": "none"}, {"codec": "bf16"}, {"codec": "onebit"}, {"codec": "topk", "keep": 0.01})
    return [common.replace(compression=codec) for codec in codecs]


def _as_good_with_less(runs: list[Run]) -> Shown:
    whole, half, onebit, topk = (run.summary["bytes_sent"] for run in runs)
    good = min(run.summary["accuracy"] for run in runs) > 0.92
    share = f"bf16 {half / whole:.0%}, one bit {onebit / whole:.1%}, top 1 % {topk / whole:.1%}"
    return good and half == whole / 2 and max(onebit, topk) < 0.07 * whole, f"of float32's bytes: {share}"


def slow_rank() -> list[Experiment]:
    """Run four workers with steps of 10 ms. Then make one of them four times slower."""
    model, delays = {"name": "mlp", "width": 64}, {"kind": "constant", "delay_ms": 10.0}
    even = Experiment(workers=4, steps=25, model=model, evaluate_every=1000, delays=delays)
    return [even, even.replace(delays={"straggler": {2: 4.0}})]


def _all_wait(runs: list[Run]) -> Shown:
    even, slow = map(pace_ms, runs)
    waits = 1e3 * runs[1].steps.groupby("rank")["wait"].median()
    held = slow > max(40, 1.5 * even) and waits[2] < 0.1 * slow and waits.max() > 0.5 * slow
    return held, f"a step takes {even:.0f} ms, with one slow rank {slow:.0f} ms"


TABLE = (
    Row(ring_run, "Four workers on a ring learn to classify digits", learns(0.9)),
    Row(copies, '"A ring sends N copies"', _less_than_two),
    Row(more_ranks, '"A ring\'s time does not depend on N"', _latency_grows),
    Row(ring_always_wins, '"A ring always wins"', _not_for_short_messages,
        lambda: [ring_always_wins(cards) for cards in (OWN_CARDS, SHARED_CARDS)]),
    Row(fewer_bytes, "Compressed gradients train as well, and bf16 saves half on four ranks", _as_good_with_less),
    Row(slow_rank, "One slow rank slows all ranks", _all_wait),
)  # fmt: skip
