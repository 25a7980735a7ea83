"""Lab 05: what races do to shared weights, and what writing without locks still costs."""

from __future__ import annotations

from dlpar.config.experiment import Experiment
from dlpar.jobs.control_groups import cores

TEXTS = Experiment(
    model="logistic",
    data="docstrings",
    workers=4,
    lr=1.0,
    cluster={"threads": 1},
    sync={"scheme": "hogwild", "sparse": True},
)
"""Which package does a docstring document?  Softmax regression on 1000 words: 10,010 weights."""


def shared_weights() -> Experiment:
    """Lab 05: four processes write to one model of the texts for a second or two."""
    return TEXTS.replace(batch=32, steps=400)


def races() -> list[Experiment]:
    """Lab 05, "races corrupt the model": four writers, from sparse updates to dense ones.

    A worker's update is of 1, 8 or 64 texts and writes the words in them; the last one
    writes all weights each time, changed or not.
    """
    sizes = ((4, 600), (32, 250), (256, 60))
    sparse = [TEXTS.replace(batch=batch, steps=steps) for batch, steps in sizes]
    return [*sparse, sparse[-1].replace(sync={"sparse": False})]


def in_turn(racing: Experiment) -> Experiment:
    """As many updates of the same size as `racing` makes, by one process, so one after the other: nothing can race."""
    n = racing.workers
    return racing.replace(workers=1, batch=racing.batch // n, steps=racing.steps * n, lr=racing.lr / n)


def lock_free_scaling() -> list[Experiment]:
    """Lab 05, "lock-free scales for free": dense updates of 1.1 million weights by 1, 2, 4 processes and more.

    Up to twice as many as there are cores, each with a batch of its own and one thread, the same
    number of updates in all.
    """
    worlds = sorted({1, 2, 4, min(2 * cores(), 16)})
    common = Experiment(
        model={"name": "mlp", "width": 1024},
        batch=16,
        scaling="weak",
        evaluate_every=100_000,
        sync="hogwild",
        cluster={"threads": 1},
    )
    return [common.replace(workers=workers, steps=-(-120 // workers)) for workers in worlds]


def slow_writer() -> Experiment:
    """Lab 05, break it: steps of 10 ms, one worker four times slower, and nobody waits for it.

    The delays do not need a core, so that it shows on any machine.
    """
    return TEXTS.replace(
        batch=32, steps=120, delays={"kind": "constant", "delay_ms": 10.0, "straggler": {1: 4.0}}
    )
