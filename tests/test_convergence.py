"""Whatever the scheme and the consistency, four workers learn to read digits: 94 % or more, at stated settings."""

from __future__ import annotations

import pytest

import dlpar
from dlpar import Experiment

pytestmark = pytest.mark.slow

WAYS = {
    "ring": {},
    "ring, bf16": {"compression": "bf16"},
    "ring, 1 bit": {"compression": "onebit"},
    "ring, top 5 %": {"compression": {"codec": "topk", "keep": 0.05}},
    "map-reduce": {"sync": "mapreduce"},
    "map-reduce, half the batch": {"sync": {"scheme": "mapreduce", "fraction": 0.5}},
    "ps, bsp": {"sync": "ps"},
    "ps, ssp": {"sync": {"scheme": "ps", "consistency": "ssp"}},
    "ps, asp": {"sync": {"scheme": "ps", "consistency": "asp"}},
    "ps, asp, 1 bit": {"sync": {"scheme": "ps", "consistency": "asp"}, "compression": "onebit"},
    "ps, softsync": {"sync": {"scheme": "ps", "consistency": "softsync", "softsync": 2}},
    "ps, staleness-aware": {"sync": {"scheme": "ps", "consistency": "asp", "staleness_aware": True}, "lr": 0.2},
    "ps, Downpour": {"sync": {"scheme": "ps", "consistency": "asp", "push_every": 4}},
    "ps, leaves": {"sync": {"scheme": "ps", "consistency": "asp", "servers": 2, "groups": 2}},
    "gossip": {"sync": "gossip"},
    "gossip, random peers": {"sync": {"scheme": "gossip", "exchange": "random"}},
    "gossip, pairwise": {"sync": {"scheme": "gossip", "exchange": "pairwise"}},
    "gossip, push-sum": {"sync": {"scheme": "gossip", "exchange": "push_sum", "topology": "exp2"}},
    "hogwild": {"sync": "hogwild"},
    "local SGD": {"averaging": "local"},
    "local SGD over asp": {"averaging": "local", "sync": {"scheme": "ps", "consistency": "asp"}},
    "elastic averaging": {"averaging": {"method": "elastic", "period": 4}, "sync": {"scheme": "ps", "consistency": "asp"}},
    "block momentum": {"averaging": {"method": "block_momentum", "block_momentum": 0.5}},
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_four_workers_learn_digits(way):
    run = dlpar.launch(Experiment(workers=4, steps=200, **way)).wait(60)
    assert run.summary["accuracy"] >= 0.94
    assert len(run.steps) == 200 * 4
