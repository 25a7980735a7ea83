"""Ranks of a mesh form the groups that follow from its axes."""

from __future__ import annotations

from itertools import permutations

import pytest
from simulations import run

from dlpar.split.mesh import Mesh, groups


@pytest.mark.parametrize("order", tuple(permutations(("data", "pipeline", "tensor"))))
def test_groups_are_those_the_ranks_of_a_mesh_make(order):
    sizes = {axis: {"data": 3, "pipeline": 2, "tensor": 2}[axis] for axis in order}
    axes = [("data",), ("tensor",), ("pipeline", "tensor"), ("data", "pipeline")]

    def made(comm):
        mesh = Mesh(comm, sizes)
        communicators = [mesh.group(*each) for each in axes]
        return [one.broadcast(one.gather(comm.rank)) for one in communicators]

    for rank, found in enumerate(run(made, 12)):
        for each, own in zip(axes, found):
            assert own in groups(sizes, *each) and rank in own


def test_a_group_has_its_ranks_in_the_order_in_which_the_axes_are_named():
    sizes = {"columns": 2, "data": 1, "rows": 2}

    def made(comm) -> list[int]:
        group = Mesh(comm, sizes).group("rows", "columns")
        return group.broadcast(group.gather(comm.rank))

    assert run(made, 4) == [[0, 2, 1, 3]] * 4 and groups(sizes, "rows", "columns") == [[0, 2, 1, 3]]


@pytest.mark.parametrize(
    "call, sentence",
    [
        (
            lambda comm: Mesh(comm, {"data": 3}),
            "mesh: got data 3, allowed with 2 ranks is sizes that multiply to 2",
        ),
        (lambda comm: Mesh(comm, {"data": 2}).group("rows"), "mesh: got axis 'rows', allowed is one of data"),
    ],
)
def test_bad_axes_are_refused_in_one_sentence(call, sentence):
    with pytest.raises(ValueError) as error:
        run(call, 2)
    assert str(error.value) == sentence
