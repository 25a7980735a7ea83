"""Figures of the bytes that ranks send for each layer."""

import pytest

from dlpar import Experiment, lab, spmd
from dlpar.lab import figures
from dlpar.lab.figures.layer_bytes import _count
from dlpar.lab.figures.layer_bytes import drawing as drawn_bytes
from dlpar.lab.figures.pieces import plain
from lab.figures.pipelines import MLP3, SMALL

SENT = {
    "mlp": Experiment(workers=4, model=MLP3, split="tensor", batch=10),
    "even": Experiment(workers=4, model={**MLP3, "depth": 2}, split="tensor", batch=10),
    "redundant": Experiment(workers=4, model=MLP3, batch=10, split={"kind": "tensor", "redundancy": 0.5}),
    "cnn": Experiment(workers=4, model="cnn", batch=10, split="tensor", dtype="float64"),
    "transformer": Experiment(workers=4, model=SMALL, data="docstrings", batch=6, split="tensor"),
    "spatial": Experiment(
        workers=4, model="cnn", batch=6, split={"kind": "spatial", "rows": 2, "columns": 2}
    ),
    "strips": Experiment(workers=4, model="cnn", batch=6, split="spatial"),
    "pipeline": Experiment(workers=4, model=MLP3, batch=32, split={"kind": "pipeline", "schedule": "zb-h1"}),
    "chunks": Experiment(
        workers=2, model=MLP3, batch=32, split={"kind": "pipeline", "schedule": "interleaved"}
    ),
    "hybrid": Experiment(
        workers=4, model=SMALL, data="docstrings", batch=8, split={"kind": "hybrid", "microbatches": 3}
    ),
}
"""Experiments whose layers send, in one job; one is on two ranks, and asked on two pairs."""


@pytest.fixture(scope="module")
def sent():
    def ask(comm, all_of):
        return [_count(comm.split(comm.rank // e.workers), e) for e in all_of]

    ranks = spmd(ask, [plain(e) for e in SENT.values()], world="simulated")
    return {
        name: [rank[number] for rank in ranks][: e.workers] for number, (name, e) in enumerate(SENT.items())
    }


@pytest.mark.parametrize("name", SENT)
def test_bytes_of_every_layer_are_those_of_the_closed_form(sent, name):
    figure = drawn_bytes(SENT[name], sent[name])
    table = figures.table(figure).set_index("layer")
    assert (
        list(table["both (bytes)"]) == list(table["closed form (bytes)"])
        and (table["both (bytes)"] > 0).all()
    )
    assert "every row is equal to the closed form, to the byte" in figures.caption(figure)


def test_bytes_of_a_run_are_counted_in_a_job_of_their_own():
    figure = lab.layer_bytes(Experiment(workers=2, model=SMALL, data="docstrings", batch=4, split="tensor"))
    block = figures.table(figure).set_index("layer").loc["block1"]
    assert block["both (bytes)"] == 2 * 8 * 4 * 32 * 16 // 2 * 4  # ranks · 8·b·s·h·(t-1)/t · bytes
    assert block["forward (bytes)"] == block["backward (bytes)"]
