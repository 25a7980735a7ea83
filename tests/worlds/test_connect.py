"""The GPU each rank takes, and the carrier of tensors."""

from __future__ import annotations

import os

import pytest
from conftest import visible_gpus

import dlpar
from dlpar.config.experiment import Cluster
from dlpar.worlds.connect import places


@pytest.mark.parametrize(
    ("visible", "taken", "carrier"),
    [
        ([["A", "B"], ["A", "B"]], [0, 1], "nccl"),
        ([["A", "B"], ["A", "B"], ["C", "D"], ["C", "D"]], [0, 1, 0, 1], "nccl"),  # two machines
        ([["A"], ["B"], ["C"]], [0, 0, 0], "nccl"),  # a launcher gave each rank one
        ([["A"], ["A", "B"]], [0, 1], "nccl"),
        ([["A"]] * 3, [], "mpi"),
        ([["A", "B"]] * 5, [], "mpi"),
        ([[], []], [], "mpi"),
        ([["A"], []], [], "mpi"),  # tensors of one job live in one kind of memory
    ],
)
def test_gpus_are_taken_without_being_asked_for_only_where_each_rank_has_its_own(visible, taken, carrier):
    assert places(Cluster(), visible) == (taken, carrier)


def test_ranks_share_gpus_on_request_and_spread_over_those_they_see():
    assert places(Cluster(device="cuda"), [["A"]] * 3) == ([0, 0, 0], "mpi")
    assert places(Cluster(device="cuda"), [["A", "B"]] * 5) == ([0, 1, 0, 1, 0], "mpi")


def test_parameter_servers_take_no_gpu_because_they_compute_on_the_host():
    two_workers_and_two_servers = [["A", "B"]] * 4
    assert places(Cluster(), two_workers_and_two_servers, range(2, 4)) == ([0, 1, None, None], "mpi")
    assert places(Cluster(), [["A"], ["B"], []], [2]) == ([0, 0, None], "mpi")
    assert places(Cluster(carrier="nccl"), [["A", "B", "C"]] * 3, [2]) == ([0, 1, 2], "nccl")


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


def test_tests_see_gpus_only_if_they_ask_for_them(monkeypatch):
    monkeypatch.setenv("TESTS_MAY_SEE_GPUS", "3")
    seen = lambda comm: os.environ["CUDA_VISIBLE_DEVICES"]
    assert dlpar.spmd(seen, workers=1) == [""]
    with visible_gpus():
        assert dlpar.spmd(seen, workers=1) == ["3"]
    assert dlpar.spmd(seen, workers=1) == [""]


# ---- ranks that seem to have GPUs ------------------------------------------------------------


def pretend(fault: str = "", works: bool = True) -> None:
    """Give this rank two GPUs, as far as torch says; this torch computes on none."""
    from types import SimpleNamespace

    import torch

    from dlpar.worlds import connect

    def properties(number: int) -> SimpleNamespace:
        if fault:
            raise RuntimeError(f"{fault}\nand more")
        return SimpleNamespace(uuid=f"GPU-{number}")

    torch.cuda.device_count, torch.cuda.get_device_properties = lambda: 2, properties
    torch.cuda.set_device = lambda device: None
    if works:
        connect.trial = lambda number: ""


def joined(_, fault: str, works: bool, on_host: bool, **fields) -> tuple[str, str, str]:
    """Device and carrier of a rank of an experiment, and what it says of them."""
    import contextlib
    import io

    from dlpar.worlds.connect import join

    pretend(fault, works)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        comm = join(dlpar.Experiment(workers=2, **fields), on_host)
    return str(comm.device), comm.world.carrier, said.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "why"),
    [("", "Torch not compiled with CUDA enabled"), ("The driver is too old", "The driver is too old")],
    ids=["no kernel", "old driver"],
)
def test_a_gpu_that_cannot_compute_leaves_a_job_on_the_cpu_with_one_sentence(fault, why):
    first, second = dlpar.spmd(joined, fault, False, False, workers=2, timeout=20)
    said = f"cluster.device: auto is the CPU here, because the GPU of rank 0 says {why!r}\n"
    assert first == ("cpu", "mpi", said) and second == ("cpu", "mpi", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cluster", "sentence"),
    [
        ({"device": "cuda"}, r"cluster\.device: got 'cuda', allowed here is auto or cpu"),
        ({"carrier": "nccl"}, r"cluster\.carrier: got 'nccl', allowed here is auto, mpi or gloo"),
    ],
    ids=["cuda", "nccl"],
)
def test_a_gpu_that_was_asked_for_and_cannot_compute_ends_the_job_with_the_reason(cluster, sentence):
    def asked(_):
        return joined(_, "", False, False, cluster=cluster)

    said = f"{sentence}: the GPU of rank 0 says 'Torch not"
    with pytest.raises(dlpar.JobFailed, match=said):
        dlpar.spmd(asked, workers=2, timeout=20)


@pytest.mark.slow
def test_a_function_on_every_rank_computes_where_it_was_asked_to():
    def devices(_) -> list[str]:
        asked = {"device": "cuda", "carrier": "mpi"}, {}
        return [joined(_, "", True, True, cluster=cluster)[0] for cluster in asked]

    assert dlpar.spmd(devices, workers=2, timeout=20) == [["cuda:0", "cpu"], ["cuda:1", "cpu"]]


@pytest.mark.slow
def test_servers_of_a_job_on_gpus_are_on_the_host_and_a_job_that_survives_deaths_uses_mpi():
    def devices(_) -> list[tuple[str, str]]:
        two_and_one = {"workers": 1, "sync": {"scheme": "ps", "servers": 1}}
        surviving = {"deaths": {"on_death": "shrink"}}
        pretend()
        from dlpar.worlds.connect import join

        comms = [join(dlpar.Experiment(**{"workers": 2, **fields})) for fields in (two_and_one, surviving)]
        return [(str(comm.device), comm.world.carrier) for comm in comms]

    assert dlpar.spmd(devices, workers=2, timeout=20) == [
        [("cuda:0", "mpi"), ("cuda:0", "mpi")],
        [("cpu", "mpi"), ("cuda:1", "mpi")],
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "rounds"), [("full", False), ("bf16", False), ("tf32", True)])
def test_products_are_rounded_on_request_only(precision, rounds):
    def rounding(_, precision) -> tuple[bool, bool]:
        import torch

        from dlpar.worlds.connect import join

        join(dlpar.Experiment(workers=1, precision=precision))
        return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32

    assert dlpar.spmd(rounding, precision, workers=1) == [(rounds, rounds)]
