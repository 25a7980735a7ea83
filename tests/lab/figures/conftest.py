"""Runs of several schemes, and every figure of them."""

import pytest

from dlpar import lab
from lab.folders import finished

ASP = {"scheme": "ps", "consistency": "asp"}
SSP = {"scheme": "ps", "consistency": "ssp", "staleness": 3}
GOSSIP = {"scheme": "gossip", "topology": "exp2", "start": "random"}


@pytest.fixture(scope="package")
def runs():
    made = {"ring": "ring", "asp": ASP, "ssp": SSP}
    found = {name: finished(workers=4, steps=40, sync=sync) for name, sync in made.items()}
    return found | {"gossip": finished(workers=8, steps=40, sync=GOSSIP)}


@pytest.fixture(scope="package")
def every_figure(runs):
    asp = runs["asp"]
    return {
        "staleness": lab.staleness(asp),
        "lead": lab.lead(runs["ssp"]),
        "lanes": lab.lanes(asp),
        "waiting": lab.waiting(asp),
        "waitings": lab.waiting([asp, runs["ring"]]),
        "consensus": lab.consensus(runs["gossip"]),
        "graph": lab.show_graph(runs["gossip"]),
        "overlay": lab.overlay(list(runs.values()), x="bytes"),
        "time": lab.time_to_accuracy([asp, runs["ring"]], goal=0.9),
    }
