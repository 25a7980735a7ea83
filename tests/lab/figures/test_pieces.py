"""Figures of a split: pieces of layers, bytes sent for each layer, differences of images, and the mesh."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from simulations import run

from dlpar import Experiment, lab, spmd
from dlpar.lab import figures
from dlpar.lab.figures.pieces import drawing as drawn_pieces
from dlpar.lab.figures.pieces import drawn_bytes, plain, probed
from dlpar.split.mesh import placed
from dlpar.worlds.platforms import nodes_of
from lab.figures.pipelines import MLP3, SMALL

HELD = {
    "data": Experiment(workers=4, model=MLP3),
    "zero 1": Experiment(workers=4, model=MLP3, split={"kind": "data", "zero": 1}),
    "zero 3": Experiment(workers=4, model=MLP3, split={"kind": "data", "zero": 3}),
    "tensor": Experiment(workers=4, model=MLP3, split={"kind": "tensor", "tensor": 2}),
    "spatial": Experiment(workers=4, model="cnn", split={"kind": "spatial", "rows": 2, "columns": 2}),
    "pipeline": Experiment(workers=4, model=MLP3, split="pipeline", batch=32),
    "hybrid": Experiment(
        workers=4, model=SMALL, data="docstrings", batch=8, split={"kind": "hybrid", "microbatches": 2}
    ),
}
"""Experiments on four ranks, all asked in one job."""


@pytest.fixture(scope="module")
def held():
    experiments = [plain(e, dtype="float64") for e in HELD.values()]
    # A group each: what ranks make once, they make once a group.
    ranks = spmd(
        lambda comm, all_of: [probed(comm.split(0), "holdings", e) for e in all_of],
        experiments,
        world="simulated",
    )
    return {name: [rank[number] for rank in ranks] for number, name in enumerate(HELD)}


def copies(ranks):
    """How many ranks hold each element of each parameter or image."""
    found = {name: np.zeros(shape, dtype=int) for name, shape in ranks[0].shapes.items()}
    for rank in ranks:
        for name, (top, bottom), (left, right) in rank.pieces:
            found[name][top:bottom, left:right] += 1
    return found


def test_every_element_is_held_as_often_as_the_split_says(held):
    once = {
        name: set(np.unique(np.concatenate([c.ravel() for c in copies(held[name]).values()])))
        for name in held
    }
    assert once["data"] == {4} and once["zero 1"] == once["zero 3"] == once["pipeline"] == {1}
    assert once["tensor"] == {2, 4}  # two replicas; every rank of one has the bias of a layer cut by inputs
    spatial = copies(held["spatial"])
    assert {int(n) for name, c in spatial.items() for n in c.ravel() if name.startswith("image.")} == {1}
    assert {int(n) for name, c in spatial.items() for n in c.ravel() if not name.startswith("image.")} == {4}
    assert (
        copies(held["hybrid"])["embed.token.weight"] == 2
    ).all()  # tied: on the first stage and on the last


def test_tensor_ranks_hold_rows_of_one_layer_and_columns_of_the_next(held):
    first = {piece.name: piece for piece in held["tensor"][0].pieces}
    assert first["linear1.weight"].rows == (0, 12) and first["linear1.weight"].columns == (0, 64)
    assert first["linear2.weight"].rows == (0, 24) and first["linear2.weight"].columns == (0, 12)
    assert held["tensor"][0].pieces == held["tensor"][2].pieces != held["tensor"][1].pieces


def test_halo_of_a_piece_reaches_one_pixel_into_its_neighbours(held):
    halos = {piece.name: piece for piece in held["spatial"][3].halos}
    assert halos["image.conv1"].rows == (3, 8) and halos["image.conv1"].columns == (3, 8)


@pytest.mark.parametrize("name", HELD)
def test_pieces_are_drawn_one_colour_for_equal_holdings(held, name):
    figure = drawn_pieces(HELD[name], held[name])
    groups = [trace for trace in figure.data if trace.showlegend is not False and trace.name != "not held"]
    assert len(groups) == {"data": 1, "tensor": 2}.get(name, 4)
    assert len({(trace.marker.color, trace.marker.pattern.shape) for trace in groups}) == len(groups)
    assert len(figures.table(figure)) == sum(len(rank.pieces) + len(rank.halos) for rank in held[name])
    assert figures.caption(figure).endswith(".") and "rank 0" in figure.layout.xaxis.ticktext[0]
    figure.to_json()


def test_pieces_of_an_experiment_with_servers_are_those_of_its_workers():
    elsewhere = {"world": "simulated", "platform": "p100-25gbe"}
    servers = {"scheme": "ps", "servers": 2}
    figure = lab.pieces(Experiment(workers=2, model=MLP3, split="tensor", sync=servers, cluster=elsewhere))
    assert len(figure.layout.xaxis.ticktext) == 2
    assert figures.caption(figure).startswith("Each rank holds ")


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
        return [probed(comm.split(comm.rank // e.workers), "sent", e) for e in all_of]

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
    assert "every row equals the closed form, to the byte" in figures.caption(figure)


def test_bytes_of_a_run_are_counted_in_a_job_of_their_own():
    figure = lab.layer_bytes(Experiment(workers=2, model=SMALL, data="docstrings", batch=4, split="tensor"))
    block = figures.table(figure).set_index("layer").loc["block1"]
    assert block["both (bytes)"] == 2 * 8 * 4 * 32 * 16 // 2 * 4  # ranks · 8·b·s·h·(t-1)/t · bytes
    assert block["forward (bytes)"] == block["backward (bytes)"]


def test_rows_without_a_closed_form_are_not_counted_as_unequal():
    cut = Experiment(workers=4, model={"depth": 3}, split={"kind": "hybrid", "stages": 2, "tensor": 2})
    figure = lab.layer_bytes(cut)
    assert figures.table(figure)["closed form (bytes)"].isna().any()
    assert "every row that has one equals the closed form" in figures.caption(figure)


RIGHT = torch.arange(1.0, 33.0, dtype=torch.float64).view(1, 2, 4, 4)


def test_rounding_is_not_drawn_and_of_channels_the_largest_difference_is():
    got = RIGHT.clone()
    got[0, 1, 2, 3] += 8  # a quarter of the largest number, 32
    got[0, 0, 2, 3] -= 4
    got[0, 0, 0, 0] += 1e-14
    figure = figures.differences([RIGHT, got], [RIGHT, RIGHT], ["whole", "in pieces"])
    first, second = (torch.tensor(trace.z, dtype=torch.float64) for trace in figure.data)
    assert first.isnan().all() and second[2, 3] == 0.25 and second.isnan().sum() == 15
    assert figures.table(figure)["pixels that differ"].tolist() == [0, 1]
    assert "whole: none of 16; in pieces: 1 of 16, by up to 25% of the largest number" in figures.caption(
        figure
    )


def test_each_image_has_its_title_above_its_middle():
    figure = figures.differences([RIGHT] * 3, [RIGHT] * 3, ["a", "b", "c"])
    for note, name in zip(figure.layout.annotations, ("xaxis", "xaxis2", "xaxis3"), strict=True):
        assert note.x == pytest.approx(sum(figure.layout[name].domain) / 2) and note.xanchor == "center"


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(
        ValueError, match=r"got: got shape \(1, 2, 4, 3\), allowed is the expected one, \(1, 2, 4, 4\)"
    ):
        figures.differences([RIGHT[..., :3]], [RIGHT], ["a"])
    with pytest.raises(ValueError, match="got: got 0, allowed is as many as expected"):
        figures.differences([], [], [])


# ---- the mesh ----------------------------------------------------------------------------


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


def test_blocks_of_a_stack_are_no_pieces_and_spares_are_in_no_group():
    stack = Experiment(workers=2, split="stacking")
    with pytest.raises(ValueError, match="split: got stacking, allowed is one that cuts one model"):
        lab.figures.pieces(stack)
    assert "outputs of earlier blocks" in lab.figures.mesh(stack).to_json()
    spare = Experiment(workers=2, deaths={"on_death": "spare", "spares": 1})
    assert lab.figures.caption(lab.figures.mesh(spare)).count("server") == 0


PAIR = {"scheme": "ps", "servers": 2, "replicas": 1}


@pytest.mark.parametrize(
    "fields",
    [
        {"precision": "bf16"},
        {"averaging": {"method": "local", "period": 2}, "steps": 4},
        {"workers": 2, "sync": PAIR, "deaths": {"on_death": "shrink", "die": {3: 0.5}}, "steps": 4},
    ],
    ids=["precision", "averaging", "deaths"],
)
def test_pieces_are_those_of_a_plain_step(fields):
    """What a step does beside its pass changes no piece, and one step has no averages."""
    assert lab.pieces(Experiment(batch=24, **fields)).data
    if "averaging" in fields:
        assert lab.layer_bytes(Experiment(batch=24, split={"kind": "tensor", "tensor": 2}, **fields)).data


def test_tiles_send_only_their_outputs():
    tiles = {"kind": "spatial", "rows": 2, "tiled": True}
    figure = lab.layer_bytes(
        Experiment(workers=2, model={"name": "cnn", "width": 8, "depth": 2}, batch=5, split=tiles)
    )
    assert "every row equals the closed form, to the byte" in figures.caption(figure)
