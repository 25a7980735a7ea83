"""Whatever the scheme and the consistency, four workers learn to read digits: 94 % or more, at stated settings.

The plain ring is tried in ``tests/cli/test_run.py``; Hogwild, map-reduce, gossip and averaging in their own
tests.  Where workers run free of each other they are real processes; where they go in step, what is learnt does
not depend on the world.
"""

from __future__ import annotations

import pytest

import dlpar
from dlpar import Experiment

pytestmark = pytest.mark.slow

WAYS = {
    "ring, 1 bit": {"compression": "onebit"},
    "ring, top 5 %": {"compression": {"codec": "topk", "keep": 0.05}},
    "ps, bsp": {"sync": "ps"},
    "ps, ssp": {"sync": {"scheme": "ps", "consistency": "ssp"}},
    "ps, asp": {"sync": {"scheme": "ps", "consistency": "asp"}},
    "ps, softsync": {"sync": {"scheme": "ps", "consistency": "softsync", "softsync": 2}},
    # A push holds four gradients, 12 steps old on average.  SGD at rate 0.1 then swings between 88 and 99 % to the end.
    # The steps of Adagrad, which DistBelief used, become smaller.
    "ps, Downpour": {
        "sync": {"scheme": "ps", "consistency": "asp", "push_every": 4}, "optimizer": "adagrad", "lr": 0.02
    },
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_four_workers_learn_digits(way):
    experiment = Experiment(workers=4, steps=200, batch=64, **way)
    if not experiment.sync.runs_free:
        experiment = experiment.replace(cluster={"world": "simulated", "threads": 1})
    run = dlpar.launch(experiment).wait(60)
    assert run.summary["accuracy"] >= 0.94
    assert len(run.steps) == 200 * 4
