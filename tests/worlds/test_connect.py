"""The GPU each rank takes, and the carrier of tensors."""

from __future__ import annotations

import pytest

from dlpar.config.experiment import Cluster
from dlpar.worlds.connect import places


@pytest.mark.parametrize(
    ("visible", "taken", "carrier"),
    [
        ([["A", "B"], ["A", "B"]], [0, 1], "nccl"),
        ([["A", "B"], ["A", "B"], ["C", "D"], ["C", "D"]], [0, 1, 0, 1], "nccl"),  # two machines
        ([["A"], ["B"], ["C"]], [0, 0, 0], "nccl"),  # a launcher gave each rank one
        ([["A"]] * 3, [0, 0, 0], "mpi"),
        ([["A", "B"]] * 5, [0, 1, 0, 1, 0], "mpi"),
        ([["A"], ["A", "B"]], [0, 1], "nccl"),
        ([[], []], [], "mpi"),
        ([["A"], []], [], "mpi"),  # tensors of one job live in one kind of memory
    ],
)
def test_ranks_spread_over_the_gpus_they_see_and_nccl_carries_where_none_is_shared(visible, taken, carrier):
    assert places(Cluster(), visible) == (taken, carrier)


def test_a_carrier_that_is_asked_for_is_taken_where_it_can_work():
    assert places(Cluster(carrier="mpi"), [["A"], ["B"]]) == ([0, 0], "mpi")
    assert places(Cluster(carrier="nccl"), [["A"], ["B"]]) == ([0, 0], "nccl")
    assert places(Cluster(carrier="gloo"), [[], []]) == ([], "gloo")


@pytest.mark.parametrize(
    ("cluster", "visible", "sentence"),
    [
        (
            {"device": "cuda"},
            [["A"], []],
            "cluster.device: got 'cuda', allowed here is auto or cpu: rank 1 sees no CUDA device",
        ),
        (
            {"carrier": "nccl"},
            [[], []],
            "cluster.carrier: got 'nccl', allowed here is auto, mpi or gloo: rank 0 sees no CUDA device",
        ),
        (
            {"carrier": "nccl"},
            [["A"]] * 2,
            "cluster.carrier: got 'nccl', allowed here is auto or mpi: 2 ranks see 1 GPU, "
            "and NCCL refuses ranks that share one",
        ),
        (
            {"device": "cuda", "carrier": "nccl"},
            [["A", "B"]] * 3,
            "cluster.carrier: got 'nccl', allowed here is auto or "
            "mpi: 3 ranks see 2 GPUs, and NCCL refuses ranks that share one",
        ),
    ],
)
def test_what_cannot_be_had_is_refused_with_the_reason(cluster, visible, sentence):
    with pytest.raises(ValueError) as refused:
        places(Cluster(**cluster), visible)
    assert str(refused.value) == sentence
