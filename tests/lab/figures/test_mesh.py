"""The figure of a mesh: the groups it draws are those ranks make, on the nodes they live on."""

from __future__ import annotations

import pytest
from simulations import run

from dlpar import Experiment
from dlpar.lab import figures
from dlpar.split.mesh import placed
from dlpar.worlds.platforms import nodes_of

SIMULATED = {"world": "simulated", "platform": "p100-25gbe"}  # four devices a node


def drawn(figure, axis):
    """Groups of ranks in the panel of an axis."""
    traces = (trace for trace in figure.data if trace.name.startswith(f"{axis} group"))
    return [[int(rank.strip("S")) for rank in trace.text] for trace in traces]


@pytest.mark.parametrize("order, inside", [("", "tensor"), ("tensor,pipeline,data", "data")])
def test_the_innermost_axes_are_inside_nodes(order, inside):
    split = {"kind": "hybrid", "stages": 4, "tensor": 2, "order": order}
    experiment = Experiment(workers=16, model={"depth": 4}, split=split, cluster=SIMULATED)
    figure = figures.mesh(experiment)
    assert all(
        len(drawn(figure, axis)) == number for axis, number in {"data": 8, "pipeline": 4, "tensor": 8}.items()
    )
    nodes = nodes_of(experiment)
    assert all(len({nodes[rank] for rank in group}) == 1 for group in drawn(figure, inside))
    said = figures.caption(figure).lower()
    assert (
        f"{inside}: 8 groups of 2, inside nodes" in said and "pipeline: 4 groups of 4, across nodes" in said
    )
    looks = [(t.name.split()[0], t.marker.color, t.marker.symbol) for t in figure.data]
    assert len(set(looks)) == len(looks), "groups of an axis are told apart"
    table = figures.table(figure)
    assert list(table["rank"]) == list(range(16)) and set(table.columns) >= {
        "node",
        "data",
        "tensor",
        "tensor group",
    }


def test_each_part_s_servers_are_with_the_workers_that_hold_it():
    sync = {"scheme": "ps", "servers": 4, "groups": 2}
    experiment = Experiment(workers=8, split={"kind": "tensor", "tensor": 2}, sync=sync)

    def made(comm):
        part = placed(experiment, comm).dp_group
        return part.broadcast(part.gather(comm.rank))

    found = run(made, experiment.ranks)
    assert sorted(map(tuple, drawn(figures.mesh(experiment), "data"))) == sorted(set(map(tuple, found)))


def test_more_workers_than_can_be_drawn_are_refused():
    with pytest.raises(ValueError, match="workers: got 128, allowed is at most 64"):
        figures.mesh(Experiment(workers=128, batch=256, cluster={"world": "simulated"}))
